//! The slot of an open volume, which a rollback empties for a while: see [`suspended`](super::suspended).

use std::sync::Arc;

use cenote_nbd::{ExportError, ExportErrorKind};
use cenote_taskq::Notify;
use cenote_taskq::sync::RwLock;
use cenote_zvol::live::LiveVolume;

pub(super) enum State {
    Open(Arc<LiveVolume>),
    Suspended,
    /// It could not be reopened.
    Lost,
}

/// The slot of an open volume, to which its connections refer.
pub(super) struct ZvolState {
    pub(super) state: RwLock<State>,
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

    pub(super) fn set(&self, state: State) {
        *self.state.write() = state;
        self.resumed.all();
    }
}
