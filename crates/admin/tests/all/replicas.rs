//! Goal: a replica has what was sent, whatever the history of both. Method: a dataset is changed at random and its snapshots are sent and
//! received, whole and as differences, in all forms of records, broken off anywhere and gone on with, on a dataset that was changed too;
//! then all snapshots of the replica are compared with a plain model, its space with all its trees, and zdb has its say.

#![allow(clippy::disallowed_methods)]

use std::path::PathBuf;
use std::time::Duration;

use cenote_admin::receive::{ReceiveRequest, Told, receive};
use cenote_admin::{Reach, destroy, rollback, take_snapshots};
use cenote_codec::checksum::fletcher::Fletcher4;
use cenote_dmu::tx::TxTunables;
use cenote_dmu::{ObjectSpec, Objset, Zap};
use cenote_dsl::Dataset;
use cenote_format::Endian;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::dataset_field;
use cenote_format::enums::{Compress, ObjsetType};
use cenote_format::ids::{BlockId, ObjectId};
use cenote_format::stream::{Record, RecordKind};
use cenote_format::zap::ZapValue;
use cenote_replicas::objects::{Contents, change, compare, source_head};
use cenote_send::receiver::receive_resume_token;
use cenote_send::sender::{Base, ResumeToken, SendFlags, SendProgress, SendRequest, send};
use cenote_send::{Checks, StreamReader};
use cenote_sim::{Machine, SINGLE, audit_space, check, new_pool, options, slow};
use cenote_spa::{Clock, Host, ImportOptions, Pool, PropertyValue, SpaError, View, WriteOptions, find, import, open};
use cenote_taskq::sim::disk::{Crash, SimDiskOptions};
use cenote_taskq::{Class, Handle, Rng, Runtime};

/// Bytes of a disk.
const DISK_BYTES: u64 = 256 << 20;
/// Random histories.
const HISTORIES: u64 = 5;
/// Histories whose streams are changed, forty each.
const HOSTILE: u64 = 6;
/// Power cuts.
const CUTS: u64 = 24;

async fn read(handle: &Handle, paths: &[PathBuf]) -> View {
    let (mut pools, _) = find(handle, paths).await;
    let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    import(handle, pools.remove(0), &how).await.unwrap()
}

/// Data is compressed where it was sent compressed, and nowhere else, since the replica's own data is not. How many blocks are.
async fn compare_forms(here: &Objset, there: &Objset, model: &Contents, is_compressed: bool, what: &str) -> u64 {
    let mut kept = 0;
    for id in model.keys() {
        let sent = here.object(ObjectId(*id)).await.unwrap();
        let received = there.object(ObjectId(*id)).await.unwrap();
        let kind = sent.phys().object_type;
        if kind.is_metadata() || sent.block_bytes() != received.block_bytes() {
            continue;
        }
        for block in 0..=received.last_block().0 {
            let sent = sent.pointer(0, BlockId(block)).await.unwrap();
            let received = received.pointer(0, BlockId(block)).await.unwrap();
            if sent.is_hole() || sent.is_embedded() || received.is_hole() || received.is_embedded() {
                continue;
            }
            let expected = if is_compressed { sent.compress() } else { Some(Compress::Off) };
            assert_eq!(received.compress(), expected, "{what}: object {id}, block {block}");
            kept += u64::from(received.compress() != Some(Compress::Off));
            assert!(received.psize_bytes() >= sent.psize_bytes() && received.psize_bytes() <= sent.lsize_bytes());
        }
    }
    kept
}

/// A stream of a snapshot, from another one or whole, or where a token says.
async fn stream(source: &View, to: &Dataset, from: Option<&Dataset>, flags: SendFlags, at: Option<&str>) -> Vec<u8> {
    let mut request = SendRequest::full(to.clone(), flags);
    if let Some(from) = from {
        request.base = Some(Base::snapshot(source.dsl(), to, from).await.unwrap());
    }
    if let Some(token) = at {
        let token = ResumeToken::parse(token).unwrap();
        assert_eq!(token.to_guid, to.phys.guid);
        assert_eq!(token.from_guid, from.map(|from| from.phys.guid));
        request.resume = Some(token.point);
    }
    let mut out = Vec::new();
    send(source, &request, &mut out, &SendProgress::default()).await.unwrap();
    out
}

fn request(snapshot: &str, is_forced: bool, is_resumable: bool) -> ReceiveRequest {
    ReceiveRequest {
        target: format!("replica/of@{snapshot}"),
        is_forced,
        is_resumable,
        is_verbose: true,
        // So that a block that is compressed there came so.
        overrides: vec![("compression".to_owned(), PropertyValue::Number(2))],
        ..ReceiveRequest::default()
    }
}

async fn received(pool: &Pool, bytes: &[u8], request: &ReceiveRequest) -> Result<(), String> {
    let mut say = |_: Told| {};
    receive(pool, bytes, request, &mut say).await.map(drop).map_err(|error| error.to_string())
}

async fn token(pool: &Pool) -> Option<String> {
    let dsl = pool.dsl().unwrap();
    let dataset = dsl.dataset("replica/of").await.ok()?;
    receive_resume_token(&dsl, &dataset).await.unwrap()
}

/// A random history of one seed; how often streams were gone on with comes back, and how many blocks stayed compressed.
async fn history(handle: &Handle, machine: &Machine, seed: u64) -> (u64, u64) {
    let mut rng = Rng::new(seed);
    let (here, there) = machine.paths.split_at(1);
    let (left, right) = (machine.part(0..1), machine.part(1..2));
    let tops = left.tops(handle, SINGLE).await.unwrap();
    let source = new_pool(handle, options("written", tops, 12)).await.unwrap();
    let tops = right.tops(handle, SINGLE).await.unwrap();
    let replica = new_pool(handle, options("replica", tops, 9 + (seed % 2) as u32 * 3)).await.unwrap();
    let replica = replica.start(TxTunables::default()).await;
    let kind = [ObjsetType::Zfs, ObjsetType::Zvol][(seed % 2) as usize];
    let head = source_head(&source, kind).await;
    let (mut model, mut next, mut resumed, mut kept) = (Contents::new(), 0, 0, 0);
    let mut sent: Vec<(String, Contents)> = Vec::new();
    let flags = SendFlags {
        large_blocks: rng.chance(1, 2),
        embedded: rng.chance(1, 2),
        compressed: rng.chance(1, 2),
        raw: false,
    };
    for round in 0..8 {
        change(&head, &source, &mut model, &mut next, &mut rng).await;
        let name = format!("written/v@s{round}");
        take_snapshots(&source, std::slice::from_ref(&name), &[]).await.unwrap();
        let view = source.view(&ImportOptions::default()).await.unwrap();
        let to = view.dsl().dataset(&name).await.unwrap();
        // Mostly from the last, or from one before, whose followers then go.
        let back = if rng.chance(1, 5) { rng.below(sent.len() as u64 + 1) as usize } else { 0 };
        let base = sent.len().checked_sub(1 + back).map(|at| sent[at].0.clone());
        let base = base.or_else(|| sent.first().map(|(name, _)| name.clone()));
        let from = match &base {
            Some(base) => Some(view.dsl().dataset(&format!("written/v@{base}")).await.unwrap()),
            None => None,
        };
        let is_last = base.is_none() || sent.last().map(|(name, _)| name) == base.as_ref();
        let bytes = stream(&view, &to, from.as_ref(), flags, None).await;
        let snapshot = format!("s{round}");
        let mut must_force = !is_last;
        // Later snapshots that have changed nothing are no changes: without -F they stay.
        let at = sent.iter().position(|(name, _)| base.as_ref() == Some(name)).unwrap_or(0);
        let mut is_refused = sent.iter().skip(at).any(|(_, later)| *later != sent[at].1);
        if !sent.is_empty() && rng.chance(1, 3) {
            // It is changed here too.
            let other = replica.open_head("replica/of").await.unwrap();
            let tx = other.begin(cenote_dmu::tx::Cost::objects(1).with_bytes(4096)).await.unwrap();
            let spec = ObjectSpec::new(DmuType::UINT8_DATA, 4096);
            let object = other.objset().create_object(tx.txg(), &spec).unwrap();
            object.write(tx.txg(), 0, b"changed here").await.unwrap();
            drop((tx, object, other));
            replica.sync().await.unwrap();
            (must_force, is_refused) = (true, true);
        }
        let what = format!("seed {seed}, round {round}, from {base:?}");
        if is_refused {
            let refused = received(&replica, &bytes, &request(&snapshot, false, false)).await.unwrap_err();
            assert!(refused.contains("has been modified"), "{what}: {refused}");
        }
        match rng.below(3) {
            0 => {
                // Nothing is left of one that breaks off.
                let cut = rng.below(bytes.len() as u64) as usize;
                let broken = received(&replica, &bytes[..cut], &request(&snapshot, must_force, false)).await;
                assert!(broken.is_err(), "{what}");
                assert_eq!(token(&replica).await, None, "{what}");
                received(&replica, &bytes, &request(&snapshot, must_force, false)).await
            }
            1 => {
                let asked = request(&snapshot, must_force, true);
                let mut rest = bytes.clone();
                loop {
                    let cut = 312 + rng.below((rest.len() as u64).saturating_sub(312)) as usize;
                    if rng.chance(1, 4) {
                        break received(&replica, &rest, &asked).await;
                    }
                    received(&replica, &rest[..cut], &asked).await.unwrap_err();
                    let Some(token) = token(&replica).await else { continue };
                    resumed += 1;
                    rest = stream(&view, &to, from.as_ref(), flags, Some(&token)).await;
                }
            }
            _ => received(&replica, &bytes, &request(&snapshot, must_force, rng.chance(1, 2))).await,
        }
        .unwrap_or_else(|error| panic!("{what}: {error}"));
        // A difference whose snapshot is there already is passed over; a whole dataset is not.
        let again = received(&replica, &bytes, &request(&snapshot, false, false)).await;
        assert_eq!(again.is_ok(), base.is_some(), "{what}: {again:?}");
        if let Some(base) = &base {
            let at = sent.iter().position(|(name, _)| name == base).unwrap();
            sent.truncate(at + 1);
        }
        sent.push((snapshot, model.clone()));
        replica.sync().await.unwrap();
        let sender = view;
        let view = read(handle, there).await;
        audit_space(&view).await.unwrap_or_else(|error| panic!("{what}: {error:#}"));
        for (name, model) in &sent {
            let dataset = view.dsl().dataset(&format!("replica/of@{name}")).await.unwrap();
            let objset = view.dsl().open(&dataset).await.unwrap().unwrap();
            compare(&objset, model, &format!("{what}, @{name}")).await;
        }
        let head = view.dsl().dataset("replica/of").await.unwrap();
        assert_eq!(view.dsl().snapshots(&head).await.unwrap().len(), sent.len(), "{what}");
        assert!(view.dsl().children(&head.dir, true).await.unwrap().is_empty(), "{what}");
        let same = view.dsl().dataset(&format!("replica/of@s{round}")).await.unwrap();
        let there = view.dsl().open(&same).await.unwrap().unwrap();
        let here = sender.dsl().open(&to).await.unwrap().unwrap();
        kept += compare_forms(&here, &there, &model, flags.compressed, &what).await;
        sender.close().await;
        view.close().await;
    }
    while replica.peek(|syncer| syncer.has_work()).await.unwrap() {
        replica.sync().await.unwrap();
    }
    replica.audit().await.unwrap();
    replica.export().await.unwrap();
    source.export().await.unwrap();
    for paths in [there, here] {
        let (_, report) = check(handle, paths).await.unwrap();
        assert!(report.is_clean(), "seed {seed}: {report}");
    }
    if cenote_testkit::zdb::program("zdb").is_some() {
        let images = right.images();
        cenote_sim::zdb("replica", &images, machine.size_bytes).unwrap();
    }
    (resumed, kept)
}

#[test]
fn replicas_have_what_was_sent() {
    let (mut resumed, mut kept) = (0, 0);
    for seed in 0..HISTORIES {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine =
            Machine::new(&runtime, 2, &SimDiskOptions { size_bytes: DISK_BYTES, ..SimDiskOptions::default() });
        let counts = runtime.block_on(history(&handle, &machine, seed));
        (resumed, kept) = (resumed + counts.0, kept + counts.1);
    }
    assert!(resumed > 4 && kept > 1, "{resumed} gone on with, {kept} compressed blocks");
}

/// Wherever the power goes while a stream is received, what was there before is there, and the receive can be gone on with, or begun anew.
#[test]
fn a_power_cut_leaves_what_was_there_and_a_place_to_go_on() {
    let (mut whole, mut gone_on, mut done) = (None, 0, 0);
    for seed in 0..CUTS {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let disks = SimDiskOptions { size_bytes: DISK_BYTES, latency: slow(), ..SimDiskOptions::default() };
        let machine = Machine::new(&runtime, 2, &disks);
        runtime.block_on(cut(&handle, &machine, seed, &mut whole, &mut gone_on, &mut done));
    }
    assert!(gone_on > 0, "some broke off after a place was noted");
    assert!(done > 0, "some were done before the power went");
}

async fn cut(
    handle: &Handle,
    machine: &Machine,
    seed: u64,
    whole_us: &mut Option<u64>,
    gone_on: &mut u64,
    done: &mut u64,
) {
    let mut rng = Rng::new(seed);
    let (left, right) = (machine.part(0..1), machine.part(1..2));
    let tops = left.tops(handle, SINGLE).await.unwrap();
    let source = new_pool(handle, options("written", tops, 12)).await.unwrap();
    let tops = right.tops(handle, SINGLE).await.unwrap();
    let replica = new_pool(handle, options("replica", tops, 12)).await.unwrap();
    let replica = replica.start(TxTunables::default()).await;
    let head = source_head(&source, ObjsetType::Zvol).await;
    // The same history for all, so that they take as long.
    let mut same = Rng::new(7);
    let (mut model, mut next) = (Contents::new(), 0);
    let mut models = Vec::new();
    for name in ["s0", "s1"] {
        for _ in 0..8 {
            change(&head, &source, &mut model, &mut next, &mut same).await;
        }
        take_snapshots(&source, &[format!("written/v@{name}")], &[]).await.unwrap();
        models.push((name, model.clone()));
    }
    let view = source.view(&ImportOptions::default()).await.unwrap();
    let from = view.dsl().dataset("written/v@s0").await.unwrap();
    let to = view.dsl().dataset("written/v@s1").await.unwrap();
    let flags = SendFlags::default();
    let first = stream(&view, &from, None, flags, None).await;
    received(&replica, &first, &request("s0", false, false)).await.unwrap();
    let bytes = stream(&view, &to, Some(&from), flags, None).await;
    let began = handle.now();
    let receiving = handle.spawn(Class::Issue, {
        let replica = replica.clone();
        async move {
            let mut say = |_: Told| {};
            let asked = ReceiveRequest { note_every: Some(Duration::ZERO), ..request("s1", false, true) };
            receive(&replica, &bytes[..], &asked, &mut say).await.map(drop)
        }
    });
    let Some(whole) = *whole_us else {
        receiving.await.unwrap().unwrap();
        *whole_us = Some((handle.now() - began).as_micros() as u64);
        return;
    };
    handle.sleep(Duration::from_micros(rng.below(whole + whole / 8))).await;
    right.disks.iter().for_each(|disk| disk.crash(Crash::Random));
    drop(receiving);
    handle.sleep(Duration::from_secs(20)).await;
    right.disks.iter().for_each(|disk| disk.power_on());
    drop(replica);
    let what = format!("seed {seed}");
    let (_, report) = check(handle, &right.paths).await.unwrap();
    assert!(report.is_clean(), "{what}: {report}");
    let (mut pools, _) = find(handle, &right.paths).await;
    let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    let write =
        WriteOptions { clock: Clock::Fixed(1_700_000_001), host: Host { id: 0, name: "here".into() }, check: true };
    let replica = open(handle, pools.remove(0), &how, write).await.unwrap().start(TxTunables::default()).await;
    let dsl = replica.dsl().unwrap();
    if dsl.dataset("replica/of@s1").await.is_ok() {
        *done += 1;
    } else {
        let token = token(&replica).await;
        let rest = match &token {
            Some(token) => {
                *gone_on += u64::from(ResumeToken::parse(token).unwrap().bytes > 0);
                stream(&view, &to, Some(&from), flags, Some(token)).await
            }
            None => stream(&view, &to, Some(&from), flags, None).await,
        };
        received(&replica, &rest, &request("s1", false, true)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    replica.export().await.unwrap();
    view.close().await;
    let view = read(handle, &right.paths).await;
    audit_space(&view).await.unwrap_or_else(|error| panic!("{what}: {error:#}"));
    for (name, model) in &models {
        let dataset = view.dsl().dataset(&format!("replica/of@{name}")).await.unwrap();
        let objset = view.dsl().open(&dataset).await.unwrap().unwrap();
        compare(&objset, model, &format!("{what}, @{name}")).await;
    }
    view.close().await;
    source.export().await.unwrap();
}

/// A record of a stream as it stands there, and what comes behind it.
type Part = (Vec<u8>, Vec<u8>, RecordKind);

fn parts_of(bytes: &[u8]) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut reader = StreamReader::new(bytes, Checks::ALL);
    while let Some(item) = reader.next_item().unwrap() {
        let at = item.decoded.offset_bytes as usize;
        let end = at + Record::SIZE;
        parts.push((bytes[at..end].to_vec(), item.payload.to_vec(), item.decoded.record.body.kind()));
    }
    parts
}

/// A stream with some of its bytes changed, and sums that are right.
fn changed(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut parts = parts_of(bytes);
    for _ in 0..1 + rng.below(3) {
        let count = parts.len() as u64;
        let (record, payload, _) = &mut parts[rng.below(count) as usize];
        match rng.below(8) {
            0 if !payload.is_empty() => {
                let at = rng.below(payload.len().min(256) as u64) as usize;
                payload[at] = rng.below(256) as u8;
            }
            1 => parts.swap(rng.below(count) as usize, rng.below(count) as usize),
            2 => {
                let again = parts[rng.below(count) as usize].clone();
                parts.insert(rng.below(count) as usize, again);
            }
            // Mostly the fields of a record: numbers, sizes, kinds, flags.
            _ => {
                let at = (rng.below(14) * 8 + rng.below(8)) as usize;
                record[at] = [0, 1, 2, 0x7f, 0x80, 0xff, rng.below(256) as u8][rng.below(7) as usize];
            }
        }
    }
    sealed(parts)
}

/// The stream of these records, with sums that are right.
fn sealed(parts: Vec<Part>) -> Vec<u8> {
    let (mut out, mut sum) = (Vec::new(), Fletcher4::new());
    let words = |sum: [u64; 4]| sum.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    for (mut record, payload, kind) in parts {
        if kind == RecordKind::End {
            record[8..40].copy_from_slice(&words(sum.finish()));
        }
        sum.update(&record[..Record::CHECKSUM_OFFSET], Endian::Little);
        if kind != RecordKind::Begin {
            let stated = words(sum.finish());
            record[Record::CHECKSUM_OFFSET..].copy_from_slice(&stated);
        }
        sum.update(&record[Record::CHECKSUM_OFFSET..], Endian::Little);
        sum.update(&payload, Endian::Little);
        out.extend(record);
        out.extend(payload);
    }
    out
}

/// Found by a reader: a tree could be so high that the numbers of its blocks had more than 64 bits, and its blocks were never freed.
#[test]
fn raw_trees_that_are_higher_than_any_object_are_refused() {
    let theme = cenote_testkit::Golden::selection().unwrap().theme("streams").unwrap();
    let mut parts = parts_of(&theme.stream_bytes("enc-raw.zfs").unwrap());
    // `drr_indblkshift` and `drr_nlevels` behind the type and the length of what follows.
    let (shift_at, levels_at) = (8 + 40, 8 + 41);
    let is_object = |part: &&mut Part| part.2 == RecordKind::Object;
    let object = parts.iter_mut().rfind(is_object).unwrap();
    assert!(object.0[shift_at] == 17 && (1..=3).contains(&object.0[levels_at]), "{:?}", &object.0[..56]);
    object.0[levels_at] = 8;
    let bytes = sealed(parts);
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = one_disk(&runtime);
    runtime.block_on(async {
        let replica = new_replica(&handle, &machine).await;
        let outcome = received(&replica, &bytes, &request("one", false, false)).await;
        let why = outcome.expect_err("no object is so high").to_string();
        assert!(why.contains("8 levels"), "{why}");
        replica.export().await.unwrap();
    });
}

/// A disk of a simulated runtime, for a pool that receives.
fn one_disk(runtime: &Runtime) -> Machine {
    Machine::new(runtime, 1, &SimDiskOptions { size_bytes: DISK_BYTES, ..SimDiskOptions::default() })
}

/// A pool on it.
async fn new_replica(handle: &Handle, machine: &Machine) -> Pool {
    let tops = machine.tops(handle, SINGLE).await.unwrap();
    new_pool(handle, options("replica", tops, 12)).await.unwrap().start(TxTunables::default()).await
}

/// Errata 4: encrypted snapshots that were made before OpenZFS 0.8 do not say which set of IVs they have. An increment onto one of them is refused.
#[test]
fn raw_increments_need_the_set_of_ivs_that_their_base_has_errata_4() {
    let theme = cenote_testkit::Golden::selection().unwrap().theme("streams").unwrap();
    let whole = theme.stream_bytes("enc-raw.zfs").unwrap();
    let increment = theme.stream_bytes("enc-raw-incr.zfs").unwrap();
    let runtime = Runtime::simulated(4);
    let handle = runtime.handle();
    let machine = one_disk(&runtime);
    runtime.block_on(async {
        let replica = new_replica(&handle, &machine).await;
        received(&replica, &whole, &request("one", false, false)).await.unwrap();
        let dsl = replica.dsl().unwrap();
        let base = dsl.dataset("replica/of@one").await.unwrap();
        let own = dsl.dataset_field(&base, dataset_field::IVSET_GUID).await.unwrap().unwrap();
        let name_set = async |guid: Option<u64>| {
            let named = replica.change(move |syncer| {
                Box::pin(async move {
                    let object = syncer.dsl().mos().object(base.object).await.unwrap();
                    let value = guid.map(ZapValue::from_u64);
                    let field = dataset_field::IVSET_GUID;
                    Zap::put_entry(&object, syncer.txg(), field, value.as_ref()).await.unwrap();
                    Ok::<_, SpaError>(())
                })
            });
            named.await.unwrap();
        };
        for (guid, reason) in [(None, "IV set guid missing"), (Some(own ^ 1), "IV set guid mismatch")] {
            name_set(guid).await;
            let refused = received(&replica, &increment, &request("two", false, false)).await.unwrap_err();
            assert!(refused.contains(reason), "{guid:?}: {refused}");
            assert!(replica.dsl().unwrap().dataset("replica/of@two").await.is_err());
        }
        name_set(Some(own)).await;
        received(&replica, &increment, &request("two", false, false)).await.unwrap();
        replica.export().await.unwrap();
        let (_, report) = check(&handle, &machine.paths).await.unwrap();
        assert!(report.is_clean(), "{report}");
    });
}

/// Raw streams that OpenZFS made and that were changed are refused or received, as in `hostile_streams_leave_a_whole_pool`.
#[test]
fn hostile_raw_streams_leave_a_whole_pool() {
    let theme = cenote_testkit::Golden::selection().unwrap().theme("streams").unwrap();
    let whole = theme.stream_bytes("enc-raw.zfs").unwrap();
    let increment = theme.stream_bytes("enc-raw-incr.zfs").unwrap();
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..HOSTILE {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let disks = SimDiskOptions { size_bytes: DISK_BYTES, ..SimDiskOptions::default() };
        let machine = Machine::new(&runtime, 1, &disks);
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let tops = machine.tops(&handle, SINGLE).await.unwrap();
            let replica = new_pool(&handle, options("replica", tops, 9 + (seed % 2) as u32 * 3)).await.unwrap();
            let replica = replica.start(TxTunables::default()).await;
            received(&replica, &whole, &request("one", false, false)).await.unwrap();
            for round in 0..30 {
                let is_whole = rng.chance(1, 2);
                let bytes = changed(if is_whole { &whole } else { &increment }, &mut rng);
                let target = if is_whole { "replica/new@x" } else { "replica/of@x" };
                let is_resumable = rng.chance(1, 3);
                let asked = ReceiveRequest { target: target.to_owned(), ..request("x", false, is_resumable) };
                let outcome = received(&replica, &bytes, &asked).await;
                taken += u64::from(outcome.is_ok());
                refused += u64::from(outcome.is_err());
                let synced = replica.sync().await;
                synced.unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error} ({outcome:?})"));
                let dataset = target.split('@').next().unwrap();
                if outcome.is_ok() {
                    match is_whole {
                        true => destroy(&replica, dataset, Reach { recursive: true, clones: false }).await.unwrap(),
                        false => rollback(&replica, "replica/of@one", true).await.unwrap(),
                    }
                } else if is_resumable {
                    let _ = replica.abort_receive(dataset).await;
                }
            }
            // The dataset that was there before takes its own increment still.
            received(&replica, &increment, &request("two", false, false)).await.unwrap();
            while replica.peek(|syncer| syncer.has_work()).await.unwrap() {
                replica.sync().await.unwrap();
            }
            replica.audit().await.unwrap();
            replica.export().await.unwrap();
            let (_, report) = check(&handle, &machine.paths).await.unwrap();
            assert!(report.is_clean(), "seed {seed}: {report}");
            let after = read(&handle, &machine.paths).await;
            audit_space(&after).await.unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
            after.close().await;
        });
    }
    assert!(taken > 10 && refused > 40, "{taken} taken, {refused} refused");
}

/// Streams whose sums are right and that say what cannot be are refused or received; the pool is whole either way, and what was there before is
/// there.
#[test]
fn hostile_streams_leave_a_whole_pool() {
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..HOSTILE {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let disks = SimDiskOptions { size_bytes: DISK_BYTES, ..SimDiskOptions::default() };
        let machine = Machine::new(&runtime, 2, &disks);
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let (left, right) = (machine.part(0..1), machine.part(1..2));
            let tops = left.tops(&handle, SINGLE).await.unwrap();
            let source = new_pool(&handle, options("written", tops, 12)).await.unwrap();
            let tops = right.tops(&handle, SINGLE).await.unwrap();
            let replica = new_pool(&handle, options("replica", tops, 12)).await.unwrap();
            let replica = replica.start(TxTunables::default()).await;
            let kind = [ObjsetType::Zfs, ObjsetType::Zvol][(seed % 2) as usize];
            let head = source_head(&source, kind).await;
            let (mut model, mut next, mut models) = (Contents::new(), 0, Vec::new());
            for name in ["s0", "s1"] {
                for _ in 0..3 {
                    change(&head, &source, &mut model, &mut next, &mut rng).await;
                }
                take_snapshots(&source, &[format!("written/v@{name}")], &[]).await.unwrap();
                models.push(model.clone());
            }
            let view = source.view(&ImportOptions::default()).await.unwrap();
            let from = view.dsl().dataset("written/v@s0").await.unwrap();
            let to = view.dsl().dataset("written/v@s1").await.unwrap();
            let flags = SendFlags { large_blocks: true, embedded: true, compressed: rng.chance(1, 2), raw: false };
            let whole = stream(&view, &from, None, flags, None).await;
            received(&replica, &whole, &request("s0", false, false)).await.unwrap();
            let increment = stream(&view, &to, Some(&from), flags, None).await;
            for round in 0..40 {
                let is_whole = rng.chance(1, 3);
                let bytes = changed(if is_whole { &whole } else { &increment }, &mut rng);
                let target = if is_whole { "replica/new@x" } else { "replica/of@x" };
                let is_resumable = rng.chance(1, 3);
                let asked = ReceiveRequest { target: target.to_owned(), ..request("x", false, is_resumable) };
                let outcome = received(&replica, &bytes, &asked).await;
                taken += u64::from(outcome.is_ok());
                refused += u64::from(outcome.is_err());
                replica
                    .sync()
                    .await
                    .unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error} ({outcome:?})"));
                let dataset = target.split('@').next().unwrap();
                if outcome.is_ok() {
                    // As it was before.
                    match is_whole {
                        true => destroy(&replica, dataset, Reach { recursive: true, clones: false }).await.unwrap(),
                        false => rollback(&replica, "replica/of@s0", true).await.unwrap(),
                    }
                } else if is_resumable {
                    let _ = replica.abort_receive(dataset).await;
                }
            }
            while replica.peek(|syncer| syncer.has_work()).await.unwrap() {
                replica.sync().await.unwrap();
            }
            replica.audit().await.unwrap();
            replica.export().await.unwrap();
            let (_, report) = check(&handle, &right.paths).await.unwrap();
            assert!(report.is_clean(), "seed {seed}: {report}");
            let after = read(&handle, &right.paths).await;
            audit_space(&after).await.unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
            let dataset = after.dsl().dataset("replica/of@s0").await.unwrap();
            let objset = after.dsl().open(&dataset).await.unwrap().unwrap();
            compare(&objset, &models[0], &format!("seed {seed}")).await;
            after.close().await;
            view.close().await;
            source.export().await.unwrap();
        });
    }
    assert!(taken > 10 && refused > 40, "{taken} taken, {refused} refused");
}
