//! Tasks that go on with the one that has them: what makes streams stays on its thread, and the runtime's own tasks need not.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The tasks.
#[derive(Clone, Default)]
pub(crate) struct Local(Rc<RefCell<Vec<Task>>>);

impl Local {
    /// One more. It begins when all are polled.
    pub(crate) fn push(&self, task: impl Future<Output = ()> + 'static) {
        self.0.borrow_mut().push(Box::pin(task));
    }

    /// Goes on with all of them, for as long as it is polled.
    pub(crate) async fn go_on(&self) -> Infallible {
        poll_fn(|context| {
            self.0.borrow_mut().retain_mut(|task| task.as_mut().poll(context).is_pending());
            Poll::Pending
        })
        .await
    }
}
