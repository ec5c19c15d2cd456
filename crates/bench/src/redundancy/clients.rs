//! Clients of a pool that long work goes on in: readers, writers, and writers that wait until what they wrote is stable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};
use cenote_dmu::tx::SyncMode;
use cenote_format::ids::Txg;
use cenote_spa::Pool;
use cenote_taskq::{Class, Join, Rng};
use cenote_zpl::{FileSystem, FileSystemOptions, NewNode};

use super::rig::Data;
use crate::writing::rig::noise;

/// The clients of each kind.
const READERS: u64 = 8;
const WRITERS: u64 = 4;
const SYNCERS: u64 = 2;
/// Between two operations of a client, at most.
const PAUSE: Duration = Duration::from_millis(1);
/// Bytes of a client's write that is to be stable, and how many such pieces its file has.
const STABLE_BYTES: u64 = 4 << 10;
const STABLE_PIECES: u64 = 4096;
/// Records of the clients' object.
pub(super) const RECORD_BYTES: u64 = 16 << 10;

/// The operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A record, past the cache.
    Read,
    /// A record.
    Write,
    /// 4 KiB of a file, and an fsync.
    Stable,
}

pub(super) const KINDS: [(Kind, &str); 3] =
    [(Kind::Read, "read of 16 KiB"), (Kind::Write, "write of 16 KiB"), (Kind::Stable, "write of 4 KiB and fsync")];

/// An operation that was timed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) kind: Kind,
    pub(super) took: Duration,
    /// Txgs whose sync ended meanwhile.
    pub(super) txgs: u64,
}

/// Clients that go on until they are told to end.
pub(super) struct Clients {
    is_over: Arc<AtomicBool>,
    joins: Vec<Join<Result<Vec<Done>>>>,
}

impl Clients {
    /// Begins them on a pool with this object.
    pub(super) async fn begin(data: &Data) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut joins = Vec::new();
        for index in 0..READERS {
            let (of, rng) = (data.clone(), Rng::new(100 + index));
            joins.push(client(data.head.pool(), &is_over, Kind::Read, rng, move |mut rng| {
                let (of, at) = (of.clone(), rng.below(of.records) * of.record_bytes);
                async move {
                    of.object.read_direct(at, of.record_bytes as usize).await?;
                    Ok(())
                }
            }));
        }
        for index in 0..WRITERS {
            let (of, block, rng) = (data.clone(), noise(data.record_bytes as usize, index), Rng::new(200 + index));
            joins.push(client(data.head.pool(), &is_over, Kind::Write, rng, move |mut rng| {
                let (of, block, record) = (of.clone(), block.clone(), rng.below(of.records));
                async move { of.write(record, &block).await }
            }));
        }
        let log = Arc::new(data.head.log(SyncMode::Standard));
        let options = FileSystemOptions { record_bytes: 8 << 10, ..FileSystemOptions::default() };
        let files = FileSystem::open_logged(data.head.objset(), log.clone(), options).await?;
        for index in 0..SYNCERS {
            let new = NewNode { mode: 0o100_644, ..NewNode::default() };
            let name = format!("client{index}-{}", data.head.pool().txg().0);
            let (file, _) = files.create_file(files.root(), name.as_bytes(), &new).await?;
            let (file, log, block) = (Arc::new(file), log.clone(), noise(STABLE_BYTES as usize, index));
            joins.push(client(data.head.pool(), &is_over, Kind::Stable, Rng::new(300 + index), move |mut rng| {
                let (file, log, block) = (file.clone(), log.clone(), block.clone());
                async move {
                    file.write(rng.below(STABLE_PIECES) * STABLE_BYTES, &block).await?;
                    Ok(log.sync(Some(file.id())).await?)
                }
            }));
        }
        Ok(Self { is_over, joins })
    }

    /// Ends them; all that they did.
    pub(super) async fn end(self) -> Result<Vec<Done>> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for join in self.joins {
            all.extend(join.await.map_err(|error| anyhow!("{error}"))??);
        }
        Ok(all)
    }
}

/// A client that does one operation after the other, with pauses.
fn client<F, W>(pool: &Pool, is_over: &Arc<AtomicBool>, kind: Kind, mut rng: Rng, work: F) -> Join<Result<Vec<Done>>>
where
    F: Fn(Rng) -> W + Send + 'static,
    W: Future<Output = Result<()>> + Send,
{
    let (pool, is_over, handle) = (pool.clone(), is_over.clone(), pool.handle().clone());
    let clock = handle.clone();
    handle.spawn(Class::Issue, async move {
        let mut done = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            clock.sleep(Duration::from_nanos(rng.below(PAUSE.as_nanos() as u64))).await;
            let (begun, before): (_, Txg) = (clock.now(), pool.txgs().synced_txg());
            work(Rng::new(rng.next_u64())).await?;
            let txgs = pool.txgs().synced_txg().0 - before.0;
            done.push(Done { kind, took: clock.now() - begun, txgs });
        }
        Ok(done)
    })
}

/// The time in microseconds within which this share of the operations of a kind was done.
pub(super) fn quantile_us(done: &[Done], kind: Kind, share: f64) -> f64 {
    let mut times: Vec<u64> =
        done.iter().filter(|done| done.kind == kind).map(|done| done.took.as_nanos() as u64).collect();
    times.sort_unstable();
    let index = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
    times.get(index).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
}
