//! The seat of a dataset in use: its users' requests find it there, and wait while it is suspended for a rollback or the end of a receive.
//!
//! # Theory
//!
//! **Need.** A rollback frees blocks that the open head refers to, so the head has to be closed. Its users are not: programs have files open, and
//! clients are connected. OpenZFS has them wait (`zfs_suspend_fs`, `zvol_suspend`), and so do mounts, exports and the library here.
//!
//! **Life of a suspension.** [`Seat::try_suspend`] takes the dataset out of its seat, and later requests wait in [`Seat::settled`]. Those that have begun
//! end ([`unused`]). The dataset is closed, changed, and opened again, with [`Patience`]; [`Seat::set`] puts it into the seat, and requests continue.
//! [`Suspended`] does this for users that keep nothing between requests but what [`Reopen::Kept`] has.
//!
//! **Invariants.** 1. A seat is suspended once at a time. 2. A suspension ends, whatever becomes of its caller: dropping [`Suspended`] resumes. 3. No
//! request has a dataset that is closed.
//!
//! **Rejected.** *Losing the dataset at once if a command has the head when a suspension ends*: such a command is over soon, and the users would have
//! lost their dataset for good. *A request that enters a seat while it is in one*: it would wait for the suspension that waits for it.

use std::sync::Arc;
use std::time::Duration;

use cenote_spa::User;
use cenote_taskq::sync::RwLock;
use cenote_taskq::{Class, Handle, Instant, Notify, boxed, oneshot};

use crate::error::{OpenError, Why};
use crate::unused;

/// The longest wait for a command that uses a head when a suspension ends.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(60);
/// The interval between tries to open the head then.
const COMMAND_POLL: Duration = Duration::from_millis(10);

enum State<T> {
    Open(Arc<T>),
    /// It is not open: it is opened by a request, or could not be opened again.
    Closed,
    Suspended,
}

/// See the module comment.
pub struct Seat<T> {
    state: RwLock<State<T>>,
    settled: Notify,
}

/// The result of taking a dataset out of its seat, if it is not in use.
pub enum Taken<T> {
    /// There is none, or it is suspended.
    Nothing,
    /// It remains.
    InUse,
    /// It was in no request.
    Taken(T),
}

impl<T> Seat<T> {
    /// A seat with a dataset, or without one.
    pub fn new(opened: Option<T>) -> Self {
        let state = opened.map_or(State::Closed, |opened| State::Open(Arc::new(opened)));
        Self { state: RwLock::new(state), settled: Notify::new() }
    }

    /// The dataset, if it is open now.
    pub fn now(&self) -> Option<Arc<T>> {
        match &*self.state.read() {
            State::Open(opened) => Some(opened.clone()),
            State::Closed | State::Suspended => None,
        }
    }

    /// True if it is neither open nor suspended.
    pub fn is_closed(&self) -> bool {
        matches!(*self.state.read(), State::Closed)
    }

    /// True if requests wait.
    pub fn is_suspended(&self) -> bool {
        matches!(*self.state.read(), State::Suspended)
    }

    /// Waits while it is suspended, then returns the dataset, if it is open.
    pub async fn settled(&self) -> Option<Arc<T>> {
        loop {
            let settled = self.settled.wait();
            // One look: it may be suspended once more before a second one.
            match &*self.state.read() {
                State::Open(opened) => return Some(opened.clone()),
                State::Closed => return None,
                State::Suspended => {}
            }
            settled.await;
        }
    }

    /// Puts an opened dataset there, or says that it is closed, and resumes requests.
    pub fn set(&self, opened: Option<Arc<T>>) {
        *self.state.write() = opened.map_or(State::Closed, State::Open);
        self.settled.all();
    }

    /// Releases the dataset, if it is open. Requests that have begun continue.
    pub fn close(&self) {
        let mut state = self.state.write();
        if matches!(*state, State::Open(_)) {
            *state = State::Closed;
        }
    }

    /// Takes the dataset, if no request has it and `may` allows it.
    pub fn take_unused(&self, may: impl FnOnce(&T) -> bool) -> Taken<T> {
        let mut state = self.state.write();
        match std::mem::replace(&mut *state, State::Closed) {
            State::Open(shared) => match Arc::try_unwrap(shared) {
                Ok(opened) if may(&opened) => Taken::Taken(opened),
                Ok(opened) => {
                    *state = State::Open(Arc::new(opened));
                    Taken::InUse
                }
                // A request is on its way.
                Err(shared) => {
                    *state = State::Open(shared);
                    Taken::InUse
                }
            },
            before => {
                *state = before;
                Taken::Nothing
            }
        }
    }

    /// Suspends it: has later requests wait until [`Self::set`]. Returns the dataset that was open. `None` if it is suspended already.
    pub fn try_suspend(&self) -> Option<Option<Arc<T>>> {
        match std::mem::replace(&mut *self.state.write(), State::Suspended) {
            State::Open(opened) => Some(Some(opened)),
            State::Closed => Some(None),
            State::Suspended => None,
        }
    }
}

/// The patience at the end of a suspension with a command that uses the head.
pub struct Patience<'a> {
    handle: &'a Handle,
    begun: Instant,
}

impl<'a> Patience<'a> {
    /// It begins now.
    #[must_use]
    pub fn new(handle: &'a Handle) -> Self {
        Self { handle, begun: handle.now() }
    }

    /// True, after a moment, if the dataset that failed to open may be opened later.
    pub async fn allows(&self, error: &OpenError) -> bool {
        let is_command = matches!(error, OpenError::Refused(_, Why::InUse(User::Command)));
        let is_allowed = is_command && self.handle.now() - self.begun < COMMAND_TIME_MAX;
        if is_allowed {
            self.handle.sleep(COMMAND_POLL).await;
        }
        is_allowed
    }
}

/// A dataset in use that is closed and opened again with no help of its requests.
pub trait Reopen: Send + Sync + 'static {
    /// The open dataset.
    type Opened: Send + Sync + 'static;
    /// The state that opening it again needs.
    type Kept: Send + Sync + 'static;

    /// Its seat.
    fn seat(&self) -> &Seat<Self::Opened>;

    /// The runtime.
    fn handle(&self) -> &Handle;

    /// Ends its use, without a request. `None` if it was not open.
    #[boxed]
    async fn stop(&self, opened: Option<&Self::Opened>) -> Self::Kept;

    /// Opens it with its present state.
    #[boxed]
    async fn reopen(&self, kept: &Self::Kept) -> Result<Self::Opened, OpenError>;
}

/// A suspended dataset. [`Self::resume`], or dropping this, resumes its requests.
pub struct Suspended<R: Reopen>(Option<(Arc<R>, R::Kept)>);

impl<R: Reopen> Suspended<R> {
    /// Suspends a dataset: waits for requests that have begun, and has others wait. If it is suspended already, this waits until it resumes first.
    pub async fn begin(of: Arc<R>) -> Option<Self> {
        let opened = loop {
            match of.seat().try_suspend() {
                Some(opened) => break opened,
                None => drop(of.seat().settled().await),
            }
        };
        let (sender, answer) = oneshot::channel();
        // In a task of its own: the caller may be dropped meanwhile. Then dropping the value resumes the dataset.
        of.handle().clone().detach(Class::Issue, async move {
            if let Some(opened) = &opened {
                unused(of.handle(), opened).await;
            }
            let kept = of.stop(opened.as_deref()).await;
            drop(opened);
            drop(sender.send(Self(Some((of, kept)))));
        });
        answer.await.ok()
    }

    /// Resumes requests, with the present state of the dataset.
    ///
    /// # Errors
    /// It cannot be opened: requests fail from now on.
    pub async fn resume(mut self) -> Result<(), OpenError> {
        let Some((of, kept)) = self.0.take() else { return Ok(()) };
        let (sender, answer) = oneshot::channel();
        // In a task of its own: resuming must finish even if the caller is dropped meanwhile.
        of.handle().clone().detach(Class::Issue, async move { drop(sender.send(resume(&*of, &kept).await)) });
        answer.await.unwrap_or(Ok(()))
    }
}

impl<R: Reopen> Drop for Suspended<R> {
    fn drop(&mut self) {
        if let Some((of, kept)) = self.0.take() {
            // If it fails, the requests get the error.
            of.handle().clone().detach(Class::Issue, async move { drop(resume(&*of, &kept).await) });
        }
    }
}

async fn resume<R: Reopen>(of: &R, kept: &R::Kept) -> Result<(), OpenError> {
    let patience = Patience::new(of.handle());
    let opened = loop {
        match of.reopen(kept).await {
            Err(error) if patience.allows(&error).await => {}
            opened => break opened,
        }
    };
    assert!(of.seat().is_suspended(), "a seat is suspended until it resumes (invariant 1)");
    let (opened, result) = match opened {
        Ok(opened) => (Some(Arc::new(opened)), Ok(())),
        Err(error) => (None, Err(error)),
    };
    of.seat().set(opened);
    result
}
