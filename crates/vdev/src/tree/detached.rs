//! A device read that continues after its reader has gone.
//!
//! When a second child has answered first, or a read was rerouted, the first read's data is no longer needed, but its completion is: the
//! device is busy until it answers, and the latency feeds the mirror's statistics. If the read were dropped both would be unknown, and a
//! device that was late once would seem to hang. So the rest of it becomes a task, which ends when the device answers, with its buffer. Its
//! room in the queue goes to others at once: a device that loses a request now and then would else have less room for ever. All such tasks
//! are members of the tree's group, which closing the pool closes. Where there is no clock, hence no runtime known, it is dropped.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use cenote_taskq::buf::Buf;
use cenote_taskq::{Class, Group, Handle};

use crate::mirror::{Flight, Load, Outcome};
use crate::queue::{LeafQueue, Reading, Room};

/// See the module comment.
pub(super) struct Detached<'a> {
    /// Until it is done.
    pending: Option<(Reading, Room<Arc<LeafQueue>>, Flight<'a>)>,
    load: &'a Arc<Load>,
    clock: Option<(&'a Handle, &'a Group)>,
}

impl<'a> Detached<'a> {
    pub(super) fn new(
        io: Reading,
        room: Room<Arc<LeafQueue>>,
        flight: Flight<'a>,
        load: &'a Arc<Load>,
        clock: Option<(&'a Handle, &'a Group)>,
    ) -> Self {
        Self { pending: Some((io, room, flight)), load, clock }
    }
}

impl<'a> Future for Detached<'a> {
    type Output = (Flight<'a>, (io::Result<()>, Buf));

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((mut io, room, flight)) = self.pending.take() else { return Poll::Pending };
        match io.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready((flight, answer)),
            Poll::Pending => {
                self.pending = Some((io, room, flight));
                Poll::Pending
            }
        }
    }
}

impl Drop for Detached<'_> {
    fn drop(&mut self) {
        let (Some((io, room, flight)), Some((clock, left))) = (self.pending.take(), self.clock) else { return };
        drop(room);
        let Some(sent) = flight.give_up() else { return };
        let (load, handle) = (Arc::clone(self.load), clock.clone());
        let rest = async move {
            let (result, _) = io.await;
            let outcome = if result.is_ok() { Outcome::Good } else { Outcome::Failed };
            load.count_late_answer(&sent, outcome, handle.now());
        };
        // Of a pool that is being closed nothing is to go on.
        let _ = left.detach(Class::Interrupt, rest);
    }
}
