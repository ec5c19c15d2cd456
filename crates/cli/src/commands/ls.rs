//! `cenote ls`: what is in a directory of a dataset.

use std::ffi::OsString;

use cenote_image::ObjectSet;
use cenote_image::files::{Attributes, FileKind, FileSystem, ObjectId};
use cenote_image::lines;
use cenote_image::walk::{Node, Visit, Walk, Wants};

use crate::files::{self, bytes_of, follow, shown};
use crate::output::Colour;
use crate::prelude::*;

/// List files and directories of a dataset.
///
/// The paths are inside the dataset; without one its root is listed. Owners are numbers: the names that this system has
/// for them may not be those of the system that wrote them.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    /// Mode, links, owner, group, size and time of each.
    #[arg(short = 'l')]
    long: bool,
    /// Also names that begin with a dot.
    #[arg(short = 'a', visible_short_alias = 'A')]
    all: bool,
    /// Directories below, too.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Directories themselves, not what is in them.
    #[arg(long)]
    directory: bool,
    /// Accepted out of habit: owners are numbers, always.
    #[arg(short = 'n')]
    numeric: bool,
    /// Object numbers.
    #[arg(short = 'i', long)]
    inode: bool,
    /// One JSON array with an object for each entry, in the words of `cenote manifest`.
    #[arg(short = 'j', long)]
    json: bool,
    /// File system or snapshot.
    dataset: String,
    /// Paths inside it.
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let context = context.with(&args.search);
    let (_, filesystem) = files::open(&context, &args.dataset).await?;
    let paths = if args.paths.is_empty() { vec![OsString::new()] } else { args.paths.clone() };
    let mut listing = Listing { context: &context, filesystem: &filesystem, args: &args, failed: false, count: 0 };
    for path in &paths {
        let path = bytes_of(path);
        match follow(listing.filesystem, &path, !args.long).await {
            Ok(attributes) => listing.list(&path, attributes, paths.len() > 1).await?,
            Err(error) => listing.fail(&path, &causes(&error.into())),
        }
    }
    let failed = listing.failed;
    if args.json {
        context.out(if listing.count == 0 { "[]\n" } else { "\n]\n" })?;
    }
    Ok(Outcome::unless(failed))
}

struct Listing<'a> {
    context: &'a Context,
    filesystem: &'a FileSystem,
    args: &'a Args,
    failed: bool,
    /// Entries printed.
    count: u64,
}

impl Listing<'_> {
    fn fail(&mut self, path: &[u8], error: &str) {
        self.failed = true;
        let path = if path.is_empty() { b"/" } else { path };
        let path = shown(path, true);
        if error.starts_with(&path) {
            self.context.err(error);
        } else {
            self.context.err(format!("{path}: {error}"));
        }
    }

    /// Lists one path of the command line.
    async fn list(&mut self, path: &[u8], attributes: Attributes, is_one_of_many: bool) -> Result<()> {
        let is_itself = self.args.directory || attributes.kind != FileKind::Directory;
        let has_headings = !is_itself && !self.args.json && (self.args.recursive || is_one_of_many);
        // A directory's entries stand together, before those of the directories in it.
        let mut seen = ObjectSet::default();
        let mut left = vec![(path.to_vec(), attributes.object)];
        while let Some((path, directory)) = left.pop() {
            if !seen.insert(directory.0) {
                self.fail(&path, "a directory that is linked twice, or holds itself");
                continue;
            }
            if has_headings {
                self.heading(&path)?;
            }
            let below = self.list_one(&path, directory, is_itself).await?;
            if self.args.recursive && !is_itself {
                left.extend(below.into_iter().rev());
            }
        }
        Ok(())
    }

    /// Prints the entries of one directory, or the one thing `is_itself`; the directories among the entries.
    async fn list_one(&mut self, path: &[u8], object: ObjectId, is_itself: bool) -> Result<Vec<(Vec<u8>, ObjectId)>> {
        let mut walk = Walk::new(self.context.handle(), self.filesystem, object, Wants::default());
        let mut directories = Vec::new();
        while let Some(visit) = walk.next().await {
            let node = match visit {
                Visit::Leave => continue,
                Visit::Problem { path: below, error } => {
                    self.fail(&join(path, &below), &error.to_string());
                    continue;
                }
                Visit::Node(node) => node,
            };
            if node.depth == 0 {
                if is_itself {
                    walk.prune();
                    self.print(&node, path)?;
                }
                continue;
            }
            if !self.args.all && node.name().starts_with(b".") {
                continue;
            }
            let full = join(path, &node.path);
            self.print(&node, if self.args.json { &full } else { &node.path })?;
            if node.is_directory() {
                directories.push((full, node.attributes.object));
            }
        }
        Ok(directories)
    }

    fn heading(&mut self, path: &[u8]) -> Result<()> {
        let gap = if self.count > 0 { "\n" } else { "" };
        self.count += 1;
        let name = shown(path, self.context.output().is_terminal());
        self.context.out(format!("{gap}/{}:\n", name.trim_start_matches('/')))
    }

    fn print(&mut self, node: &Node, name: &[u8]) -> Result<()> {
        self.count += 1;
        if self.args.json {
            let lead = if self.count == 1 { "[\n  " } else { ",\n  " };
            return self.context.out(format!("{lead}{}", lines::json(node, name)));
        }
        let is_terminal = self.context.output().is_terminal();
        let mut line = String::new();
        if self.args.inode {
            line.push_str(&format!("{:>8} ", node.attributes.object.0));
        }
        if self.args.long {
            line.push_str(&lines::long(&node.attributes, |seconds| crate::time::signed(seconds, "%Y-%m-%d %H:%M:%S")));
            line.push(' ');
        }
        self.context.out(&line)?;
        let colour = match node.attributes.kind {
            FileKind::Directory => Some(Colour::Blue),
            _ if node.attributes.permissions & 0o111 != 0 && node.attributes.kind == FileKind::File => {
                Some(Colour::Green)
            }
            _ => None,
        };
        if is_terminal {
            let name = shown(name, true);
            let name = colour.map_or(name.clone(), |colour| self.context.output().paint(colour, &name));
            self.context.out(name)?;
        } else {
            self.context.out(name)?;
        }
        if let Some(target) = node.target.as_ref().filter(|_| self.args.long) {
            self.context.out(" -> ")?;
            if is_terminal {
                self.context.out(shown(target, true))?;
            } else {
                self.context.out(target)?;
            }
        }
        self.context.out("\n")
    }
}

fn join(path: &[u8], below: &[u8]) -> Vec<u8> {
    match (path.is_empty(), below.is_empty()) {
        (true, _) => below.to_vec(),
        (_, true) => path.to_vec(),
        _ => [path, b"/", below].concat(),
    }
}
