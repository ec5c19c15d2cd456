//! A volume that clients have, which is suspended while its dataset is rolled back (OpenZFS's `zvol_suspend` and `zvol_resume`).
//!
//! Connections refer to a [`ZvolState`], whose seat has the open volume. Clients remain connected while it is suspended. As in OpenZFS, data that a
//! client has cached itself (the kernel's pages, for example) is not undone: NBD has no message for that.

use std::sync::{Arc, Weak};

use cenote_format::ids::ObjectId;
use cenote_inuse::{OpenError, Opened, Reopen, Seat, Suspended, Why};
use cenote_nbd::{ExportError, ExportErrorKind};
use cenote_taskq::{Handle, boxed};
use cenote_zvol::live::LiveVolume;

use super::open::OpenVolumes;

/// An open volume, to which its connections refer.
pub(crate) struct ZvolState {
    seat: Seat<LiveVolume>,
    dataset: ObjectId,
    handle: Handle,
    all: Weak<OpenVolumes>,
}

/// A suspended volume.
pub(crate) type SuspendedVolume = Suspended<ZvolState>;

impl ZvolState {
    pub(super) fn new(all: &Arc<OpenVolumes>, live: LiveVolume) -> Arc<Self> {
        let (dataset, handle, all) = (live.dataset(), all.pool().handle().clone(), Arc::downgrade(all));
        Arc::new(Self { seat: Seat::new(Some(live)), dataset, handle, all })
    }

    /// The volume, unless it is suspended or lost.
    pub(super) fn now(&self) -> Option<Arc<LiveVolume>> {
        self.seat.now()
    }

    /// True if it could not be opened again: it serves nothing.
    pub(super) fn is_lost(&self) -> bool {
        self.seat.is_closed()
    }

    /// A reference to the volume; waits while it is suspended.
    pub(super) async fn share(&self) -> Result<Arc<LiveVolume>, ExportError> {
        let why = "the volume could not be opened again after its dataset was rolled back: connect again";
        self.seat.settled().await.ok_or_else(|| ExportError::new(ExportErrorKind::Io, why))
    }
}

impl Reopen for ZvolState {
    type Opened = LiveVolume;
    type Kept = ();

    fn seat(&self) -> &Seat<LiveVolume> {
        &self.seat
    }

    fn handle(&self) -> &Handle {
        &self.handle
    }

    #[boxed]
    async fn stop(&self, _: Option<&LiveVolume>) {}

    #[boxed]
    async fn reopen(&self, (): &()) -> Result<LiveVolume, OpenError> {
        let lost = || OpenError::Refused(format!("dataset {}", self.dataset), Why::Lost);
        let all = self.all.upgrade().ok_or_else(lost)?;
        let dataset = all.head(self.dataset).await?;
        match all.opened(&dataset).await? {
            Opened::Live(live) => Ok(live),
            Opened::Frozen(_) => Err(lost()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cenote_admin::VolumeShape;
    use cenote_dmu::tx::TxTunables;
    use cenote_nbd::Exports as _;
    use cenote_sim::{Machine, SINGLE, options};
    use cenote_taskq::sim::disk::SimDiskOptions;
    use cenote_taskq::{Class, Runtime};

    use super::*;
    use crate::LiveVolumes;

    /// A command has the head open when a suspension ends: clients wait for it, and have their volume again. One that stays too long costs the
    /// clients that are connected their export, and those that come later get the volume.
    #[test]
    fn a_volume_is_not_lost_to_a_command_that_uses_its_head_when_it_resumes() {
        let runtime = Runtime::simulated(5);
        let handle = runtime.handle();
        let disk = SimDiskOptions { size_bytes: 128 << 20, ..SimDiskOptions::default() };
        let machine = Machine::new(&runtime, 1, &disk);
        runtime.block_on(async {
            let tops = machine.tops(&handle, SINGLE).await.unwrap();
            let pool = cenote_sim::new_pool(&handle, options("p", tops, 12)).await.unwrap();
            let pool = pool.start(TxTunables::for_memory(64 << 20)).await;
            let shape = VolumeShape { size_bytes: 8 << 20, block_bytes: None, sparse: false };
            cenote_admin::create_volume(&pool, "p/v", shape, Vec::new(), false).await.unwrap();
            let volumes = OpenVolumes::new(pool.clone());
            let served = LiveVolumes::new([(volumes.clone(), "p".to_owned())]);
            let export = served.open("p/v").await.unwrap().unwrap();
            for (seconds, is_kept) in [(1, true), (600, false)] {
                let suspended = volumes.lock().await.suspend("p/v").await.unwrap().unwrap();
                let head = pool.open_head("p/v").await.unwrap();
                let clock = handle.clone();
                handle.detach(Class::Issue, async move {
                    clock.sleep(Duration::from_secs(seconds)).await;
                    drop(head);
                });
                assert_eq!(suspended.resume().await.is_ok(), is_kept);
                let written = export.write(0, vec![7; 4096].into(), true).await;
                assert_eq!(written.is_ok(), is_kept, "{written:?}");
            }
            assert!(served.open("p/v").await.is_err(), "the command has it still");
            handle.sleep(Duration::from_secs(600)).await;
            let again = served.open("p/v").await.unwrap().unwrap();
            again.write(0, vec![8; 4096].into(), true).await.unwrap();
            assert!(export.read(0, 512).await.is_err(), "a client that lost its export connects again");
            drop((export, again));
            volumes.close().await;
            pool.export().await.unwrap();
        });
    }
}
