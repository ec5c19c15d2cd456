//! Goal: streams of a machine of the other byte order bring what those of our own do. Method: datasets are changed at random; each snapshot is
//! sent, whole and as a difference, in all forms of records; its stream is turned round record by record, system attributes by the file
//! system's own tables too; what is received is compared with the model, and zdb has its say. Then one is broken off and gone on with, raw
//! streams are refused, and what cannot be of its kind is an error.

#![allow(clippy::disallowed_methods)]

use cenote_admin::create_filesystem;
use cenote_admin::receive::ReceiveRequest;
use cenote_dmu::Zap;
use cenote_dmu::sa::SaTables;
use cenote_dmu::tx::TxTunables;
use cenote_dsl::Dataset;
use cenote_format::Endian;
use cenote_format::ids::ObjectId;
use cenote_format::stream::{Body, Record};
use cenote_format::zpl::{MASTER_NODE, master_node};
use cenote_replicas::source::{Kind, Source, compare};
use cenote_replicas::streams::{boundaries, draw_flags, received, rest_of, stream, token};
use cenote_replicas::swap::swapped;
use cenote_send::sender::{Base, SendRequest};
use cenote_send::{Checks, StreamReader};
use cenote_sim::{Machine, SINGLE, audit_space, check, new_pool, options};
use cenote_spa::{ImportOptions, Pool, View};
use cenote_taskq::sim::disk::SimDiskOptions;
use cenote_taskq::{Rng, Runtime};

const DISK_BYTES: u64 = 256 << 20;
const TARGET: &str = "replica/of";

fn asked() -> ReceiveRequest {
    ReceiveRequest { target: TARGET.to_owned(), is_resumable: true, ..ReceiveRequest::default() }
}

/// The tables of system attributes of a snapshot.
async fn tables(view: &View, dataset: &Dataset) -> Option<SaTables> {
    let objset = view.dsl().open(dataset).await.unwrap()?;
    let master = Zap::open(objset.object(MASTER_NODE).await.ok()?).await.ok()?;
    let id = master.find_u64(master_node::SA_ATTRIBUTES).await.ok()??;
    Some(SaTables::load(&objset, ObjectId(id)).await.unwrap())
}

/// Some snapshots of a dataset and their replicas. How many records there were comes back.
async fn history(source: &Pool, replica: &Pool, kind: Kind, rng: &mut Rng) -> usize {
    let mut dataset = Source::create(source, "written/a", kind, rng).await.unwrap();
    create_filesystem(replica, "replica/other", Vec::new(), false).await.unwrap();
    let (mut before, mut records, mut flags) = (None::<String>, 0, draw_flags(rng));
    for round in 0..4 {
        dataset.change(source, rng).await.unwrap();
        let short = format!("s{round}");
        let name = dataset.snapshot(source, &short).await.unwrap();
        source.sync().await.unwrap();
        let view = source.view(&ImportOptions::default()).await.unwrap();
        let to = view.dsl().dataset(&name).await.unwrap();
        let mut request = SendRequest::full(to.clone(), flags);
        if let Some(before) = &before {
            let from = view.dsl().dataset(before).await.unwrap();
            request.base = Some(Base::snapshot(view.dsl(), &to, &from).await.unwrap());
        }
        // Objects that are changed one by one have attributes of no layout.
        let tables = if kind == Kind::Files { tables(&view, &to).await } else { None };
        assert_eq!(tables.is_some(), kind == Kind::Files);
        let bytes = swapped(&stream(&view, &request).await.unwrap(), tables.as_ref()).unwrap();
        assert_eq!(Record::stream_endian(&bytes), Some(Endian::Big));
        let places = boundaries(&bytes).unwrap();
        records += places.len();
        let middle = places[places.len() / 2];
        received(replica, &bytes[..middle], &asked()).await.unwrap_err();
        let rest = match token(replica, TARGET).await.unwrap() {
            Some(token) => swapped(&rest_of(&view, &request, &token).await.unwrap(), tables.as_ref()).unwrap(),
            None => bytes,
        };
        received(replica, &rest, &asked()).await.unwrap_or_else(|why| panic!("{name} {kind:?} {flags:?}: {why}"));
        view.close().await;
        replica.sync().await.unwrap();
        let there = replica.view(&ImportOptions::default()).await.unwrap();
        let copy = there.dsl().dataset(&format!("{TARGET}@{short}")).await.unwrap();
        compare(&there, &copy, dataset.at(&short)).await.unwrap_or_else(|why| panic!("{kind:?} {flags:?}: {why:#}"));
        audit_space(&there).await.unwrap();
        there.close().await;
        before = Some(name);
        // Large blocks stay large.
        flags.large_blocks |= rng.chance(1, 2);
    }
    records
}

#[test]
fn what_the_other_byte_order_brings_is_what_was_sent() {
    let mut records = 0;
    for seed in 0..9_u64 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let disks = SimDiskOptions { size_bytes: DISK_BYTES, ..SimDiskOptions::default() };
        let machine = Machine::new(&runtime, 2, &disks);
        let part = |at: usize| Machine {
            disks: vec![machine.disks[at].clone()],
            paths: vec![machine.paths[at].clone()],
            size_bytes: DISK_BYTES,
        };
        let (left, right) = (part(0), part(1));
        let mut rng = Rng::new(seed);
        records += runtime.block_on(async {
            let tops = left.tops(&handle, SINGLE).await.unwrap();
            let source = new_pool(&handle, options("written", tops, 12)).await.unwrap();
            let tops = right.tops(&handle, SINGLE).await.unwrap();
            let replica = new_pool(&handle, options("replica", tops, 12)).await.unwrap();
            let replica = replica.start(TxTunables::default()).await;
            let kind = [Kind::Files, Kind::Objects, Kind::Volume][seed as usize % 3];
            let records = history(&source, &replica, kind, &mut rng).await;
            while replica.peek(|syncer| syncer.has_work()).await.unwrap() {
                replica.sync().await.unwrap();
            }
            replica.audit().await.unwrap();
            replica.export().await.unwrap();
            source.export().await.unwrap();
            let (_, report) = check(&handle, &right.paths).await.unwrap();
            assert!(report.is_clean(), "{report}");
            records
        });
        if cenote_testkit::zdb::program("zdb").is_some() {
            let images = right.images();
            cenote_sim::zdb("replica", &images, DISK_BYTES).unwrap();
        }
    }
    assert!(records > 1000, "{records} records");
}

/// The helper of these tests turns round what there is: what it makes is another stream, with another sum.
#[test]
fn a_stream_that_is_turned_round_has_other_bytes_in_each_record() {
    let Some(theme) = cenote_testkit::theme_if_present("streams") else { return };
    let bytes = theme.stream_bytes("full.zfs").unwrap();
    let turned = swapped(&bytes, None).unwrap();
    let (mut own, mut other) =
        (StreamReader::new(&bytes[..], Checks::ALL), StreamReader::new(&turned[..], Checks::ALL));
    let mut kinds = std::collections::BTreeSet::new();
    while let Some(item) = own.next_item().unwrap() {
        let found = other.next_item().unwrap().unwrap();
        assert_ne!(item.bytes, found.bytes);
        if !matches!(item.decoded.record.body, Body::End(_) | Body::WriteEmbedded(_)) {
            assert_eq!(item.decoded.record.body, found.decoded.record.body);
        }
        kinds.insert(item.decoded.record.body.kind().name());
    }
    assert!(kinds.len() > 4, "{kinds:?}");
}
