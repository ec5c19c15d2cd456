//! Copying a tree out of a dataset.
//!
//! # Theory
//!
//! **Need.** Files are copied faithfully: bytes, holes, times, owners, modes, extended attributes, POSIX access control lists, links of either
//! kind, special files; as fast as the disks allow; onto a system that may refuse some of that, and from a pool that may be damaged or hostile.
//!
//! **Life of a copy.** One walk makes directories, links and special files itself, in order. Each regular file becomes a task: it reads the
//! content with a window of reads in flight, and writes it in pieces of a megabyte, where blocking holds up no worker. A file's time of last
//! change is set after everything else, so a file with the right size and time is complete: `--resume` relies on this. A directory gets its
//! attributes when the last entry in it is done: the walk and each task hold a counted reference to it, and the last one to release it finishes
//! it and releases its parent.
//!
//! **Invariants.**
//! 1. Files are created only by a plain name in a directory that is held open, no link is followed, and changes are made only through a
//!    descriptor of a file that was created (`target`), even if others write in the target meanwhile.
//! 2. The bytes of files in flight, including extended attributes, remain below [`IN_FLIGHT_BYTES`], for any number and size of files.
//! 3. Names of files with several links are remembered until the last of the links is made; nothing else grows with the number of files.
//!
//! **After an interruption.** Complete files, and files whose time shows that they are incomplete; directories that no other user may enter
//! until they are finished, unless they existed before.
//!
//! **Rejected.** A list of directories to finish at the end (grows with the tree), and copying under temporary names
//! (hard links and resuming then need a second pass).

mod target;
mod words;

pub use words::raise_descriptor_limit;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cenote_dmu::Run;
use cenote_format::ids::ObjectId;
use cenote_taskq::buf::Block;
use cenote_taskq::{Class, Handle, Join, Semaphore, boxed};
use cenote_zpl::{Attributes, FileKind, FileSystem};

use crate::Progress;
use crate::content::{Content, Piece};
use crate::error::{Context as _, Result};
use crate::walk::{Node, Visit, Walk, Wants};
use target::{Identity, TargetDirectory, Xattrs, begin, finish, is_same};
pub use target::{Keep, Lost, Privileged};

/// The maximum bytes of content in flight, for all files together.
const IN_FLIGHT_BYTES: u64 = 128 << 20;
/// Reads in flight for one large file.
const WINDOW_BYTES: u64 = 8 << 20;
/// The share of a small file, which also bounds the number of files in flight.
const SHARE_MIN_BYTES: u64 = 1 << 20;
/// Bytes gathered for one write.
const GATHER_BYTES: u64 = 1 << 20;
/// Tasks not yet awaited, at most.
const TASKS_MAX: usize = 256;
/// Reports of damage for one file, at most.
const DAMAGE_REPORTS_MAX: u64 = 8;
/// Files up to this size are read by the walk.
const SMALL_BYTES: u64 = 64 << 10;

/// The options of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Skip files whose size and time of last change are right.
    pub resume: bool,
    /// The attributes to keep.
    pub keep: Keep,
}

/// The counts of a copy.
#[derive(Debug, Default)]
pub struct Account {
    /// Regular files written.
    pub files: AtomicU64,
    /// Regular files that already existed.
    pub skipped: AtomicU64,
    /// Directories.
    pub directories: AtomicU64,
    /// Symbolic links, devices, pipes, sockets.
    pub others: AtomicU64,
    /// Further links of files.
    pub links: AtomicU64,
    /// Bytes of content, holes included.
    pub bytes: AtomicU64,
    /// Entries that could not be copied, or only in part.
    pub failures: AtomicU64,
    /// Files with access control lists that POSIX systems cannot hold.
    pub foreign_lists: AtomicU64,
    /// For each loss, the number of entries and the path of the first.
    pub lost: Mutex<BTreeMap<Lost, (u64, Vec<u8>)>>,
}

impl Account {
    fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// Records the losses of `path`.
    fn lose(&self, path: &[u8], lost: Vec<Lost>) {
        let mut all = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        for what in lost {
            all.entry(what).or_insert_with(|| (0, path.to_vec())).0 += 1;
        }
    }
}

/// Gets problems: a path and a line of text.
pub type Report = dyn Fn(&[u8], &str) + Send + Sync;

/// A copy in progress. Cheap to clone.
#[derive(Clone)]
struct Job {
    shared: Arc<Shared>,
}

struct Shared {
    handle: Handle,
    filesystem: FileSystem,
    options: Options,
    account: Arc<Account>,
    report: Arc<Report>,
    progress: Arc<dyn Progress>,
    budget: Arc<Semaphore>,
}

/// A directory being filled. The last one to release it finishes it.
struct Directory {
    target: TargetDirectory,
    path: Vec<u8>,
    /// Its attributes; `None` for a target directory *into* which files are copied, or which existed before.
    attributes: Option<(Attributes, Xattrs)>,
    parent: Option<Arc<Directory>>,
}

/// An object to copy, and its name in the target; without a name, a directory's contents are copied into the target.
pub struct Source {
    /// The object.
    pub object: ObjectId,
    /// The name.
    pub name: Option<Vec<u8>>,
}

/// Copies `sources` into the directory `target`.
///
/// # Errors
/// An error that makes it pointless to continue; all others are reported and counted.
#[boxed]
pub async fn copy(
    handle: &Handle,
    filesystem: &FileSystem,
    sources: &[Source],
    target: &Path,
    options: Options,
    progress: Arc<dyn Progress>,
    report: Arc<Report>,
) -> Result<Arc<Account>> {
    let root = TargetDirectory::root(target).with_context(|| target.display().to_string())?;
    let root = Arc::new(Directory { target: root, path: Vec::new(), attributes: None, parent: None });
    let account = Arc::new(Account::default());
    let shared = Shared {
        handle: handle.clone(),
        filesystem: filesystem.clone(),
        options,
        account: account.clone(),
        report,
        progress,
        budget: Arc::new(Semaphore::new(IN_FLIGHT_BYTES)),
    };
    let job = Job { shared: Arc::new(shared) };
    let mut copier =
        Copier { job: job.clone(), root, stack: Vec::new(), links: BTreeMap::new(), tasks: VecDeque::new() };
    for source in sources {
        copier.tree(source).await;
    }
    while let Some(task) = copier.tasks.pop_front() {
        copier.job.reap(task).await;
    }
    Ok(account)
}

/// The walk's side of a copy.
struct Copier {
    job: Job,
    root: Arc<Directory>,
    /// The directories in which the walk is.
    stack: Vec<Arc<Directory>>,
    links: BTreeMap<ObjectId, Links>,
    tasks: VecDeque<Join<()>>,
}

/// A file with several links.
struct Links {
    path: Vec<u8>,
    left: u64,
    /// The file that was made under that path, once it exists.
    identity: Option<Identity>,
}

impl Copier {
    async fn tree(&mut self, source: &Source) {
        let wants =
            Wants { xattrs: self.job.shared.options.keep.xattrs, content_max_bytes: SMALL_BYTES, recurse: true };
        let filesystem = self.job.shared.filesystem.clone();
        let mut walk = Walk::new(&self.job.shared.handle, &filesystem, source.object, wants);
        while let Some(visit) = walk.next().await {
            match visit {
                Visit::Leave => {
                    if let Some(directory) = self.stack.pop() {
                        self.job.release(directory);
                    }
                }
                Visit::Problem { path, error } => self.job.fail(&named(source, &path), &error.to_string()),
                Visit::Node(node) => {
                    let path = named(source, &node.path);
                    let is_entered = self.node(&path, *node).await;
                    if !is_entered {
                        walk.prune();
                    }
                }
            }
        }
    }

    /// Makes the copy of `node`. True if it is a directory to enter.
    async fn node(&mut self, path: &[u8], node: Node) -> bool {
        let parent = self.stack.last().unwrap_or(&self.root).clone();
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
        let attributes = node.attributes;
        let xattrs = node.xattrs.unwrap_or_else(|error| {
            self.job.fail(path, &format!("extended attributes: {error}"));
            Xattrs::new()
        });
        let account = self.job.shared.account.clone();
        if attributes.has_acl {
            Account::add(&account.foreign_lists, 1);
        }
        if attributes.kind == FileKind::Directory {
            // Without a name, the directory's contents are copied into the target. The target gets its attributes too, unless it existed before:
            // then they must not be changed.
            let made = if path.is_empty() { self.root.target.again() } else { parent.target.directory(&name) };
            match made {
                Ok(target) => {
                    Account::add(&account.directories, 1);
                    let attributes = if !path.is_empty() || target.is_made() {
                        let (late, lost) = begin(&target, xattrs, self.job.shared.options.keep);
                        account.lose(path, lost);
                        Some((attributes, late))
                    } else {
                        None
                    };
                    let directory = Directory { target, path: path.to_vec(), attributes, parent: Some(parent) };
                    self.stack.push(Arc::new(directory));
                    return true;
                }
                Err(error) => {
                    self.job.fail(path, &error.to_string());
                    return false;
                }
            }
        }
        let keep = self.job.shared.options.keep;
        if matches!(attributes.kind, FileKind::CharDevice | FileKind::BlockDevice) && !keep.privileged.devices {
            account.lose(path, vec![Lost::Device]);
            return false;
        }
        if attributes.link_count > 1 && self.link(&parent, &name, path, &attributes) {
            return false;
        }
        let made = match attributes.kind {
            FileKind::File => {
                self.file(parent, name, path, attributes, xattrs, node.content).await;
                return false;
            }
            FileKind::Symlink => parent.target.symlink(&name, node.target.as_deref().unwrap_or_default()),
            _ => parent.target.node(&name, &attributes),
        };
        match made {
            Ok(special) => {
                Account::add(&account.others, 1);
                if let Some(links) = self.links.get_mut(&attributes.object) {
                    links.identity = links.identity.or_else(|| special.identity());
                }
                account.lose(path, special.finish(&attributes, &xattrs, keep));
            }
            Err(error) => self.job.fail(path, &format!("cannot be made here: {error}")),
        }
        false
    }

    /// Makes another link to a file that was already copied. True if it did.
    fn link(&mut self, parent: &Directory, name: &[u8], path: &[u8], attributes: &Attributes) -> bool {
        let Some(links) = self.links.get_mut(&attributes.object) else {
            let links = Links { path: path.to_vec(), left: attributes.link_count - 1, identity: None };
            self.links.insert(attributes.object, links);
            return false;
        };
        let made = match links.identity {
            Some(identity) => parent.target.link(name, &self.root.target, &links.path, identity),
            None => Err(io::Error::other("the first link was not made")),
        };
        links.left = links.left.saturating_sub(1);
        if links.left == 0 {
            self.links.remove(&attributes.object);
        }
        match made {
            Ok(()) => {
                Account::add(&self.job.shared.account.links, 1);
                true
            }
            // The first may have failed, or the target may not support hard links: then a copy is the next best.
            Err(error) => {
                self.job.lose_link(path, &error);
                false
            }
        }
    }

    async fn file(
        &mut self,
        parent: Arc<Directory>,
        name: Vec<u8>,
        path: &[u8],
        attributes: Attributes,
        xattrs: Xattrs,
        content: Option<Block>,
    ) {
        let shared = &self.job.shared;
        let there = if shared.options.resume { parent.target.stat(&name) } else { None };
        if let Some(there) = there.filter(|there| is_same(there, &attributes)) {
            if let Some(links) = self.links.get_mut(&attributes.object) {
                links.identity.get_or_insert(Identity::of(&there));
            }
            Account::add(&shared.account.skipped, 1);
            shared.progress.advance(attributes.size_bytes);
            return;
        }
        // A file with further links must exist when these are made; other files are created where blocking is harmless.
        let mut made = None;
        if attributes.link_count > 1 {
            match parent.target.file(&name) {
                Ok(file) => {
                    if let Some(links) = self.links.get_mut(&attributes.object) {
                        links.identity = links.identity.or_else(|| Identity::of_file(&file));
                    }
                    made = Some(file);
                }
                Err(error) => return self.job.fail(path, &error.to_string()),
            }
        }
        let held: usize = xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        let share = attributes.size_bytes.min(WINDOW_BYTES).max(attributes.block_size_bytes.saturating_mul(2));
        let share = share.saturating_add(held as u64);
        let permit = shared.budget.acquire_owned(share.clamp(SHARE_MIN_BYTES, IN_FLIGHT_BYTES)).await;
        let (job, path) = (self.job.clone(), path.to_vec());
        let task = shared.handle.spawn(Class::Issue, async move {
            let file = FileJob { job: &job, path: &path, attributes, damaged: 0 };
            file.run(parent, name, made, xattrs, content).await;
            drop(permit);
        });
        self.tasks.push_back(task);
        while self.tasks.len() > TASKS_MAX {
            let Some(task) = self.tasks.pop_front() else { break };
            self.job.reap(task).await;
        }
    }
}

fn named(source: &Source, path: &[u8]) -> Vec<u8> {
    match (&source.name, path.is_empty()) {
        (None, _) => path.to_vec(),
        (Some(name), true) => name.clone(),
        (Some(name), false) => [name, &b"/"[..], path].concat(),
    }
}

impl Job {
    fn fail(&self, path: &[u8], what: &str) {
        Account::add(&self.shared.account.failures, 1);
        (self.shared.report)(path, what);
    }

    fn lose_link(&self, path: &[u8], error: &io::Error) {
        (self.shared.report)(path, &format!("copied, not linked: {error}"));
    }

    async fn reap(&self, task: Join<()>) {
        if let Err(error) = task.await {
            self.fail(b"", &error.to_string());
        }
    }

    /// Releases a directory, and finishes it and those above if no one else holds them.
    fn release(&self, directory: Arc<Directory>) {
        let mut next = Some(directory);
        while let Some(directory) = next.take().and_then(Arc::into_inner) {
            if let Some((attributes, xattrs)) = &directory.attributes {
                let lost = directory.target.finish(attributes, xattrs, self.shared.options.keep);
                self.shared.account.lose(&directory.path, lost);
            }
            next = directory.parent;
        }
    }

    /// Does work that may block, where it holds up no worker.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let result = self.shared.handle.spawn_blocking(work).await;
        result.unwrap_or_else(|error| Err(io::Error::other(error.to_string())))
    }
}

/// One regular file being copied.
struct FileJob<'a> {
    job: &'a Job,
    path: &'a [u8],
    attributes: Attributes,
    /// Pieces that could not be read.
    damaged: u64,
}

impl FileJob<'_> {
    async fn run(
        mut self,
        parent: Arc<Directory>,
        name: Vec<u8>,
        made: Option<File>,
        xattrs: Xattrs,
        content: Option<Block>,
    ) {
        let job = self.job;
        if let Err(error) = self.copy(&parent, name, made, xattrs, content).await {
            job.fail(self.path, &error.to_string());
        }
        job.release(parent);
    }

    async fn copy(
        &mut self,
        parent: &Arc<Directory>,
        name: Vec<u8>,
        made: Option<File>,
        xattrs: Xattrs,
        content: Option<Block>,
    ) -> io::Result<()> {
        let (job, attributes) = (self.job, self.attributes.clone());
        let size = attributes.size_bytes;
        let open = {
            let parent = parent.clone();
            let job = job.clone();
            move || -> io::Result<File> {
                let file = made.map_or_else(|| parent.target.file(&name), Ok);
                // Through the job, so that the last reference to a directory is never dropped without finishing it.
                job.release(parent);
                file
            }
        };
        let keep = job.shared.options.keep;
        if let Some(block) = content {
            job.shared.progress.advance(size);
            let lost = job.blocking(move || {
                let file = open()?;
                file.write_all_at(&block, 0)?;
                Ok(finish(file.as_fd(), &attributes, &xattrs, keep))
            });
            let lost = lost.await?;
            self.done(lost);
            return Ok(());
        }
        let source = job.shared.filesystem.open_file(attributes.object).await.map_err(io::Error::other)?;
        let mut file = job
            .blocking(move || {
                let file = open()?;
                file.set_len(size)?;
                Ok(file)
            })
            .await?;
        let mut content = Content::new(source, WINDOW_BYTES);
        let mut gathered: Vec<(u64, Block)> = Vec::new();
        let mut gathered_bytes = 0;
        loop {
            let piece = content.next().await;
            let is_end = piece.is_none();
            match piece {
                Some(Piece::Run(Run::Data { offset_bytes, block })) => {
                    job.shared.progress.advance(block.len() as u64);
                    gathered_bytes += block.len() as u64;
                    gathered.push((offset_bytes, block));
                }
                Some(Piece::Run(Run::Hole { len_bytes, .. })) => job.shared.progress.advance(len_bytes),
                Some(Piece::Damage { offset_bytes, len_bytes, error }) => {
                    self.damage(offset_bytes, len_bytes, &error.to_string());
                }
                None => {}
            }
            if gathered_bytes >= GATHER_BYTES || (is_end && gathered_bytes > 0) {
                let pieces = std::mem::take(&mut gathered);
                gathered_bytes = 0;
                file = job
                    .blocking(move || {
                        for (offset_bytes, block) in pieces {
                            file.write_all_at(&block, offset_bytes)?;
                        }
                        Ok(file)
                    })
                    .await?;
            }
            if is_end {
                break;
            }
        }
        if self.damaged > 0 {
            // It keeps the time of the copy, so that a later copy does not take it for complete.
            let what = format!("{} pieces could not be read and are zeros in the copy", self.damaged);
            return Err(io::Error::other(what));
        }
        let lost = job.blocking(move || Ok(finish(file.as_fd(), &attributes, &xattrs, keep))).await?;
        self.done(lost);
        Ok(())
    }

    fn damage(&mut self, offset_bytes: u64, len_bytes: u64, error: &str) {
        self.damaged += 1;
        if self.damaged <= DAMAGE_REPORTS_MAX {
            (self.job.shared.report)(self.path, &format!("{len_bytes} bytes at {offset_bytes}: {error}"));
        }
    }

    fn done(&self, lost: Vec<Lost>) {
        let account = &self.job.shared.account;
        account.lose(self.path, lost);
        Account::add(&account.files, 1);
        Account::add(&account.bytes, self.attributes.size_bytes);
    }
}
