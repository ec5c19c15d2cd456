//! Suspends and resumes a volume while its dataset is rolled back (OpenZFS's `zvol_suspend` and `zvol_resume`).
//!
//! Connections refer to a [`ZvolState`], which has the open volume, or nothing while it is suspended. A rollback needs the dataset closed. So
//! pending requests end, others wait, the volume is closed, the dataset is rolled back, and the volume is opened again; clients remain
//! connected. As in OpenZFS, data that a client has cached itself (the kernel's pages, for example) is not undone: NBD has no message for that.

use std::sync::Arc;

use cenote_inuse::{OpenError, Opened, Why, unused};
use cenote_nbd::{ExportError, ExportErrorKind};
use cenote_taskq::sync::RwLock;
use cenote_taskq::{Class, Handle, Notify, oneshot};
use cenote_zvol::live::LiveVolume;

use super::open::OpenVolumes;

enum State {
    Open(Arc<LiveVolume>),
    Suspended,
    /// It could not be reopened.
    Lost,
}

/// The slot of an open volume, to which its connections refer.
pub(super) struct ZvolState {
    state: RwLock<State>,
    resumed: Notify,
}

impl ZvolState {
    pub(super) fn new(live: LiveVolume) -> Arc<Self> {
        Arc::new(Self { state: RwLock::new(State::Open(Arc::new(live))), resumed: Notify::new() })
    }

    /// The volume, unless it is suspended or lost.
    pub(super) fn now(&self) -> Option<Arc<LiveVolume>> {
        match &*self.state.read() {
            State::Open(live) => Some(live.clone()),
            State::Suspended | State::Lost => None,
        }
    }

    /// A reference to the volume; waits while it is suspended.
    pub(super) async fn share(&self) -> Result<Arc<LiveVolume>, ExportError> {
        loop {
            let resumed = self.resumed.wait();
            match &*self.state.read() {
                State::Open(live) => return Ok(live.clone()),
                State::Lost => {
                    let why = "the volume could not be opened again after its dataset was rolled back";
                    return Err(ExportError::new(ExportErrorKind::Io, why));
                }
                State::Suspended => {}
            }
            resumed.await;
        }
    }

    fn set(&self, state: State) {
        *self.state.write() = state;
        self.resumed.all();
    }
}

/// A suspended volume. [`Self::resume`], or dropping this, resumes it.
pub(crate) struct SuspendedVolume(Option<Inner>);

struct Inner {
    all: Arc<OpenVolumes>,
    zvol: Arc<ZvolState>,
    name: String,
}

impl SuspendedVolume {
    /// Suspends the volume of this slot, and waits for pending requests. `None` if it is not open.
    pub(super) async fn begin(all: &Arc<OpenVolumes>, zvol: Arc<ZvolState>, name: &str) -> Option<Self> {
        let live = {
            let mut state = zvol.state.write();
            match std::mem::replace(&mut *state, State::Suspended) {
                State::Open(live) => live,
                // Another command has suspended it, or it is lost.
                before => {
                    *state = before;
                    return None;
                }
            }
        };
        let inner = Inner { all: all.clone(), zvol, name: name.to_owned() };
        let (sender, answer) = oneshot::channel();
        let handle = inner.handle();
        // In a task of its own: the caller may be dropped meanwhile. Then dropping the value resumes the volume.
        handle.clone().detach(Class::Issue, async move {
            unused(&handle, &live).await;
            drop(live);
            drop(sender.send(Self(Some(inner))));
        });
        answer.await.ok()
    }

    /// Resumes requests, with the present state of the volume.
    ///
    /// # Errors
    /// It cannot be opened: requests fail from now on.
    pub(crate) async fn resume(mut self) -> Result<(), crate::ServerError> {
        let Some(inner) = self.0.take() else { return Ok(()) };
        let (sender, answer) = oneshot::channel();
        // In a task of its own: resuming must finish even if the caller is dropped meanwhile.
        inner.handle().detach(Class::Issue, async move { drop(sender.send(inner.resume().await)) });
        Ok(answer.await.unwrap_or(Ok(()))?)
    }
}

impl Drop for SuspendedVolume {
    fn drop(&mut self) {
        if let Some(inner) = self.0.take() {
            // If it fails, the clients' requests get the error.
            inner.handle().detach(Class::Issue, async move { drop(inner.resume().await) });
        }
    }
}

impl Inner {
    fn handle(&self) -> Handle {
        self.all.pool().handle().clone()
    }

    async fn resume(self) -> Result<(), OpenError> {
        let lost = |name: &str| OpenError::Refused(name.to_owned(), Why::Lost);
        let opened = async {
            let dataset = self.all.find(&self.name).await?.ok_or_else(|| lost(&self.name))?;
            match self.all.opened(&dataset).await? {
                Opened::Live(live) => Ok(live),
                Opened::Frozen(_) => Err(lost(&self.name)),
            }
        };
        let (state, result) = match opened.await {
            Ok(live) => (State::Open(Arc::new(live)), Ok(())),
            Err(error) => (State::Lost, Err(error)),
        };
        self.zvol.set(state);
        result
    }
}
