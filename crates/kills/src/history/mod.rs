//! Threads that share a tree of names, and a checker that gets only their calls, the answers, and the tree after the kill.
//!
//! **Need.** Each of the other clients works in a part of its own and knows what it wrote. They do not test concurrent operations on one name. Here
//! five threads do operations at random in one folder: they make, link, rename (over names, with `RENAME_NOREPLACE` and
//! `RENAME_EXCHANGE`) and remove files, directories and symbolic links; write, append, truncate and read; set and get extended
//! attributes; list, `stat`, `fsync` and `fdatasync`. Each notes a moment before its call, and the answer and a moment after it. The server is
//! killed. Then the whole tree is read from the next server. The checker knows nothing else: no order, and not which file a name led to.
//!
//! **The promises** that are checked, and no others (docs/SEMANTICS.md, POSIX):
//! 1. *Order.* Until the kill the answers are as if each operation had taken effect at one moment between call and answer (linearizability), in
//!    a plain file system with Linux's errors. Some operations look more than once, and each look has its own moment: each byte that is read, each name
//!    that is listed or not, size and links of a `stat`. A write has one for each of its bytes, and the file grows step by step: Linux reads pages
//!    without the file's lock, and the kernel sends a FUSE server a write in parts where its first page is not all written.
//!    A read while a file is being truncated may show zeros: the kernel takes what the server has cut off for a hole.
//! 2. *Names.* After the kill the names, of all directories together, and what they lead to, are those of one moment in that order. It is not
//!    before the call of any `fsync`, of whatever file or directory, that was acknowledged. The order may be any that explains the answers.
//! 3. *Content.* Each byte of a file, its size (or one that it had while it grew), and each extended attribute is that of one moment not before
//!    the call of the last acknowledged `fsync` of that file. `fdatasync` promises the same of bytes and size, and a write through `O_DSYNC` of
//!    the bytes that it wrote and of a size that shows them; POSIX says no more of the two. Bytes that were never written are nowhere.
//! 4. An operation without an answer has happened or not; of a write, each byte by itself.
//! 5. The state after one kill is durable: the next history begins with it.
//!
//! **How it is judged** ([`check`]). By locality a history is linearizable if those of its objects are. The names ([`names`]: all directories,
//! and which file each open has led to) are one object; the content of each file ([`content`]) is another. So a search for the names comes first,
//! and for each way in which opens may have led to files one for each of these. The search ([`search`]) is just in time: an
//! operation takes effect only when an answer demands it. A state whose names are those found after the kill is noted, and struck off when
//! an `fsync` that was called after it is acknowledged. For content the search keeps the changes since each promise.
//!
//! **Why names have one component.** The kernel looks a longer path up step by step, so its result may not be the state of any one moment. Clients
//! open directories and work relative to them. `link` takes an open file by `/proc/self/fd`, since its two names are looked up one after the other.
//!
//! **Invariants.** The checker never looks at the clients' choices, the seed or the pool. An operation that met an error has changed nothing.
//! Errors of a dead file system (`ENOTCONN`, for one) count as no answer if they came after the kill, and else as an answer that nothing explains.
//!
//! **Limits.** Each concurrent write to a file doubles the possibilities, as long as nobody reads the file or syncs it. If there are more than
//! the search follows ([`search`]), the history is reported as not judged. More than one such history in ten is a failure.
//!
//! **Rejected.** *One search for everything*: unseen orders of writes would multiply over all files. *Inode numbers as identities across the
//! kill*: they are stable here, but POSIX does not promise it. *A prefix of a file's writes as its content*: the intent log reads data when it is
//! committed, so a write may be there beside half of a later one (as `crates/crash` has it).
//!
//! **The file.** A history that nothing explains is kept beside the images as `history.json`; `cargo xtask kills history --json FILE` judges
//! it again. It is a [`History`]: `seed`; `before` and `after`, the trees by paths, with `kind` (`file` with `inode`, `links`, `bytes` in
//! hexadecimal digits and `attributes`; `directory` with `links`; `symlink` with `target`); `killed_ns`; and `operations`, each with `client`,
//! `call` and what it was given ([`events::Call`]), `called_ns`, `answered_ns` and `answer` (`"unknown"`, `"done"`, `{"error": "ENOENT"}`, …).
//! Descriptors (`dir`, `file`, `handle`) are the places of their opens in `operations`, from 0 on; `null` is the folder that all share.

mod check;
mod content;
mod events;
mod names;
mod search;
#[cfg(test)]
mod tests;
mod workers;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use self::events::{History, Tree};
use self::workers::{Pace, Workers};
use crate::account::Compared;
use crate::client::Client;
use crate::numbers::Numbers;
use crate::place::Place;

/// The longest pause of a client between two operations, in microseconds, and the longest time until the kill, in milliseconds.
const PACES: [(u64, u64); 3] = [(0, 60), (400, 120), (4000, 400)];
const SYNCS: [u64; 3] = [100, 40, 10];
/// Of so many judged histories of a pool, one may have too many orders to be judged. One more is allowed.
const UNKNOWN_PER_JUDGED: u64 = 10;
const START_TIME_MAX: Duration = Duration::from_secs(10);

/// Threads in a folder that they share.
#[derive(Default)]
pub(super) struct Histories {
    tree: Tree,
    seed: u64,
    load_ms_max: u64,
    workers: Option<Workers>,
    killed_ns: u64,
    history: Option<History>,
    judged: u64,
    unknown: u64,
}

fn folder(place: &Place) -> PathBuf {
    place.mount().join("shared")
}

impl Client for Histories {
    fn load_ms_max(&self) -> u64 {
        self.load_ms_max
    }

    fn prepare(&mut self, place: &Place) -> Result<()> {
        fs::create_dir(folder(place))?;
        Ok(File::open(place.mount())?.sync_all()?)
    }

    fn start(&mut self, place: &Place, numbers: &mut Numbers) -> Result<()> {
        self.seed = numbers.below(u64::MAX);
        let (pause_us, load_ms_max) = PACES[numbers.below(PACES.len() as u64) as usize];
        self.load_ms_max = load_ms_max;
        let pace = Pace { pause_us, syncs: SYNCS[numbers.below(SYNCS.len() as u64) as usize] };
        self.workers = Some(Workers::start(&folder(place), self.seed, pace)?);
        Ok(())
    }

    fn wait_for_one(&mut self) -> Result<()> {
        let workers = self.workers.as_ref().context("workers")?;
        let deadline = Instant::now() + START_TIME_MAX;
        while workers.answered() == 0 && !workers.has_ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    fn ended(&mut self) -> Result<Option<String>> {
        let workers = self.workers.as_ref().context("workers")?;
        self.killed_ns = workers.now_ns();
        Ok(workers.has_ended().then(|| "the file system is gone".to_owned()))
    }

    fn end(&mut self) -> Result<()> {
        let operations = self.workers.take().context("workers")?.finish()?;
        let before = std::mem::take(&mut self.tree);
        self.history = Some(History { seed: self.seed, before, operations, killed_ns: self.killed_ns, after: None });
        Ok(())
    }

    fn check(&mut self, place: &Place, _: bool) -> Result<Compared> {
        let mut history = self.history.take().context("a history")?;
        let kept = place.dir.path().join("history.json");
        let keep = |history: &History| -> Result<()> { Ok(fs::write(&kept, serde_json::to_vec(history)?)?) };
        let tree = match workers::read_tree(&folder(place)) {
            Ok(tree) => tree,
            Err(error) => {
                keep(&history)?;
                return Err(error);
            }
        };
        history.after = Some(tree);
        let judged = match check::judge(&history) {
            Ok(judged) => judged,
            Err(failure) if failure.is_unknown && self.unknown * UNKNOWN_PER_JUDGED <= self.judged => {
                self.unknown += 1;
                println!("not judged: {}", failure.what);
                self.tree = history.after.take().unwrap_or_default();
                return Ok(Compared::default());
            }
            Err(failure) => {
                keep(&history)?;
                return Err(failure).with_context(|| format!("a history of seed {} in {}", self.seed, kept.display()));
            }
        };
        self.judged += 1;
        self.tree = history.after.take().unwrap_or_default();
        Ok(Compared {
            acknowledged: judged.answered,
            checked: judged.names.1 + judged.syncs,
            unacknowledged: judged.unanswered,
        })
    }
}

/// Judges histories in files.
pub(super) fn judge_files<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    for path in paths {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let history: History =
            serde_json::from_slice(&text).with_context(|| format!("{} is no history", path.display()))?;
        let judged = check::judge(&history).with_context(|| format!("{}, of seed {}", path.display(), history.seed))?;
        println!("{}: explained: {judged:?}", path.display());
    }
    Ok(())
}
