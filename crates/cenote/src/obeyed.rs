//! Tests: each property that is obeyed, on each kind of user of a dataset in use. All users notice it at once, and alike.
//!
//! A property that is added has no row in [`noticed`], and fails until it has one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_admin::values::{When, dataset_settings};
use cenote_format::ids::ObjectId;
use cenote_fuse::server::{Caller, Errno, FileServer as _, NewFile, NodeId, Writer};
use cenote_fuse::{Tree, TreeOptions};
use cenote_kstat::{Body, Stat};
use cenote_nbd::{Export, ExportErrorKind, Exports as _};
use cenote_props::effect::{self, Effect};
use cenote_props::{Property, Types, dataset as table};
use cenote_server::{LiveVolumes, OpenVolumes};
use cenote_taskq::Handle;

use crate::error::ErrorKind;
use crate::filesystem::{self, FileSystem};
use crate::pool::{Access, Pool};
use crate::{CreateOptions, OpenOptions, Runtime, Volume};

const ABOVE: &str = "tank/p";
const ROOT_USER: Caller = Caller { uid: 0, gid: 0, thread: 0 };
const NOTE: &str = "user.note";

/// A user of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Of {
    /// A mount, without a kernel.
    Mount,
    /// The library's file system.
    Files,
    /// A volume of a server.
    Export,
    /// The library's volume.
    Disk,
}

use Of::{Disk, Export as Exported, Files, Mount};

const FILE_SYSTEMS: &[Of] = &[Mount, Files];
const ALL: &[Of] = &[Mount, Files, Exported, Disk];

impl Of {
    const fn dataset(self) -> &'static str {
        match self {
            Mount => "tank/p/mount",
            Files => "tank/p/files",
            Exported => "tank/p/export",
            Disk => "tank/p/disk",
        }
    }

    const fn is_volume(self) -> bool {
        matches!(self, Exported | Disk)
    }
}

/// The aspect of a dataset in use in which a property shows.
#[derive(Clone, Copy, Debug)]
enum Aspect {
    /// A change is made or refused.
    Writing,
    /// A change waits until it is stable; a flush waits.
    Waiting,
    /// The log refers to data by its place.
    Logging,
    /// A first and a second read change the time of the last access.
    Reading,
    /// The sizes of a new file's blocks and dnode.
    Making,
    /// An attribute of a user is set; one of a snapshot is seen.
    Attributes,
    /// An access control list is there.
    Lists,
    /// Little space is available.
    Space,
    /// The rights that a mount takes away.
    Rights,
    /// `.zfs` is found.
    Control,
    /// Blocks are written and cached so.
    Blocks,
}

/// The users that notice a property, by which aspect, and values other than the default.
fn noticed(property: &Property) -> Option<(&'static [Of], Aspect, &'static [&'static str])> {
    use Aspect::*;
    Some(match property.name {
        "readonly" => (ALL, Writing, &["on"]),
        "sync" => (ALL, Waiting, &["always", "disabled"]),
        "logbias" => (ALL, Logging, &["throughput"]),
        "atime" => (FILE_SYSTEMS, Reading, &["off"]),
        "relatime" => (FILE_SYSTEMS, Reading, &["off"]),
        "recordsize" => (FILE_SYSTEMS, Making, &["4K", "64K"]),
        "dnodesize" => (FILE_SYSTEMS, Making, &["auto", "4k"]),
        "xattr" => (FILE_SYSTEMS, Attributes, &["off", "dir"]),
        "quota" => (FILE_SYSTEMS, Space, &["32M"]),
        "checksum" => (ALL, Blocks, &["sha256", "off"]),
        "compression" => (ALL, Blocks, &["off", "gzip-3"]),
        "copies" => (ALL, Blocks, &["2", "3"]),
        "redundant_metadata" => (ALL, Blocks, &["most", "none"]),
        "special_small_blocks" => (FILE_SYSTEMS, Blocks, &["4096"]),
        "prefetch" | "primarycache" | "secondarycache" => (ALL, Blocks, &["none", "metadata"]),
        // A kernel learns only at a mount whether there are lists.
        "acltype" => (&[Files], Lists, &["posix"]),
        // Paths of the library are no processes' files.
        "devices" | "exec" | "setuid" => (&[Mount], Rights, &["off"]),
        "snapdir" => (&[Mount], Control, &["visible", "disabled"]),
        // A change of a mode, as a mount makes it: crates/cli/tests/program/mount_rw.rs.
        "aclmode" => return None,
        // The place of a dataset in a mount: crates/fuse/tests/all/placed.rs.
        "canmount" | "mountpoint" | "overlay" => return None,
        // No user of an open dataset: the accounts, and the creation of datasets and snapshots.
        "refreservation" | "filesystem_limit" | "snapshot_limit" => return None,
        // A verb of its own: crates/cli/tests/program/volumes.rs and tests/face/admin.rs.
        "volsize" => return None,
        name => panic!("which users notice '{name}'? it needs a row here"),
    })
}

/// A pool with a dataset in use by each kind of user.
struct Bench {
    handle: Handle,
    pool: Pool,
    spa: cenote_spa::Pool,
    tree: Tree,
    file: NodeId,
    volumes: Arc<OpenVolumes>,
    export: Arc<dyn Export>,
    files: FileSystem,
    snapshot: FileSystem,
    disk: Volume,
    made: AtomicU64,
}

impl Bench {
    async fn new(runtime: &Runtime) -> Self {
        let pool = CreateOptions::new(["/disk"]).create(runtime, "tank").await.unwrap();
        pool.create_filesystem(ABOVE, &[]).await.unwrap();
        for of in ALL {
            match of.is_volume() {
                true => drop(pool.create_volume(of.dataset(), 8 << 20, &[]).await.unwrap()),
                false => {
                    let made = pool.create_filesystem(of.dataset(), &[]).await.unwrap();
                    let files = made.filesystem().await.unwrap();
                    files.write("file", vec![1; 8192]).await.unwrap();
                    files.set_xattr("file", NOTE, b"kept").await.unwrap();
                    drop(files);
                    made.snapshot("s").await.unwrap();
                }
            }
        }
        // So that the mount finds its dataset closed.
        pool.export().await.unwrap();
        let pool = OpenOptions::new().write(true).open(runtime, "tank").await.unwrap();
        let Access::Write(spa) = &pool.inner.access else { panic!("it was opened to be changed") };
        let spa = spa.clone();
        let options = TreeOptions { report: Arc::new(|text| panic!("{text}")), ..TreeOptions::default() };
        let tree = Tree::open_live(&spa, Mount.dataset(), options).await.unwrap();
        let file = tree.lookup(NodeId::ROOT, b"file").await.unwrap().node;
        let volumes = OpenVolumes::new(spa.clone());
        let all = LiveVolumes::new([(volumes.clone(), ABOVE.to_owned())]);
        let export = all.open(Exported.dataset()).await.unwrap().unwrap();
        let files = pool.filesystem(Files.dataset()).await.unwrap();
        let snapshot = pool.filesystem(&format!("{}@s", Files.dataset())).await.unwrap();
        let disk = pool.volume(Disk.dataset()).await.unwrap();
        let (handle, made) = (spa.handle().clone(), AtomicU64::new(0));
        Self { handle, pool, spa, tree, file, volumes, export, files, snapshot, disk, made }
    }

    async fn end(self) {
        drop((self.files, self.snapshot, self.disk, self.export));
        self.tree.close().await;
        self.volumes.close().await;
        drop((self.tree, self.volumes, self.spa));
        self.pool.export().await.unwrap();
    }

    /// As a verb does: the change, and then all users are told.
    async fn set(&self, dataset: &str, is_volume: bool, property: &str, word: Option<&str>) {
        let dataset = [dataset.to_owned()];
        match word {
            Some(word) => {
                let types = if is_volume { Types::VOLUME } else { Types::FILESYSTEM };
                let settings = dataset_settings(&[format!("{property}={word}")], When::Later, types).unwrap();
                cenote_admin::set_properties(&self.spa, &dataset, &settings).await.unwrap();
            }
            None => cenote_admin::inherit_property(&self.spa, &dataset, property, false, false).await.unwrap(),
        }
        self.tree.refresh(&dataset).await.unwrap();
        assert!(self.volumes.refresh(&[property.to_owned()]).await.is_empty());
        filesystem::refresh(&self.pool).await.unwrap();
    }

    /// Writes; gives the words of a refusal for `readonly`.
    async fn write(&self, of: Of) -> &'static str {
        let is_refused = match of {
            Mount => match self.tree.write(self.file, 0, &[2; 4096], Writer::default()).await {
                Err(errno) => Some(errno == Errno::ROFS),
                Ok(_) => None,
            },
            Files => match self.files.open("file").await.unwrap().write_at(0, [2; 4096]).await {
                Err(error) => Some(error.kind() == ErrorKind::ReadOnly),
                Ok(()) => None,
            },
            Exported => match self.export.write(0, vec![2; 4096].into(), false).await {
                Err(error) => Some(error.kind == ExportErrorKind::ReadOnly),
                Ok(()) => None,
            },
            Disk => match self.disk.write_at(0, [2; 4096]).await {
                Err(error) => Some(error.kind() == ErrorKind::ReadOnly),
                Ok(()) => None,
            },
        };
        match is_refused {
            None => "written",
            Some(true) => "read-only",
            Some(false) => panic!("{of:?} was refused for another reason"),
        }
    }

    async fn flush(&self, of: Of) {
        match of {
            Mount => self.tree.fsync(self.file).await.unwrap(),
            Files => self.files.open("file").await.unwrap().sync().await.unwrap(),
            Exported => self.export.flush().await.unwrap(),
            Disk => self.disk.flush().await.unwrap(),
        }
    }

    /// True if a read changes the time of the last access.
    async fn read_notes(&self, of: Of) -> bool {
        self.handle.sleep(Duration::from_secs(2)).await;
        if of == Mount {
            let before = self.tree.getattr(self.file).await.unwrap().accessed;
            self.tree.open(self.file, false).await.unwrap();
            self.tree.read(self.file, 0, 100).await.unwrap();
            self.tree.release(self.file).await;
            return self.tree.getattr(self.file).await.unwrap().accessed != before;
        }
        let before = self.files.metadata("file").await.unwrap().accessed;
        self.files.open("file").await.unwrap().read_at(0, 100).await.unwrap();
        // It is written after the last handle.
        self.handle.sleep(Duration::from_secs(1)).await;
        self.files.metadata("file").await.unwrap().accessed != before
    }

    /// Makes a file of some records; gives its number.
    async fn make(&self, of: Of) -> ObjectId {
        let name = format!("made{}", self.made.fetch_add(1, Ordering::Relaxed));
        let content = vec![3; 200_000];
        if of == Files {
            self.files.write(&name, &content).await.unwrap();
            return ObjectId(self.files.metadata(&name).await.unwrap().object);
        }
        let new = NewFile { mode: 0o100_644, umask: 0, caller: ROOT_USER, device: (0, 0), target: None };
        let node = self.tree.create(NodeId::ROOT, name.as_bytes(), &new, false).await.unwrap().node;
        self.tree.write(node, 0, &content, Writer::default()).await.unwrap();
        ObjectId(self.tree.getattr(node).await.unwrap().ino)
    }

    async fn attributes(&self, of: Of) -> [bool; 3] {
        if of == Files {
            let is_off = |kind| assert_eq!(kind, ErrorKind::NotSupported);
            let set = self.files.set_xattr("file", NOTE, b"new").await.map_err(|error| is_off(error.kind()));
            let names = self.files.xattrs("file").await.unwrap();
            let kept = self.snapshot.xattr("file", NOTE).await.map_err(|error| is_off(error.kind()));
            return [
                set.is_ok(),
                names.iter().any(|name| name == NOTE.as_bytes()),
                kept.is_ok_and(|kept| kept.is_some()),
            ];
        }
        let is_off = |errno| assert_eq!(errno, Errno::OPNOTSUPP);
        let set = self.tree.setxattr(self.file, NOTE.as_bytes(), b"new", 0, ROOT_USER).await.map_err(is_off);
        let names = self.tree.listxattr(self.file, ROOT_USER).await.unwrap();
        let mut node = NodeId::ROOT;
        for name in [".zfs", "snapshot", "s", "file"] {
            node = self.tree.lookup(node, name.as_bytes()).await.unwrap().node;
        }
        let kept = self.tree.getxattr(node, NOTE.as_bytes(), ROOT_USER).await.map_err(is_off);
        [set.is_ok(), names.split(|byte| *byte == 0).any(|name| name == NOTE.as_bytes()), kept.is_ok()]
    }

    async fn logged_by_reference(&self) -> u64 {
        let groups = self.spa.kstats().snapshot();
        let Some(Body::Named(named)) = groups.iter().find(|group| group.name == "zil").map(|group| &group.body) else {
            panic!("a pool has statistics of its logs")
        };
        let found = named.iter().find(|(name, _)| *name == "zil_itx_indirect_count");
        match found {
            Some((_, Stat::Count(count))) => *count,
            _ => panic!("indirect records are counted"),
        }
    }

    /// One aspect of a dataset, as its user sees it.
    async fn seen(&self, of: Of, aspect: Aspect) -> String {
        match aspect {
            Aspect::Writing => self.write(of).await.to_owned(),
            Aspect::Waiting => {
                self.flush(of).await;
                let begun = self.handle.now();
                self.write(of).await;
                let written = self.handle.now();
                self.flush(of).await;
                format!("{:?}", (written > begun, self.handle.now() > written))
            }
            Aspect::Logging => {
                let before = self.logged_by_reference().await;
                self.write(of).await;
                self.flush(of).await;
                format!("{}", self.logged_by_reference().await > before)
            }
            Aspect::Reading => {
                self.write(of).await;
                format!("{:?}", [self.read_notes(of).await, self.read_notes(of).await])
            }
            Aspect::Making => {
                let object = self.make(of).await;
                let head = self.head(of).await;
                let phys = head.objset.object(object).await.unwrap().phys();
                format!("blocks of {} bytes, {} slots", phys.data_block_bytes(), phys.extra_slots + 1)
            }
            Aspect::Attributes => format!("{:?}", self.attributes(of).await),
            Aspect::Lists => {
                let found = self.files.xattr("file", "system.posix_acl_access").await;
                format!("{:?}", found.map_err(|error| error.kind()))
            }
            Aspect::Space => {
                let available = match of {
                    Files => self.files.space().unwrap().available_bytes,
                    _ => {
                        let figures = self.tree.statfs(NodeId::ROOT).await.unwrap();
                        figures.blocks_free * u64::from(figures.block_size_bytes)
                    }
                };
                format!("{}", available < 32 << 20)
            }
            Aspect::Rights => format!("{:?}", self.tree.forbidden()),
            Aspect::Control => {
                let found = self.tree.lookup(NodeId::ROOT, b".zfs").await.map(drop);
                let listed = self.tree.readdir(NodeId::ROOT, 0, false, 100).await.unwrap();
                format!("{:?}", (found, listed.iter().any(|item| item.name == b".zfs")))
            }
            Aspect::Blocks => format!("{:?}", self.head(of).await.objset.policy()),
        }
    }

    async fn head(&self, of: Of) -> cenote_spa::Head {
        let dsl = self.spa.dsl().unwrap();
        let object = dsl.dataset(of.dataset()).await.unwrap().object;
        assert!(self.spa.is_used(object), "{of:?}");
        dsl.open_head(object).unwrap()
    }

    /// The same aspect of all users that notice it. Users of a kind see the same.
    async fn all(&self, users: &[Of], aspect: Aspect, what: &str, faults: &mut Vec<String>) -> BTreeMap<Of, String> {
        let mut all = BTreeMap::new();
        for of in users {
            all.insert(*of, self.seen(*of, aspect).await);
        }
        for (one, other) in [(Mount, Files), (Exported, Disk)] {
            let differ = all.get(&one).zip(all.get(&other)).is_some_and(|(one, other)| one != other);
            if differ {
                faults.push(format!("{what}: users differ: {all:?}"));
            }
        }
        all
    }
}

#[test]
fn every_user_obeys_every_property_at_once_and_like_the_others() {
    let runtime = Runtime::simulated(11);
    runtime.add_disk("/disk", 512 << 20);
    runtime.block_on(async {
        let bench = Bench::new(&runtime).await;
        let obeyed = table::PROPERTIES
            .iter()
            .filter(|property| !property.is_read_only() && effect::of_dataset(property) == Effect::Obeyed);
        let (mut count, mut faults) = (0, Vec::new());
        for property in obeyed {
            let Some((users, aspect, words)) = noticed(property) else { continue };
            let name = property.name;
            let usual = bench.all(users, aspect, name, &mut faults).await;
            for word in words {
                let what = format!("{name}={word}");
                for of in users {
                    bench.set(of.dataset(), of.is_volume(), name, Some(word)).await;
                }
                let set = bench.all(users, aspect, &what, &mut faults).await;
                for of in users {
                    // `dir` differs from `sa` on disk alone.
                    if (usual[of] != set[of]) == (what == "xattr=dir") {
                        faults.push(format!("{of:?} {what}: {} before and {} after", usual[of], set[of]));
                    }
                    bench.set(of.dataset(), of.is_volume(), name, None).await;
                    count += 1;
                }
                let mut steps = vec![("set no longer", None, &usual)];
                if property.is_inheritable() {
                    steps.extend([("inherited", Some(*word), &set), ("inherited no longer", None, &usual)]);
                }
                for (step, above, wanted) in steps {
                    if step != "set no longer" {
                        bench.set(ABOVE, false, name, above).await;
                    }
                    let now = bench.all(users, aspect, &what, &mut faults).await;
                    if now != *wanted {
                        faults.push(format!("{what} is {step}: {now:?} in place of {wanted:?}"));
                    }
                }
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        assert!(count > 60, "most properties are noticed by several users: {count}");
        bench.end().await;
    });
}

#[test]
fn a_head_has_one_user_whatever_its_kind() {
    let runtime = Runtime::simulated(12);
    runtime.add_disk("/disk", 512 << 20);
    runtime.block_on(async {
        let bench = Bench::new(&runtime).await;
        for (of, words) in [(Mount, "it is mounted already"), (Exported, "clients have it as a volume")] {
            let refused = match of.is_volume() {
                true => bench.pool.volume(of.dataset()).await.map(drop),
                false => bench.pool.filesystem(of.dataset()).await.map(drop),
            };
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy);
            assert_eq!(error.to_string(), format!("cannot open '{}': {words}", of.dataset()));
        }
        let error = Tree::open_live(&bench.spa, Files.dataset(), TreeOptions::default()).await.err().unwrap();
        assert_eq!(error.to_string(), format!("cannot open '{}': the program has it open", Files.dataset()));
        let all = LiveVolumes::new([(bench.volumes.clone(), ABOVE.to_owned())]);
        let error = all.open(Disk.dataset()).await.err().unwrap();
        assert_eq!(error.to_string(), format!("cannot open '{}': the program has it open", Disk.dataset()));
        bench.end().await;
    });
}

/// A program that flushes after `readonly=on` is not refused: its changes were made before.
#[test]
fn what_was_written_before_readonly_is_flushed_after_it() {
    let runtime = Runtime::simulated(13);
    runtime.add_disk("/disk", 512 << 20);
    runtime.block_on(async {
        let bench = Bench::new(&runtime).await;
        for of in ALL {
            assert_eq!(bench.write(*of).await, "written");
        }
        bench.set(ABOVE, false, "readonly", Some("on")).await;
        for of in ALL {
            bench.flush(*of).await;
            assert_eq!(bench.write(*of).await, "read-only");
        }
        bench.end().await;
    });
}

/// Two verbs end at once, and each has its users refreshed: the later refresh counts, so nobody goes on with what the earlier one has read.
#[test]
fn of_two_refreshes_at_once_the_later_is_obeyed() {
    for seed in 0..6 {
        let runtime = Runtime::simulated(seed);
        runtime.add_disk("/disk", 512 << 20);
        runtime.block_on(async {
            let bench = Bench::new(&runtime).await;
            let set = |word| bench.set(ABOVE, false, "readonly", Some(word));
            cenote_taskq::both(set("on"), set("off")).await;
            let is_on = bench.pool.dataset(ABOVE).await.unwrap().get("readonly").await.unwrap().value == "on";
            for of in ALL {
                assert_eq!(bench.write(*of).await, if is_on { "read-only" } else { "written" }, "{of:?}");
            }
            bench.set(ABOVE, false, "readonly", Some("off")).await;
            bench.end().await;
        });
    }
}

/// A head that cannot be changed yet is shown as it is on disk, and held meanwhile.
#[test]
fn a_head_that_is_shown_read_only_keeps_its_hold() {
    let runtime = Runtime::simulated(14);
    runtime.add_disk("/disk", 256 << 20);
    runtime.block_on(async {
        let pool = CreateOptions::new(["/disk"]).create(&runtime, "tank").await.unwrap();
        let Access::Write(spa) = &pool.inner.access else { panic!("it was made to be changed") };
        pool.create_filesystem("tank/a", &[]).await.unwrap();
        pool.create_volume("tank/v", 8 << 20, &[]).await.unwrap();
        pool.create_volume("tank/w", 8 << 20, &[]).await.unwrap();
        let shown = ["tank/a", "tank/v", "tank/w"];
        for dataset in shown {
            let quota = cenote_spa::PropertyValue::Number(1 << 30);
            spa.change_property(dataset, "refquota", Some(&quota)).await.unwrap();
        }
        // Heads that were open before are open still.
        pool.export().await.unwrap();
        let pool = OpenOptions::new().write(true).open(&runtime, "tank").await.unwrap();
        let Access::Write(spa) = &pool.inner.access else { panic!("it was opened to be changed") };
        let volumes = OpenVolumes::new(spa.clone());
        let all = LiveVolumes::new([(volumes.clone(), "tank".to_owned())]);
        let (files, disk) = (pool.filesystem("tank/a").await.unwrap(), pool.volume("tank/v").await.unwrap());
        let export = all.open("tank/w").await.unwrap().unwrap();
        assert_eq!(files.write("file", "x").await.unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(disk.write_at(0, "x").await.unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(export.write(0, vec![1; 512].into(), false).await.unwrap_err().kind, ExportErrorKind::ReadOnly);
        for dataset in shown {
            let destroyed = spa.destroy_dataset(dataset).await;
            assert!(destroyed.is_err(), "{dataset} is in use");
        }
        drop((files, disk, export));
        for dataset in shown {
            pool.dataset(dataset).await.unwrap().destroy().await.unwrap();
        }
        drop((all, volumes));
        pool.export().await.unwrap();
    });
}
