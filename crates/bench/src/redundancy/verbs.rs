//! Devices that are added, attached, replaced, taken offline and online, and removed: the longest wait of a client's operation.

use std::time::Duration;

use anyhow::Result;
use cenote_spa::{AddOptions, AttachOptions, NewDevice, Offline, Pool, TopKind, TopSpec};
use cenote_taskq::sim::model::FlashOptions;
use cenote_vdev::config::AllocationClass;
use serde_json::{Map, Value, json};

use super::Options;
use super::clients::{Clients, RECORD_BYTES};
use super::rig::{Bed, CACHE_BYTES, Data, Disks, Model, job_ended, leaf, top, whole};
use crate::report::{Suite, Table, short};

const MIRRORS: [(TopKind, usize); 2] = [(TopKind::Mirror, 2), (TopKind::Mirror, 2)];
const DRIVES: usize = 8;

#[derive(Clone, Copy, Debug)]
enum Verb {
    /// The clients alone, which make their intent logs.
    None,
    Add,
    Attach,
    Replace,
    Offline,
    Online,
    Detach,
    Remove,
}

const VERBS: [(Verb, &str); 8] = [
    (Verb::None, "none"),
    (Verb::Add, "add a mirror"),
    (Verb::Attach, "attach a leg"),
    (Verb::Replace, "replace a leg"),
    (Verb::Offline, "take a leg offline"),
    (Verb::Online, "and online"),
    (Verb::Detach, "detach a leg"),
    (Verb::Remove, "remove a mirror"),
];

impl Verb {
    async fn done(self, disks: &Disks, pool: &Pool) -> Result<()> {
        match self {
            Self::None => disks.handle.sleep(Duration::from_millis(100)).await,
            Self::Add => {
                let pair = vec![disks.disk(4).await?, disks.disk(5).await?];
                let mirror = TopSpec { kind: TopKind::Mirror, class: AllocationClass::Normal, disks: pair };
                pool.add_vdevs(AddOptions { tops: vec![mirror], ashift: Some(12), ..AddOptions::default() }).await?;
            }
            Self::Attach => attach(disks, pool, 0, 6, false).await?,
            Self::Replace => attach(disks, pool, 1, 7, true).await?,
            Self::Offline => {
                pool.offline_device(leaf(pool, &disks.paths[6]).await?, Offline::default()).await?;
            }
            Self::Online => {
                pool.online_device(leaf(pool, &disks.paths[6]).await?, Vec::new()).await?;
                whole(pool).await?;
            }
            Self::Detach => {
                pool.detach_device(leaf(pool, &disks.paths[6]).await?).await?;
            }
            Self::Remove => {
                pool.remove_vdev(top(pool, 1).await?).await?;
                job_ended(pool, "remove").await;
            }
        }
        Ok(())
    }
}

async fn attach(disks: &Disks, pool: &Pool, old: usize, new: usize, is_replacing: bool) -> Result<()> {
    let options = AttachOptions {
        old: leaf(pool, &disks.paths[old]).await?,
        new: NewDevice::Disk(disks.disk(new).await?),
        is_replacing,
        is_sequential: false,
        ashift: Some(12),
        seed: None,
    };
    pool.attach_device(options).await?;
    whole(pool).await
}

/// The longest waits during a verb, in txgs and in milliseconds, and its seconds.
#[derive(Clone, Copy)]
struct Waits {
    txgs: u64,
    longest_ms: f64,
    seconds: f64,
}

/// Runs all verbs beside clients.
pub(super) fn changes(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let data_bytes = if options.quick { 64_u64 << 20 } else { 512 << 20 };
    let bed = Bed::models(&[Model::Flash(FlashOptions::sata()); DRIVES], data_bytes)?;
    let disks = bed.disks.clone();
    let found = bed.run(async move {
        let pool = disks.pool(&MIRRORS, &[], CACHE_BYTES).await?;
        let data = Data::filled(&pool, RECORD_BYTES, data_bytes).await?;
        let mut found = Vec::new();
        for (verb, _) in VERBS {
            let clients = Clients::begin(&data).await?;
            disks.handle.sleep(Duration::from_millis(200)).await;
            let begun = disks.handle.now();
            verb.done(&disks, &pool).await?;
            let seconds = (disks.handle.now() - begun).as_secs_f64();
            let done = clients.end().await?;
            let txgs = done.iter().map(|done| done.txgs).max().unwrap_or(0);
            let longest = done.iter().map(|done| done.took).max().unwrap_or_default();
            found.push(Waits { txgs, longest_ms: longest.as_secs_f64() * 1e3, seconds });
        }
        drop(data);
        pool.export().await?;
        Ok(found)
    })?;
    let title = format!(
        "Verbs beside clients that read, write and fsync, on mirrors of modelled SATA drives with {} MiB, to the end of what they begin",
        data_bytes >> 20
    );
    let mut table = Table::new(title, &["verb", "longest wait of an operation, txgs", "ms", "seconds of the verb"]);
    let mut kept = Vec::new();
    for ((verb, name), waits) in VERBS.iter().zip(found) {
        let cells = [short(waits.longest_ms), short(waits.seconds)];
        table.row([(*name).to_owned(), waits.txgs.to_string()].into_iter().chain(cells));
        if !matches!(verb, Verb::None) {
            suite.target(
                format!("{name}: no operation waits for more than two txgs"),
                waits.txgs.to_string(),
                waits.txgs <= 2,
            );
        }
        kept.push(
            json!({ "verb": name, "txgs": waits.txgs, "longest_ms": waits.longest_ms, "seconds": waits.seconds }),
        );
    }
    suite.tables.push(table);
    raw.insert("device_changes".into(), kept.into());
    Ok(())
}
