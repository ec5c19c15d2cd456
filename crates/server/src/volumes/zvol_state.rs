//! A volume that clients have, which is suspended while its dataset is rolled back (OpenZFS's `zvol_suspend` and `zvol_resume`).
//!
//! Connections refer to a [`ZvolState`], whose seat has the open volume. Clients remain connected while it is suspended. As in OpenZFS, data that a
//! client has cached itself (the kernel's pages, for example) is not undone: NBD has no message for that.

use std::sync::Arc;

use cenote_format::ids::ObjectId;
use cenote_inuse::{OpenError, Opened, Reopen, Seat, Source, Suspended, Use, Why, open_volume};
use cenote_nbd::{ExportError, ExportErrorKind};
use cenote_spa::{Pool, User};
use cenote_taskq::{Handle, boxed};
use cenote_zvol::live::LiveVolume;

/// Clients as users of volumes.
pub(super) fn user() -> Use {
    Use { user: User::Export, is_for_changes: false, report: Arc::new(|_| ()) }
}

/// An open volume, to which its connections refer.
pub(crate) struct ZvolState {
    seat: Seat<LiveVolume>,
    dataset: ObjectId,
    pool: Pool,
}

/// A suspended volume.
pub(crate) type SuspendedVolume = Suspended<ZvolState>;

impl ZvolState {
    pub(super) fn new(pool: &Pool, live: LiveVolume) -> Arc<Self> {
        Arc::new(Self { dataset: live.dataset(), seat: Seat::new(Some(live)), pool: pool.clone() })
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
        self.pool.handle()
    }

    #[boxed]
    async fn stop(&self, _: Option<&LiveVolume>) {}

    #[boxed]
    async fn reopen(&self, (): &()) -> Result<LiveVolume, OpenError> {
        let object = self.dataset;
        // The head, with the name that it has now.
        let look = self.pool.look(move |syncer| {
            Box::pin(async move {
                let dsl = syncer.dsl().clone();
                Ok::<_, OpenError>(dsl.dataset(&dsl.dataset_name(object).await?).await?)
            })
        });
        match open_volume(Source::Pool(&self.pool), &look.await?, &user()).await? {
            Opened::Live(live) => Ok(live),
            Opened::Frozen(_) => Err(OpenError::Refused(format!("dataset {object}"), Why::Lost)),
        }
    }
}
