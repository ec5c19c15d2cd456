//! Operations at random, on the file system and on the model.

use cenote_dmu::Zap;
use cenote_format::ids::ObjectId;
use cenote_spa::Pool;
use cenote_taskq::sim::disk::Latency;
use cenote_taskq::{Handle, Rng, Runtime, RuntimeOptions};
use cenote_testkit::zdb::{BlockStatistics, Devices};
use cenote_zpl::{
    Allocation, AttributeChange, Cursor, Errno, File, FileKind, FileSystem, FileSystemOptions, NewNode, RenameMode,
    XattrMode, XattrSet, ZplError,
};

use super::{Live, judged, reopen};

use cenote_sim::tree::{Kind, Names, Node, Sparse, Tree, look};
use cenote_sim::written::files::make_file_system;
use cenote_sim::written::{SINGLE, machine_of, options, seeds};

const NAMES: u64 = 14;
const SIZE_MAX: u64 = 1_600_000;
const KINDS: [FileKind; 7] = [
    FileKind::File,
    FileKind::File,
    FileKind::Directory,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::Pipe,
    FileKind::CharDevice,
];

struct Actor {
    model: Tree,
    rng: Rng,
    handles: Vec<File>,
    counts: std::collections::BTreeMap<&'static str, (u32, u32)>,
}

impl Actor {
    fn pick(&mut self, want: impl Fn(&Node) -> bool) -> Option<ObjectId> {
        let ids: Vec<ObjectId> = self.model.nodes.iter().filter(|(_, node)| want(node)).map(|(id, _)| *id).collect();
        let at = self.rng.below(ids.len() as u64) as usize;
        ids.get(at).copied()
    }

    fn directory(&mut self) -> ObjectId {
        self.pick(|node| node.file_kind() == FileKind::Directory && node.links > 0).unwrap()
    }

    fn name(&mut self) -> Vec<u8> {
        let number = self.rng.below(NAMES);
        // Some are too long for a micro ZAP.
        if number % 5 == 4 {
            vec![b'a' + number as u8; 30 * number as usize % 250 + 1]
        } else {
            format!("n{number}").into_bytes()
        }
    }

    /// A name that is there, mostly.
    fn name_in(&mut self, directory: ObjectId) -> Vec<u8> {
        let names: Vec<Vec<u8>> = self.model.names(directory).keys().cloned().collect();
        if names.is_empty() || self.rng.chance(1, 6) {
            return self.name();
        }
        names[self.rng.below(names.len() as u64) as usize].clone()
    }

    fn agree<T>(&mut self, what: &'static str, told: Result<T, ZplError>, model: Result<(), Errno>) -> Option<T> {
        let count = self.counts.entry(what).or_default();
        if model.is_ok() {
            count.0 += 1
        } else {
            count.1 += 1
        }
        match (told, model) {
            (Ok(told), Ok(())) => Some(told),
            (Err(error), Err(errno)) => {
                assert_eq!(error.errno(), errno, "{what}: {error}");
                None
            }
            (told, model) => panic!("{what}: {:?}, should be {model:?}", told.map(drop)),
        }
    }

    async fn step(&mut self, fs: &FileSystem) {
        match self.rng.below(22) {
            0..=4 => self.create(fs).await,
            5 | 6 => {
                let parent = self.directory();
                let name = self.name_in(parent);
                let directory = self.rng.chance(1, 3);
                let told = if directory { fs.rmdir(parent, &name).await } else { fs.unlink(parent, &name).await };
                let model = self.model.remove(parent, &name, directory);
                self.agree("remove", told, model);
                if self.rng.chance(1, 2) {
                    fs.reap().await.unwrap();
                }
            }
            7..=9 => {
                let (from, to) = (self.directory(), self.directory());
                let (from_name, to_name) = (self.name_in(from), self.name_in(to));
                let mode = [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]
                    [self.rng.below(4) as usize];
                let told = fs.rename(from, &from_name, to, &to_name, mode).await;
                let model = self.model.rename(from, &from_name, to, &to_name, mode);
                self.agree("rename", told, model);
            }
            10 => {
                let (Some(id), parent) = (self.pick(|_| true), self.directory()) else { return };
                let name = self.name();
                let told = fs.link(id, parent, &name).await;
                let model = self.model.link(id, parent, &name);
                self.agree("link", told, model);
            }
            11..=15 => self.content(fs).await,
            16 => {
                let Some(id) = self.pick(|node| node.file_kind() == FileKind::File && node.links > 0) else { return };
                if self.handles.len() < 6 {
                    self.handles.push(fs.open_file(id).await.unwrap());
                    self.model.opened(id);
                }
            }
            17 => {
                if let Some(handle) = self.handles.pop() {
                    let id = handle.id();
                    handle.close().await.unwrap();
                    self.model.closed(id);
                }
            }
            18 | 19 => self.attributes(fs).await,
            _ => self.xattr(fs).await,
        }
    }

    async fn create(&mut self, fs: &FileSystem) {
        let (parent, name) = (self.directory(), self.name());
        let kind = KINDS[self.rng.below(KINDS.len() as u64) as usize];
        let permissions = self.rng.below(0o1000) as u32;
        let (uid, gid) = (self.rng.below(4) as u32, self.rng.below(4) as u32);
        let target = (kind == FileKind::Symlink).then(|| vec![b't'; 1 + self.rng.below(600) as usize]);
        let new =
            NewNode { mode: kind.mode_bits() | permissions, uid, gid, device: (7, 9), target, ..NewNode::default() };
        let model = self.model.may_create(parent, &name);
        let made = fs.create(parent, &name, &new).await;
        if let Some(made) = self.agree("create", made, model) {
            let kind = match kind {
                FileKind::Directory => Kind::Directory(Names::new()),
                FileKind::File => Kind::File(Sparse::default()),
                FileKind::Symlink => Kind::Symlink(new.target.unwrap_or_default()),
                FileKind::CharDevice => Kind::Special(kind, new.device),
                without_number => Kind::Special(without_number, (0, 0)),
            };
            self.model.create(parent, &name, made.object, Node::new(kind, permissions, uid, gid, made.created));
        }
    }

    /// Reads and writes a file that has a name, or one that is only open.
    async fn content(&mut self, fs: &FileSystem) {
        let open = match self.rng.below(3) {
            0 if !self.handles.is_empty() => {
                let at = self.rng.below(self.handles.len() as u64) as usize;
                fs.open_file(self.handles[at].id()).await.unwrap()
            }
            _ => {
                let Some(id) = self.pick(|node| node.file_kind() == FileKind::File && node.links > 0) else { return };
                fs.open_file(id).await.unwrap()
            }
        };
        let id = open.id();
        let size = self.model.bytes(id).size_bytes();
        match self.rng.below(8) {
            0..=3 => {
                let near = if self.rng.chance(1, 3) { SIZE_MAX - 100_000 } else { size + 1000 };
                let offset = self.rng.below(near);
                let len = if self.rng.chance(1, 2) { self.rng.below(3000) } else { self.rng.below(100_000) };
                let mut bytes = vec![0; len.min(SIZE_MAX.saturating_sub(offset)) as usize];
                if self.rng.chance(9, 10) {
                    self.rng.fill(&mut bytes);
                }
                open.write(offset, &bytes).await.unwrap();
                self.model.bytes(id).write(offset, &bytes);
            }
            4 | 5 => {
                let size = if self.rng.chance(1, 4) { 0 } else { self.rng.below(SIZE_MAX) };
                open.truncate(size).await.unwrap();
                self.model.bytes(id).resize(size);
            }
            6 => {
                let start = self.rng.below(size + 10);
                let end = start + 1 + self.rng.below(SIZE_MAX - start);
                open.allocate(Allocation::Punch, start..end).await.unwrap();
                self.model.bytes(id).clear(start..end);
            }
            _ => {
                let offset = self.rng.below(size + 100);
                let len = self.rng.below(200_000) as usize;
                let read = open.read(offset, len).await.unwrap();
                let content = self.model.bytes(id).to_vec();
                let start = (offset as usize).min(content.len());
                assert_eq!(&read[..], &content[start..(start + len).min(content.len())]);
            }
        }
        check_holes(&open, &self.model.bytes(id).to_vec()).await;
    }

    async fn attributes(&mut self, fs: &FileSystem) {
        let Some(id) = self.pick(|_| true) else { return };
        let mut change = AttributeChange::default();
        let (mode, uid) = (self.rng.below(0o10000) as u32 & !0o1000, self.rng.below(5) as u32);
        let node = self.model.node(id);
        match self.rng.below(3) {
            0 => {
                change.permissions = Some(mode);
                node.permissions = mode;
            }
            1 => {
                (change.uid, change.gid) = (Some(uid), Some(uid + 1));
                (node.uid, node.gid) = (uid, uid + 1);
            }
            _ => {
                change.project = Some(u64::from(uid));
                node.project = change.project.filter(|project| *project != 0);
            }
        }
        let told = fs.set_attributes(id, &change).await;
        self.agree("attributes", told, Ok(()));
    }

    async fn xattr(&mut self, fs: &FileSystem) {
        let Some(id) = self.pick(|_| true) else { return };
        // A slash in the name of an attribute says nothing of a path.
        let name = format!("user.{}{}", ["", "a/", "/"][self.rng.below(3) as usize], self.rng.below(2)).into_bytes();
        let is_there = self.model.node(id).xattrs.contains_key(&name);
        if self.rng.chance(1, 3) {
            let told = fs.remove_xattr(id, &name).await;
            let model = if is_there { Ok(()) } else { Err(Errno::NoData) };
            self.agree("remove xattr", told, model);
            self.model.node(id).xattrs.remove(&name);
            return;
        }
        let len = [self.rng.below(40), self.rng.below(40), self.rng.below(9000), self.rng.below(65_537)];
        let mut value = vec![0; len[self.rng.below(4) as usize] as usize];
        self.rng.fill(&mut value);
        let how = [XattrSet::Any, XattrSet::Create, XattrSet::Replace][self.rng.below(3) as usize];
        let model = match (how, is_there) {
            (XattrSet::Create, true) => Err(Errno::Exists),
            (XattrSet::Replace, false) => Err(Errno::NoData),
            _ => Ok(()),
        };
        let told = fs.set_xattr(id, &name, &value, how).await;
        if self.agree("set xattr", told, model).is_some() {
            self.model.node(id).xattrs.insert(name, value);
        }
    }

    async fn compare(&mut self, fs: &FileSystem) {
        for (id, node) in &self.model.nodes {
            let found = fs.attributes(*id).await.unwrap();
            let told = (found.kind, found.permissions, found.uid, found.gid, found.link_count, found.size_bytes);
            assert_eq!(told, told_of(node), "{id}");
            let names: Vec<Vec<u8>> = node.xattrs.keys().cloned().collect();
            assert_eq!(fs.xattr_names(*id).await.unwrap(), names);
            for (name, value) in &node.xattrs {
                assert_eq!(&fs.xattr(*id, name).await.unwrap(), value);
            }
            match &node.kind {
                Kind::File(bytes) => {
                    let open = fs.open_file(*id).await.unwrap();
                    assert!(open.read(0, SIZE_MAX as usize).await.unwrap()[..] == bytes.to_vec(), "{id}");
                }
                Kind::Symlink(target) => assert_eq!(&fs.read_link(*id).await.unwrap(), target),
                Kind::Directory(names) if node.links > 0 => {
                    let mut cursor = Cursor::START;
                    let mut entries = std::collections::BTreeMap::new();
                    loop {
                        let batch = fs.list(*id, Cursor::from_u64(cursor.to_u64()), 3).await.unwrap();
                        let Some(last) = batch.last() else { break };
                        cursor = last.next;
                        for entry in batch {
                            assert!(entries.insert(entry.name, entry.object).is_none());
                        }
                    }
                    assert_eq!(&entries, names);
                }
                _ => {}
            }
        }
    }
}

/// Data and holes as they are told: what is said to be a hole is zeros.
async fn check_holes(open: &File, content: &[u8]) {
    let mut at = 0;
    while let Some(data) = open.next_data(at).await.unwrap() {
        assert!(content[at as usize..data as usize].iter().all(|byte| *byte == 0));
        let hole = open.next_hole(data).await.unwrap().unwrap();
        assert!(hole >= data && hole <= content.len() as u64);
        // Zeros that were written are data until they are compressed to nothing, which a sync may have done just now.
        assert!(hole > data || open.next_data(data).await.unwrap() != Some(data));
        at = hole;
    }
    assert!(content[(at as usize).min(content.len())..].iter().all(|byte| *byte == 0));
}

/// The attributes that a file system is to tell of a node.
fn told_of(node: &Node) -> (FileKind, u32, u32, u32, u64, u64) {
    (node.file_kind(), node.permissions, node.uid, node.gid, node.links, node.size_bytes())
}

async fn play(handle: &Handle, mut pool: Pool, paths: &[std::path::PathBuf], seed: u64, steps: u32) {
    let mut rng = Rng::new(seed);
    let options = FileSystemOptions {
        record_bytes: 512 << rng.below(9),
        xattrs: if rng.chance(1, 3) { XattrMode::Dir } else { XattrMode::Sa },
        ..FileSystemOptions::default()
    };
    let mut actor: Option<Actor> = None;
    for round in 0..3 {
        let live = Live::start(handle, pool, options).await;
        let at_first = look(&live.fs).await.unwrap();
        let mut at = actor.take().unwrap_or_else(|| Actor {
            model: at_first.clone(),
            rng: rng.clone(),
            handles: Vec::new(),
            counts: Default::default(),
        });
        live.fs.reap().await.unwrap();
        at.compare(&live.fs).await;
        for step in 0..steps {
            at.step(&live.fs).await;
            match at.rng.below(40) {
                0 => live.sync().await,
                1 | 2 => live.want_sync(),
                3 if step % 4 == 0 => at.compare(&live.fs).await,
                _ => {}
            }
        }
        at.compare(&live.fs).await;
        // Files that are open without a name are left to the next round.
        for handle in std::mem::take(&mut at.handles) {
            let id = handle.id();
            drop(handle);
            at.model.closed(id);
        }
        let stopped = live.stop().await;
        if round == 1 {
            drop(stopped)
        } else {
            stopped.export().await.unwrap()
        }
        let (view, fs) = judged(handle, paths).await;
        // The tree as a reader of the pool finds it.
        assert_eq!(at.model.difference(&look(&fs).await.unwrap()), None, "seed {seed} round {round}");
        view.close().await;
        pool = reopen(handle, paths).await;
        if round == 2 {
            eprintln!("seed {seed}: {} nodes, agreed {:?}", at.model.nodes.len(), at.counts);
        }
        actor = Some(at);
    }
    // Nothing of what was in the delete queue is left.
    let live = Live::start(handle, pool, options).await;
    live.fs.reap().await.unwrap();
    live.stop().await.export().await.unwrap();
    let (view, fs) = judged(handle, paths).await;
    let queue = Zap::open(fs.dnode(fs.unlinked_set().unwrap()).await.unwrap()).await.unwrap();
    assert!(queue.entries(10).await.unwrap().is_empty());
    view.close().await;
}

#[test]
fn random_operations_agree_with_a_plain_model_across_syncs_and_openings() {
    for seed in seeds(10) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 1, Latency::default());
        runtime.block_on(async {
            let pool = make_file_system(&handle, options(machine.tops(&handle, SINGLE).await.unwrap(), 12)).await;
            play(&handle, pool, &machine.paths, seed, 250).await;
        });
    }
}

#[test]
fn zdb_finds_nothing_wrong_with_what_random_operations_leave() {
    if cenote_testkit::zdb::program("zdb").is_none() {
        eprintln!("left out: zdb is not installed");
        return;
    }
    for seed in seeds(3).map(|index| 100 + index) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk0");
        std::fs::File::create(&path).unwrap().set_len(192 << 20).unwrap();
        let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
        let handle = runtime.handle();
        let paths = vec![path];
        runtime.block_on(async {
            let pool =
                make_file_system(&handle, options(cenote_sim::tops(&handle, SINGLE, &paths).await.unwrap(), 12)).await;
            play(&handle, pool, &paths, seed, 300).await;
        });
        let devices = Devices::of(&paths).unwrap();
        let told = cenote_testkit::zdb::run(&devices, &["-bcc"], "written").unwrap();
        let last: Vec<&str> = told.text.lines().rev().take(40).collect();
        assert_eq!(told.status, Some(0), "zdb -bcc: {last:#?}");
        assert!(BlockStatistics::parse(&told.text).unwrap().leak_free, "{}", told.text);
        // Each object with its attributes.
        let told = cenote_testkit::zdb::run(&devices, &["-dddd"], "written/").unwrap();
        assert_eq!(told.status, Some(0), "zdb -dddd: {}", told.text);
    }
}
