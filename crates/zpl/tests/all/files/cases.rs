//! Cases with a story: what was found, and what a random walk does not come to.

use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::Zap;
use cenote_dmu::tx::{Cost, TxTunables, TxgSource as _};
use cenote_format::ids::ObjectId;
use cenote_format::zap::ZapValue;
use cenote_format::znode::ZnodeFlags;
use cenote_taskq::sim::disk::Latency;
use cenote_taskq::{Class, Runtime};
use cenote_zpl::{
    AccessTimes, AttributeChange, Cursor, Errno, File, FileSystem, FileSystemOptions, NewNode, RenameMode, XattrMode,
    XattrSet, ZplError,
};

use super::{Live, fresh, judged, reopen};
use cenote_sim::Machine;

use cenote_sim::written::files::make_file_system;
use cenote_sim::written::{SINGLE, machine_of, options};

fn file(mode: u32) -> NewNode {
    NewNode { mode: 0o100_000 | mode, ..NewNode::default() }
}

fn directory(mode: u32) -> NewNode {
    NewNode { mode: 0o040_000 | mode, ..NewNode::default() }
}

fn errno<T>(told: Result<T, ZplError>) -> Option<Errno> {
    told.err().map(|error| error.errno())
}

async fn make_file(fs: &FileSystem, name: &str) -> File {
    fs.create_file(fs.root(), name.as_bytes(), &file(0o644)).await.unwrap().0
}

/// Runs a case on a fresh pool, and has what it leaves judged.
fn case<F>(options: FileSystemOptions, story: impl FnOnce(Live) -> F)
where
    F: Future<Output = Live>,
{
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    runtime.block_on(async {
        let (machine, live) = fresh(&runtime, &handle, options).await;
        let live = story(live).await;
        finish(&handle, &machine, live).await;
    });
}

async fn finish(handle: &cenote_taskq::Handle, machine: &Machine, live: Live) {
    live.stop().await.export().await.unwrap();
    judged(handle, &machine.paths).await.0.close().await;
}

/// Reading is noted where the file was changed since, and once a day; always, or never, where that is wanted.
#[test]
fn reading_changes_the_access_time_as_the_properties_say() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    runtime.block_on(async {
        let (machine, live) = fresh(&runtime, &handle, FileSystemOptions::default()).await;
        let accessed = async || live.fs.find(live.fs.root(), b"f").await.unwrap().accessed;
        let read = async |later: Duration| {
            handle.sleep(later).await;
            let open = live.fs.open_file(live.fs.find(live.fs.root(), b"f").await.unwrap().object).await.unwrap();
            let before = open.attributes().unwrap().accessed;
            assert_eq!(&open.read(0, 10).await.unwrap()[..], b"content");
            let noted = open.attributes().unwrap().accessed;
            open.close().await.unwrap();
            assert_eq!(accessed().await, noted, "it is written down when the file is closed");
            noted > before
        };
        let open = make_file(&live.fs, "f").await;
        open.write(0, b"content").await.unwrap();
        open.close().await.unwrap();
        let second = Duration::from_secs(1);
        let day = Duration::from_secs(25 * 3600);
        assert!(read(second).await, "changed since it was last read");
        assert!(!read(second).await, "read already");
        assert!(read(day).await, "a day has gone");
        live.fs.set_options(FileSystemOptions { access_times: AccessTimes::Always, ..FileSystemOptions::default() });
        assert!(read(second).await);
        live.fs.set_options(FileSystemOptions { access_times: AccessTimes::Never, ..FileSystemOptions::default() });
        assert!(!read(day).await);
        finish(&handle, &machine, live).await;
    });
}

/// Blocks that were written behind the last one on disk made the search for a hole go back and forth for ever.
#[test]
fn a_hole_behind_what_is_not_on_disk_yet_is_found() {
    case(FileSystemOptions { record_bytes: 4096, ..FileSystemOptions::default() }, async |live| {
        let open = make_file(&live.fs, "f").await;
        open.write(0, &[1; 8192]).await.unwrap();
        live.sync().await;
        open.write(8192, &[2; 8192]).await.unwrap();
        assert_eq!(open.next_hole(0).await.unwrap(), Some(16384));
        open.truncate(1 << 20).await.unwrap();
        assert_eq!(open.next_hole(9000).await.unwrap(), Some(16384));
        assert_eq!(open.next_data(16384).await.unwrap(), None);
        live
    });
}

#[test]
fn a_file_that_is_open_outlives_its_name_and_is_freed_by_the_last_close() {
    case(FileSystemOptions::default(), async |live| {
        let fs = &live.fs;
        let open = make_file(fs, "f").await;
        let id = open.id();
        open.write(0, b"before").await.unwrap();
        let other = fs.open_file(id).await.unwrap();
        fs.unlink(fs.root(), b"f").await.unwrap();
        assert_eq!(errno(fs.lookup(fs.root(), b"f").await), Some(Errno::NoEntry));
        live.sync().await;
        open.write(6, b" and after").await.unwrap();
        assert_eq!(&other.read(0, 100).await.unwrap()[..], b"before and after");
        assert_eq!(other.attributes().unwrap().link_count, 0);
        open.close().await.unwrap();
        live.sync().await;
        assert_eq!(&other.read(0, 6).await.unwrap()[..], b"before");
        assert_eq!(errno(fs.link(id, fs.root(), b"again").await), Some(Errno::NoEntry));
        other.close().await.unwrap();
        assert!(fs.open_file(id).await.is_err());
        live
    });
}

#[test]
fn what_a_crash_leaves_in_the_delete_queue_is_freed_by_the_next_user() {
    let runtime = Runtime::simulated(2);
    let handle = runtime.handle();
    runtime.block_on(async {
        let (machine, live) = fresh(&runtime, &handle, FileSystemOptions::default()).await;
        let open = make_file(&live.fs, "f").await;
        open.write(0, &[7; 300_000]).await.unwrap();
        live.fs.set_xattr(open.id(), b"user.big", &[1; 60_000], XattrSet::Any).await.unwrap();
        live.fs.unlink(live.fs.root(), b"f").await.unwrap();
        live.sync().await;
        let id = open.id();
        drop(open);
        drop(live.stop().await);
        judged(&handle, &machine.paths).await.0.close().await;
        let pool = reopen(&handle, &machine.paths).await;
        let live = Live::start(&handle, pool, FileSystemOptions::default()).await;
        assert!(live.fs.garbage().await);
        assert_eq!(live.fs.reap().await.unwrap(), 1);
        assert!(live.fs.attributes(id).await.is_err());
        finish(&handle, &machine, live).await;
    });
}

/// A file with a block below each of so many lowest indirect blocks.
async fn make_sparse(fs: &FileSystem, name: &str, pieces: u64) -> ObjectId {
    let open = make_file(fs, name).await;
    for piece in 0..pieces {
        open.write(piece << 19, b"x").await.unwrap();
    }
    let id = open.id();
    open.close().await.unwrap();
    id
}

/// Freeing took the queue's lock and waited for txgs with it.
#[test]
fn a_large_file_that_loses_its_name_is_freed_later_and_holds_up_nobody() {
    let runtime = Runtime::simulated(4);
    let handle = runtime.handle();
    runtime.block_on(async {
        let options = FileSystemOptions { record_bytes: 512, ..FileSystemOptions::default() };
        let (machine, live) = fresh(&runtime, &handle, options).await;
        let fs = &live.fs;
        // More than a txg frees.
        let large = make_sparse(fs, "large", 1200).await;
        let mut others = Vec::new();
        for name in 0..20 {
            others.push(make_file(fs, &name.to_string()).await);
        }
        live.sync().await;
        let before = live.open_txg();
        fs.unlink(fs.root(), b"large").await.unwrap();
        assert_eq!(live.open_txg(), before, "no txg was waited for");
        assert!(fs.attributes(large).await.is_ok(), "it is in the queue");
        let reaper = fs.clone();
        let is_done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let tells = is_done.clone();
        let reaping = handle.spawn(Class::Background, async move {
            let count = reaper.reap().await;
            tells.store(true, std::sync::atomic::Ordering::Relaxed);
            count
        });
        let mut meanwhile = 0;
        while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
            handle.sleep(Duration::from_micros(20)).await;
            // An open file goes to the queue too.
            if meanwhile < others.len() {
                let begun = live.open_txg();
                fs.unlink(fs.root(), meanwhile.to_string().as_bytes()).await.unwrap();
                assert!(live.open_txg().0 <= begun.0 + 1, "it waited for the frees of a txg");
                meanwhile += 1;
            }
        }
        assert_eq!(reaping.await.unwrap().unwrap(), 1);
        assert!(live.open_txg().0 >= before.0 + 2, "it took several txgs");
        assert_eq!(meanwhile, others.len());
        assert!(fs.attributes(large).await.is_err());
        drop(others);
        assert!(fs.garbage().await);
        assert_eq!(fs.reap().await.unwrap(), 20);
        finish(&handle, &machine, live).await;
    });
}

#[test]
fn the_end_of_use_leaves_a_large_file_half_freed_and_the_next_user_goes_on() {
    let runtime = Runtime::simulated(5);
    let handle = runtime.handle();
    runtime.block_on(async {
        let options = FileSystemOptions { record_bytes: 512, ..FileSystemOptions::default() };
        let (machine, live) = fresh(&runtime, &handle, options).await;
        let large = make_sparse(&live.fs, "large", 600).await;
        live.sync().await;
        live.fs.unlink(live.fs.root(), b"large").await.unwrap();
        live.fs.stop_reaping();
        assert!(!live.fs.garbage().await);
        assert_eq!(live.fs.reap().await.unwrap(), 0, "nothing more is begun");
        let before = live.open_txg();
        assert_eq!(live.fs.reap_little().await.unwrap(), 0, "it is too large to be freed at the end");
        assert!(live.open_txg().0 <= before.0 + 1, "nobody waits for it");
        live.stop().await.export().await.unwrap();
        judged(&handle, &machine.paths).await.0.close().await;
        let live = Live::start(&handle, reopen(&handle, &machine.paths).await, options).await;
        assert!(live.fs.attributes(large).await.is_ok());
        assert!(live.fs.garbage().await);
        assert_eq!(live.fs.reap().await.unwrap(), 1);
        assert!(live.fs.attributes(large).await.is_err());
        finish(&handle, &machine, live).await;
    });
}

/// By the user that removed them, once that is written, and by the next.
#[test]
fn numbers_of_removed_files_are_used_again() {
    let runtime = Runtime::simulated(3);
    let handle = runtime.handle();
    runtime.block_on(async {
        let (machine, live) = fresh(&runtime, &handle, FileSystemOptions::default()).await;
        let make = async |live: &Live, names: std::ops::Range<u32>| {
            let mut ids = Vec::new();
            for name in names {
                let open = make_file(&live.fs, &name.to_string()).await;
                open.write(0, format!("content of {name}").as_bytes()).await.unwrap();
                ids.push(open.id());
                open.close().await.unwrap();
            }
            ids
        };
        let remove = async |live: &Live, names: std::ops::Range<u32>| {
            for name in names {
                live.fs.unlink(live.fs.root(), name.to_string().as_bytes()).await.unwrap();
            }
            live.fs.reap().await.unwrap();
        };
        let first = make(&live, 0..200).await;
        remove(&live, 0..50).await;
        let meanwhile = make(&live, 200..210).await;
        assert!(meanwhile.iter().all(|id| !first.contains(id)), "what frees them is not written yet");
        live.sync().await;
        assert!(make(&live, 210..230).await.iter().all(|id| first.contains(id)));
        remove(&live, 50..190).await;
        live.stop().await.export().await.unwrap();
        let pool = reopen(&handle, &machine.paths).await;
        let live = Live::start(&handle, pool, FileSystemOptions::default()).await;
        assert!(make(&live, 300..400).await.iter().all(|id| first.contains(id)));
        for name in (190..230).chain(300..400) {
            let found = live.fs.find(live.fs.root(), name.to_string().as_bytes()).await.unwrap();
            let open = live.fs.open_file(found.object).await.unwrap();
            assert_eq!(&open.read(0, 100).await.unwrap()[..], format!("content of {name}").as_bytes());
            open.close().await.unwrap();
        }
        finish(&handle, &machine, live).await;
    });
}

#[test]
fn a_directory_never_comes_to_lie_below_itself() {
    case(FileSystemOptions::default(), async |live| {
        let fs = &live.fs;
        let root = fs.root();
        let a = fs.create(root, b"a", &directory(0o755)).await.unwrap().object;
        let b = fs.create(a, b"b", &directory(0o755)).await.unwrap().object;
        let c = fs.create(b, b"c", &directory(0o755)).await.unwrap().object;
        for (to, name) in [(a, b"x"), (b, b"x"), (c, b"x")] {
            let told = fs.rename(root, b"a", to, name, RenameMode::Replace).await;
            assert_eq!(errno(told), Some(Errno::Invalid));
        }
        let told = fs.rename(root, b"a", b, b"c", RenameMode::Exchange).await;
        assert_eq!(errno(told), Some(Errno::Invalid));
        assert_eq!(errno(fs.rename(b, b"c", root, b"a", RenameMode::Replace).await), Some(Errno::NotEmpty));
        fs.rename(b, b"c", root, b"c", RenameMode::NoReplace).await.unwrap();
        fs.rename(root, b"a", c, b"a", RenameMode::NoReplace).await.unwrap();
        assert_eq!(fs.attributes(a).await.unwrap().parent, c);
        assert_eq!(fs.attributes(root).await.unwrap().link_count, 3);
        live
    });
}

/// Two moves that are harmless each, and would make a cycle together.
#[test]
fn moves_at_the_same_time_make_no_cycle() {
    for seed in 0..30 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        runtime.block_on(async {
            let (machine, live) = fresh(&runtime, &handle, FileSystemOptions::default()).await;
            let root = live.fs.root();
            let a = live.fs.create(root, b"a", &directory(0o755)).await.unwrap().object;
            let b = live.fs.create(root, b"b", &directory(0o755)).await.unwrap().object;
            let (one, two) = (live.fs.clone(), live.fs.clone());
            let first = handle.spawn(cenote_taskq::Class::Issue, async move {
                one.rename(root, b"a", b, b"a", RenameMode::Replace).await
            });
            let second = handle.spawn(cenote_taskq::Class::Issue, async move {
                two.rename(root, b"b", a, b"b", RenameMode::Replace).await
            });
            let results = [first.await.unwrap(), second.await.unwrap()];
            assert_eq!(results.iter().filter(|told| told.is_ok()).count(), 1, "{results:?}");
            finish(&handle, &machine, live).await;
        });
    }
}

#[test]
fn a_directory_of_20000_entries_grows_and_shrinks_to_none() {
    case(FileSystemOptions::default(), async |live| {
        let fs = &live.fs;
        let dir = fs.create(fs.root(), b"d", &directory(0o755)).await.unwrap().object;
        let name = |number: u64| format!("entry number {number}").into_bytes();
        for number in 0..20_000 {
            fs.create(dir, &name(number), &file(0o600)).await.unwrap();
            if number % 5000 == 4999 {
                live.sync().await;
            }
        }
        assert_eq!(fs.attributes(dir).await.unwrap().size_bytes, 20_002);
        assert_eq!(errno(fs.rmdir(fs.root(), b"d").await), Some(Errno::NotEmpty));
        // Entries come and go while it is listed; those that stay are seen once.
        let mut cursor = Cursor::START;
        let mut seen = std::collections::BTreeSet::new();
        let mut round = 0;
        loop {
            let batch = fs.list(dir, cursor, 500).await.unwrap();
            let Some(last) = batch.last() else { break };
            cursor = last.next;
            for entry in batch {
                assert!(seen.insert(entry.name));
            }
            for at in 0..20 {
                fs.unlink(dir, &name(round * 20 + at)).await.unwrap();
                fs.create(dir, format!("new {round} {at}").as_bytes(), &file(0o600)).await.unwrap();
            }
            round += 1;
        }
        assert!((round * 20..20_000).all(|number| seen.contains(&name(number))));
        for number in round * 20..20_000 {
            fs.unlink(dir, &name(number)).await.unwrap();
        }
        for round in 0..round {
            for at in 0..20 {
                fs.unlink(dir, format!("new {round} {at}").as_bytes()).await.unwrap();
            }
        }
        assert!(fs.list(dir, Cursor::START, 10).await.unwrap().is_empty());
        live.sync().await;
        fs.rmdir(fs.root(), b"d").await.unwrap();
        assert_eq!(fs.attributes(fs.root()).await.unwrap().link_count, 2);
        live
    });
}

/// A sparse file with data here and there is shortened and removed in steps, each in the end a few at a time.
#[test]
fn a_sparse_file_of_many_pieces_goes_in_steps_over_several_txgs() {
    case(FileSystemOptions { record_bytes: 4096, ..FileSystemOptions::default() }, async |live| {
        let fs = &live.fs;
        let open = make_file(fs, "f").await;
        for piece in 0..700_u64 {
            open.write(piece << 34, &[piece as u8; 5000]).await.unwrap();
        }
        live.sync().await;
        let before = live.open_txg();
        open.truncate((150 << 34) + 100).await.unwrap();
        assert_eq!(open.next_data((149 << 34) + 8192).await.unwrap(), Some(150 << 34));
        assert_eq!(open.next_data((150 << 34) + 100).await.unwrap(), None);
        open.truncate((699 << 34) + 5000).await.unwrap();
        assert_eq!(&open.read((150 << 34) + 98, 4).await.unwrap()[..], [150, 150, 0, 0]);
        fs.unlink(fs.root(), b"f").await.unwrap();
        open.close().await.unwrap();
        assert_eq!(fs.reap().await.unwrap(), 1);
        // A txg's share grows where txgs take no time, as here.
        assert!(live.open_txg() > before, "{} {before}", live.open_txg());
        live
    });
}

#[test]
fn the_first_block_grows_with_the_file_up_to_a_record() {
    case(FileSystemOptions { record_bytes: 16384, ..FileSystemOptions::default() }, async |live| {
        let open = make_file(&live.fs, "f").await;
        let block = async || open.attributes().unwrap().block_size_bytes;
        for (end, expected) in [(100, 512), (700, 1024), (5000, 5120), (16000, 16384), (40_000, 16384)] {
            open.write(end - 10, &[9; 10]).await.unwrap();
            assert_eq!(block().await, expected, "{end}");
            live.sync().await;
        }
        open.truncate(0).await.unwrap();
        live.fs.set_options(FileSystemOptions { record_bytes: 65536, ..FileSystemOptions::default() });
        live.sync().await;
        open.truncate(50_000).await.unwrap();
        assert_eq!(block().await, 50_176);
        open.write(60_000, &[1; 30_000]).await.unwrap();
        assert_eq!(block().await, 65536);
        live
    });
}

#[test]
fn attributes_move_between_bonus_and_spill_and_owners_stay_counted() {
    case(FileSystemOptions::default(), async |live| {
        let fs = &live.fs;
        let open = make_file(fs, "f").await;
        let id = open.id();
        for (round, len) in [10, 500, 20, 30_000, 0, 900].into_iter().enumerate() {
            fs.set_xattr(id, b"user.x", &vec![3; len], XattrSet::Any).await.unwrap();
            live.sync().await;
            let uid = Some(100 + round as u32);
            let project = Some(round as u64);
            let change = AttributeChange { uid, gid: uid, project, ..AttributeChange::default() };
            fs.set_attributes(id, &change).await.unwrap();
            if round % 2 == 0 {
                live.sync().await;
            }
            assert_eq!(fs.xattr(id, b"user.x").await.unwrap().len(), len);
        }
        fs.remove_xattr(id, b"user.x").await.unwrap();
        live
    });
}

#[test]
fn extended_attributes_that_outgrow_the_spill_block_go_to_a_directory_and_change_owner_with_their_file() {
    for xattrs in [XattrMode::Sa, XattrMode::Dir] {
        case(FileSystemOptions { xattrs, ..FileSystemOptions::default() }, async |live| {
            let fs = &live.fs;
            let open = make_file(fs, "f").await;
            let id = open.id();
            for number in 0..6 {
                let name = format!("user.{number}");
                fs.set_xattr(id, name.as_bytes(), &[number; 20_000], XattrSet::Create).await.unwrap();
                live.sync().await;
            }
            assert!(fs.attributes(id).await.unwrap().xattr_directory.is_some());
            let change = AttributeChange { uid: Some(5), gid: Some(6), ..AttributeChange::default() };
            fs.set_attributes(id, &change).await.unwrap();
            fs.set_xattr(id, b"user.5", b"small", XattrSet::Replace).await.unwrap();
            for number in 0..5 {
                assert_eq!(fs.xattr(id, format!("user.{number}").as_bytes()).await.unwrap(), [number; 20_000]);
            }
            assert_eq!(fs.xattr(id, b"user.5").await.unwrap(), b"small");
            assert_eq!(fs.xattr_names(id).await.unwrap().len(), 6);
            drop(open);
            fs.unlink(fs.root(), b"f").await.unwrap();
            fs.reap().await.unwrap();
            live
        });
    }
}

/// Directories are kept in memory for a while, hidden ones too, and those are freed with their file. A directory that got the number of
/// one was taken for it, and what became of it was written nowhere.
#[test]
fn a_hidden_directory_with_the_number_of_one_that_was_freed_is_another() {
    case(FileSystemOptions { xattrs: XattrMode::Dir, ..FileSystemOptions::default() }, async |live| {
        let fs = &live.fs;
        let mut before = None;
        for name in ["f", "g"] {
            let id = make_file(fs, name).await.id();
            for attribute in [&b"user.a"[..], b"user.b", b"user.c"] {
                fs.set_xattr(id, attribute, name.as_bytes(), XattrSet::Create).await.unwrap();
            }
            let hidden = fs.attributes(id).await.unwrap().xattr_directory.unwrap();
            let found = fs.attributes(hidden).await.unwrap();
            assert_eq!((found.parent, found.size_bytes), (id, 5), "{name}");
            if let Some(before) = before.replace(hidden) {
                assert_eq!(hidden, before, "the number was given again");
                return live;
            }
            fs.unlink(fs.root(), name.as_bytes()).await.unwrap();
            fs.reap().await.unwrap();
            live.sync().await;
        }
        live
    });
}

/// A part that is missing does not make a file that is missing: without its hidden directory, or with an attribute there that leads nowhere,
/// a file is shown, changed and removed like any other.
#[test]
fn a_file_whose_extended_attributes_are_lost_is_there_all_the_same() {
    case(FileSystemOptions { xattrs: XattrMode::Dir, ..FileSystemOptions::default() }, async |live| {
        let fs = &live.fs;
        let root = fs.root();
        let owner = AttributeChange { uid: Some(5), ..AttributeChange::default() };
        for name in ["file", "folder"] {
            let id = match name {
                "file" => make_file(fs, name).await.id(),
                _ => fs.create(root, name.as_bytes(), &directory(0o755)).await.unwrap().object,
            };
            for attribute in [&b"user.a"[..], b"user.b"] {
                fs.set_xattr(id, attribute, b"value", XattrSet::Create).await.unwrap();
            }
            live.sync().await;
            let hidden = fs.attributes(id).await.unwrap().xattr_directory.unwrap();
            let entries = fs.list_xattrs(hidden, Cursor::START, 10).await.unwrap();
            let lost = entries.iter().find(|entry| entry.name == b"user.a").unwrap().object;
            free(&live, &[lost]).await;
            assert_eq!(errno(fs.xattr(id, b"user.a").await), Some(Errno::NoData));
            assert_eq!(fs.xattrs(id).await.unwrap().into_keys().collect::<Vec<_>>(), [b"user.b"]);
            fs.set_attributes(id, &owner).await.unwrap();
            fs.set_xattr(id, b"user.a", b"again", XattrSet::Any).await.unwrap();
            assert_eq!(fs.xattrs(id).await.unwrap().len(), 2);
            live.sync().await;
            let entries = fs.list_xattrs(hidden, Cursor::START, 10).await.unwrap();
            let mut all: Vec<ObjectId> = entries.iter().map(|entry| entry.object).collect();
            all.push(hidden);
            free(&live, &all).await;
            assert_eq!(fs.xattr_names(id).await.unwrap(), Vec::<Vec<u8>>::new());
            assert!(fs.xattrs(id).await.unwrap().is_empty());
            assert_eq!(errno(fs.xattr(id, b"user.a").await), Some(Errno::NoData));
            fs.set_attributes(id, &owner).await.unwrap();
            if name == "folder" {
                fs.create(id, b"inside", &file(0o644)).await.unwrap();
                fs.unlink(id, b"inside").await.unwrap();
                // In the place of what is lost there can be something again.
                fs.set_xattr(id, b"user.c", b"new", XattrSet::Create).await.unwrap();
                assert_eq!(fs.xattr(id, b"user.c").await.unwrap(), b"new");
            } else {
                fs.unlink(root, name.as_bytes()).await.unwrap();
            }
            fs.reap().await.unwrap();
        }
        live
    });
}

/// Frees objects behind the file system's back.
async fn free(live: &Live, objects: &[ObjectId]) {
    let tx = live.txgs.begin(Cost::default().with_objects(8)).await.unwrap();
    for id in objects {
        live.fs.dnode(*id).await.unwrap().free(tx.txg());
    }
    drop(tx);
    live.sync().await;
}

/// Lustre writes `..` into directories that are spread over servers. An entry that cannot be shown does not hide the others.
#[test]
fn entries_that_cannot_be_shown_do_not_hide_the_others() {
    case(FileSystemOptions::default(), async |live| {
        let fs = &live.fs;
        let dir = fs.create(fs.root(), b"dir", &directory(0o755)).await.unwrap().object;
        for name in [&b"one"[..], b"two"] {
            fs.create(dir, name, &file(0o644)).await.unwrap();
        }
        live.sync().await;
        let odd: [(&[u8], u64); 4] = [(b"..", 34), (b".", 34), (b"a/b", 34), (b"nowhere", 0)];
        let change = async |is_there: bool| {
            let mut zap = Zap::open(fs.dnode(dir).await.unwrap()).await.unwrap();
            for (name, value) in odd {
                match is_there {
                    true => zap.insert(name, &ZapValue::from_u64(value)).await.unwrap(),
                    false => drop(zap.remove(name).await.unwrap()),
                }
            }
            let tx = live.txgs.begin(Cost::default().with_entries(8)).await.unwrap();
            zap.flush(tx.txg()).await.unwrap();
            drop(tx);
            live.sync().await;
        };
        change(true).await;
        // In steps of any size: no entries mean the end.
        for step in [1, 2, 100] {
            let (mut cursor, mut names, mut is_odd) = (Cursor::START, Vec::new(), false);
            loop {
                let listed = fs.list_with_odd(dir, cursor, step).await.unwrap();
                is_odd |= listed.odd.is_some();
                let Some(last) = listed.entries.last() else { break };
                cursor = last.next;
                names.extend(listed.entries.into_iter().map(|entry| entry.name));
            }
            names.sort();
            assert_eq!(names, [b"one", b"two"], "in steps of {step}");
            assert!(is_odd);
        }
        change(false).await;
        assert!(fs.list_with_odd(dir, Cursor::START, 100).await.unwrap().odd.is_none());
        live
    });
}

/// Goal: nobody writes what nobody could read. Method: values are set until one is refused; all others are then read.
#[test]
fn attributes_are_refused_where_a_reader_would_refuse_them() {
    case(FileSystemOptions { xattrs: XattrMode::Dir, ..FileSystemOptions::default() }, async |live| {
        let fs = &live.fs;
        let id = make_file(fs, "f").await.id();
        let mut count = 0;
        let value = [7; 64 << 10];
        while let Ok(()) = fs.set_xattr(id, format!("user.{count}").as_bytes(), &value, XattrSet::Create).await {
            count += 1;
            if count % 50 == 0 {
                live.sync().await;
            }
            assert!(count * value.len() <= cenote_zpl::XATTRS_MAX_BYTES);
        }
        assert!((count + 3) * value.len() > cenote_zpl::XATTRS_MAX_BYTES, "{count}");
        assert_eq!(errno(fs.set_xattr(id, b"user.x", &value, XattrSet::Any).await), Some(Errno::NoSpace));
        // One in the place of another is still room enough.
        fs.set_xattr(id, b"user.0", &value, XattrSet::Replace).await.unwrap();
        assert_eq!(fs.xattr_names(id).await.unwrap().len(), count);
        live
    });
}

#[test]
fn of_the_systems_attributes_only_lists_can_be_set() {
    case(FileSystemOptions::default(), async |live| {
        let fs = &live.fs;
        let id = make_file(fs, "f").await.id();
        for name in [&b"system.nfs4_acl"[..], b"system.anything", b"system.posix_acl_", b"system.posix_acl_access2"] {
            let told = errno(fs.set_xattr(id, name, b"x", XattrSet::Any).await);
            assert_eq!(told, Some(Errno::NotSupported), "{}", String::from_utf8_lossy(name));
        }
        assert_eq!(fs.xattr_names(id).await.unwrap(), Vec::<Vec<u8>>::new());
        live
    });
}

#[test]
fn posix_lists_keep_step_with_modes_and_are_handed_down() {
    let entry = |tag: u16, permissions: u16, id: u32| {
        [tag.to_le_bytes().to_vec(), permissions.to_le_bytes().to_vec(), id.to_le_bytes().to_vec()].concat()
    };
    let none = u32::MAX;
    let list = [
        2_u32.to_le_bytes().to_vec(),
        entry(1, 7, none),
        entry(2, 6, 1000),
        entry(4, 5, none),
        entry(0x10, 7, none),
        entry(0x20, 0, none),
    ]
    .concat();
    let options = FileSystemOptions { has_posix_acls: true, ..FileSystemOptions::default() };
    case(options, async |live| {
        let fs = &live.fs;
        let (access, default) = (b"system.posix_acl_access", b"system.posix_acl_default");
        let dir = fs.create(fs.root(), b"d", &directory(0o2750)).await.unwrap().object;
        fs.set_xattr(dir, access, &list, XattrSet::Any).await.unwrap();
        assert_eq!(fs.attributes(dir).await.unwrap().permissions, 0o2770);
        fs.set_xattr(dir, default, &list, XattrSet::Any).await.unwrap();
        let new = NewNode { umask: 0o777, ..file(0o666) };
        let below = fs.create(dir, b"f", &new).await.unwrap();
        assert_eq!(below.permissions, 0o660);
        assert!(fs.xattr(below.object, access).await.is_ok());
        let change = AttributeChange { permissions: Some(0o600), ..AttributeChange::default() };
        fs.set_attributes(below.object, &change).await.unwrap();
        let changed = fs.xattr(below.object, access).await.unwrap();
        assert_eq!(changed[4 + 3 * 8 + 2], 0);
        let sub = fs.create(dir, b"s", &directory(0o777)).await.unwrap();
        assert_eq!(fs.xattr(sub.object, default).await.unwrap(), list);
        assert_eq!(sub.permissions, 0o2770);
        assert_eq!(errno(fs.set_xattr(below.object, default, &list, XattrSet::Any).await), Some(Errno::Invalid));
        live
    });
}

#[test]
fn flags_forbid_what_they_say() {
    case(FileSystemOptions::default(), async |live| {
        let fs = &live.fs;
        let open = make_file(fs, "f").await;
        open.write(0, b"12345").await.unwrap();
        let flags = |set, clear| AttributeChange { flags: Some((set, clear)), ..AttributeChange::default() };
        let none = ZnodeFlags::empty();
        fs.set_attributes(open.id(), &flags(ZnodeFlags::APPEND_ONLY, none)).await.unwrap();
        assert_eq!(errno(open.write(0, b"x").await), Some(Errno::NotPermitted));
        assert_eq!(errno(open.truncate(2).await), Some(Errno::NotPermitted));
        open.write(5, b"6").await.unwrap();
        fs.set_attributes(open.id(), &flags(ZnodeFlags::IMMUTABLE, ZnodeFlags::APPEND_ONLY)).await.unwrap();
        for told in [
            open.write(6, b"x").await,
            fs.unlink(fs.root(), b"f").await,
            fs.rename(fs.root(), b"f", fs.root(), b"g", RenameMode::Replace).await,
            fs.set_xattr(open.id(), b"user.a", b"", XattrSet::Any).await,
        ] {
            assert_eq!(errno(told), Some(Errno::NotPermitted));
        }
        fs.set_attributes(open.id(), &flags(none, ZnodeFlags::IMMUTABLE)).await.unwrap();
        fs.unlink(fs.root(), b"f").await.unwrap();
        live
    });
}

#[test]
fn a_directory_hands_its_project_down_and_keeps_others_out() {
    case(FileSystemOptions::default(), async |live| {
        let fs = &live.fs;
        let dir = fs.create(fs.root(), b"d", &directory(0o755)).await.unwrap().object;
        let change = AttributeChange {
            project: Some(42),
            flags: Some((ZnodeFlags::PROJECT_INHERIT, ZnodeFlags::empty())),
            ..AttributeChange::default()
        };
        fs.set_attributes(dir, &change).await.unwrap();
        let inner = fs.create(dir, b"i", &directory(0o755)).await.unwrap();
        assert_eq!((inner.project, inner.flags.is_project_inherited()), (Some(42), true));
        assert_eq!(fs.create(inner.object, b"f", &file(0o644)).await.unwrap().project, Some(42));
        let outside = make_file(fs, "out").await;
        let told = fs.link(outside.id(), dir, b"in").await;
        assert_eq!(errno(told), Some(Errno::CrossDevice));
        let told = fs.rename(fs.root(), b"out", dir, b"in", RenameMode::Replace).await;
        assert_eq!(errno(told), Some(Errno::CrossDevice));
        fs.rename(inner.object, b"f", fs.root(), b"f", RenameMode::Replace).await.unwrap();
        live
    });
}

#[test]
fn names_that_cannot_be_are_refused() {
    case(FileSystemOptions::default(), async |live| {
        let (fs, root) = (&live.fs, live.fs.root());
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(errno(fs.create(root, name, &file(0o644)).await), Some(Errno::Invalid), "{name:?}");
        }
        assert_eq!(errno(fs.create(root, &[b'x'; 256], &file(0o644)).await), Some(Errno::NameTooLong));
        fs.create(root, &[b'x'; 255], &file(0o644)).await.unwrap();
        assert_eq!(errno(fs.create(root, &[b'x'; 255], &file(0o644)).await), Some(Errno::Exists));
        assert_eq!(errno(fs.create(ObjectId(1), b"x", &file(0o644)).await), Some(Errno::NoEntry));
        live
    });
}

/// Objects took the new tree as theirs before its blocks were on disk, and whoever read them then found what was there before.
#[test]
fn what_is_being_written_is_read_from_memory_until_it_is_on_disk() {
    let runtime = Runtime::simulated(3);
    let handle = runtime.handle();
    runtime.block_on(async {
        let latency = Latency { write: Duration::from_millis(20), ..Latency::default() };
        let machine = machine_of(&runtime, 1, latency);
        let pool = make_file_system(&handle, options(machine.tops(&handle, SINGLE).await.unwrap(), 12)).await;
        let live =
            Live::start(&handle, pool, FileSystemOptions { record_bytes: 4096, ..FileSystemOptions::default() }).await;
        let open = make_file(&live.fs, "f").await;
        for round in 1..6_u8 {
            open.write(0, &[round; 400_000]).await.unwrap();
            live.want_sync();
            for _ in 0..200 {
                handle.sleep(Duration::from_millis(1)).await;
                assert!(open.read(0, 400_000).await.unwrap().iter().all(|byte| *byte == round));
                assert_eq!(live.fs.lookup(live.fs.root(), b"f").await.unwrap(), open.id());
            }
        }
        drop(open);
        finish(&handle, &machine, live).await;
    });
}

/// The pool that is written in the background, as programs have it.
#[test]
fn a_live_pool_gives_txgs_and_its_files_are_there_after_export() {
    let runtime = Runtime::simulated(4);
    let handle = runtime.handle();
    runtime.block_on(async {
        let machine = machine_of(&runtime, 1, Latency::default());
        let writer = make_file_system(&handle, options(machine.tops(&handle, SINGLE).await.unwrap(), 12)).await;
        let pool = writer.start(TxTunables::default()).await;
        let head = pool.open_head("written").await.unwrap();
        let fs =
            FileSystem::open_head(&head.objset().clone(), Arc::new(head), FileSystemOptions::default()).await.unwrap();
        for number in 0..300_u64 {
            let open = make_file(&fs, &format!("f{number}")).await;
            open.write(0, &[number as u8; 10_000]).await.unwrap();
            open.close().await.unwrap();
            if number % 3 == 0 {
                fs.unlink(fs.root(), format!("f{number}").as_bytes()).await.unwrap();
            }
        }
        drop(fs);
        pool.export().await.unwrap();
        let (view, fs) = judged(&handle, &machine.paths).await;
        assert_eq!(fs.attributes(fs.root()).await.unwrap().size_bytes, 202);
        view.close().await;
    });
}

/// A block that is not on disk yet is changed in its place. An earlier reader keeps the content that it read, a txg that is being
/// written keeps its own, and the newest content comes to disk.
#[test]
fn a_part_of_a_dirty_block_is_changed_in_place_and_under_nobody() {
    const RECORD: usize = 128 << 10;
    case(FileSystemOptions::default(), async |live| {
        let open = make_file(&live.fs, "f").await;
        let mut model = vec![1; 2 * RECORD];
        open.write(0, &model).await.unwrap();
        // Where the first block's bytes lie: elsewhere after a copy, since what is copied is there still.
        let address = async || open.read(0, RECORD).await.unwrap().as_ptr().addr();
        for step in 0..60_usize {
            let at = step * 7919 % (2 * RECORD - 4096);
            open.write(at as u64, &[step as u8; 4096]).await.unwrap();
            model[at..at + 4096].fill(step as u8);
            // This txg has the first block now.
            open.write(1, &[0xaa; 10]).await.unwrap();
            let before = address().await;
            open.write(3, &[0xbb; 10]).await.unwrap();
            assert_eq!(address().await, before, "step {step}: copied, though nobody held it");
            model[1..3].fill(0xaa);
            model[3..13].fill(0xbb);
            let held = open.read(0, RECORD).await.unwrap();
            assert!(held[..] == model[..RECORD], "step {step}");
            open.write(5, &[0xee; 10]).await.unwrap();
            assert_ne!(address().await, before, "step {step}");
            assert!(held[..] == model[..RECORD], "step {step}: what was read has changed");
            model[5..15].fill(0xee);
            if step % 10 == 9 {
                live.sync().await;
            }
        }
        // And beside txgs that are being written.
        for step in 0..60_usize {
            let at = step * 6007 % (2 * RECORD - 100);
            open.write(at as u64, &[step as u8; 100]).await.unwrap();
            model[at..at + 100].fill(step as u8);
            if step % 3 == 0 {
                live.want_sync();
            }
            assert!(open.read(0, 2 * RECORD).await.unwrap()[..] == model[..], "step {step}");
        }
        live.sync().await;
        assert!(open.read(0, 2 * RECORD).await.unwrap()[..] == model[..]);
        live
    });
}

/// The ZAP of a directory is kept open between changes: by its object, so that a directory of the same number later is another one.
#[test]
fn a_directory_whose_number_was_anothers_begins_empty() {
    case(FileSystemOptions::default(), async |live| {
        let (fs, root) = (&live.fs, live.fs.root());
        let mut numbers = std::collections::BTreeSet::new();
        for round in 0..4 {
            for name in 0..20 {
                let made = fs.create(root, format!("d{name}").as_bytes(), &directory(0o755)).await.unwrap().object;
                numbers.insert(made);
                fs.create(made, b"first", &file(0o644)).await.unwrap();
                assert_eq!(errno(fs.create(made, b"first", &file(0o644)).await), Some(Errno::Exists));
                fs.rename(made, b"first", made, b"second", RenameMode::Replace).await.unwrap();
                let left = fs.list(made, Cursor::START, 10).await.unwrap();
                assert_eq!(left.iter().map(|entry| entry.name.as_slice()).collect::<Vec<_>>(), [b"second"]);
                fs.unlink(made, b"second").await.unwrap();
            }
            for name in 0..20 {
                fs.rmdir(root, format!("d{name}").as_bytes()).await.unwrap();
            }
            live.sync().await;
            live.sync().await;
            assert!(round < 3 || numbers.len() < 80, "numbers are used again");
        }
        live
    });
}

/// Each counted for as much as a piece of a huge file once, and a program that rewrote small files waited for txgs.
#[test]
fn many_small_files_are_emptied_in_one_txg() {
    case(FileSystemOptions::default(), async |live| {
        let before = live.open_txg();
        for number in 0..300 {
            let open = make_file(&live.fs, &format!("f{number}")).await;
            open.write(0, &[1; 3000]).await.unwrap();
            open.truncate(0).await.unwrap();
            open.write(0, &[2; 100]).await.unwrap();
            live.fs.unlink(live.fs.root(), format!("f{number}").as_bytes()).await.unwrap();
            open.close().await.unwrap();
        }
        assert_eq!(live.open_txg(), before);
        live
    });
}

/// One type serves both: what is open to be read answers the same questions and refuses every change.
#[test]
fn a_file_system_that_is_open_to_be_read_says_the_same_and_refuses_changes() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    runtime.block_on(async {
        let (machine, live) = fresh(&runtime, &handle, FileSystemOptions::default()).await;
        let (fs, root) = (live.fs.clone(), live.fs.root());
        let open = make_file(&fs, "f").await;
        open.write(0, &[7; 3000]).await.unwrap();
        open.write(1 << 20, &[8; 100]).await.unwrap();
        fs.set_xattr(open.id(), b"user.a", b"value", XattrSet::Any).await.unwrap();
        let dir = fs.create(root, b"d", &directory(0o755)).await.unwrap().object;
        live.sync().await;
        let told = async |fs: &FileSystem| {
            let open = fs.open_file(fs.lookup(fs.root(), b"f").await.unwrap()).await.unwrap();
            let mut attributes = open.attributes().unwrap();
            // Reads of a file system in use may have changed that.
            attributes.accessed = attributes.modified;
            let bytes = open.read(2990, 2 << 20).await.unwrap().to_vec();
            let ends = (open.next_data(4096).await.unwrap(), open.next_hole(0).await.unwrap());
            let names = fs.list(fs.root(), Cursor::START, 10).await.unwrap();
            (attributes, bytes, ends, names, fs.xattrs(open.id()).await.unwrap(), fs.resolve(b"d/..").await.unwrap())
        };
        let in_use = told(&fs).await;
        drop((fs, open));
        live.stop().await.export().await.unwrap();
        let (pool, fs) = judged(&handle, &machine.paths).await;
        assert!(fs.is_read_only());
        assert_eq!(told(&fs).await, in_use);
        let id = in_use.0.object;
        let open = fs.open_file(id).await.unwrap();
        let refused = [
            errno(fs.create(root, b"new", &file(0o644)).await),
            errno(fs.create_file(root, b"new", &file(0o644)).await),
            errno(fs.link(id, root, b"new").await),
            errno(fs.unlink(root, b"f").await),
            errno(fs.rmdir(root, b"d").await),
            errno(fs.rename(root, b"f", dir, b"f", RenameMode::Replace).await),
            errno(fs.set_attributes(id, &AttributeChange { uid: Some(1), ..AttributeChange::default() }).await),
            errno(fs.set_xattr(id, b"user.b", b"", XattrSet::Any).await),
            errno(fs.remove_xattr(id, b"user.a").await),
            errno(open.write(0, b"new").await),
            errno(open.truncate(0).await),
            errno(fs.reap().await),
        ];
        assert_eq!(refused, [Some(Errno::ReadOnly); 12]);
        drop((fs, open));
        pool.close().await;
    });
}
