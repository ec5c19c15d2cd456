//! `zfs diff`: what changed in a file system from a snapshot to a later one, or to now.
//!
//! The objects that can have changed are those in blocks of dnodes born after the earlier snapshot: that is all that is
//! read of the two, but what is needed to name things. The later side may be the file system itself: it is read as of the
//! txg that the pool is opened at, where OpenZFS takes a snapshot for the moment.

use anyhow::{Result, bail};
use cenote_dmu::{DmuError, DmuErrorKind, Object, Zap};
use cenote_dsl::property::Source;
use cenote_dsl::{Dataset, Dsl};
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{SLOT_BYTES, dnodes_in_block};
use cenote_format::ids::{BlockId, ObjectId, Txg};
use cenote_format::zap::int_key_name;
use cenote_format::zpl::{MASTER_NODE, master_node};
use cenote_spa::View;
use cenote_zpl::{FileKind, FileSystem, PathFinder, Time, ZplError};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files::{self, pool_of};
use crate::outcome::{Outcome, usage};
use crate::output::Colour;

/// Snapshots between the two at most, as a bound on the walk.
const CHAIN_MAX: usize = 1 << 24;

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
    if !is_before(pool.dsl(), &from, &to).await? {
        bail!("Unable to obtain diffs: \n   Not an earlier snapshot from the same fs");
    }
    let mut diff = Diff {
        context,
        prefix: prefix(&pool, &to).await?,
        from: Side::open(&pool, &from).await?,
        to: Side::open(&pool, &to).await?,
        args: &args,
        failed: false,
    };
    diff.walk(from.phys.creation_txg).await?;
    Ok(Outcome::unless(diff.failed))
}

/// Whether `from` is among the snapshots that came before `to`, or before the snapshot that it is a clone of.
async fn is_before(dsl: &Dsl, from: &Dataset, to: &Dataset) -> Result<bool> {
    let mut at = to.clone();
    for _ in 0..CHAIN_MAX {
        let previous = at.phys.prev_snapshot;
        if previous == from.object {
            return Ok(true);
        }
        // Births go up along the chain, so that a cycle ends here too.
        if previous.0 == 0 || at.phys.prev_snapshot_txg < from.phys.creation_txg {
            return Ok(false);
        }
        at = dsl.dataset_object(previous, at.dir.clone(), None).await?;
    }
    bail!("'{}': its snapshots form a cycle", to.name())
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

/// What is said of an object.
#[derive(Clone, Copy)]
struct Stats {
    kind: FileKind,
    links: u64,
    generation: u64,
    changed: Time,
}

/// An object on one side. Its attributes may be known where its path is not.
struct Seen {
    stats: Option<Stats>,
    path: Path,
}

enum Path {
    Found(Vec<u8>),
    /// There is no such object, or no name for it in its last parent.
    None,
    /// The object is no file.
    NoFile,
    Failed(ZplError),
}

/// One of the two states.
struct Side {
    name: String,
    filesystem: FileSystem,
    paths: PathFinder,
    shares: Option<ObjectId>,
    unlinked: Option<Zap>,
}

impl Side {
    async fn open(pool: &View, dataset: &Dataset) -> Result<Self> {
        let filesystem = files::filesystem(pool, dataset).await?;
        let objset = filesystem.objset().clone();
        let master = Zap::open(objset.object(MASTER_NODE).await?).await?;
        let shares = master.find_u64(master_node::SHARES_DIR).await?.map(ObjectId);
        let unlinked = match filesystem.unlinked_set() {
            Some(object) => Some(Zap::open(objset.object(object).await?).await?),
            None => None,
        };
        Ok(Self { name: dataset.name(), paths: PathFinder::new(&filesystem), filesystem, shares, unlinked })
    }

    async fn look(&mut self, object: ObjectId) -> Seen {
        let nothing = |path| Seen { stats: None, path };
        let dnode = match self.filesystem.dnode(object).await {
            Ok(dnode) => dnode,
            Err(error) => return nothing(path_of_error(error)),
        };
        if !matches!(dnode.phys().bonus_type, DmuType::SA | DmuType::ZNODE) {
            return nothing(Path::NoFile);
        }
        let attributes = match self.filesystem.attributes_of(&dnode).await {
            Ok(attributes) => attributes,
            Err(error) => return nothing(Path::Failed(error)),
        };
        let stats = Stats {
            kind: attributes.kind,
            links: attributes.link_count,
            generation: attributes.generation,
            changed: attributes.changed,
        };
        let path = match self.is_unlinked(object).await {
            Ok(true) => Path::Found(b"(on_delete_queue)".to_vec()),
            Ok(false) => match self.paths.path(object).await {
                Ok(path) => Path::Found(path),
                Err(error) => path_of_error(error),
            },
            Err(error) => Path::Failed(error.into()),
        };
        Seen { stats: Some(stats), path }
    }

    async fn is_unlinked(&self, object: ObjectId) -> Result<bool, DmuError> {
        match &self.unlinked {
            Some(queue) => Ok(queue.lookup(int_key_name(object.0).as_bytes()).await?.is_some()),
            None => Ok(false),
        }
    }
}

fn path_of_error(error: ZplError) -> Path {
    match error {
        ZplError::NoEntry => Path::None,
        ZplError::Dmu(error) if matches!(error.kind, DmuErrorKind::NoSuchObject) => Path::None,
        other => Path::Failed(other),
    }
}

struct Diff<'a> {
    context: &'a Context,
    args: &'a Args,
    prefix: String,
    from: Side,
    to: Side,
    failed: bool,
}

impl Diff<'_> {
    fn fail(&mut self, what: impl std::fmt::Display) {
        self.failed = true;
        self.context.err(what.to_string());
    }

    /// Goes through the blocks of dnodes of the later side that are younger than `since`, in order, holes too: what the
    /// earlier side has there is gone.
    async fn walk(&mut self, since: Txg) -> Result<()> {
        let meta = self.to.filesystem.objset().meta_dnode();
        let phys = meta.phys();
        let shift = phys.blkptrs_per_indirect_shift();
        let slots = meta.block_bytes() / SLOT_BYTES as u64;
        let top = phys.levels.saturating_sub(1);
        let mut left: Vec<(Blkptr, u8, u64)> =
            phys.blkptrs().iter().enumerate().rev().map(|(index, bp)| (*bp, top, index as u64)).collect();
        while let Some((bp, level, block)) = left.pop() {
            if bp.is_hole() {
                // Holes from before they had births say nothing of their age: the earlier side is asked in any case.
                let span = slots.saturating_mul(1_u64.checked_shl(u32::from(level) * shift).unwrap_or(u64::MAX));
                let first = block.saturating_mul(span);
                self.freed(first, first.saturating_add(span)).await?;
                continue;
            }
            if bp.birth() <= since {
                continue;
            }
            if level == 0 {
                self.dnodes(&meta, BlockId(block), slots).await?;
                continue;
            }
            let context = meta.context(level, BlockId(block));
            let is_sound = bp.level() == level;
            match meta.dmu().read(&bp, context).await {
                Ok(bytes) if is_sound => {
                    let base = block.saturating_mul(bytes.len() as u64 / Blkptr::SIZE as u64);
                    let below: Vec<_> = Blkptr::array(&bytes, bp.byte_order())
                        .enumerate()
                        .map(|(index, bp)| (bp, level - 1, base.saturating_add(index as u64)))
                        .collect();
                    left.extend(below.into_iter().rev());
                }
                Ok(_) => self.fail(format_args!(
                    "{}: a pointer of level {} at level {level}",
                    self.to.name.clone(),
                    bp.level()
                )),
                Err(error) => {
                    let name = self.to.name.clone();
                    self.fail(format_args!("{name}: {error}; changes of the objects below are not shown"));
                }
            }
        }
        Ok(())
    }

    async fn dnodes(&mut self, meta: &Object, block: BlockId, slots: u64) -> Result<()> {
        let first = block.0.saturating_mul(slots);
        let (bytes, order) = match meta.block(block).await {
            Ok(Some(found)) => found,
            Ok(None) => return self.freed(first, first.saturating_add(slots)).await,
            Err(error) => {
                let name = self.to.name.clone();
                self.fail(format_args!("{name}: {error}; changes of its objects are not shown"));
                return Ok(());
            }
        };
        let mut at = 0;
        for (slot, dnode) in dnodes_in_block(&bytes, order) {
            let slot = slot as u64;
            let start = first.saturating_add(slot);
            self.freed(first.saturating_add(at), start).await?;
            let object = ObjectId(start);
            match dnode {
                Ok(view) => {
                    at = slot + view.slots() as u64;
                    if object.0 != 0 {
                        self.used(object).await?;
                    }
                }
                Err(error) => {
                    at = slot + 1;
                    let name = self.to.name.clone();
                    self.fail(format_args!("{name} object {object}: {error}"));
                }
            }
        }
        self.freed(first.saturating_add(at), first.saturating_add(slots)).await
    }

    /// What the earlier side has at `start..end` is gone.
    async fn freed(&mut self, start: u64, end: u64) -> Result<()> {
        let objset = self.from.filesystem.objset().clone();
        let mut next = ObjectId(start.max(1));
        while next.0 < end {
            let batch = match objset.next_objects(next).await {
                Ok(Some(batch)) => batch,
                Ok(None) => break,
                Err(error) => {
                    let name = self.from.name.clone();
                    self.fail(format_args!("{name}: {error}; what was removed there is not shown"));
                    break;
                }
            };
            for (object, _) in batch.objects.iter().filter(|(object, _)| object.0 < end) {
                if Some(*object) == self.from.shares {
                    continue;
                }
                let seen = self.from.look(*object).await;
                match (seen.path, seen.stats) {
                    (Path::Found(path), Some(stats)) if path != b"(on_delete_queue)" => {
                        self.print('-', &path, &stats)?;
                    }
                    (Path::Failed(error), _) => self.unknown(*object, false, &error),
                    _ => {}
                }
            }
            next = batch.next;
        }
        Ok(())
    }

    fn unknown(&mut self, object: ObjectId, is_to: bool, error: &ZplError) {
        let name = if is_to { &self.to.name } else { &self.from.name }.clone();
        self.fail(format_args!("Unable to determine path or stats for object {object} in {name}: {error}"));
    }

    /// An object that the later side has.
    async fn used(&mut self, object: ObjectId) -> Result<()> {
        if Some(object) == self.to.shares {
            return Ok(());
        }
        let (from, to) = (self.from.look(object).await, self.to.look(object).await);
        let mut is_told = false;
        for (side, is_to) in [(&from, false), (&to, true)] {
            if let Path::Failed(error) = &side.path
                && !is_told
            {
                self.unknown(object, is_to, error);
                is_told = true;
            }
        }
        let is_dir = |side: &Seen| side.stats.is_some_and(|stats| stats.kind == FileKind::Directory);
        let links = |side: &Seen| side.stats.map_or(0, |stats| stats.links);
        let change = if is_dir(&from) || is_dir(&to) || links(&from) == 0 || links(&to) == 0 {
            0
        } else {
            i128::from(links(&to)) - i128::from(links(&from))
        };
        match (from, to) {
            (Seen { path: Path::Found(from), stats: Some(old) }, Seen { path: Path::Found(to), stats: Some(new) }) => {
                if old.generation != new.generation || old.kind != new.kind {
                    self.print('-', &from, &old)?;
                    return self.print('+', &to, &new);
                }
                if old.changed == new.changed {
                    return Ok(());
                }
                match change {
                    0 if from == to => self.print('M', &from, &new),
                    0 => self.print_rename(&from, &to, &new),
                    _ => self.print_links(change, if change > 0 { &from } else { &to }, &new),
                }
            }
            (_, Seen { path: Path::Found(path), stats: Some(stats) }) => match change {
                0 => self.print('+', &path, &stats),
                _ => self.print_links(change, &path, &stats),
            },
            (Seen { path: Path::Found(path), stats: Some(stats) }, _) => match change {
                0 => self.print('-', &path, &stats),
                _ => self.print_links(change, &path, &stats),
            },
            _ => Ok(()),
        }
    }

    fn print(&self, kind: char, path: &[u8], stats: &Stats) -> Result<()> {
        let colour = match kind {
            '+' => Colour::Green,
            '-' => Colour::Red,
            _ => Colour::Yellow,
        };
        let mut line = self.lead(kind, stats);
        line.extend(self.shown(path));
        self.line(colour, line)
    }

    fn print_rename(&self, from: &[u8], to: &[u8], stats: &Stats) -> Result<()> {
        let mut line = self.lead('R', stats);
        line.extend(self.shown(from));
        line.extend_from_slice(if self.args.scripted { b"\t" } else { b" -> " });
        line.extend(self.shown(to));
        self.line(Colour::Blue, line)
    }

    fn print_links(&self, change: i128, path: &[u8], stats: &Stats) -> Result<()> {
        let mut line = self.lead('M', stats);
        line.extend(self.shown(path));
        line.extend_from_slice(format!("\t({change:+})").as_bytes());
        self.line(Colour::Yellow, line)
    }

    fn lead(&self, kind: char, stats: &Stats) -> Vec<u8> {
        let mut line = String::new();
        if self.args.times {
            line.push_str(&format!("{:>10}.{:09}\t", stats.changed.seconds, stats.changed.nanoseconds));
        }
        line.push(kind);
        line.push('\t');
        if self.args.classify {
            line.push(match stats.kind {
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

    fn line(&self, colour: Colour, line: Vec<u8>) -> Result<()> {
        let mut line = match String::from_utf8(line) {
            Ok(text) => self.context.output().paint(colour, &text).into_bytes(),
            Err(error) => error.into_bytes(),
        };
        line.push(b'\n');
        self.context.out(line)
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
