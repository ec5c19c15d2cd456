//! Goal: none of the bugs that OpenZFS had in sending and receiving is one of ours. Method: each is a test here, with the number or the
//! commit of its mending in openzfs/zfs; `docs/robustness.md` has the list, with those that other tests are about.

#![allow(clippy::disallowed_methods)]

use std::sync::Arc;

use cenote_admin::receive::ReceiveRequest;
use cenote_admin::{
    RedactRequest, VolumeShape, clone_dataset, create_filesystem, create_volume, destroy_snapshots, hold, redact,
    release, take_snapshots,
};
use cenote_codec::checksum::fletcher::Fletcher4;
use cenote_codec::compress::{CompressLevel, compress};
use cenote_dmu::tx::{SyncMode, TxTunables};
use cenote_dmu::{ObjectSpec, Objset};
use cenote_format::Endian;
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::Compress;
use cenote_format::ids::{BlockId, ObjectId};
use cenote_format::nvlist::NvList;
use cenote_format::stream::{Body, Features, Record, RecordFlags, RecordKind, Spill, Write, WriteEmbedded};
use cenote_replicas::records::{Model, apply, difference};
use cenote_replicas::streams::{boundaries, package, received, rest_of, stream, token};
use cenote_send::package::PackageRequest;
use cenote_send::sender::{Base, SendFlags, SendRequest};
use cenote_send::{Checks, StreamReader};
use cenote_sim::tree::look;
use cenote_sim::{Machine, SINGLE, check, new_pool, options};
use cenote_spa::{ImportOptions, Pool, View};
use cenote_taskq::buf::Block;
use cenote_taskq::sim::disk::SimDiskOptions;
use cenote_taskq::{Rng, Runtime};
use cenote_zpl::{Allocation, FileKind, FileSystem, FileSystemOptions, NewNode, XattrSet};
use cenote_zvol::live::{Clear, LiveVolume};

const DISK_BYTES: u64 = 256 << 20;
/// The dataset that is sent, and the one that receives.
const SOURCE: &str = "written/a";
const TARGET: &str = "replica/of";

const PLAIN: SendFlags = SendFlags { large_blocks: false, embedded: false, compressed: false, raw: false };
const LARGE: SendFlags = SendFlags { large_blocks: true, ..PLAIN };
const ALL: SendFlags = SendFlags { large_blocks: true, embedded: true, compressed: true, raw: false };

/// Has a pool to send and one to receive; the second is whole afterwards, to zdb too.
fn with_pools(work: impl AsyncFnOnce(&Pool, &Pool)) {
    let right = with_two(work);
    if cenote_testkit::zdb::program("zdb").is_some() {
        let images = right.images();
        cenote_sim::zdb("replica", &images, DISK_BYTES).unwrap();
    }
}

/// The same, without zdb; what has received comes back.
fn with_two(work: impl AsyncFnOnce(&Pool, &Pool)) -> Machine {
    let runtime = Runtime::simulated(7);
    let handle = runtime.handle();
    let disks = SimDiskOptions { size_bytes: DISK_BYTES, ..SimDiskOptions::default() };
    let machine = Machine::new(&runtime, 2, &disks);
    let part = |at: usize| Machine {
        disks: vec![machine.disks[at].clone()],
        paths: vec![machine.paths[at].clone()],
        size_bytes: DISK_BYTES,
    };
    let (left, right) = (part(0), part(1));
    runtime.block_on(async {
        let tops = left.tops(&handle, SINGLE).await.unwrap();
        let source = new_pool(&handle, options("written", tops, 12)).await.unwrap();
        let tops = right.tops(&handle, SINGLE).await.unwrap();
        let replica = new_pool(&handle, options("replica", tops, 12)).await.unwrap();
        let replica = replica.start(TxTunables::default()).await;
        work(&source, &replica).await;
        while replica.peek(|syncer| syncer.has_work()).await.unwrap() {
            replica.sync().await.unwrap();
        }
        replica.audit().await.unwrap();
        replica.export().await.unwrap();
        source.export().await.unwrap();
        let (_, report) = check(&handle, &right.paths).await.unwrap();
        assert!(report.is_clean(), "{report}");
    });
    right
}

/// A new file system, open to be changed.
async fn filesystem(pool: &Pool, name: &str, record_bytes: u32) -> FileSystem {
    create_filesystem(pool, name, Vec::new(), false).await.unwrap();
    pool.sync().await.unwrap();
    opened(pool, name, record_bytes).await
}

async fn opened(pool: &Pool, name: &str, record_bytes: u32) -> FileSystem {
    let head = pool.open_head(name).await.unwrap();
    let options = FileSystemOptions { record_bytes, ..FileSystemOptions::default() };
    FileSystem::open_head(head.objset(), Arc::new(head.clone()), options).await.unwrap()
}

/// The objects of a new file system.
async fn objects(pool: &Pool) -> Objset {
    create_filesystem(pool, SOURCE, Vec::new(), false).await.unwrap();
    pool.sync().await.unwrap();
    pool.open_head(SOURCE).await.unwrap().head().objset.clone()
}

async fn file(fs: &FileSystem, name: &str, bytes: &[u8]) -> cenote_zpl::File {
    let new = NewNode { mode: FileKind::File.mode_bits() | 0o644, ..NewNode::default() };
    let (file, _) = fs.create_file(fs.root(), name.as_bytes(), &new).await.unwrap();
    file.write(0, bytes).await.unwrap();
    file
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

async fn snapshot(pool: &Pool, name: &str) {
    pool.sync().await.unwrap();
    take_snapshots(pool, &[name.to_owned()], &[]).await.unwrap();
}

async fn view(pool: &Pool) -> View {
    pool.view(&ImportOptions::default()).await.unwrap()
}

async fn request(view: &View, to: &str, from: Option<&str>, flags: SendFlags) -> SendRequest {
    let to = view.dsl().dataset(to).await.unwrap();
    let mut request = SendRequest::full(to.clone(), flags);
    if let Some(from) = from {
        let from = view.dsl().dataset(from).await.unwrap();
        request.base = Some(Base::snapshot(view.dsl(), &to, &from).await.unwrap());
    }
    request
}

fn into(target: &str) -> ReceiveRequest {
    ReceiveRequest { target: target.to_owned(), ..ReceiveRequest::default() }
}

/// Sends a snapshot and receives it.
async fn replicate(source: &Pool, replica: &Pool, to: &str, from: Option<&str>, flags: SendFlags) {
    let view = view(source).await;
    let bytes = stream(&view, &request(&view, to, from, flags).await).await.unwrap();
    view.close().await;
    received(replica, &bytes, &into(TARGET)).await.unwrap_or_else(|why| panic!("{to} from {from:?}: {why}"));
}

/// A snapshot of the replica has what one of the source has: all its files, and all its objects.
async fn compare(source: &Pool, replica: &Pool, of: &str, at: &str) {
    let (here, there) = (view(source).await, view(replica).await);
    let (sent, received) = (here.dsl().dataset(of).await.unwrap(), there.dsl().dataset(at).await.unwrap());
    let mut model = Model::new();
    let whole = stream(&here, &SendRequest::full(sent.clone(), LARGE)).await.unwrap();
    apply(&mut model, &whole).unwrap();
    assert_eq!(difference(there.dsl(), &received, &model).await.unwrap(), None, "{at}");
    let wanted = look(&FileSystem::open(here.dsl().open(&sent).await.unwrap().unwrap()).await.unwrap()).await.unwrap();
    let found =
        look(&FileSystem::open(there.dsl().open(&received).await.unwrap().unwrap()).await.unwrap()).await.unwrap();
    assert_eq!(wanted.difference(&found), None, "{at}");
    here.close().await;
    there.close().await;
}

/// Its records, each with what follows it.
fn records_of(bytes: &[u8]) -> Vec<(Record, Vec<u8>)> {
    let mut records = Vec::new();
    let mut reader = StreamReader::new(bytes, Checks::ALL);
    while let Some(item) = reader.next_item().unwrap() {
        records.push((item.decoded.record.clone(), item.payload.to_vec()));
    }
    records
}

/// The stream of these records, with sums that are right.
fn sealed(records: Vec<(Record, Vec<u8>)>) -> Vec<u8> {
    const ORDER: Endian = Endian::Little;
    let (mut out, mut sum) = (Vec::new(), Fletcher4::new());
    for (mut record, payload) in records {
        if let Body::End(end) = &mut record.body {
            end.stream_checksum = sum.finish();
        }
        if let Body::Begin(_) = &record.body {
            record.payload_length = payload.len() as u32;
        }
        record.checksum = [0; 4];
        sum.update(&record.emit(ORDER)[..Record::CHECKSUM_OFFSET], ORDER);
        if record.body.kind() != RecordKind::Begin {
            record.checksum = sum.finish();
        }
        let bytes = record.emit(ORDER);
        sum.update(&bytes[Record::CHECKSUM_OFFSET..], ORDER);
        sum.update(&payload, ORDER);
        out.extend(bytes);
        out.extend(payload);
    }
    out
}

/// #4809 and its kin: holes that came since the base were not sent, where they were below a hole that was older, behind an end that had moved,
/// or in a file that came in another's place.
#[test]
fn holes_that_came_since_the_base_are_sent_4809() {
    with_pools(async |source, replica| {
        // Two levels of pointers, which can be holes.
        let fs = filesystem(source, SOURCE, 512).await;
        const LEN: u64 = 1 << 20;
        let mut files = Vec::new();
        for number in 0..8_u64 {
            files.push(file(&fs, &format!("f{number}"), &noise(number, LEN as usize)).await);
        }
        snapshot(source, "written/a@0").await;
        replicate(source, replica, "written/a@0", None, ALL).await;
        let punch = Allocation::Punch;
        for round in 1..5 {
            // One block, a whole indirect block, nearly one, all; and the end moves away and back.
            files[0].allocate(punch, 512 * 700..512 * 701).await.unwrap();
            files[1].allocate(punch, 1024 * 512..2048 * 512).await.unwrap();
            files[2].allocate(punch, 1024 * 512 + 512..2048 * 512).await.unwrap();
            files[3].allocate(punch, 0..LEN).await.unwrap();
            files[4].truncate(LEN / 2 + 100).await.unwrap();
            files[4].truncate(LEN).await.unwrap();
            files[5].truncate(0).await.unwrap();
            source.sync().await.unwrap();
            files[5].write(LEN, b"end").await.unwrap();
            files[6].allocate(punch, 512 * 10..512 * 2000).await.unwrap();
            source.sync().await.unwrap();
            files[6].write(512 * 1500, &noise(round, 512)).await.unwrap();
            // Another file with the same number, if numbers are given again.
            fs.unlink(fs.root(), b"f7").await.unwrap();
            drop(files.pop());
            fs.reap().await.unwrap();
            source.sync().await.unwrap();
            files.push(file(&fs, "f7", b"").await);
            files[7].write(LEN - 512, &noise(round, 512)).await.unwrap();
            let (from, to) = (format!("written/a@{}", round - 1), format!("written/a@{round}"));
            snapshot(source, &to).await;
            replicate(source, replica, &to, Some(&from), [PLAIN, ALL][round as usize % 2]).await;
            compare(source, replica, &to, &format!("{TARGET}@{round}")).await;
            for (number, file) in files.iter().enumerate().take(7) {
                // Holes get data again before the next round.
                file.write(512 * (100 + 300 * round), &noise(round + number as u64, 100_000)).await.unwrap();
            }
        }
    });
}

/// #12014 (ea74cdedda): a stream that was not raw left something of the key behind, which the next raw one fell over.
#[test]
fn raw_streams_and_others_of_one_dataset_do_not_disturb_each_other_12014() {
    let theme = cenote_testkit::theme("streams");
    let runtime = Runtime::real(cenote_taskq::RuntimeOptions::default()).unwrap();
    let handle = runtime.handle();
    let images = theme.unpacked().unwrap().images;
    let keys = theme.manifest().unwrap().keys;
    runtime.block_on(async {
        let mut seen = Vec::new();
        // Each kind from a pool that was just opened, and then all of them in turn.
        for order in [&[true][..], &[false], &[true, false, true, false, false, true]] {
            let (mut pools, _) = cenote_spa::find(&handle, &images).await;
            let how = ImportOptions { force: true, cache_bytes: 64 << 20, ..ImportOptions::default() };
            let pool = cenote_spa::import(&handle, pools.remove(0), &how).await.unwrap();
            for (dataset, key) in &keys {
                pool.dsl().load_key(dataset, cenote_dsl::Secret::new(key.bytes())).await.unwrap();
            }
            let name = format!("{}/enc", pool.name());
            for is_raw in order {
                let flags = SendFlags { raw: *is_raw, ..PLAIN };
                let (one, two) = (format!("{name}@one"), format!("{name}@two"));
                let whole = stream(&pool, &request(&pool, &one, None, flags).await).await.unwrap();
                let increment = stream(&pool, &request(&pool, &two, Some(&one), flags).await).await.unwrap();
                seen.push((*is_raw, whole, increment));
            }
            pool.close().await;
        }
        for (is_raw, whole, increment) in &seen[2..] {
            let alone = seen.iter().find(|(other, ..)| other == is_raw).unwrap();
            assert!((whole, increment) == (&alone.1, &alone.2), "raw {is_raw}");
        }
        assert!(seen[0].1 != seen[1].1 && seen.len() == 8);
    });
}

/// #18749 (f217627d44): of a single large block whose size is no power of two, sent in pieces, the last piece is shorter than the others.
#[test]
fn a_large_block_in_pieces_keeps_its_short_tail_18749() {
    for flags in
        [PLAIN, SendFlags { compressed: true, ..PLAIN }, SendFlags { embedded: true, compressed: true, ..PLAIN }]
    {
        with_two(async |source, replica| {
            let fs = filesystem(source, SOURCE, 1 << 20).await;
            // 128 KiB and one sector; three pieces; just below a whole number of them; and what can be compressed.
            for (number, len) in [(128 << 10) + 1, 300_000, (512 << 10) - 700, 777_777].into_iter().enumerate() {
                file(&fs, &format!("f{number}"), &noise(number as u64, len)).await;
            }
            file(&fs, "same", &vec![b'x'; 200_001]).await;
            snapshot(source, "written/a@0").await;
            replicate(source, replica, "written/a@0", None, flags).await;
            compare(source, replica, "written/a@0", "replica/of@0").await;
            // The tail changes, and the block grows by a piece.
            let at = fs.lookup(fs.root(), b"f1").await.unwrap();
            fs.open_file(at).await.unwrap().write(299_000, &noise(9, 900)).await.unwrap();
            let at = fs.lookup(fs.root(), b"f0").await.unwrap();
            fs.open_file(at).await.unwrap().write(131_000, &noise(10, 140_000)).await.unwrap();
            snapshot(source, "written/a@1").await;
            replicate(source, replica, "written/a@1", Some("written/a@0"), flags).await;
            compare(source, replica, "written/a@1", "replica/of@1").await;
        });
    }
}

/// ffde77051c: the number of pointers of a large dnode was reckoned from the room of a small one, so an object that had not changed its form
/// lost what the stream does not bring again.
#[test]
fn a_large_dnode_with_several_pointers_keeps_its_blocks_18773() {
    with_two(async |source, replica| {
        let objset = objects(source).await;
        let mut ids = Vec::new();
        // Of several sizes, with a bonus that leaves room for one, two or three pointers.
        for slots in [1, 2, 4, 8] {
            for bonus in [8, 64, 192, 320, 512 * usize::from(slots) - 256] {
                let room = cenote_format::dnode::bonus_capacity_bytes(usize::from(slots));
                let kind = DmuType::UINT64_METADATA;
                let spec = ObjectSpec { slots, ..ObjectSpec::new(DmuType::UINT8_DATA, 512) };
                let spec = spec.with_bonus(kind, vec![7; bonus.min(room - 128) & !7]);
                let object = objset.create_object(source.txg(), &spec).unwrap();
                object.write(source.txg(), 0, &noise(object.id().0, 40 * 512)).await.unwrap();
                ids.push(object.id());
            }
        }
        snapshot(source, "written/a@0").await;
        replicate(source, replica, "written/a@0", None, PLAIN).await;
        for id in &ids {
            let object = objset.object(*id).await.unwrap();
            object.write(source.txg(), 17 * 512, &noise(3, 512)).await.unwrap();
        }
        snapshot(source, "written/a@1").await;
        replicate(source, replica, "written/a@1", Some("written/a@0"), PLAIN).await;
        compare(source, replica, "written/a@1", "replica/of@1").await;
    });
}

/// e78a51dd6f: the last block of a file that had been redacted was not sent with a clone that has it.
#[test]
fn the_last_block_of_a_redacted_file_comes_with_a_clone_18477() {
    for len in [100_u64, 8 << 10, (8 << 10) + 1, 40_000] {
        with_two(async |source, replica| {
            let fs = filesystem(source, SOURCE, 8 << 10).await;
            file(&fs, "f", &noise(1, len as usize)).await;
            snapshot(source, "written/a@s").await;
            for clone in ["written/changed", "written/same"] {
                clone_dataset(source, "written/a@s", clone, Vec::new()).await.unwrap();
                source.sync().await.unwrap();
            }
            let changed = opened(source, "written/changed", 8 << 10).await;
            let at = changed.lookup(changed.root(), b"f").await.unwrap();
            changed.open_file(at).await.unwrap().write(len - 1, b"x").await.unwrap();
            for name in ["written/changed@x", "written/same@x"] {
                snapshot(source, name).await;
            }
            let by = vec!["written/changed@x".to_owned()];
            let asked = RedactRequest { snapshot: "written/a@s".to_owned(), bookmark: "book".to_owned(), by };
            redact(source, &asked).await.unwrap();
            source.sync().await.unwrap();
            let view = view(source).await;
            let head = view.dsl().dataset(SOURCE).await.unwrap();
            let book = view.dsl().bookmark(&head, "book").await.unwrap().unwrap();
            let mut redacted = request(&view, "written/a@s", None, PLAIN).await;
            redacted.redact = Some(book.phys.redaction_list);
            let bytes = stream(&view, &redacted).await.unwrap();
            assert!(records_of(&bytes).iter().any(|(record, _)| record.body.kind() == RecordKind::Redact));
            received(replica, &bytes, &into(TARGET)).await.unwrap();
            for clone in ["same", "changed"] {
                let to = view.dsl().dataset(&format!("written/{clone}@x")).await.unwrap();
                let mut from_book = SendRequest::full(to.clone(), PLAIN);
                from_book.base = Some(Base::bookmark(view.dsl(), &to, &head, &book).await.unwrap());
                let bytes = stream(&view, &from_book).await.unwrap();
                received(replica, &bytes, &into(&format!("replica/{clone}"))).await.unwrap();
                compare(source, replica, &format!("written/{clone}@x"), &format!("replica/{clone}@x")).await;
            }
            view.close().await;
        });
    }
}

/// 4f180e095a and 794f1587db: a feature that a stream says its dataset has is one that the receiver's has, once, also if no block needed it;
/// an increment must have it then.
#[test]
fn features_of_a_stream_are_those_of_its_dataset_18105_18143() {
    with_pools(async |source, replica| {
        let fs = filesystem(source, SOURCE, 1 << 20).await;
        file(&fs, "large", &noise(1, 1 << 20)).await;
        snapshot(source, "written/a@0").await;
        fs.unlink(fs.root(), b"large").await.unwrap();
        fs.reap().await.unwrap();
        snapshot(source, "written/a@1").await;
        file(&fs, "small", b"small").await;
        snapshot(source, "written/a@2").await;
        let view = view(source).await;
        // No large block is left in the second.
        let whole = stream(&view, &request(&view, "written/a@1", None, LARGE).await).await.unwrap();
        let mut records = records_of(&whole);
        let Body::Begin(begin) = &mut records[0].0.body else { panic!("a stream begins with BEGIN") };
        assert!(begin.features.contains(Features::LARGE_BLOCKS));
        begin.features |= Features::LARGE_MICROZAP | Features::LONGNAME;
        received(replica, &sealed(records), &into(TARGET)).await.unwrap();
        let guids = ["org.open-zfs:large_blocks", "com.klarasystems:large_microzap", "org.zfsonlinux:longname"];
        let noted = async |name: &str| {
            let dsl = replica.dsl().unwrap();
            let dataset = dsl.dataset(name).await.unwrap();
            let mut all = Vec::new();
            for guid in guids {
                all.push(dsl.has_noted(dataset.object, guid).await.unwrap());
            }
            all
        };
        assert_eq!(noted("replica/of@1").await, [true; 3]);
        assert_eq!(noted(TARGET).await, [true; 3]);
        let increment = async |flags| {
            let request = request(&view, "written/a@2", Some("written/a@1"), flags).await;
            let mut records = records_of(&stream(&view, &request).await.unwrap());
            let Body::Begin(begin) = &mut records[0].0.body else { panic!("a stream begins with BEGIN") };
            if flags == LARGE {
                begin.features |= Features::LARGE_MICROZAP | Features::LONGNAME;
            }
            sealed(records)
        };
        let refused = received(replica, &increment(PLAIN).await, &into(TARGET)).await.unwrap_err();
        assert!(refused.contains("requires -L"), "{refused}");
        received(replica, &increment(LARGE).await, &into(TARGET)).await.unwrap();
        assert_eq!(noted("replica/of@2").await, [true; 3]);
        compare(source, replica, "written/a@2", "replica/of@2").await;
        let there = self::view(replica).await;
        for guid in guids {
            let counts = there.feature_counts("features_for_read").await.unwrap();
            let more = there.feature_counts("features_for_write").await.unwrap();
            let count = counts.get(guid).or(more.get(guid)).copied();
            // The dataset and its two snapshots.
            assert_eq!(count, Some(3), "{guid}");
        }
        there.close().await;
        view.close().await;
    });
}

/// #18491 (eaaea55b69): the list in BEGIN is packed natively by some senders and as XDR by others.
#[test]
fn the_list_in_begin_may_be_packed_either_way_18491() {
    for is_xdr in [false, true] {
        with_two(async |source, replica| {
            let fs = filesystem(source, SOURCE, 8 << 10).await;
            file(&fs, "f", &noise(1, 200_000)).await;
            snapshot(source, "written/a@0").await;
            let view = view(source).await;
            let request = request(&view, "written/a@0", None, PLAIN).await;
            let whole = stream(&view, &request).await.unwrap();
            let places = boundaries(&whole).unwrap();
            let asked = ReceiveRequest { is_resumable: true, ..into(TARGET) };
            received(replica, &whole[..places[places.len() / 2]], &asked).await.unwrap_err();
            let token = token(replica, TARGET).await.unwrap().unwrap();
            let rest = rest_of(&view, &request, &token).await.unwrap();
            let mut records = records_of(&rest);
            let list = NvList::parse(&records[0].1).unwrap();
            assert!(list.u64("resume_object").is_some());
            records[0].1 = if is_xdr { list.emit_xdr() } else { list.emit_native(Endian::Little) };
            received(replica, &sealed(records), &asked).await.unwrap();
            view.close().await;
            compare(source, replica, "written/a@0", "replica/of@0").await;
        });
    }
}

/// #19091: OpenZFS up to 2.4 sends a spill block that stands in its pointer as data at the end of all offsets.
#[test]
fn a_spill_block_that_comes_as_data_is_taken_as_what_it_is_19091() {
    with_two(async |source, replica| {
        let fs = filesystem(source, SOURCE, 8 << 10).await;
        let file = file(&fs, "f", b"small enough").await;
        // Too long for the dnode, and compressed to a few bytes.
        fs.set_xattr(file.id(), b"user.k", &[b'x'; 500], XattrSet::Any).await.unwrap();
        snapshot(source, "written/a@0").await;
        let view = view(source).await;
        let whole = stream(&view, &request(&view, "written/a@0", None, ALL).await).await.unwrap();
        let mut records = records_of(&whole);
        let Body::Begin(begin) = &mut records[0].0.body else { panic!("a stream begins with BEGIN") };
        begin.features |= Features::EMBED_DATA;
        let mut changed = 0;
        for (record, payload) in &mut records {
            let Body::Spill(spill) = record.body.clone() else { continue };
            let mut packed =
                compress(Compress::Lz4, CompressLevel::DEFAULT, payload, 112).expect("it can be compressed");
            let len = packed.len();
            packed.resize(len.next_multiple_of(8), 0);
            record.body = Body::WriteEmbedded(WriteEmbedded {
                object: spill.object,
                offset_bytes: u64::MAX - spill.length_bytes + 1,
                length_bytes: spill.length_bytes,
                to_guid: spill.to_guid,
                compress: Compress::Lz4.number(),
                embedded_type: 0,
                logical_bytes: spill.length_bytes as u32,
                physical_bytes: len as u32,
            });
            *payload = packed;
            changed += 1;
        }
        assert_eq!(changed, 1, "one file has a spill block");
        received(replica, &sealed(records), &into(TARGET)).await.unwrap();
        view.close().await;
        compare(source, replica, "written/a@0", "replica/of@0").await;
    });
}

/// #11353 was that each object which gets another dnode size took a txg of its own, in numbers that the stream chooses. Here: whatever stands
/// in the slots of such an object goes, all come right, and they wait together.
#[test]
fn objects_that_get_other_dnode_sizes_come_right_11353() {
    with_two(async |source, replica| {
        let objset = objects(source).await;
        let make = async |id: u64, slots: u8, round: u64| {
            let spec = ObjectSpec { slots, ..ObjectSpec::new(DmuType::UINT8_DATA, 4096) };
            let object = objset.create_at(source.txg(), ObjectId(id), &spec).unwrap();
            object.write(source.txg(), 0, &noise(id + round, 9000)).await.unwrap();
        };
        // Blocks of dnodes of one size each, which change places.
        for (block, slots) in [(4, 1), (5, 2), (6, 4), (7, 8)] {
            for id in (block * 32..block * 32 + 32).step_by(slots) {
                make(id, slots as u8, 0).await;
            }
        }
        snapshot(source, "written/a@0").await;
        replicate(source, replica, "written/a@0", None, PLAIN).await;
        for round in 1..4_u64 {
            let mut from = ObjectId(4 * 32);
            while let Some(next) = objset.next_objects(from).await.unwrap() {
                for (id, _) in next.objects {
                    objset.object(id).await.unwrap().free(source.txg());
                }
                from = next.next;
            }
            source.sync().await.unwrap();
            source.sync().await.unwrap();
            for block in 4..8_u64 {
                let slots = 1_u64 << ((block + round) % 4);
                for id in (block * 32..block * 32 + 32).step_by(slots as usize) {
                    make(id, slots as u8, round).await;
                }
            }
            let (from, to) = (format!("written/a@{}", round - 1), format!("written/a@{round}"));
            snapshot(source, &to).await;
            let before = replica.txg().0;
            replicate(source, replica, &to, Some(&from), PLAIN).await;
            let txgs = replica.txg().0 - before;
            assert!(txgs < 16, "{txgs} txgs for 60 objects");
            compare(source, replica, &to, &format!("{TARGET}@{round}")).await;
        }
    });
}

/// #18725 (9b7642df93): what its checks refuse. One record of a sound stream has a field that cannot be; the stream is refused, and nothing is
/// left of it.
#[test]
fn records_that_cannot_be_are_refused_18725() {
    type Change = fn(&mut Body) -> bool;
    macro_rules! change {
        ($kind:ident, $field:ident = $value:expr) => {
            |body: &mut Body| match body {
                Body::$kind(record) => {
                    record.$field = $value;
                    true
                }
                _ => false,
            }
        };
    }
    let cases: &[(&str, Change)] = &[
        ("object 0", change!(Object, object = ObjectId(0))),
        ("object behind all", change!(Object, object = ObjectId(1 << 48))),
        ("object of no kind", change!(Object, object_type = 0)),
        ("object of no kind that there is", change!(Object, object_type = 99)),
        ("object whose kind does not fit a byte", change!(Object, object_type = 0x1_0013)),
        ("bonus of no kind that there is", change!(Object, bonus_type = 99)),
        ("blocks of 0 bytes", change!(Object, block_bytes = 0)),
        ("blocks of 511 bytes", change!(Object, block_bytes = 511)),
        ("blocks of 513 bytes", change!(Object, block_bytes = 513)),
        ("large blocks without their feature", change!(Object, block_bytes = 256 << 10)),
        ("blocks of 32 MiB", change!(Object, block_bytes = 32 << 20)),
        ("a bonus longer than a dnode", change!(Object, bonus_bytes = 512)),
        ("a checksum that there is not", change!(Object, checksum_type = 200)),
        ("a compression that there is not", change!(Object, compress = 200)),
        ("dnodes of 2 slots without their feature", change!(Object, dnode_slots = 2)),
        ("dnodes of 33 slots", change!(Object, dnode_slots = 33)),
        ("a range behind all offsets is freed", change!(Free, length_bytes = u64::MAX - 1)),
        ("a range of object 0 is freed", change!(Free, object = ObjectId(0))),
        ("more objects than there can be are freed", change!(FreeObjects, object_count = u64::MAX)),
        ("a write of object 0", change!(Write, object = ObjectId(0))),
        ("a write of an object that there is not", change!(Write, object = ObjectId(4000))),
        ("a write behind all offsets", change!(Write, offset_bytes = u64::MAX - 511)),
        ("a compression of data that there is not", change!(Write, compress = 77)),
        ("compressed data without its feature", |body| match body {
            Body::Write(write) => {
                (write.compress, write.compressed_bytes) = (15, write.logical_bytes);
                true
            }
            _ => false,
        }),
        ("a write of 100 bytes", |body| match body {
            Body::Write(Write { logical_bytes, .. }) => {
                *logical_bytes = 100;
                true
            }
            _ => false,
        }),
        ("a spill block of an object that there is not", change!(Spill, object = ObjectId(4000))),
        ("a compressed spill block", change!(Spill, compress = 15)),
        ("a spill block of 100 bytes", |body| match body {
            Body::Spill(Spill { length_bytes, .. }) => {
                *length_bytes = 100;
                true
            }
            _ => false,
        }),
        ("a flag that the stream does not tell of", |body| match body {
            Body::Begin(begin) => {
                begin.objset_type = 9;
                true
            }
            _ => false,
        }),
    ];
    with_two(async |source, replica| {
        let fs = filesystem(source, SOURCE, 8 << 10).await;
        let file = file(&fs, "f", &noise(1, 100_000)).await;
        fs.set_xattr(file.id(), b"user.k", &noise(2, 700), XattrSet::Any).await.unwrap();
        snapshot(source, "written/a@0").await;
        let view = view(source).await;
        let whole = stream(&view, &request(&view, "written/a@0", None, PLAIN).await).await.unwrap();
        view.close().await;
        for (what, change) in cases {
            let mut records = records_of(&whole);
            // The last of its kind: the file's own where there are several.
            let changed = records.iter_mut().rev().any(|(record, payload)| {
                let done = change(&mut record.body);
                if done {
                    let len = match &record.body {
                        Body::Write(write) if write.logical_bytes == 100 => Some(104),
                        Body::Spill(spill) if spill.length_bytes == 100 => Some(104),
                        Body::Object(object) if object.bonus_bytes == 512 => Some(512),
                        _ => None,
                    };
                    payload.resize(len.unwrap_or(payload.len()), 0);
                }
                done
            });
            assert!(changed, "{what}: the stream has such a record");
            let outcome = received(replica, &sealed(records), &into(TARGET)).await;
            assert!(outcome.is_err(), "{what}: it is received");
            assert!(replica.dsl().unwrap().dataset(TARGET).await.is_err(), "{what}: something is left");
        }
        received(replica, &whole, &into(TARGET)).await.unwrap();
        compare(source, replica, "written/a@0", "replica/of@0").await;
    });
}

/// #9952 and its kin: a spill block that has not changed is in the stream again, or is not, and stays either way.
#[test]
fn a_spill_block_that_does_not_change_stays() {
    with_two(async |source, replica| {
        let objset = objects(source).await;
        let spec = ObjectSpec::new(DmuType::PLAIN_FILE_CONTENTS, 4096);
        let bonus = cenote_replicas::objects::attributes(5, 72);
        let mut ids = Vec::new();
        for number in 0..6_u64 {
            let object =
                objset.create_object(source.txg(), &spec.clone().with_bonus(DmuType::SA, bonus.clone())).unwrap();
            object.write(source.txg(), 0, &noise(number, 20_000)).await.unwrap();
            object.set_spill(source.txg(), Some(Block::copied_from(&noise(number + 50, 512))));
            ids.push(object.id());
        }
        snapshot(source, "written/a@0").await;
        replicate(source, replica, "written/a@0", None, ALL).await;
        for round in 1..4_u64 {
            for (number, id) in ids.iter().enumerate() {
                let object = objset.object(*id).await.unwrap();
                match (number as u64 + round) % 3 {
                    0 => object.write(source.txg(), 4096, &noise(round, 4096)).await.unwrap(),
                    1 => object.set_spill(source.txg(), Some(Block::copied_from(&noise(round + 90, 1024)))),
                    _ => {}
                }
            }
            let (from, to) = (format!("written/a@{}", round - 1), format!("written/a@{round}"));
            snapshot(source, &to).await;
            let view = view(source).await;
            let bytes = stream(&view, &request(&view, &to, Some(&from), ALL).await).await.unwrap();
            view.close().await;
            let mut records = records_of(&bytes);
            let is_same = |record: &Record| matches!(&record.body, Body::Spill(spill) if spill.flags.contains(RecordFlags::SPILL));
            assert!(records.iter().any(|(record, _)| is_same(record)), "one that has not changed is told of again");
            if round == 2 {
                // As senders did not always do.
                records.retain(|(record, _)| !is_same(record));
            }
            received(replica, &sealed(records), &into(TARGET)).await.unwrap();
            compare_objects(source, replica, &to, &format!("{TARGET}@{round}")).await;
        }
    });
}

/// As [`compare`], without the files: objects that no directory has.
async fn compare_objects(source: &Pool, replica: &Pool, of: &str, at: &str) {
    let (here, there) = (view(source).await, view(replica).await);
    let (sent, received) = (here.dsl().dataset(of).await.unwrap(), there.dsl().dataset(at).await.unwrap());
    let mut model = Model::new();
    apply(&mut model, &stream(&here, &SendRequest::full(sent, LARGE)).await.unwrap()).unwrap();
    assert_eq!(difference(there.dsl(), &received, &model).await.unwrap(), None, "{at}");
    here.close().await;
    there.close().await;
}

/// #6224: a dataset that was received without large blocks, and gets them later, loses nothing of its files.
#[test]
fn large_blocks_that_come_later_lose_nothing_6224() {
    with_two(async |source, replica| {
        let fs = filesystem(source, SOURCE, 1 << 20).await;
        let many = file(&fs, "many", &noise(1, 3 << 20)).await;
        let one = file(&fs, "one", &noise(2, 700_000)).await;
        snapshot(source, "written/a@0").await;
        replicate(source, replica, "written/a@0", None, PLAIN).await;
        many.write(1_500_000, &noise(3, 1000)).await.unwrap();
        one.write(10, b"x").await.unwrap();
        snapshot(source, "written/a@1").await;
        replicate(source, replica, "written/a@1", Some("written/a@0"), LARGE).await;
        compare(source, replica, "written/a@1", "replica/of@1").await;
        many.allocate(Allocation::Punch, 0..1 << 20).await.unwrap();
        one.truncate(300_001).await.unwrap();
        snapshot(source, "written/a@2").await;
        replicate(source, replica, "written/a@2", Some("written/a@1"), ALL).await;
        compare(source, replica, "written/a@2", "replica/of@2").await;
        let there = view(replica).await;
        let dataset = there.dsl().dataset("replica/of@2").await.unwrap();
        let objset = there.dsl().open(&dataset).await.unwrap().unwrap();
        let object = objset.object(many.id()).await.unwrap();
        assert_eq!(object.block_bytes(), 128 << 10, "its blocks stay as they came");
        assert!(object.pointer(0, BlockId(0)).await.unwrap().is_hole());
        there.close().await;
    });
}

/// A volume may have blocks above 128 KiB too; OpenZFS up to 2.4 takes files for the only ones, and a volume that was received without large
/// blocks and gets them later loses what the stream does not bring again.
#[test]
fn a_volume_whose_large_blocks_come_later_loses_nothing() {
    with_two(async |source, replica| {
        let shape = VolumeShape { size_bytes: 4 << 20, block_bytes: Some(512 << 10), sparse: true };
        create_volume(source, SOURCE, shape, Vec::new(), false).await.unwrap();
        source.sync().await.unwrap();
        let head = source.open_head(SOURCE).await.unwrap();
        let volume = LiveVolume::open(head.objset(), head.log(SyncMode::Standard)).await.unwrap();
        volume.replay().await.unwrap();
        volume.write(0, &noise(1, 3 << 20)).await.unwrap();
        snapshot(source, "written/a@0").await;
        replicate(source, replica, "written/a@0", None, PLAIN).await;
        for (round, flags) in [LARGE, ALL].into_iter().enumerate() {
            volume.write(1 << 20, &noise(2, 1000)).await.unwrap();
            volume.clear(2 << 20, 512 << 10, Clear::Freed).await.unwrap();
            let (from, to) = (format!("written/a@{round}"), format!("written/a@{}", round + 1));
            snapshot(source, &to).await;
            replicate(source, replica, &to, Some(&from), flags).await;
            compare_objects(source, replica, &to, &format!("{TARGET}@{}", round + 1)).await;
        }
    });
}

/// #18793: a raw package with holds and without properties ended `zfs send`.
#[test]
fn a_raw_package_with_holds_alone_is_sent_and_received_18793() {
    with_two(async |source, replica| {
        let fs = filesystem(source, SOURCE, 8 << 10).await;
        file(&fs, "f", &noise(1, 20_000)).await;
        snapshot(source, "written/a@0").await;
        hold(source, "mine", &["written/a@0".to_owned()]).await.unwrap();
        source.sync().await.unwrap();
        let view = view(source).await;
        let (dataset, to) = (SOURCE.to_owned(), "0".to_owned());
        let asked = PackageRequest { dataset, to, holds: true, raw: true, ..PackageRequest::default() };
        let bytes = package(&view, &asked, SendFlags { raw: true, ..PLAIN }).await.unwrap();
        view.close().await;
        received(replica, &bytes, &into(TARGET)).await.unwrap();
        compare(source, replica, "written/a@0", "replica/of@0").await;
        let held = destroy_snapshots(replica, &["replica/of@0".to_owned()], false, &|_| ()).await;
        assert!(held.is_err(), "the hold has come too");
        release(replica, "mine", &["replica/of@0".to_owned()]).await.unwrap();
        destroy_snapshots(replica, &["replica/of@0".to_owned()], false, &|_| ()).await.unwrap();
    });
}
