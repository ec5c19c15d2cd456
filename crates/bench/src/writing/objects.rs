//! Many objects in one txg: what of its sync is done on one core only.

use anyhow::{Context as _, Result};
use cenote_dmu::ObjectSpec;
use cenote_dmu::tx::Cost;
use cenote_format::dmu_type::DmuType;
use cenote_spa::LiveHead;
use cenote_taskq::Rng;
use cenote_taskq::buf::Buf;
use cenote_zpl::bulk::BulkWriter;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Options;
use super::rig::Rig;
use crate::clock::Watch;
use crate::report::{Suite, Table, short};

/// Bytes of the pool's file, which takes as much as is written.
const POOL_BYTES: u64 = 128 << 30;
/// Bytes of the data block of those that have one.
const BLOCK_BYTES: u32 = 512;
/// One in so many of the objects is changed then, and one in so many of those gets data: what is changed holds several KB of memory
/// each.
const CHANGED_STEP: usize = 4;
const WRITTEN_STEP: usize = 4;
/// The share of a sync that one core may do alone.
const SERIAL_MAX: f64 = 0.1;

/// The sync of one txg.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sync {
    objects: u64,
    /// Seconds that it took, of those what its own task ran, and processor seconds of the whole process meanwhile.
    took_s: f64,
    serial_s: f64,
    cpu_s: f64,
}

impl Sync {
    async fn made(head: &LiveHead, objects: u64) -> Result<Self> {
        let (watch, first) = (Watch::start(), head.pool().txgs().open_txg());
        head.pool().sync().await?;
        let cpu_s = watch.took().cpu_s;
        let history = head.pool().history();
        let sync = history.iter().find(|record| record.txg == first).context("the txg is in the pool's history")?;
        Ok(Self { objects, took_s: sync.took.as_secs_f64(), serial_s: sync.serial.as_secs_f64(), cpu_s })
    }

    fn row(&self, what: &str, table: &mut Table) {
        let each = |seconds: f64| short(seconds * 1e6 / self.objects as f64);
        table.row([
            what.to_owned(),
            self.objects.to_string(),
            short(self.took_s * 1e3),
            short(self.serial_s * 1e3),
            short(self.cpu_s * 1e3),
            each(self.serial_s),
            each(self.cpu_s),
            short(self.share()),
        ]);
    }

    /// The part of all processor time that one core works alone.
    fn share(&self) -> f64 {
        self.serial_s / self.cpu_s.max(1e-9)
    }
}

/// Makes objects, changes some of them, writes a small block into some of those, frees them: a txg each.
pub(super) fn objects(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let count = if options.quick { 200_000 } else { 2_000_000 };
    let rig = Rig::by_hand(&options.folder, POOL_BYTES)?;
    let head = rig.head()?;
    let syncs = rig.run(async move { all_syncs(&head, count).await })?;
    drop(rig);
    raw.insert("objects".into(), json!(syncs));
    let columns = [
        "what",
        "objects",
        "ms of the sync",
        "ms of its own task",
        "ms of processor",
        "µs of its own task an object",
        "µs of processor an object",
        "share of its own task",
    ];
    let mut table = Table::new("One txg of many objects in a sparse file", &columns);
    for (what, sync) in &syncs {
        sync.row(what, &mut table);
    }
    suite.tables.push(table);
    let worst = syncs.iter().map(|(_, sync)| sync.share()).fold(0.0, f64::max);
    suite.target("of a txg of many objects at most 0.1 is done on one core only", short(worst), worst <= SERIAL_MAX);
    Ok(())
}

async fn all_syncs(head: &LiveHead, count: u64) -> Result<Vec<(&'static str, Sync)>> {
    // The attributes of the root directory do for all: what each uses goes to an owner's account.
    let root = BulkWriter::open(head.objset()).await?.root();
    let mut bonus = head.objset().object(root).await?.phys().bonus.to_vec();
    let spec = ObjectSpec::new(DmuType::PLAIN_FILE_CONTENTS, BLOCK_BYTES).with_bonus(DmuType::SA, bonus.clone());
    let mut ids = Vec::new();
    for _ in 0..count {
        let tx = head.begin(Cost::objects(1)).await?;
        ids.push(head.objset().create_object(tx.txg(), &spec)?.id());
    }
    let made = Sync::made(head, count).await?;
    if let Some(last) = bonus.last_mut() {
        *last = last.wrapping_add(1);
    }
    let ids: Vec<_> = ids.into_iter().step_by(CHANGED_STEP).collect();
    let count = ids.len() as u64;
    for id in &ids {
        let object = head.objset().object(*id).await?;
        let tx = head.begin(Cost::objects(1)).await?;
        object.set_bonus(tx.txg(), &bonus)?;
    }
    let changed = Sync::made(head, count).await?;
    let mut rng = Rng::new(3);
    let mut written = 0;
    for id in ids.iter().step_by(WRITTEN_STEP) {
        let object = head.objset().object(*id).await?;
        let len = u64::from(BLOCK_BYTES);
        let tx = head.begin(Cost::write(0, len, len)).await?;
        let mut data = Buf::unfilled(BLOCK_BYTES as usize);
        rng.fill(&mut data);
        object.write_block(tx.txg(), 0, data.freeze());
        written += 1;
    }
    let written = Sync::made(head, written).await?;
    for id in &ids {
        let object = head.objset().object(*id).await?;
        let tx = head.begin(Cost::objects(1)).await?;
        object.free(tx.txg());
    }
    let freed = Sync::made(head, count).await?;
    Ok(vec![("made", made), ("attributes changed", changed), ("a block written", written), ("freed", freed)])
}
