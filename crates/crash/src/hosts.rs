//! Lives of two hosts: the first loses the pool to a second one while its devices do not answer, and may keep no client's promise after that.
//!
//! **A life.** The first host has a pool in use, with `multihost=on` or held, and clients that make files and ask for them to be durable. Its
//! devices stop to answer, writes and flushes or one of them, for long enough that the second host may import the pool. The second does,
//! and writes to it. Then the devices answer the first host what it had asked them. Whatever a client of the first was told is durable
//! has to be in the second's pool.
//!
//! **Not judged** is what the first host's late writes overwrite: nobody can take back what a kernel was given already.

use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::tx::{SyncMode, TxTunables};
use cenote_sim::{Layout, Machine, options};
use cenote_spa::{
    Clock, CreateOptions, Host, ImportOptions, Pool, PropertyValue, SpaError, TopKind, WriteOptions, find, open,
};
use cenote_taskq::sim::disk::{Fault, RequestKind, SimDiskOptions};
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicBool, Ordering};
use cenote_taskq::{Class, Handle, Rng, Runtime, race};
use cenote_vdev::config::AllocationClass;
use cenote_zil::Log;
use cenote_zpl::{FileSystem, FileSystemOptions, NewNode};

const NAME: &str = "shared";
const FIRST: u64 = 0x1111;
const SECOND: u64 = 0x2222;
const LAYOUTS: [Layout; 3] = [
    &[(TopKind::Single, 1)],
    &[(TopKind::Mirror, 2)],
    // The last is a log device.
    &[(TopKind::Single, 1), (TopKind::Single, 1)],
];
/// For so long devices do not answer the first host.
const HANG: Duration = Duration::from_secs(120);
/// Clients ask within this time after devices have stopped to answer. With it ends the time in which they stop.
const ASKED_WITHIN: Duration = Duration::from_secs(3);
/// The life ends so long after the devices have answered.
const AFTER: Duration = Duration::from_secs(60);

/// How a life ended well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// The second host got the pool.
    pub is_taken: bool,
    /// Files that clients of the first host asked for while devices did not answer.
    pub asked: usize,
    /// Files, of all times, that they were told are durable.
    pub promised: usize,
}

/// How a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    /// As `fsync` does: by the intent log.
    Fsync,
    /// As `zpool sync` and `syncfs` do: by a txg.
    Sync,
    /// By the end of the pool.
    Export,
}

fn host(id: u64) -> Host {
    Host { id, name: format!("host{id:x}") }
}

async fn opened(handle: &Handle, machine: &Machine, id: u64, is_held: bool) -> Result<Pool, SpaError> {
    let found = find(handle, &machine.paths).await.0.pop().ok_or_else(|| SpaError::NoSuchPool(NAME.to_owned()))?;
    let how = ImportOptions { force: true, host_id: id, cache_bytes: 16 << 20, ..ImportOptions::default() };
    let writer = open(handle, found, &how, WriteOptions { clock: Clock::Now, host: host(id), check: true }).await?;
    if is_held {
        writer.hold().await?;
    }
    // Txgs are written where somebody asks for one.
    let pool = writer.start(TxTunables { zfs_txg_timeout: 3600, ..TxTunables::for_memory(1 << 30) }).await;
    pool.sync().await?;
    Ok(pool)
}

async fn files(pool: &Pool) -> Result<(FileSystem, Arc<Log>), String> {
    let head = pool.open_head(NAME).await.map_err(|error| error.to_string())?;
    let log = Arc::new(head.log(SyncMode::Standard));
    let files = FileSystem::open_logged(head.objset(), log.clone(), FileSystemOptions::default()).await;
    Ok((files.map_err(|error| error.to_string())?, log))
}

/// Lives a life.
///
/// # Errors
/// A promise was broken, or something failed that has to work.
pub fn live(number: u64) -> Result<Ended, String> {
    let mut rng = Rng::new(number);
    let layout = LAYOUTS[rng.below(LAYOUTS.len() as u64) as usize];
    let has_log_device = layout.len() > 1;
    let is_multihost = rng.chance(1, 2);
    let runtime = Runtime::simulated(number);
    let handle = runtime.handle();
    let disks = layout.iter().map(|(_, count)| count).sum();
    let machine = Machine::new(&runtime, disks, &SimDiskOptions { size_bytes: 80 << 20, ..SimDiskOptions::default() });
    runtime.block_on(async {
        let failed = |error: SpaError| error.to_string();
        let mut tops = machine.tops(&handle, layout).await.map_err(|error| error.to_string())?;
        if has_log_device {
            tops[1].class = AllocationClass::Log;
        }
        let options = CreateOptions { clock: Clock::Now, host: host(FIRST), ..options(NAME, tops, 12) };
        let pool = cenote_sim::new_pool(&handle, options).await.map_err(failed)?;
        if is_multihost {
            pool.set_pool_property("multihost", Some(&PropertyValue::Number(1))).await.map_err(failed)?;
        }
        pool.export().await.map_err(failed)?;
        two_hosts(&handle, &machine, &mut rng, !is_multihost).await
    })
}

async fn two_hosts(handle: &Handle, machine: &Machine, rng: &mut Rng, is_held: bool) -> Result<Ended, String> {
    let first = Arc::new(opened(handle, machine, FIRST, is_held).await.map_err(|error| error.to_string())?);
    let (files_of_first, log) = files(&first).await?;
    let promised = Arc::new(Mutex::new(Vec::new()));
    for at in 0..3 {
        let name = format!("before{at}");
        create(&files_of_first, &name).await?;
        log.sync(None).await.map_err(|error| error.to_string())?;
        promised.lock().push(name);
    }

    let hangs = Arc::new(AtomicBool::new(true));
    let which = rng.below(3);
    for disk in &machine.disks {
        let hangs = hangs.clone();
        disk.set_faults(move |request, _| {
            let is_meant = match request.kind {
                RequestKind::Read => false,
                // Its labels hang in any case, else it does not lose the pool.
                RequestKind::Write => {
                    which != 1 || request.offset_bytes < 512 << 10 || request.offset_bytes >= 79 << 20
                }
                RequestKind::Flush => which != 0,
            };
            if is_meant && hangs.load(Ordering::Relaxed) { Fault::Delay(HANG) } else { Fault::None }
        });
    }
    let asked = 1 + rng.below(4) as usize;
    let mut clients = Vec::new();
    for at in 0..asked {
        let asking = match rng.below(5) {
            0 => Asking::Sync,
            1 if at + 1 == asked => Asking::Export,
            _ => Asking::Fsync,
        };
        let name = format!("asked{at}");
        create(&files_of_first, &name).await?;
        let (first, log, promised, handle_of) = (first.clone(), log.clone(), promised.clone(), handle.clone());
        let after = Duration::from_millis(rng.below(ASKED_WITHIN.as_millis() as u64));
        clients.push(handle.spawn(Class::Issue, async move {
            handle_of.sleep(after).await;
            let is_told = match asking {
                Asking::Fsync => log.sync(None).await.is_ok(),
                Asking::Sync => first.sync().await.is_ok(),
                Asking::Export => (*first).clone().export().await.is_ok(),
            };
            if is_told {
                promised.lock().push(name);
            }
        }));
    }
    handle.sleep(ASKED_WITHIN).await;
    hangs.store(false, Ordering::Relaxed);
    let second = opened(handle, machine, SECOND, true).await;
    let is_taken = second.is_ok();
    let Ok(second) = second else {
        first.abandon();
        return Ok(Ended { is_taken, asked, promised: promised.lock().len() });
    };
    let (files_of_second, _) = files(&second).await?;
    create(&files_of_second, "of_second").await?;
    second.sync().await.map_err(|error| error.to_string())?;
    handle.sleep(HANG + AFTER).await;
    let promised = std::mem::take(&mut *promised.lock());
    for name in &promised {
        let found = files_of_second.lookup(files_of_second.root(), name.as_bytes()).await;
        found.map_err(|error| format!("a client of the first host was told that {name} is durable: {error}"))?;
    }
    // Nobody is told anything by the end of the first host.
    first.abandon();
    let ends = async {
        for client in clients {
            let _ = client.await;
        }
    };
    race(ends, handle.sleep(AFTER)).await;
    Ok(Ended { is_taken, asked, promised: promised.len() })
}

async fn create(files: &FileSystem, name: &str) -> Result<(), String> {
    let new = NewNode { mode: 0o100_600, ..NewNode::default() };
    let made = files.create(files.root(), name.as_bytes(), &new).await;
    made.map(drop).map_err(|error| format!("{name}: {error}"))
}
