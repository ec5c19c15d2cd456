//! The threads that run tasks, and the thread that a caller lends while it blocks.
//!
//! Each worker owns a queue for each level (see [`level`]), a ring, timers and a parking place. It takes its next task
//! from its own queues first, highest level first, where a level's local queue is followed by the shared one of that
//! level (for tasks that come from threads that are no workers); every [`FAIR_TICKS`]th time in the reverse order, so
//! that nothing starves. Out of those, it steals half of another's queue; out of that, it sleeps in its ring.
//!
//! A thread in `block_on` is a guest: it has a ring, timers and a parking place, and no queues. It runs its one future
//! and nothing else, so what is spawned goes to the workers.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crossbeam_deque::{Steal, Stealer, Worker as Queue};

use super::Real;
use super::park::{Parker, Timers};
use super::ring::{Finished, Ring, Work};
use crate::handle::Class;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::task::{Reason, Runnable};
use crate::time::Instant;

/// Queues of a worker, first to last.
pub(super) const LEVELS: usize = 5;

/// Which queue a task goes to.
pub(super) fn level(class: Class, reason: Reason) -> usize {
    match (reason, class) {
        (Reason::Front, _) => 0,
        // Something it waited for has happened: it is in progress, and ends sooner if it goes first.
        (_, Class::Interrupt) | (Reason::Woken, Class::Issue | Class::Sync) => 1,
        (_, Class::Issue) => 2,
        (_, Class::Sync) => 3,
        (_, Class::Background) => 4,
    }
}

/// How many tasks run between two looks in the reverse order. A prime, as schedulers use, so as not to beat with
/// anything.
const FAIR_TICKS: u32 = 61;
/// How many tasks run between two looks at the ring. Chosen by eye: completions are late by about so many polls.
const RING_TICKS: u32 = 16;
/// How many entries are collected before they are submitted although there is work to run.
const PENDING_MAX: usize = 32;

/// Work that a worker does alone, in nanoseconds: about what it costs to wake another. When tasks become long the first of
/// them are waited for; the look after that counts them as long.
const HELP_NS: u64 = 15_000;
/// Tasks that a worker queues for itself and does alone if they are short. So many may be the sign of a poll that spreads
/// work and then goes on for long itself.
const BATCH: usize = 16;

/// What others reach of a thread.
pub(crate) struct Home {
    pub(super) parker: Parker,
    pub(super) timers: Timers,
}

/// What a thread keeps to itself.
pub(super) struct Local {
    runtime_id: u64,
    /// Absent for a guest.
    worker: Option<WorkerLocal>,
    ring: RefCell<Option<Ring>>,
    /// What was reaped and not delivered; kept for its memory.
    finished: RefCell<Vec<Finished>>,
    pub(super) home: Arc<Home>,
}

struct WorkerLocal {
    index: usize,
    queues: [Queue<Runnable>; LEVELS],
    /// Set while the worker delivers completions: what that wakes is looked at afterwards, all together.
    delivering: Cell<bool>,
    /// What a task takes, by the latest looks. As long as nothing is known, long.
    step_ns: Cell<u64>,
}

impl WorkerLocal {
    /// Whether `waiting` tasks are more than this worker should do alone.
    fn is_much(&self, waiting: usize) -> bool {
        (waiting as u64).saturating_mul(self.step_ns.get()) > HELP_NS
    }
}

thread_local! {
    static LOCAL: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
}

/// The calling thread's own, if it belongs to this runtime.
fn local(runtime_id: u64) -> Option<Rc<Local>> {
    LOCAL.try_with(|local| local.borrow().as_ref().filter(|local| local.runtime_id == runtime_id).cloned()).ok()?
}

/// Hands a request to the calling thread's ring, or back if it has none.
pub(super) fn start_on_ring(
    runtime_id: u64,
    file: Arc<File>,
    offset_bytes: u64,
    work: Work,
) -> Result<(), (Arc<File>, Work)> {
    let mut request = Some((file, work));
    let _ = LOCAL.try_with(|local| {
        let local = local.borrow();
        let Some(local) = local.as_ref().filter(|local| local.runtime_id == runtime_id) else { return };
        let Ok(mut ring) = local.ring.try_borrow_mut() else { return };
        if let Some(ring) = ring.as_mut()
            && let Some((file, work)) = request.take()
        {
            ring.start(file, offset_bytes, work);
            if ring.pending() >= PENDING_MAX {
                ring.submit();
            }
        }
    });
    request.map_or(Ok(()), Err)
}

/// The home of the calling thread, if it belongs to this runtime.
pub(super) fn local_home(runtime_id: u64) -> Option<Arc<Home>> {
    local(runtime_id).map(|local| Arc::clone(&local.home))
}

/// Where a task was put.
pub(super) enum Pushed {
    /// In a queue others may steal from: somebody may have to be woken.
    Dispatch,
    /// In the queue of a worker that is about to look at it.
    Quietly,
    /// Nowhere: the thread is no worker of this runtime.
    Not(Runnable),
}

/// Puts a task in the calling worker's queue. The worker is in a task now, and will most often run what that starts or wakes
/// when it waits; another is woken where that would leave too much to this one.
pub(super) fn push_local(runtime_id: u64, item: Runnable, level: usize) -> Pushed {
    let mut item = Some(item);
    let quietly = LOCAL.try_with(|local| {
        let local = local.borrow();
        let worker = local.as_ref().filter(|local| local.runtime_id == runtime_id)?.worker.as_ref()?;
        worker.queues[level].push(item.take()?);
        if worker.delivering.get() {
            return Some(true);
        }
        let waiting = worker.queues[level].len();
        Some(!waiting.is_multiple_of(BATCH) && !worker.is_much(waiting))
    });
    match (item, quietly) {
        (Some(item), _) => Pushed::Not(item),
        (None, Ok(Some(true))) => Pushed::Quietly,
        (None, _) => Pushed::Dispatch,
    }
}

impl Local {
    /// Delivers what is complete, without blocking, and passes on what is pending if it is `urgent` or the system call is
    /// made anyway. What stays pending goes with the next sleep, in the call that sleeps: where a device is another
    /// machine's, each call that passes on requests costs a trip out of this one.
    fn turn(&self, urgent: bool) -> bool {
        if let Some(ring) = self.ring.borrow_mut().as_mut()
            && (urgent || ring.needs_enter())
        {
            ring.submit();
        }
        self.deliver()
    }

    /// Delivers what is complete. Whether there was anything.
    fn deliver(&self) -> bool {
        // Taken out while it is worked on: a waker may run code of anyone's.
        let mut finished = self.finished.take();
        if let Some(ring) = self.ring.borrow_mut().as_mut() {
            ring.reap(&mut finished);
        }
        let any = !finished.is_empty();
        finished.drain(..).for_each(Finished::deliver);
        *self.finished.borrow_mut() = finished;
        any
    }

    fn fire_timers(&self, real: &Real) -> bool {
        let Some(next) = self.home.timers.next() else { return false };
        let now = real.now();
        if next > now {
            return false;
        }
        let due = self.home.timers.due(now);
        let any = !due.is_empty();
        due.into_iter().for_each(Waker::wake);
        any
    }

    /// Sleeps until unparked, a completion or a timer. The caller has announced it to the parker.
    fn sleep(&self, real: &Real) {
        let limit = self.home.timers.next().map(|next| next.since(real.now()));
        match self.ring.borrow_mut().as_mut() {
            Some(ring) => ring.submit_and_sleep(limit),
            None => self.home.parker.sleep(limit),
        }
    }
}

fn new_ring_and_home(single_thread: bool, ring: bool) -> (Option<Ring>, Arc<Home>) {
    let made = match ring {
        true => Ring::new(single_thread).and_then(|mut ring| {
            let event = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?);
            ring.set_alarm(Arc::clone(&event));
            Ok((ring, event))
        }),
        false => Err(std::io::ErrorKind::Unsupported.into()),
    };
    let (ring, event) = match made {
        Ok((ring, event)) => (Some(ring), Some(event)),
        // A thread without a ring of its own uses the pool.
        Err(_) => (None, None),
    };
    (ring, Arc::new(Home { parker: Parker::new(event), timers: Timers::new() }))
}

/// What a worker's thread needs before the runtime around it exists.
pub(super) struct Seat {
    index: usize,
    queues: [Queue<Runnable>; LEVELS],
}

impl Seat {
    pub(super) fn new(index: usize) -> (Seat, [Stealer<Runnable>; LEVELS]) {
        let queues: [_; LEVELS] = std::array::from_fn(|_| Queue::new_fifo());
        let stealers = std::array::from_fn(|level| queues[level].stealer());
        (Seat { index, queues }, stealers)
    }
}

/// Makes a worker's ring on the worker's own thread, as the kernel wants it, and says where to reach it.
pub(super) fn settle(seat: Seat, runtime_id: u64, ring: bool) -> Settled {
    let (ring, home) = new_ring_and_home(true, ring);
    let worker = WorkerLocal {
        index: seat.index,
        queues: seat.queues,
        delivering: Cell::new(false),
        step_ns: Cell::new(HELP_NS + 1),
    };
    let local = Local {
        runtime_id,
        worker: Some(worker),
        ring: RefCell::new(ring),
        finished: RefCell::default(),
        home: Arc::clone(&home),
    };
    Settled { local: Rc::new(local) }
}

/// A worker ready to work.
pub(super) struct Settled {
    local: Rc<Local>,
}

impl Settled {
    pub(super) fn home(&self) -> Arc<Home> {
        Arc::clone(&self.local.home)
    }

    /// Works until the runtime stops.
    pub(super) fn work(self, real: &Real) {
        let local = self.local;
        LOCAL.with(|slot| *slot.borrow_mut() = Some(Rc::clone(&local)));
        if let Some(worker) = &local.worker {
            let mut turn = Turn {
                real,
                local: &local,
                worker,
                tick: 0,
                searching: false,
                random: worker.index as u64 + 1,
                since: real.now(),
                ran: 0,
            };
            turn.work();
            for queue in &worker.queues {
                while let Some(task) = queue.pop() {
                    task.cancel();
                }
            }
        }
        // The ring waits for its requests; what they wake is cancelled by now.
        let ring = local.ring.borrow_mut().take();
        drop(ring);
        LOCAL.with(|slot| *slot.borrow_mut() = None);
        for (_, waker) in local.home.timers.take_all() {
            drop(waker);
        }
    }
}

/// A worker at work.
struct Turn<'a> {
    real: &'a Real,
    local: &'a Local,
    worker: &'a WorkerLocal,
    tick: u32,
    searching: bool,
    random: u64,
    /// When the worker last looked at its ring, and how many tasks it has run since.
    since: Instant,
    ran: u32,
}

impl Turn<'_> {
    fn work(&mut self) {
        while !self.real.is_stopped() {
            if let Some(task) = self.next() {
                self.run(task);
                continue;
            }
            if self.complete(false) {
                continue;
            }
            if let Some(task) = self.search() {
                // What is pending waits no longer than it must: others' work may be long.
                self.complete(true);
                self.run(task);
                continue;
            }
            self.sleep();
        }
    }

    fn run(&mut self, item: Runnable) {
        if std::mem::take(&mut self.searching) && self.real.idle.found() && self.real.has_work() {
            self.real.wake_one();
        }
        self.tick = self.tick.wrapping_add(1);
        item.run();
        self.ran += 1;
        if self.tick.is_multiple_of(RING_TICKS) {
            self.complete(true);
        }
    }

    /// Reaps and fires timers, without blocking, and submits what is `urgent`. Whether any task may have been woken.
    fn complete(&mut self, urgent: bool) -> bool {
        let now = self.real.now();
        if self.ran > 0 {
            let each = now.since(self.since).as_nanos() as u64 / u64::from(self.ran);
            self.worker.step_ns.set((self.worker.step_ns.get() + each) / 2);
        }
        (self.since, self.ran) = (now, 0);
        self.worker.delivering.set(true);
        let in_use =
            self.local.ring.borrow_mut().as_mut().is_some_and(|ring| ring.in_flight() > 0 || ring.has_completions());
        let any = (in_use && self.local.turn(urgent)) | self.local.fire_timers(self.real);
        self.worker.delivering.set(false);
        // The first is for this worker; the rest may be more than it should do alone.
        let waiting = self.worker.queues.iter().map(Queue::len).sum::<usize>().saturating_sub(1);
        if self.worker.is_much(waiting) {
            self.real.wake_one();
        }
        any
    }

    fn next(&mut self) -> Option<Runnable> {
        let index = self.worker.index;
        if self.tick.is_multiple_of(FAIR_TICKS) {
            // Also from a shared queue whose own worker may be busy for long, by turns.
            let other = (self.tick / FAIR_TICKS) as usize % self.real.shared.len();
            let levels = || (0..LEVELS).rev();
            levels()
                .find_map(|level| self.shared(other, level))
                .or_else(|| levels().find_map(|level| self.shared(index, level).or_else(|| self.local(level))))
        } else {
            (0..LEVELS).find_map(|level| self.local(level).or_else(|| self.shared(index, level)))
        }
    }

    fn local(&self, level: usize) -> Option<Runnable> {
        self.worker.queues[level].pop()
    }

    /// From a shared queue of a level, and a few more for later.
    fn shared(&self, shard: usize, level: usize) -> Option<Runnable> {
        let shared = &self.real.shared[shard][level];
        if shared.is_empty() {
            return None;
        }
        until_settled(|| shared.steal_batch_and_pop(&self.worker.queues[level]))
    }

    /// From another worker's queues, and half of that queue for later.
    fn search(&mut self) -> Option<Runnable> {
        if !self.searching {
            self.searching = self.real.idle.try_search();
        }
        if !self.searching {
            return None;
        }
        let others = &self.real.stealers;
        self.random = self.random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        let start = (self.random >> 33) as usize % others.len();
        for step in 0..others.len() {
            let other = (start + step) % others.len();
            if other == self.worker.index {
                continue;
            }
            for level in 0..LEVELS {
                if let Some(task) = self.shared(other, level) {
                    return Some(task);
                }
                let stealer = &others[other][level];
                if stealer.is_empty() {
                    continue;
                }
                if let Some(task) = until_settled(|| stealer.steal_batch_and_pop(&self.worker.queues[level])) {
                    return Some(task);
                }
            }
        }
        self.next()
    }

    fn sleep(&mut self) {
        let index = self.worker.index;
        let look_again = self.real.idle.enter(index, std::mem::take(&mut self.searching));
        let parker = &self.local.home.parker;
        if !(look_again && self.real.has_work() || self.real.is_stopped()) && parker.prepare() {
            self.local.sleep(self.real);
            parker.finish();
        }
        self.searching = self.real.idle.leave(index);
        // Sleep is no work.
        self.ran = 0;
        self.complete(false);
    }
}

/// Stealing may meet another thief and be told to try again; that is somebody else's progress.
pub(super) fn until_settled(mut steal: impl FnMut() -> Steal<Runnable>) -> Option<Runnable> {
    loop {
        match steal() {
            Steal::Success(task) => return Some(task),
            Steal::Empty => return None,
            Steal::Retry => std::hint::spin_loop(),
        }
    }
}

/// A ring and a home for a thread that blocks on a future; kept for the next one.
pub(super) struct Guest {
    ring: Option<Ring>,
    home: Arc<Home>,
}

struct GuestWaker {
    woken: AtomicBool,
    home: Arc<Home>,
}

impl Wake for GuestWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.home.parker.unpark();
        }
    }
}

impl Guest {
    pub(super) fn new(ring: bool) -> Guest {
        let (ring, home) = new_ring_and_home(false, ring);
        Guest { ring, home }
    }

    /// Runs `future` on the calling thread.
    ///
    /// # Panics
    /// On a worker's thread: a worker that blocks is lost to everyone.
    pub(super) fn block_on<F: Future>(self, real: &Real, future: F) -> (F::Output, Guest) {
        let Guest { ring, home } = self;
        let local = Rc::new(Local {
            runtime_id: real.id,
            worker: None,
            ring: RefCell::new(ring),
            finished: RefCell::default(),
            home: Arc::clone(&home),
        });
        let before = LOCAL.with(|slot| slot.replace(Some(Rc::clone(&local))));
        let left = Left(before);
        if left.0.as_ref().is_some_and(|before| before.worker.is_some()) {
            drop(left);
            panic!("block_on was called by a worker of a runtime; await the future instead");
        }
        let main = Arc::new(GuestWaker { woken: AtomicBool::new(false), home: Arc::clone(&home) });
        let waker = Waker::from(Arc::clone(&main));
        let output = {
            let mut future = pin!(future);
            loop {
                if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    break output;
                }
                loop {
                    local.deliver();
                    local.fire_timers(real);
                    if main.woken.swap(false, Ordering::AcqRel) {
                        break;
                    }
                    if home.parker.prepare() {
                        local.sleep(real);
                        home.parker.finish();
                    }
                }
            }
        };
        drop(left);
        // What this thread began and others wait for goes on without it: requests are waited for, timers move house.
        while local.ring.borrow().as_ref().is_some_and(|ring| ring.in_flight() > 0) {
            if let Some(ring) = local.ring.borrow_mut().as_mut() {
                ring.submit_and_sleep(Some(Duration::from_millis(100)));
            }
            local.deliver();
        }
        for (deadline, waker) in home.timers.take_all() {
            real.arm_at_worker(deadline, waker);
        }
        let ring = local.ring.borrow_mut().take();
        (output, Guest { ring, home })
    }
}

/// Puts back what the thread was before.
struct Left(Option<Rc<Local>>);

impl Drop for Left {
    fn drop(&mut self) {
        let before = self.0.take();
        let _ = LOCAL.try_with(|slot| slot.replace(before));
    }
}
