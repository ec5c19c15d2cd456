//! The threads that run tasks, and the thread that a caller lends while it blocks.
//!
//! Each worker owns a queue for each level (see [`level`]), a ring, timers and a parking place. It takes its next task
//! from its own queues first, highest level first, where a level's local queue is followed by the shared one of that
//! level (for tasks that come from threads that are no workers); every [`FAIR_TICKS`]th time in the reverse order, so
//! that nothing starves. Out of those, it steals half of another's queue; out of that, it sleeps in its ring.
//!
//! Of a level's local queue only the first few tasks are in a shared table from which others steal; the rest are the
//! worker's alone ([`Lane`]), and it opens more of them when it sees that somebody is idle. So most tasks of a worker with
//! much to do cost no atomic step, and the shared table never changes its size.
//!
//! Code that runs once for each task is inlined into one function on each side (dispatch, run) on purpose: a task is two words,
//! and where it is handed on in memory, written by words and read as a pair, the processor waits for the writes each time.
//! That was half of what an empty task cost.
//!
//! The first worker's thread is there from the start; others are started when there is work and nobody sleeps, and end when
//! there has been none for long. A worker without a thread is a [`ParkedWorker`]: its queues, which others may go on looking into.
//!
//! A thread in `block_on` is a guest: it has a ring, timers and a parking place, and no queues. It runs its one future
//! and nothing else, so what is spawned goes to the workers.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
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
use crate::fair;
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
/// work and then goes on for long itself, if polls are ever long.
const BATCH: usize = 16;

/// Tasks of a lane that others can steal: twice what one theft takes at most, and what the table holds that a queue begins with.
const OPEN_MAX: usize = 64;

/// The part of a thread that other threads reach.
pub(crate) struct Home {
    pub(super) parker: Parker,
    pub(super) timers: Timers,
}

/// The part of a thread that only the thread itself uses.
pub(super) struct Local {
    runtime_id: u64,
    /// Absent for a guest.
    worker: Option<WorkerLocal>,
    ring: RefCell<Option<Ring>>,
    /// Completions that were reaped and not delivered; kept to reuse its memory.
    finished: RefCell<Vec<Finished>>,
    pub(super) home: Arc<Home>,
}

struct WorkerLocal {
    index: usize,
    lanes: [Lane; LEVELS],
    /// Set while the worker delivers completions: what that wakes is looked at afterwards, all together.
    delivering: Cell<bool>,
    /// When the worker last looked at its ring.
    looked: Cell<Instant>,
    /// The time that a task takes, by the latest looks. Before the first look, a long one.
    step_ns: Cell<u64>,
    /// The longest time between two looks, which is forgotten slowly.
    look_ns: Cell<u64>,
}

impl WorkerLocal {
    /// Whether `waiting` tasks are more than this worker should do alone.
    fn is_much(&self, waiting: usize) -> bool {
        (waiting as u64).saturating_mul(self.step_ns.get()) > HELP_NS
    }

    /// Whether the poll that is going on may be a long one: it has been, or there was one not long ago.
    fn is_long(&self, now: impl FnOnce() -> Instant) -> bool {
        self.look_ns.get() > HELP_NS || now().since(self.looked.get()).as_nanos() as u64 > HELP_NS
    }

    /// Notes what has been done since the last look.
    fn look(&self, now: Instant, ran: u32) {
        if ran > 0 {
            let span_ns = now.since(self.looked.get()).as_nanos() as u64;
            self.step_ns.set((self.step_ns.get() + span_ns / u64::from(ran)) / 2);
            let before_ns = self.look_ns.get();
            self.look_ns.set(span_ns.max(before_ns - before_ns / 8));
        }
        self.looked.set(now);
    }
}

/// A worker's tasks of one level, first in, first out: the first [`OPEN_MAX`] for anyone to steal, the rest its own.
///
/// Tasks that nobody else can reach cost no atomic step and no change of the size of a shared table. They are not out of
/// reach for long: see [`Lane::open`].
pub(super) struct Lane {
    open: Queue<Runnable>,
    rest: RefCell<VecDeque<Runnable>>,
}

impl Lane {
    fn new() -> Lane {
        Lane { open: Queue::new_fifo(), rest: RefCell::default() }
    }

    /// Appends; how many there are now.
    #[inline(always)]
    fn push(&self, item: Runnable) -> usize {
        let open = self.open.len();
        let mut rest = self.rest.borrow_mut();
        if rest.is_empty() && open < OPEN_MAX {
            self.open.push(item);
            return open + 1;
        }
        rest.push_back(item);
        open + rest.len()
    }

    #[inline(always)]
    fn pop(&self) -> Option<Runnable> {
        if !self.open.is_empty() {
            let item = self.open.pop();
            if item.is_some() {
                return item;
            }
        }
        self.rest.borrow_mut().pop_front()
    }

    fn len(&self) -> usize {
        self.open.len() + self.rest.borrow().len()
    }

    /// Lets others steal some of the rest again.
    fn open(&self) {
        let mut rest = self.rest.borrow_mut();
        let count = OPEN_MAX.saturating_sub(self.open.len()).min(rest.len());
        rest.drain(..count).for_each(|item| self.open.push(item));
    }
}

thread_local! {
    static LOCAL: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
    /// The runtime that the thread is a worker of, while it works.
    static WORKS_FOR: Cell<u64> = const { Cell::new(u64::MAX) };
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

/// Passes on what the calling thread's ring has pending.
pub(super) fn submit(runtime_id: u64) {
    let _ = LOCAL.try_with(|local| {
        let local = local.borrow();
        let Some(local) = local.as_ref().filter(|local| local.runtime_id == runtime_id) else { return };
        let Ok(mut ring) = local.ring.try_borrow_mut() else { return };
        if let Some(ring) = ring.as_mut().filter(|ring| ring.pending() > 0) {
            ring.submit();
        }
    });
}

/// The home of the calling thread, if it belongs to this runtime.
pub(super) fn local_home(runtime_id: u64) -> Option<Arc<Home>> {
    local(runtime_id).map(|local| Arc::clone(&local.home))
}

/// The calling thread's [`Local`], if the thread is a worker of this runtime and at work: in a task.
#[inline(always)]
pub(super) fn at_work(real: &Real) -> Option<Rc<Local>> {
    if WORKS_FOR.get() == real.id { LOCAL.with_borrow(Option::clone) } else { None }
}

impl Local {
    /// Puts a task in the worker's own queue. The worker will most often run what its present task starts or wakes when that
    /// waits. Whether another is to be woken, since that would leave too much to this one.
    #[inline(always)]
    pub(super) fn push(&self, real: &Real, item: Runnable, level: usize) -> bool {
        // Only workers are ever at work.
        let Some(worker) = &self.worker else { return false };
        let waiting = worker.lanes[level].push(item);
        !worker.delivering.get()
            && (worker.is_much(waiting) || waiting.is_multiple_of(BATCH) && worker.is_long(|| real.now()))
    }

    /// Delivers completions, without blocking, and passes on pending requests if it is `urgent` or the system call is
    /// made anyway. Requests that stay pending go with the next sleep, in the call that sleeps: where a device is another
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

    /// Whether a request or a timer of this thread's is not done.
    fn has_business(&self) -> bool {
        self.home.timers.next().is_some() || self.ring.borrow().as_ref().is_some_and(|ring| ring.in_flight() > 0)
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

    /// Sleeps until unparked, a completion or a timer, and no longer than `most`. The caller has announced it to the parker.
    fn sleep(&self, real: &Real, most: Option<Duration>) {
        let limit = self.home.timers.next().map(|next| next.since(real.now()));
        let limit = limit.into_iter().chain(most).min();
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

/// A worker without its thread: its queues.
pub(super) struct ParkedWorker {
    pub(super) index: usize,
    lanes: [Lane; LEVELS],
}

impl ParkedWorker {
    pub(super) fn new(index: usize) -> (ParkedWorker, [Stealer<Runnable>; LEVELS]) {
        let lanes: [_; LEVELS] = std::array::from_fn(|_| Lane::new());
        let stealers = std::array::from_fn(|level| lanes[level].open.stealer());
        (ParkedWorker { index, lanes }, stealers)
    }
}

/// Makes a worker's ring on the worker's own thread, as the kernel wants it, and says where to reach it.
pub(super) fn attach(parked: ParkedWorker, runtime_id: u64, ring: bool) -> Settled {
    let (ring, home) = new_ring_and_home(true, ring);
    let worker = WorkerLocal {
        index: parked.index,
        lanes: parked.lanes,
        delivering: Cell::new(false),
        looked: Cell::new(Instant::default()),
        step_ns: Cell::new(HELP_NS + 1),
        look_ns: Cell::new(HELP_NS + 1),
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

    /// Works until the runtime stops, or until there has been nothing to do for long: then the parked worker is for another thread. `searching`: a
    /// dispatch started the worker, which counts as searching.
    pub(super) fn work(self, real: &Real, searching: bool) -> Option<ParkedWorker> {
        let local = self.local;
        let mut departs = false;
        LOCAL.with(|slot| *slot.borrow_mut() = Some(Rc::clone(&local)));
        WORKS_FOR.set(real.id);
        if let Some(worker) = &local.worker {
            let mut work_loop =
                WorkLoop { real, local: &local, worker, tick: 0, searching, random: worker.index as u64 + 1, ran: 0 };
            worker.looked.set(real.now());
            departs = work_loop.work();
            // Of one that departs they are empty.
            for lane in &worker.lanes {
                while let Some(task) = lane.pop() {
                    task.cancel();
                }
            }
        }
        // The ring waits for its requests; the tasks that they wake are cancelled by now.
        let ring = local.ring.borrow_mut().take();
        drop(ring);
        WORKS_FOR.set(u64::MAX);
        LOCAL.with(|slot| *slot.borrow_mut() = None);
        for (_, waker) in local.home.timers.take_all() {
            drop(waker);
        }
        // Nobody else holds it: what is taken from the thread's slot goes back within a call.
        let worker = Rc::into_inner(local).and_then(|local| local.worker).filter(|_| departs)?;
        Some(ParkedWorker { index: worker.index, lanes: worker.lanes })
    }
}

/// A worker at work.
struct WorkLoop<'a> {
    real: &'a Real,
    local: &'a Local,
    worker: &'a WorkerLocal,
    tick: u32,
    searching: bool,
    random: u64,
    /// How many tasks the worker has run since it last looked at its ring.
    ran: u32,
}

impl WorkLoop<'_> {
    /// Whether it ended for lack of work.
    fn work(&mut self) -> bool {
        while !self.real.is_stopped() {
            if let Some(task) = self.next() {
                self.run(task);
                continue;
            }
            if self.complete(false) {
                continue;
            }
            if let Some(task) = self.search() {
                // Pending requests wait no longer than they must: others' work may be long.
                self.complete(true);
                self.run(task);
                continue;
            }
            if self.sleep() {
                return true;
            }
        }
        false
    }

    #[inline(always)]
    fn run(&mut self, item: Runnable) {
        if std::mem::take(&mut self.searching) && self.real.idle.found() && self.real.has_work() {
            self.real.wake_one();
        }
        self.tick = self.tick.wrapping_add(1);
        fair::begin();
        item.run();
        self.ran += 1;
        // A task that gives way would else go round again before anything that waits for the ring or a timer.
        if self.tick.is_multiple_of(RING_TICKS) || fair::was_ended() {
            self.complete(true);
        }
    }

    /// Reaps and fires timers, without blocking, and submits what is `urgent`. Whether any task may have been woken.
    fn complete(&mut self, urgent: bool) -> bool {
        self.worker.look(self.real.now(), std::mem::take(&mut self.ran));
        self.worker.delivering.set(true);
        let in_use =
            self.local.ring.borrow_mut().as_mut().is_some_and(|ring| ring.in_flight() > 0 || ring.has_completions());
        let any = (in_use && self.local.turn(urgent)) | self.local.fire_timers(self.real);
        self.worker.delivering.set(false);
        // The first is for this worker; the rest may be more than it should do alone.
        let waiting = self.worker.lanes.iter().map(Lane::len).sum::<usize>().saturating_sub(1);
        if self.worker.is_much(waiting) {
            if self.real.idle.is_anyone_idle() {
                self.worker.lanes.iter().for_each(Lane::open);
            }
            self.real.wake_one();
        }
        any
    }

    #[inline(always)]
    fn next(&mut self) -> Option<Runnable> {
        if self.tick.is_multiple_of(FAIR_TICKS) {
            return self.next_by_turns();
        }
        let shared = &self.real.shared[self.worker.index];
        for (level, lane) in self.worker.lanes.iter().enumerate() {
            if let Some(item) = lane.pop() {
                return Some(item);
            }
            if !shared[level].is_empty()
                && let Some(item) = self.shared(self.worker.index, level)
            {
                return Some(item);
            }
        }
        None
    }

    /// In the reverse order, and from a shared queue whose own worker may be busy for long, by turns.
    #[inline(never)]
    fn next_by_turns(&self) -> Option<Runnable> {
        let index = self.worker.index;
        let other = (self.tick / FAIR_TICKS) as usize % self.real.shared.len();
        let levels = || (0..LEVELS).rev();
        levels()
            .find_map(|level| self.shared(other, level))
            .or_else(|| levels().find_map(|level| self.shared(index, level).or_else(|| self.worker.lanes[level].pop())))
    }

    /// From a shared queue of a level, and a few more for later.
    fn shared(&self, shard: usize, level: usize) -> Option<Runnable> {
        let shared = &self.real.shared[shard][level];
        if shared.is_empty() {
            return None;
        }
        until_no_retry(|| shared.steal_batch_and_pop(&self.worker.lanes[level].open))
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
                if let Some(task) = until_no_retry(|| stealer.steal_batch_and_pop(&self.worker.lanes[level].open)) {
                    return Some(task);
                }
            }
        }
        self.next_by_turns()
    }

    /// Sleeps until there may be something to do. Whether there has been nothing for so long that the thread should end: the
    /// first worker's never does, for others' timers are armed there.
    fn sleep(&mut self) -> bool {
        let index = self.worker.index;
        let look_again = self.real.idle.enter(index, std::mem::take(&mut self.searching));
        let parker = &self.local.home.parker;
        let most = (index > 0 && !self.local.has_business()).then_some(self.real.linger);
        let began = self.real.now();
        if !(look_again && self.real.has_work() || self.real.is_stopped()) && parker.prepare() {
            self.local.sleep(self.real, most);
            parker.finish();
        }
        self.searching = self.real.idle.leave(index);
        // Sleep is no work.
        self.ran = 0;
        let any = self.complete(false);
        let passed = self.real.now().since(began);
        !any && !self.searching && most.is_some_and(|most| passed >= most) && !self.local.has_business()
    }
}

/// Stealing may meet another thief and be told to try again; that is somebody else's progress.
pub(super) fn until_no_retry(mut steal: impl FnMut() -> Steal<Runnable>) -> Option<Runnable> {
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
                fair::begin();
                if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    break output;
                }
                loop {
                    // A future that gives way does not let this thread sleep, which would submit.
                    local.turn(fair::was_ended());
                    local.fire_timers(real);
                    if main.woken.swap(false, Ordering::AcqRel) {
                        break;
                    }
                    if home.parker.prepare() {
                        local.sleep(real, None);
                        home.parker.finish();
                    }
                }
            }
        };
        drop(left);
        // Requests and timers of this thread that other tasks wait for: wait for the requests, move the timers to a worker.
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

/// Restores the thread's previous state.
struct Left(Option<Rc<Local>>);

impl Drop for Left {
    fn drop(&mut self) {
        let before = self.0.take();
        let _ = LOCAL.try_with(|slot| slot.replace(before));
    }
}
