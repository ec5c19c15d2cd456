//! Goal: a redaction list has the blocks of a snapshot that no clone has, and nothing else. Method: clones of a snapshot are changed at random;
//! the list is compared with the pointers of all blocks, one by one; then the snapshot is sent without them, the clones on top of that, and
//! compared with a plain model. The list is the same when it was interrupted and gone on with.

#![allow(clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};

use cenote_admin::receive::{ReceiveRequest, Told, receive};
use cenote_admin::{RedactError, RedactRequest, clone_dataset, redact, redact_in, take_snapshots};
use cenote_dmu::Objset;
use cenote_dmu::tx::TxTunables;
use cenote_format::dsl::RedactBlock;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{BlockId, ObjectId, Txg};
use cenote_replicas::objects::{Contents, change, compare, source_head};
use cenote_send::sender::{Base, SendFlags, SendProgress, SendRequest, send};
use cenote_sim::{Machine, SINGLE, audit_space, check, new_pool, options};
use cenote_spa::{ImportOptions, Pool, View};
use cenote_taskq::sim::disk::SimDiskOptions;
use cenote_taskq::{Handle, Rng, Runtime};

const DISK_BYTES: u64 = 256 << 20;
const HISTORIES: u64 = 6;

/// All entries of the list of a bookmark of `written/v`.
async fn entries(view: &View, bookmark: &str) -> Vec<RedactBlock> {
    let dsl = view.dsl();
    let head = dsl.dataset("written/v").await.unwrap();
    let list = dsl.bookmark(&head, bookmark).await.unwrap().unwrap().phys.redaction_list;
    let phys = dsl.redaction_list(list).await.unwrap();
    assert_eq!((phys.last_object, phys.last_block), (u64::MAX, u64::MAX), "it is complete");
    let object = view.mos().object(list).await.unwrap();
    let bytes = object.read(0, phys.entry_count as usize * RedactBlock::SIZE_BYTES).await.unwrap();
    let parse = |entry| RedactBlock::parse(entry, cenote_dmu::ORDER).unwrap();
    bytes.chunks_exact(RedactBlock::SIZE_BYTES).map(parse).collect()
}

async fn objset(view: &View, name: &str) -> Objset {
    let dataset = view.dsl().dataset(name).await.unwrap();
    view.dsl().open(&dataset).await.unwrap().unwrap()
}

/// True if a clone still has this block of its origin.
async fn has(clone: &Objset, object: ObjectId, block: BlockId, block_bytes: u64, since: Txg) -> bool {
    let Ok(object) = clone.object(object).await else { return false };
    if object.block_bytes() != block_bytes || block > object.last_block() {
        return false;
    }
    let bp = object.pointer(0, block).await.unwrap();
    !bp.is_hole() && bp.logical_birth() <= since
}

/// Compares a list with the blocks of the snapshot that no clone has. How many blocks it has comes back.
async fn compare_list(view: &View, list: &[RedactBlock], snapshot: &str, clones: &[String], what: &str) -> u64 {
    let since = view.dsl().dataset(snapshot).await.unwrap().phys.creation_txg;
    let origin = objset(view, snapshot).await;
    let mut others = Vec::new();
    for clone in clones {
        others.push(objset(view, clone).await);
    }
    let mut listed = BTreeSet::new();
    let mut last = (0, 0);
    for run in list {
        assert!((run.object.0, run.block) >= last, "{what}: {run:?} is not in order");
        assert!((run.object.0, run.block) != last || last == (0, 0), "{what}: {run:?} goes on with the one before");
        last = (run.object.0, run.block + run.block_count);
        let object = origin.object(run.object).await.unwrap();
        assert_eq!(u64::from(run.block_size_bytes), object.block_bytes(), "{what}: {run:?}");
        assert!(last.1 <= object.last_block().0 + 1, "{what}: {run:?} is longer than the object");
        assert!(!object.phys().object_type.is_metadata(), "{what}: {run:?} is metadata");
        listed.extend((run.block..last.1).map(|block| (run.object, block)));
    }
    let mut from = ObjectId(1);
    let mut redacted = 0;
    while let Some(next) = origin.next_objects(from).await.unwrap() {
        from = next.next;
        for (id, object) in next.objects {
            let object = object.unwrap();
            if object.phys().object_type.is_metadata() {
                continue;
            }
            for block in 0..=object.last_block().0 {
                if object.pointer(0, BlockId(block)).await.unwrap().is_hole() {
                    // There is nothing to hide.
                    continue;
                }
                let mut is_wanted = true;
                for other in &others {
                    is_wanted &= !has(other, id, BlockId(block), object.block_bytes(), since).await;
                }
                assert_eq!(listed.contains(&(id, block)), is_wanted, "{what}: object {id}, block {block}");
                redacted += u64::from(is_wanted);
            }
        }
    }
    redacted
}

async fn sent(view: &View, to: &str, redact: Option<&str>, from: Option<&str>) -> Vec<u8> {
    let dsl = view.dsl();
    let to = dsl.dataset(to).await.unwrap();
    let head = dsl.dataset("written/v").await.unwrap();
    let mut request = SendRequest::full(to.clone(), SendFlags { large_blocks: true, ..SendFlags::default() });
    if let Some(name) = redact {
        request.redact = Some(dsl.bookmark(&head, name).await.unwrap().unwrap().phys.redaction_list);
    }
    if let Some(name) = from {
        let bookmark = dsl.bookmark(&head, name).await.unwrap().unwrap();
        request.base = Some(Base::bookmark(dsl, &to, &head, &bookmark).await.unwrap());
    }
    let mut out = Vec::new();
    send(view, &request, &mut out, &SendProgress::default()).await.unwrap();
    out
}

async fn received(pool: &Pool, bytes: &[u8], target: &str, origin: Option<&str>) {
    let request =
        ReceiveRequest { target: target.to_owned(), origin: origin.map(str::to_owned), ..ReceiveRequest::default() };
    receive(pool, bytes, &request, &mut |_: Told| {}).await.unwrap();
}

fn asked(bookmark: &str, by: &[String]) -> RedactRequest {
    RedactRequest { snapshot: "written/v@s".to_owned(), bookmark: bookmark.to_owned(), by: by.to_vec() }
}

async fn history(handle: &Handle, machine: &Machine, seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let (left, right) = (machine.part(0..1), machine.part(1..2));
    let source = new_pool(handle, options("written", left.tops(handle, SINGLE).await.unwrap(), 12)).await.unwrap();
    let replica = new_pool(handle, options("replica", right.tops(handle, SINGLE).await.unwrap(), 12)).await.unwrap();
    let replica = replica.start(TxTunables::default()).await;
    let head = source_head(&source, ObjsetType::Zfs).await;
    let (mut model, mut next) = (Contents::new(), 0);
    for _ in 0..8 {
        change(&head, &source, &mut model, &mut next, &mut rng).await;
    }
    take_snapshots(&source, &["written/v@s".to_owned()], &[]).await.unwrap();
    let mut clones = BTreeMap::new();
    for index in 0..1 + rng.below(3) {
        let name = format!("written/c{index}");
        clone_dataset(&source, "written/v@s", &name, Vec::new()).await.unwrap();
        source.sync().await.unwrap();
        let open = source.open_head(&name).await.unwrap();
        let (objset, mut model) = (open.head().objset.clone(), model.clone());
        // All change some of the same, and each what it likes.
        let (mut same, mut next) = (Rng::new(seed + 1000), next);
        for _ in 0..4 {
            change(&objset, &source, &mut model, &mut next, &mut same).await;
        }
        for _ in 0..rng.below(3) {
            change(&objset, &source, &mut model, &mut next, &mut rng).await;
        }
        drop((objset, open));
        let name = format!("{name}@x");
        take_snapshots(&source, std::slice::from_ref(&name), &[]).await.unwrap();
        clones.insert(name, model);
    }
    let names: Vec<String> = clones.keys().cloned().collect();
    let what = format!("seed {seed}, {} clones", names.len());
    redact(&source, &asked("book", &names)).await.unwrap();
    source.sync().await.unwrap();

    // Written in many pieces, each of which leaves what can be gone on with.
    let mut pieces = 0;
    loop {
        let done = redact_in(&source, &asked("slow", &names), 5, 1).await;
        source.sync().await.unwrap();
        match done {
            Ok(()) => pieces += 1,
            Err(RedactError::Exists(_)) => break,
            Err(error) => panic!("{what}: {error}"),
        }
        assert!(pieces < 10_000, "{what}: it comes to an end");
        let others = [names.clone(), vec!["written/v@other".to_owned()]].concat();
        if pieces == 1 {
            take_snapshots(&source, &["written/v@other".to_owned()], &[]).await.unwrap();
        }
        let mixed = redact_in(&source, &asked("slow", &others), 5, 1).await.unwrap_err();
        assert!(matches!(mixed, RedactError::Mismatch), "{what}: {mixed}");
    }

    let view = source.view(&ImportOptions::default()).await.unwrap();
    let list = entries(&view, "book").await;
    assert_eq!(entries(&view, "slow").await, list, "{what}: in {pieces} pieces");
    let redacted = compare_list(&view, &list, "written/v@s", &names, &what).await;

    received(&replica, &sent(&view, "written/v@s", Some("book"), None).await, "replica/of@s", None).await;
    for (index, (name, model)) in clones.iter().enumerate() {
        let bytes = sent(&view, name, None, Some("book")).await;
        received(&replica, &bytes, &format!("replica/c{index}@x"), Some("replica/of@s")).await;
        let there = replica.view(&ImportOptions::default()).await.unwrap();
        compare(&objset(&there, &format!("replica/c{index}@x")).await, model, &format!("{what}, {name}")).await;
        there.close().await;
    }
    audit_space(&view).await.unwrap_or_else(|error| panic!("{what}: {error:#}"));
    view.close().await;
    drop(head);
    source.audit().await.unwrap();
    source.export().await.unwrap();
    replica.export().await.unwrap();
    for part in [&left, &right] {
        let (_, report) = check(handle, &part.paths).await.unwrap();
        assert!(report.is_clean(), "{what}: {report}");
    }
    if cenote_testkit::zdb::program("zdb").is_some() && seed < 3 {
        let images = left.images();
        cenote_sim::zdb("written", &images, machine.size_bytes).unwrap();
    }
    redacted
}

#[test]
fn a_list_has_what_no_clone_has() {
    let mut redacted = 0;
    for seed in 0..HISTORIES {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine =
            Machine::new(&runtime, 2, &SimDiskOptions { size_bytes: DISK_BYTES, ..SimDiskOptions::default() });
        redacted += runtime.block_on(history(&handle, &machine, seed));
    }
    assert!(redacted > 80, "{redacted} blocks");
}

/// So many snapshots that their guids do not fit into a dnode: they stand in a spill block.
#[test]
fn a_list_may_be_about_many_snapshots() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = Machine::new(&runtime, 1, &SimDiskOptions { size_bytes: DISK_BYTES, ..SimDiskOptions::default() });
    runtime.block_on(async {
        let pool = options("written", machine.tops(&handle, SINGLE).await.unwrap(), 12);
        let pool = new_pool(&handle, pool).await.unwrap();
        let head = source_head(&pool, ObjsetType::Zfs).await;
        let (mut model, mut next, mut rng) = (Contents::new(), 0, Rng::new(5));
        change(&head, &pool, &mut model, &mut next, &mut rng).await;
        take_snapshots(&pool, &["written/v@s".to_owned()], &[]).await.unwrap();
        let names: Vec<String> = (0..60).map(|index| format!("written/v@x{index}")).collect();
        for name in &names {
            take_snapshots(&pool, std::slice::from_ref(name), &[]).await.unwrap();
        }
        // 36 are what a dnode has room for.
        for (bookmark, count) in [("few", 36), ("more", 37), ("many", 60)] {
            redact(&pool, &asked(bookmark, &names[..count])).await.unwrap();
        }
        pool.sync().await.unwrap();
        let view = pool.view(&ImportOptions::default()).await.unwrap();
        let head_of = view.dsl().dataset("written/v").await.unwrap();
        for (bookmark, count) in [("few", 36), ("more", 37), ("many", 60)] {
            let bookmark = view.dsl().bookmark(&head_of, bookmark).await.unwrap().unwrap();
            let guids = view.dsl().bookmark_redaction(&bookmark).await.unwrap().unwrap();
            assert_eq!(guids.len(), count);
            let list = view.mos().object(bookmark.phys.redaction_list).await.unwrap();
            assert_eq!(list.phys().spill.is_some(), count > 36);
        }
        view.close().await;
        drop(head);
        pool.audit().await.unwrap();
        pool.export().await.unwrap();
        let (_, report) = check(&handle, &machine.paths).await.unwrap();
        assert!(report.is_clean(), "{report}");
        if cenote_testkit::zdb::program("zdb").is_some() {
            let images = machine.images();
            cenote_sim::zdb("written", &images, machine.size_bytes).unwrap();
        }
    });
}
