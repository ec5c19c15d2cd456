//! Direct writes that wait until the kernel has dropped the pages that they made stale.
//!
//! The kernel drops a page that it is filling once the read has its reply, and one that a program changed in a mapping once it was
//! written. So a direct write that waits for this waits for other requests. Each of those needs a place to reach the server: an entry of a
//! ring's queue, or one of the [`BACKGROUND_MAX`](super::BACKGROUND_MAX) places that the kernel has for reading ahead, writing back
//! and direct transfers. If waiting writes held all of them, there would be a deadlock. Hence:
//!
//! 1. The wait has a thread of its own, for all files of the mount. It takes none of those that serve requests or do I/O.
//! 2. Some entries of each queue, and some places of the background, are never held by writes that wait: a [`Bound`] for either. A write
//!    that finds no room among those that wait is answered at once, and its pages are dropped directly after. A program that writes
//!    directly and by pages at once, with so many requests on their way, may read old bytes until then. Linux's own file systems give no
//!    more: they leave a page that is in use stale.
//!
//! All writes of a file that wait when its pages are dropped are answered together.
//!
//! Seeks that wait until the kernel has handed over dirty pages (the module `mapped`) wait here too, within the same bounds: the kernel
//! writes those pages by requests of its own before it drops them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use cenote_taskq::oneshot;
use cenote_taskq::sync::{Condvar, Mutex};

use super::bound::{Bound, Place};
use super::notices::Notices;
use crate::direct::{DirectFiles, Stale};
use crate::server::NodeId;

/// The work that is done once a file's pages are dropped.
type Done = Box<dyn FnOnce() + Send>;

/// A file whose pages are to be dropped: which, and the writes that wait.
struct File {
    stale: Stale,
    waiting: Vec<(Done, [Option<Place>; 2])>,
}

/// A part of a file of which dirty pages are to be handed over.
struct Dirty {
    node: NodeId,
    range: Range<u64>,
    done: oneshot::Sender<()>,
    _places: [Option<Place>; 2],
}

#[derive(Default)]
struct State {
    files: BTreeMap<NodeId, File>,
    dirty: Vec<Dirty>,
    has_thread: bool,
    is_closed: bool,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    direct: Arc<DirectFiles>,
    notices: Notices,
}

/// Has pages dropped.
pub(super) struct Dropper {
    shared: Arc<Shared>,
    /// The writes that wait, of the whole mount.
    all: Arc<Bound>,
}

impl Dropper {
    /// One that lets up to `waiting_max` writes wait.
    pub(super) fn new(direct: Arc<DirectFiles>, notices: Notices, waiting_max: usize) -> Self {
        let shared = Shared { state: Mutex::default(), work: Condvar::new(), direct, notices };
        Self { shared: Arc::new(shared), all: Bound::new(waiting_max) }
    }

    /// Has the pages dropped that a direct write of `node`, which is done, has made stale, and then calls `done`, which answers it; at
    /// once where there is nothing to drop, or no room to wait here or in `queue`, where its request came from.
    pub(super) fn written(&self, node: NodeId, queue: Option<&Arc<Bound>>, done: impl FnOnce() + Send + 'static) {
        let Some(stale) = self.shared.direct.written(node) else { return done() };
        let (places, may_wait) = self.places(queue);
        let mut state = self.shared.state.lock();
        if !self.has_thread(&mut state) {
            drop(state);
            return done();
        }
        let file = state.files.entry(node).or_insert(File { stale, waiting: Vec::new() });
        // Its pages are dropped after this, so all of them count.
        file.stale = file.stale.max(stale);
        let now = if may_wait {
            file.waiting.push((Box::new(done), places));
            None
        } else {
            Some(done)
        };
        drop(state);
        self.shared.work.notify_one();
        if let Some(done) = now {
            done();
        }
    }

    /// Has the kernel hand over the dirty pages of a part of a file, and drop its pages there. False, and nothing is done, where there is no
    /// room to wait here or in `queue`, where the request came from.
    pub(super) async fn handed_over(&self, node: NodeId, range: Range<u64>, queue: Option<&Arc<Bound>>) -> bool {
        let (places, may_wait) = self.places(queue);
        if !may_wait {
            return false;
        }
        let (done, handed_over) = oneshot::channel();
        {
            let mut state = self.shared.state.lock();
            if !self.has_thread(&mut state) {
                return false;
            }
            state.dirty.push(Dirty { node, range, done, _places: places });
        }
        self.shared.work.notify_one();
        handed_over.await.is_ok()
    }

    /// Room to wait here and in a queue, and whether that is enough.
    fn places(&self, queue: Option<&Arc<Bound>>) -> ([Option<Place>; 2], bool) {
        let places = [self.all.enter(), queue.and_then(Bound::enter)];
        let may_wait = places[0].is_some() && places[1].is_some() == queue.is_some();
        (places, may_wait)
    }

    /// Starts the thread where it does not run yet.
    fn has_thread(&self, state: &mut State) -> bool {
        if !state.has_thread {
            let shared = Arc::clone(&self.shared);
            let started = std::thread::Builder::new().name("fuse-stale".to_owned()).spawn(move || shared.run());
            state.has_thread = started.is_ok();
        }
        state.has_thread
    }
}

impl Drop for Dropper {
    fn drop(&mut self) {
        self.shared.state.lock().is_closed = true;
        self.shared.work.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let (files, dirty) = {
                let mut state = self.state.lock();
                loop {
                    if !state.files.is_empty() || !state.dirty.is_empty() {
                        break (std::mem::take(&mut state.files), std::mem::take(&mut state.dirty));
                    }
                    if state.is_closed {
                        return;
                    }
                    state = self.work.wait(state);
                }
            };
            for (node, file) in files {
                // If the kernel could not be told, the mount is ending, and the pages are not read either.
                if self.notices.drop_data(node) {
                    self.direct.dropped(node, file.stale);
                }
                for (done, places) in file.waiting {
                    done();
                    drop(places);
                }
            }
            for Dirty { node, range, done, _places } in dirty {
                // Of a file that the kernel does not know it has no pages.
                self.notices.drop_part(node, &range);
                let _ = done.send(());
            }
        }
    }
}
