//! Commits as they were before M4: one batch at a time.

use std::sync::Arc;

use anyhow::{Result, bail};
use cenote_kstat::Settings;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Device, Notify, join_all};

/// The way to a log that OpenZFS had until 2017, for clients to call instead of the log.
///
/// One batch is written at a time. A commit that comes meanwhile belongs to the next batch: it waits for the present one to end, whatever
/// its own record would take. Then one of those that wait writes all that was asked for up to then, and each waits until all of that is
/// stable.
///
/// Kept of the original:
/// * The rule above, with its two numbers (the next batch, the last that is over) and one leader for each batch.
/// * All blocks of a batch are on their way at once; the devices are flushed once, behind the last of them.
/// * A batch that comes starts at once; it does not wait for more records.
/// * Each dataset has batches of its own, which know nothing of those of others: so do their flushes.
///
/// Not kept:
/// * Records, blocks, their sizes and places are those of `cenote_zil`. The original had four sizes of blocks, of which the largest was
///   used for all that did not fit into 36 KiB; here blocks are smaller, which is in the batches' favor.
/// * Records go into blocks without a lock that the original's clients took turns for.
/// * A batch that fails fails the client, where the original waited for the txg.
///
/// The log below has to be opened with [`Batch::settings`]: so it flushes nothing and holds no block back for others. It is as the
/// original in that a commit of it ends when its blocks are written.
pub(super) struct Batch {
    devices: Vec<Arc<Device>>,
    state: Mutex<State>,
    moved: Notify,
}

#[derive(Default)]
struct State {
    /// The batch that those who come belong to.
    next: u64,
    /// Batches up to this one are over, this one not included.
    over: u64,
    is_writing: bool,
    has_failed: bool,
}

impl Batch {
    /// Over a log whose pool is on these devices.
    pub(super) fn new(devices: Vec<Arc<Device>>) -> Self {
        Self { devices, state: Mutex::default(), moved: Notify::new() }
    }

    /// How a pool is to be opened whose logs are written so. Unsafe for anything but a measurement.
    pub(super) fn settings() -> Result<Settings> {
        let mut settings = cenote_spa::tunables::settings();
        settings.set_from("zil_nocacheflush=1")?;
        settings.set_from("zfs_commit_timeout_pct=0")?;
        Ok(settings)
    }

    /// Batches so far: each had one flush.
    pub(super) fn batches(&self) -> u64 {
        self.state.lock().over
    }

    /// Makes stable what the caller has changed. `write` has all that was changed written, for this caller and all that wait; it is used
    /// where this caller's turn is to write a batch.
    pub(super) async fn commit(&self, write: impl Future<Output = Result<()>>) -> Result<()> {
        let mine = self.state.lock().next;
        loop {
            let moved = self.moved.wait();
            {
                let mut state = self.state.lock();
                if state.has_failed {
                    bail!("a batch could not be written");
                }
                if state.over > mine {
                    return Ok(());
                }
                if !state.is_writing {
                    (state.is_writing, state.next) = (true, state.next + 1);
                    break;
                }
            }
            moved.await;
        }
        let written = self.written(write).await;
        {
            let mut state = self.state.lock();
            state.over += 1;
            state.is_writing = false;
            state.has_failed |= written.is_err();
        }
        self.moved.all();
        written
    }

    async fn written(&self, write: impl Future<Output = Result<()>>) -> Result<()> {
        write.await?;
        let flushed = join_all(self.devices.iter().map(|device| device.flush())).await;
        Ok(flushed.into_iter().collect::<std::io::Result<()>>()?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cenote_taskq::{Class, Runtime};

    use super::*;

    /// A client that comes while a batch is written waits for its end and for a whole batch more; all that wait are one batch.
    #[test]
    fn those_that_come_during_a_batch_are_the_next_and_wait_for_all_of_it() {
        let runtime = Runtime::simulated(1);
        runtime.sim().unwrap().set_step_time_max(Duration::ZERO);
        let (handle, batch) = (runtime.handle(), Arc::new(Batch::new(Vec::new())));
        let writes = Arc::new(Mutex::new(0));
        let begun = handle.now();
        let clients: Vec<_> = [0, 10, 20, 90, 110]
            .map(|at_ms| {
                let (clock, batch, writes) = (handle.clone(), batch.clone(), writes.clone());
                handle.spawn(Class::Issue, async move {
                    clock.sleep(Duration::from_millis(at_ms)).await;
                    let write = async {
                        *writes.lock() += 1;
                        clock.sleep(Duration::from_millis(100)).await;
                        Ok(())
                    };
                    batch.commit(write).await.unwrap();
                    (clock.now() - begun).as_millis()
                })
            })
            .into();
        let ended: Vec<_> = clients.into_iter().map(|client| runtime.block_on(client).unwrap()).collect();
        assert_eq!(ended, [100, 200, 200, 200, 300]);
        assert_eq!((*writes.lock(), batch.batches()), (3, 3));
    }

    #[test]
    fn nobody_is_told_that_a_batch_is_stable_that_failed() {
        let runtime = Runtime::simulated(1);
        let (handle, batch) = (runtime.handle(), Arc::new(Batch::new(Vec::new())));
        let clients = [0, 1, 2].map(|_| {
            let (clock, batch) = (handle.clone(), batch.clone());
            handle.spawn(Class::Issue, async move {
                let write = async {
                    clock.sleep(Duration::from_millis(1)).await;
                    bail!("no")
                };
                batch.commit(write).await.is_err()
            })
        });
        assert!(clients.into_iter().all(|client| runtime.block_on(client).unwrap()));
    }
}
