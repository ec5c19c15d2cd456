//! Clients while long work goes on, on modelled solid-state drives: how long the slowest of a hundred of their operations takes, and how fast the
//! work is.

use std::time::Duration;

use anyhow::Result;
use cenote_spa::{AttachOptions, LeafAction, LeafWorkKind, NewDevice, Pool, TopKind};
use cenote_taskq::sim::model::FlashOptions;
use serde_json::{Map, Value, json};

use super::Options;
use super::clients::{Clients, Done, KINDS, Kind, RECORD_BYTES, quantile_us};
use super::rig::{Bed, CACHE_BYTES, Data, Disks, Model, job_ended, leaf, scrubbed, top, whole};
use crate::report::{Suite, Table, short};

/// Two mirrors; the last drive is for what needs a new one.
const MIRRORS: [(TopKind, usize); 2] = [(TopKind::Mirror, 2), (TopKind::Mirror, 2)];
const DRIVES: usize = 5;
/// Drives that are trimmed are so many times as large: a trim is over soon otherwise, and the txgs of four verbs are all that a client sees.
const TRIMMED_TIMES: u64 = 16;

/// Long work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    None,
    Scrub,
    Resilver,
    Rebuild,
    Removal,
    Trim,
}

const WORKS: [(Work, &str); 6] = [
    (Work::None, "none"),
    (Work::Scrub, "scrub"),
    (Work::Resilver, "resilver of a new leg"),
    (Work::Rebuild, "sequential rebuild of a new leg"),
    (Work::Removal, "removal of a mirror"),
    (Work::Trim, "trim of all drives"),
];

impl Work {
    /// Does it to its end.
    async fn done(self, disks: &Disks, pool: &Pool) -> Result<()> {
        match self {
            Self::None => disks.handle.sleep(Duration::from_secs(10)).await,
            Self::Scrub => {
                scrubbed(pool).await?;
            }
            Self::Resilver | Self::Rebuild => {
                let options = AttachOptions {
                    old: leaf(pool, &disks.paths[0]).await?,
                    new: NewDevice::Disk(disks.disk(DRIVES - 1).await?),
                    is_replacing: false,
                    is_sequential: self == Self::Rebuild,
                    ashift: Some(12),
                    seed: None,
                };
                pool.attach_device(options).await?;
                whole(pool).await?;
            }
            Self::Removal => {
                pool.remove_vdev(top(pool, 1).await?).await?;
                job_ended(pool, "remove").await;
            }
            Self::Trim => {
                for path in &disks.paths[..DRIVES - 1] {
                    let leaf = leaf(pool, path).await?;
                    pool.change_leaf_work(leaf, LeafWorkKind::Trim, LeafAction::Start { rate_bytes: 0 }).await?;
                }
                while pool.peek(|syncer| syncer.is_worked_on(LeafWorkKind::Trim)).await? {
                    disks.handle.sleep(Duration::from_millis(2)).await;
                }
            }
        }
        Ok(())
    }
}

/// Long work that was done.
struct Measured {
    seconds: f64,
    /// Txgs that were written meanwhile.
    txgs: u64,
    /// The operations of clients meanwhile, if there were any.
    done: Vec<Done>,
}

/// Does long work, beside clients or not.
fn measured(work: Work, data_bytes: u64, has_clients: bool) -> Result<Measured> {
    let room_bytes = if work == Work::Trim { data_bytes * TRIMMED_TIMES } else { data_bytes };
    let bed = Bed::models(&[Model::Flash(FlashOptions::sata()); DRIVES], room_bytes)?;
    let disks = bed.disks.clone();
    bed.run(async move {
        let pool = disks.pool(&MIRRORS, &["zfs_rebuild_scrub_enabled=0"], CACHE_BYTES).await?;
        let data = Data::filled(&pool, RECORD_BYTES, data_bytes).await?;
        let clients = if has_clients { Some(Clients::begin(&data).await?) } else { None };
        let (begun, txg) = (disks.handle.now(), pool.txgs().synced_txg());
        work.done(&disks, &pool).await?;
        let seconds = (disks.handle.now() - begun).as_secs_f64();
        let txgs = pool.txgs().synced_txg().0 - txg.0;
        let done = match clients {
            Some(clients) => clients.end().await?,
            None => Vec::new(),
        };
        drop(data);
        pool.export().await?;
        Ok(Measured { seconds, txgs, done })
    })
}

/// All kinds of work.
pub(super) fn foreground(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let data_bytes = if options.quick { 256_u64 << 20 } else { 1 << 30 };
    let title = format!(
        "Clients of two mirrors of modelled SATA drives ({} MiB in records of 16 KiB) during long work: 99 of 100 operations within",
        data_bytes >> 20
    );
    let columns = [
        "work",
        "read, us",
        "write, us",
        "fsync, us",
        "read, times",
        "write",
        "fsync",
        "seconds of work",
        "alone",
        "txgs",
    ];
    let mut table = Table::new(title, &columns);
    let mut kept = Vec::new();
    let mut without: Option<[f64; 3]> = None;
    for (work, name) in WORKS {
        let Measured { seconds, txgs, done } = measured(work, data_bytes, true)?;
        let alone = if work == Work::None { f64::NAN } else { measured(work, data_bytes, false)?.seconds };
        let p99 = KINDS.map(|(kind, _)| quantile_us(&done, kind, 0.99));
        let p50 = KINDS.map(|(kind, _)| quantile_us(&done, kind, 0.5));
        let base = *without.get_or_insert(p99);
        // Work of memory alone takes no time here: less than a microsecond is one.
        let times: [f64; 3] = std::array::from_fn(|kind| p99[kind].max(1.0) / base[kind].max(1.0));
        let cells = p99.into_iter().chain(times).chain([seconds, alone, txgs as f64]).map(short);
        table.row([name.to_owned()].into_iter().chain(cells));
        if work != Work::None {
            for ((_, what), times) in KINDS.iter().zip(times) {
                let wanted = format!("{name}: {what}, p99 at most 1.5 of without");
                suite.target(wanted, short(times), times <= 1.5);
            }
            let share = alone / seconds;
            suite.target(
                format!("{name}: goes on beside clients, at a tenth of its own rate at least"),
                short(share),
                share >= 0.1,
            );
        }
        let reads = done.iter().filter(|done| done.kind == Kind::Read).count();
        kept.push(json!({
            "work": name, "p99_us": p99, "p50_us": p50, "seconds": seconds, "alone_s": alone, "txgs": txgs, "reads": reads,
            "operations": done.len(),
        }));
    }
    suite.tables.push(table);
    raw.insert("foreground".into(), kept.into());
    Ok(())
}
