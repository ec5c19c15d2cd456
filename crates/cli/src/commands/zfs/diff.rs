//! `zfs diff`: what changed in a file system from a snapshot to a later one, or to now.
//!
//! The later side may be the file system itself: it is read as of the txg that the pool is opened at, where OpenZFS takes a snapshot for
//! the moment.

use anyhow::{Result, bail};
use cenote_dsl::Dataset;
use cenote_dsl::property::Source;
use cenote_spa::View;
use cenote_zpl::{Change, Changed, Differences, FileKind, diff};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files::{filesystem, pool_of};
use crate::outcome::{Outcome, usage};
use crate::output::Colour;

/// Show what changed between a snapshot and a later one of the same file system (or of a clone), or its present state.
///
/// One line for each file: M changed, + added, - removed, R renamed; a changed number of links is in parentheses.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// What each is: F file, / directory, @ symbolic link, | pipe, = socket, B block device, C character device.
    #[arg(short = 'F')]
    classify: bool,
    /// Tabs in place of arrows.
    #[arg(short = 'H')]
    scripted: bool,
    /// The time of each change in front.
    #[arg(short = 't')]
    times: bool,
    /// Names as they are, nothing escaped.
    #[arg(short = 'h')]
    raw_names: bool,
    /// This text.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The earlier snapshot; `@NAME` means the other's file system.
    from: String,
    /// The later snapshot, or the file system; `@NAME` means the other's.
    to: Option<String>,
}

/// The two full names.
fn names(from: &str, to: Option<&str>) -> Result<(String, String)> {
    let bad =
        || usage("Unable to determine which snapshots to compare: give a snapshot, then a later one or a file system");
    let Some((from_dir, from_tail)) = from.split_once('@') else { return Err(bad()) };
    let to = to.unwrap_or(from_dir);
    let (to_dir, to_tail) = to.split_once('@').map_or((to, None), |(dir, tail)| (dir, Some(tail)));
    let is_empty = from_tail.is_empty() || to_tail == Some("") || from_dir.is_empty() && to_dir.is_empty();
    if is_empty {
        return Err(bad());
    }
    let from = format!("{}@{from_tail}", if from_dir.is_empty() { to_dir } else { from_dir });
    let to_dir = if to_dir.is_empty() { from_dir } else { to_dir };
    Ok((from, to_tail.map_or_else(|| to_dir.to_owned(), |tail| format!("{to_dir}@{tail}"))))
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (from, to) = names(&args.from, args.to.as_deref())?;
    let pool = context.open_pool(pool_of(&to)).await?;
    let (from, to) = (pool.dsl().dataset(&from).await?, pool.dsl().dataset(&to).await?);
    if !pool.dsl().is_before(&from, &to).await? {
        bail!("Unable to obtain diffs: \n   Not an earlier snapshot from the same fs");
    }
    let mut printer = Printer { context, prefix: prefix(&pool, &to).await?, args: &args, failed: false };
    let (earlier, later) = (filesystem(&pool, &from).await?, filesystem(&pool, &to).await?);
    diff((from.name(), &earlier), (to.name(), &later), from.phys.creation_txg, &mut printer).await?;
    Ok(Outcome::unless(printer.failed))
}

/// What stands before each path: where the file system would be mounted; nothing where it has no such place.
async fn prefix(pool: &View, dataset: &Dataset) -> Result<String> {
    let dir = &dataset.dir;
    let property = pool.dsl().property(dir, "mountpoint", true).await?;
    let mountpoint = match property.as_ref().map(|property| (property.value.text(), &property.source)) {
        None => format!("/{}", dir.name),
        Some((Some(path), _)) if !path.starts_with('/') => return Ok(String::new()),
        Some((Some(path), Source::Inherited(from))) => {
            let below = dir.name.strip_prefix(from.as_str()).unwrap_or_default();
            format!("{}{below}", path.trim_end_matches('/'))
        }
        Some((Some(path), _)) => path.to_owned(),
        Some((None, _)) => return Ok(String::new()),
    };
    let root = pool.altroot().unwrap_or_default().trim_end_matches('/');
    Ok(format!("{root}{}", mountpoint.trim_end_matches('/')))
}

/// Prints what is found, a line each.
struct Printer<'a> {
    context: &'a Context,
    args: &'a Args,
    prefix: String,
    failed: bool,
}

impl Differences for Printer<'_> {
    type Error = anyhow::Error;

    fn changed(&mut self, changed: &Changed<'_>) -> Result<()> {
        let (kind, colour) = match changed.change {
            Change::Modified | Change::Links(_) => ('M', Colour::Yellow),
            Change::Added => ('+', Colour::Green),
            Change::Removed => ('-', Colour::Red),
            Change::Renamed(_) => ('R', Colour::Blue),
        };
        let mut line = self.lead(kind, changed);
        line.extend(self.shown(changed.path));
        match changed.change {
            Change::Renamed(to) => {
                line.extend_from_slice(if self.args.scripted { b"\t" } else { b" -> " });
                line.extend(self.shown(to));
            }
            Change::Links(change) => line.extend_from_slice(format!("\t({change:+})").as_bytes()),
            _ => {}
        }
        let mut line = match String::from_utf8(line) {
            Ok(text) => self.context.output().paint(colour, &text).into_bytes(),
            Err(error) => error.into_bytes(),
        };
        line.push(b'\n');
        self.context.out(line)
    }

    fn unreadable(&mut self, what: String) {
        self.failed = true;
        self.context.err(what);
    }
}

impl Printer<'_> {
    fn lead(&self, kind: char, changed: &Changed<'_>) -> Vec<u8> {
        let mut line = String::new();
        if self.args.times {
            line.push_str(&format!("{:>10}.{:09}\t", changed.at.seconds, changed.at.nanoseconds));
        }
        line.push(kind);
        line.push('\t');
        if self.args.classify {
            line.push(match changed.kind {
                FileKind::File => 'F',
                FileKind::Directory => '/',
                FileKind::Symlink => '@',
                FileKind::Pipe => '|',
                FileKind::Socket => '=',
                FileKind::CharDevice => 'C',
                FileKind::BlockDevice => 'B',
            });
            line.push('\t');
        }
        line.into_bytes()
    }

    fn shown(&self, path: &[u8]) -> Vec<u8> {
        let full = [self.prefix.as_bytes(), path].concat();
        if self.args.raw_names { full } else { escaped(&full) }
    }
}

/// Blanks, backslashes and what is not printable ASCII as a backslash and four octal digits.
fn escaped(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len());
    for byte in bytes {
        if *byte > b' ' && *byte != b'\\' && *byte < 0x7f {
            text.push(*byte);
        } else {
            text.extend_from_slice(format!("\\{byte:04o}").as_bytes());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_be_left_to_the_other() {
        let pair = |from, to| names(from, to).map_err(|error| error.to_string());
        let both = |from: &str, to: &str| Ok((from.to_owned(), to.to_owned()));
        assert_eq!(pair("a/b@1", None), both("a/b@1", "a/b"));
        assert_eq!(pair("a@1", Some("a@2")), both("a@1", "a@2"));
        assert_eq!(pair("a@1", Some("@2")), both("a@1", "a@2"));
        assert_eq!(pair("@1", Some("a@2")), both("a@1", "a@2"));
        assert_eq!(pair("@1", Some("a")), both("a@1", "a"));
        assert_eq!(pair("a@1", Some("clone@2")), both("a@1", "clone@2"));
        for (from, to) in [("a", None), ("@1", None), ("@1", Some("@2")), ("a@", Some("a@2")), ("a@1", Some("a@"))] {
            assert!(names(from, to).is_err(), "{from} {to:?}");
        }
    }

    #[test]
    fn names_are_escaped_as_openzfs_does() {
        assert_eq!(escaped(b"/a b\\\xff~\n"), b"/a\\0040b\\0134\\0377~\\0012");
    }
}
