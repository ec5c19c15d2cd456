//! The place of a volume that clients write: the volume, or nothing while it stands still, when requests wait.
//!
//! A volume's dataset goes back to a snapshot (`zfs rollback`) when nobody has it open. Its clients need not know: their requests that have
//! begun end, others wait, the volume is closed, the dataset goes back, and the volume is opened again. As in OpenZFS, what a client keeps
//! of the volume itself (a kernel its pages, say) is not undone: nothing in the protocol says that it should be.

use std::sync::Arc;
use std::time::Duration;

use cenote_nbd::{ExportError, ExportErrorKind};
use cenote_taskq::sync::RwLock;
use cenote_taskq::{Class, Handle, Notify, oneshot};
use cenote_zvol::live::LiveVolume;

use super::open::OpenVolumes;

/// How often it is looked whether requests have ended.
const REQUESTS_POLL: Duration = Duration::from_millis(2);

enum State {
    Open(Arc<LiveVolume>),
    Still,
    /// It could not be opened again.
    Lost,
}

/// See the module comment.
pub(super) struct Seat {
    state: RwLock<State>,
    went_on: Notify,
}

impl Seat {
    pub(super) fn new(live: LiveVolume) -> Arc<Self> {
        Arc::new(Self { state: RwLock::new(State::Open(Arc::new(live))), went_on: Notify::new() })
    }

    /// The volume, unless it stands still.
    pub(super) fn now(&self) -> Option<Arc<LiveVolume>> {
        match &*self.state.read() {
            State::Open(live) => Some(live.clone()),
            State::Still | State::Lost => None,
        }
    }

    /// A share of the volume, once it does not stand still.
    pub(super) async fn share(&self) -> Result<Arc<LiveVolume>, ExportError> {
        loop {
            let went_on = self.went_on.wait();
            match &*self.state.read() {
                State::Open(live) => return Ok(live.clone()),
                State::Lost => {
                    let why = "the volume could not be opened again after its dataset was rolled back";
                    return Err(ExportError::new(ExportErrorKind::Io, why));
                }
                State::Still => {}
            }
            went_on.await;
        }
    }

    fn set(&self, state: State) {
        *self.state.write() = state;
        self.went_on.all();
    }
}

/// A volume that stands still, until [`Self::go_on`], or until this is dropped.
pub struct StillVolume(Option<Inner>);

struct Inner {
    all: Arc<OpenVolumes>,
    seat: Arc<Seat>,
    name: String,
    is_read_only: bool,
}

impl StillVolume {
    /// Has the volume in a seat stand still, when requests that have begun have ended.
    pub(super) async fn begin(all: &Arc<OpenVolumes>, seat: Arc<Seat>, name: &str) -> Option<Self> {
        let live = {
            let mut state = seat.state.write();
            match std::mem::replace(&mut *state, State::Still) {
                State::Open(live) => live,
                // Another command has it so.
                before => {
                    *state = before;
                    return None;
                }
            }
        };
        let inner = Inner { all: all.clone(), seat, name: name.to_owned(), is_read_only: live.is_read_only() };
        let (sender, answer) = oneshot::channel();
        let handle = inner.handle();
        // In a task of its own: who asks may go away meanwhile. One that nobody takes goes on.
        handle.clone().detach(Class::Issue, async move {
            while Arc::strong_count(&live) > 1 {
                handle.sleep(REQUESTS_POLL).await;
            }
            drop(live);
            drop(sender.send(Self(Some(inner))));
        });
        answer.await.ok()
    }

    /// Requests go on, with what the volume is now.
    ///
    /// # Errors
    /// It cannot be opened: requests fail from now on.
    pub async fn go_on(mut self) -> Result<(), crate::ServerError> {
        let Some(inner) = self.0.take() else { return Ok(()) };
        let (sender, answer) = oneshot::channel();
        // In a task of its own: it goes on also where who asked goes away.
        inner.handle().detach(Class::Issue, async move { drop(sender.send(inner.go_on().await)) });
        Ok(answer.await.unwrap_or(Ok(()))?)
    }
}

impl Drop for StillVolume {
    fn drop(&mut self) {
        if let Some(inner) = self.0.take() {
            // Where it fails its clients are told.
            inner.handle().detach(Class::Issue, async move { drop(inner.go_on().await) });
        }
    }
}

impl Inner {
    fn handle(&self) -> Handle {
        self.all.pool().handle().clone()
    }

    async fn go_on(self) -> Result<(), ExportError> {
        let opened = self.all.reopened(&self.name).await;
        let (state, result) = match opened {
            Ok(live) => {
                live.set_read_only(self.is_read_only);
                (State::Open(Arc::new(live)), Ok(()))
            }
            Err(error) => (State::Lost, Err(error)),
        };
        self.seat.set(state);
        result
    }
}
