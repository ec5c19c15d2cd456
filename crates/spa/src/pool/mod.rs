//! A pool that many change at once, while its txgs are written one after the other.
//!
//! # Theory
//!
//! **Need.** A server has clients that write all the time, some who want to know that what they wrote is on disk, and now and
//! then someone who makes a dataset or sets a property. None of them syncs the pool: it is written in the background.
//!
//! **In memory.**
//! ```text
//! Pool ─ Transactions (dmu::tx)             txgs: open, quiescing, syncing
//!          ─ changes of the pool itself         a queue: the sync makes them at the beginning of a txg's
//!          ─ looks at the pool itself           a queue: the sync takes them between two txgs
//!          ─ accounts of directories            what each has left, as of the last sync
//!          ─ history                            what the last txgs held, and how long each phase took
//! task quiesce    opens the next txg when it is time
//! task sync       owns the Syncer: for each txg the queued changes, then the sync
//! ```
//!
//! **Life of a change of data.** [`LiveHead::begin`] assigns a txg; objects of the dataset are changed in it; the [`Tx`] is
//! dropped. Whoever needs it on disk waits for the txg ([`Pool::wait_synced`]).
//!
//! **Life of a change of the pool.** [`Pool::change`] queues it and asks for a txg. The sync makes the changes that are queued one
//! after the other, each on the pool as those before it have left it, for `CHANGES_MAX` at most; it syncs, and then the callers have
//! their answers. So one change that does several things does all of them or none, whatever happens. A change that fails before it
//! has changed anything is refused; one that fails half-way would leave the MOS in between, so the txg is not written, and the pool
//! has failed: on disk it is whole.
//!
//! **Life of a look at the pool.** [`Pool::look`] queues it too. The sync takes looks between two txgs, and needs none for them.
//!
//! **Devices that are added** ([`Pool::add_vdevs`]) are labelled by the task of the caller; the rest is a change of the pool:
//! [`crate::admin::add`].
//!
//! **Reading the pool as of a txg** holds nothing up: [`View`](crate::View).
//!
//! **Devices that fail.** Where too few take a block, a flush, labels or an uberblock the pool is *suspended*: that write waits in
//! the vdev layer, and the sync with it. [`Pool::resume`] has the devices written again what they may have lost, and all goes
//! on, with the same bytes in the same places. A device that hangs is left out, or suspends the pool until it answers.
//! The property `failmode` says what those get who come meanwhile ([`FailMode`]).
//!
//! **Invariants.**
//! 1. The MOS is changed by the sync task alone.
//! 2. An answer to a change of the pool is given when it is on disk.
//! 3. After a failure that is not one of devices nothing more is written, and everybody is told.
//! 4. What was changed is written, or the process ends; devices that fail only make it later.
//!
//! **Crash.** As [`super`]: the last synced txg. A suspended pool is one whose sync takes long.
//!
//! **Rejected.** *Changes of the pool by whoever asks, under a lock*: they belong to the txg that syncs, which nobody else can
//! hold. *A change a txg*: a thousand datasets took a thousand txgs.

mod accounts;
mod failmode;
mod frees;
mod history;
mod memory;
mod source;
mod view;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_dmu::Objset;
use cenote_dmu::tx::{Account, Cost, Transactions, Tx, TxError, TxTunables};
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{BoxFuture, Class, Either, Handle, Join, Notify, buf, oneshot, race};
use cenote_vdev::tree::{Suspension, VdevTree};

pub use failmode::FailMode;
pub use frees::HeadFrees;
pub use history::{Phase, TxgRecord};
pub use memory::MemoryLimits;
pub use view::KeptTxg;

use crate::SpaError;
use crate::jobs::JobStatus;
use crate::pins::Pins;
use crate::sync::Syncer;
use crate::sync::multihost::Multihost;
use crate::sync::troubles::Troubles;
use cenote_dsl::Head;

/// How long one txg's sync goes on making changes of the pool, so that those who wait for the txg are not kept for long.
const CHANGES_MAX: Duration = Duration::from_millis(250);

/// A change of the pool itself, made in a txg's sync; or a look at it.
type Change = Box<dyn for<'a> FnOnce(&'a mut Syncer) -> BoxFuture<'a, Result<(), SpaError>> + Send>;

/// Changes of the pool itself and looks at it, which the sync is asked for.
#[derive(Default)]
struct Asked {
    changes: VecDeque<Change>,
    looks: VecDeque<Change>,
}

/// A pool that is written in the background. Cheap to clone.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    handle: Handle,
    name: String,
    guid: Guid,
    suspension: Arc<Suspension>,
    multihost: Multihost,
    /// As long as the pool is open.
    tree: Weak<VdevTree>,
    failmode: Mutex<FailMode>,
    txgs: Transactions,
    /// Troubles with its space.
    troubles: Arc<Troubles>,
    /// Frees in the background.
    frees: frees::Frees,
    /// Txgs that are read.
    pins: Arc<Pins>,
    /// The root of the last txg, for views; none before the first, and once the sync has ended.
    root: Mutex<Option<view::Root>>,
    /// Requests to the sync; none once it has ended.
    asked: Mutex<Option<Asked>>,
    /// A look has come.
    look_came: Notify,
    accounts: Mutex<BTreeMap<ObjectId, Arc<Account>>>,
    /// Of each head dataset that is open.
    figures: Mutex<BTreeMap<ObjectId, HeadSpace>>,
    records: Mutex<VecDeque<TxgRecord>>,
    /// Background jobs with work left, as of the last txg.
    jobs: Mutex<Vec<JobStatus>>,
    /// Head datasets that someone has, for as long as anyone has.
    uses: Mutex<BTreeMap<ObjectId, Weak<()>>>,
    /// The sync, which gives the writer back.
    sync: Mutex<Option<Join<Option<Syncer>>>>,
}

/// A head dataset of a pool that is written in the background. Cheap to clone.
#[derive(Clone)]
pub struct LiveHead {
    pool: Pool,
    head: Head,
    account: Arc<Account>,
    _used: Arc<()>,
}

/// What a dataset uses and may still use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadSpace {
    /// Bytes that it refers to.
    pub referenced_bytes: u64,
    /// Bytes that it may use beyond those.
    pub available_bytes: u64,
    /// Objects in it.
    pub objects: u64,
}

impl LiveHead {
    /// Its objset.
    #[must_use]
    pub fn objset(&self) -> &Objset {
        &self.head.objset
    }

    /// Its object in the MOS.
    #[must_use]
    pub const fn dataset(&self) -> ObjectId {
        self.head.dataset
    }

    /// The pool.
    #[must_use]
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Begins a change of what is in the dataset: waits for its turn where much is dirty, and is refused where there is no
    /// space for what it costs at worst. The change is made in the txg of what comes back, before that is dropped. While the pool
    /// is suspended it waits or is refused, as `failmode` says.
    ///
    /// # Errors
    /// No space, or the pool is closed or suspended.
    pub async fn begin(&self, cost: Cost) -> Result<Tx, TxError> {
        let shared = &self.pool.shared;
        shared.pass().await?;
        shared.unless_refused(self.assign(cost)).await
    }
}

impl Pool {
    /// Begins to write a pool in the background.
    #[must_use]
    pub fn start(mut writer: Syncer, tunables: TxTunables) -> Self {
        writer.is_live = true;
        let kept_bytes = MemoryLimits::of(0, &tunables).buffers;
        buf::raise_pool_limit_bytes(usize::try_from(kept_bytes).unwrap_or(usize::MAX));
        let handle = writer.handle.clone();
        writer.space.set_tree(&writer.tree);
        let txgs = Transactions::new(&handle, writer.txg(), tunables);
        let shared = Arc::new(Shared {
            handle: handle.clone(),
            name: writer.name().to_owned(),
            guid: writer.guid(),
            suspension: writer.tree.wait_for_devices(),
            multihost: writer.multihost.clone(),
            tree: Arc::downgrade(&writer.tree),
            failmode: Mutex::new(FailMode::default()),
            txgs: txgs.clone(),
            troubles: writer.space.troubles.clone(),
            frees: frees::Frees::default(),
            pins: writer.space.pins.clone(),
            root: Mutex::new(None),
            asked: Mutex::new(Some(Asked::default())),
            look_came: Notify::new(),
            accounts: Mutex::new(BTreeMap::new()),
            figures: Mutex::new(BTreeMap::new()),
            records: Mutex::new(VecDeque::new()),
            jobs: Mutex::new(writer.jobs()),
            uses: Mutex::new(BTreeMap::new()),
            sync: Mutex::new(None),
        });
        shared.set_failmode(writer.failmode);
        shared.multihost.suspend_by(shared.suspension.clone());
        handle.detach(Class::Sync, async move { txgs.quiesce().await });
        if writer.has_work() {
            shared.want_txg();
        }
        let syncing = shared.clone();
        let join = handle.spawn(Class::Sync, async move { syncing.sync(writer).await });
        *shared.sync.lock() = Some(join);
        Self { shared }
    }

    /// The pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The pool's guid.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.shared.guid
    }

    /// The runtime.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.shared.handle
    }

    /// Its txgs.
    #[must_use]
    pub fn txgs(&self) -> &Transactions {
        &self.shared.txgs
    }

    /// What the last txgs held and how long they took, oldest first.
    #[must_use]
    pub fn history(&self) -> Vec<TxgRecord> {
        self.shared.records.lock().iter().cloned().collect()
    }

    /// Background jobs that have work left, as of the last txg.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobStatus> {
        self.shared.jobs.lock().clone()
    }

    fn fail(&self, error: &TxError) -> SpaError {
        SpaError::Write { pool: self.shared.name.clone(), what: error.to_string() }
    }

    /// Whether someone has this head dataset to change what is in it.
    #[must_use]
    pub fn is_used(&self, dataset: ObjectId) -> bool {
        self.shared.uses.lock().get(&dataset).is_some_and(|used| used.strong_count() > 0)
    }

    /// Waits until a txg is on disk, and has it written soon.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn wait_synced(&self, txg: Txg) -> Result<(), SpaError> {
        self.shared.unless_refused(self.shared.txgs.wait_synced(txg)).await.map_err(|error| self.fail(&error))
    }

    /// Waits until all that was changed up to now is on disk.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn sync(&self) -> Result<Txg, SpaError> {
        self.shared.unless_refused(self.shared.txgs.sync()).await.map_err(|error| self.fail(&error))
    }

    /// Makes a change of the pool itself: it is made in the sync of a txg, and what it gives comes back when that is on disk.
    ///
    /// # Errors
    /// What the change says; or the pool is closed or suspended.
    pub async fn change<T, F>(&self, change: F) -> Result<T, SpaError>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Syncer) -> BoxFuture<'a, Result<T, SpaError>> + Send + 'static,
    {
        self.shared.pass().await.map_err(|error| self.fail(&error))?;
        let (sender, mut answer) = oneshot::channel();
        let change: Change = Box::new(move |writer| {
            Box::pin(async move {
                let txg = writer.txg();
                let (is_whole, result) = watched(writer, change).await;
                let failure = result.as_ref().err().filter(|_| !is_whole).map(|error| writer.fail(error));
                // Whoever asked may have gone.
                drop(sender.send((txg, result)));
                failure.map_or(Ok(()), Err)
            })
        });
        self.ask(|asked| asked.changes.push_back(change))?;
        loop {
            match race(&mut answer, self.shared.unless_refused(self.shared.txgs.sync())).await {
                Either::Left(Ok((txg, result))) => {
                    let result = result?;
                    self.wait_synced(txg).await?;
                    return Ok(result);
                }
                Either::Left(Err(_)) => return Err(self.fail(&TxError::Closed)),
                // The change stands behind others.
                Either::Right(Ok(_)) => {}
                Either::Right(Err(error)) => return Err(self.fail(&error)),
            }
        }
    }

    /// Has a change of the pool itself made in one of the next txgs, which the caller does not wait for. It may be lost where the
    /// power goes before; where it is refused the pool's owner is told ([`Pool::troubled`]).
    ///
    /// # Errors
    /// The pool is closed.
    pub fn change_later<F>(&self, what: &'static str, change: F) -> Result<(), SpaError>
    where
        F: for<'a> FnOnce(&'a mut Syncer) -> BoxFuture<'a, Result<(), SpaError>> + Send + 'static,
    {
        let troubles = self.shared.troubles.clone();
        let change: Change = Box::new(move |writer| {
            Box::pin(async move {
                let (is_whole, result) = watched(writer, change).await;
                if let Err(error) = &result {
                    troubles.tell(format!("{what}: {error}"));
                }
                if is_whole { Ok(()) } else { result }
            })
        });
        self.ask(|asked| asked.changes.push_back(change))?;
        self.shared.want_txg();
        Ok(())
    }

    /// Looks at the pool itself, between two txgs: it waits for the one that is being written, and needs none itself. Nothing that
    /// is on disk may be changed.
    ///
    /// # Errors
    /// What the look says; or the pool is closed or suspended.
    pub async fn look<T, F>(&self, look: F) -> Result<T, SpaError>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Syncer) -> BoxFuture<'a, Result<T, SpaError>> + Send + 'static,
    {
        self.shared.pass().await.map_err(|error| self.fail(&error))?;
        let (sender, answer) = oneshot::channel();
        let look: Change = Box::new(move |writer| {
            Box::pin(async move {
                let before = writer.mos.change_count();
                let result = look(writer).await;
                debug_assert_eq!(writer.mos.change_count(), before, "a look changes nothing");
                // The caller may have gone.
                drop(sender.send(result));
                Ok(())
            })
        });
        self.ask(|asked| asked.looks.push_back(look))?;
        self.shared.look_came.all();
        let answered = async { answer.await.map_err(|_| TxError::Closed) };
        self.shared.unless_refused(answered).await.map_err(|error| self.fail(&error))?
    }

    fn ask(&self, what: impl FnOnce(&mut Asked)) -> Result<(), SpaError> {
        let mut asked = self.shared.asked.lock();
        asked.as_mut().map(what).ok_or_else(|| self.fail(&TxError::Closed))
    }

    /// Opens a head dataset for changing what is in it. It takes no txg.
    ///
    /// # Errors
    /// There is none of this name, or it has something that cannot be kept up yet.
    pub async fn open_head(&self, name: &str) -> Result<LiveHead, SpaError> {
        let name = name.to_owned();
        let pool = self.clone();
        self.look(move |writer| {
            Box::pin(async move {
                let head = writer.open_head(&name).await?;
                pool.adopt(writer, &name, head).await
            })
        })
        .await
    }

    /// Takes up a head dataset that a change has made or opened: what is dirty of it counts from now on. For use within the
    /// change.
    ///
    /// # Errors
    /// The MOS cannot be read.
    pub async fn adopt(&self, writer: &Syncer, name: &str, head: Head) -> Result<LiveHead, SpaError> {
        head.objset.count_dirty(self.shared.txgs.dirty());
        let account = self.shared.account_of(writer, name, head.dataset).await?;
        self.shared.figures.lock().entry(head.dataset).or_default();
        let used = {
            let mut uses = self.shared.uses.lock();
            let used = uses.get(&head.dataset).and_then(Weak::upgrade).unwrap_or_default();
            uses.insert(head.dataset, Arc::downgrade(&used));
            used
        };
        self.shared.settle_accounts(writer).await?;
        Ok(LiveHead { pool: self.clone(), head, account, _used: used })
    }

    /// Writes all that was changed, says on disk that the pool is exported, and lets go of its devices.
    ///
    /// # Errors
    /// Something could not be written: the pool on disk is as of the last txg that was. While devices fail it waits, unless the
    /// pool is given up ([`Pool::abandon`]).
    pub async fn export(self) -> Result<(), SpaError> {
        self.shared.txgs.close();
        // Their devices are to be let go. Those who read on for long have them until they are done.
        let _ = self.shared.handle.timeout(view::VIEWS_END_MAX, self.shared.pins.close()).await;
        let join = self.shared.sync.lock().take();
        let closed = || self.fail(&TxError::Closed);
        let writer = join.ok_or_else(closed)?.await.map_err(|_| closed())?;
        match writer {
            Some(writer) => writer.export().await,
            None => Err(self.shared.txgs.enter().map_or_else(|error| self.fail(&error), |_| closed())),
        }
    }
}

/// Makes a change. False if it failed half-way: what failed without a trace is refused, and that is all.
async fn watched<T, F>(writer: &mut Syncer, change: F) -> (bool, Result<T, SpaError>)
where
    F: for<'a> FnOnce(&'a mut Syncer) -> BoxFuture<'a, Result<T, SpaError>>,
{
    let before = (writer.mos.change_count(), writer.given_up);
    let result = change(writer).await;
    let is_whole = result.is_ok() || (writer.mos.change_count(), writer.given_up) == before;
    (is_whole, result)
}

/// The sync's end, however it comes: those who wait for a change or a look are told, since nothing will make it. What they asked for
/// mostly has the pool, so left in its queues it would keep the pool in memory.
struct Unasked<'a>(&'a Shared);

impl Drop for Unasked<'_> {
    fn drop(&mut self) {
        let asked = self.0.asked.lock().take();
        let root = self.0.root.lock().take();
        drop((asked, root));
    }
}

impl Shared {
    /// Has the open txg written soon, whatever is in it.
    fn want_txg(&self) {
        let txgs = self.txgs.clone();
        // A failure of the txg is told to those who wait for it.
        self.handle.detach(Class::Issue, async move { drop(txgs.sync().await) });
    }

    /// Syncs one txg after the other, until all is closed.
    async fn sync(&self, mut writer: Syncer) -> Option<Syncer> {
        let _told = Unasked(self);
        let mut is_failed = false;
        while let Some(txg) = self.next(&mut writer).await {
            debug_assert_eq!(writer.txg(), txg, "the writer is at the txg that is synced");
            let result = self.sync_one(&mut writer, txg).await;
            is_failed = result.is_err();
            self.txgs.done(txg, result.map_err(|error| error.to_string()));
            if is_failed {
                break;
            }
        }
        (!is_failed).then_some(writer)
    }

    /// The next txg to be synced. Until it comes the pool is looked at by those who ask.
    async fn next(&self, writer: &mut Syncer) -> Option<Txg> {
        loop {
            let came = self.look_came.wait();
            while let Some(look) = self.asked(|asked| &mut asked.looks) {
                if look(writer).await.is_err() {
                    debug_assert!(false, "a look's failure is its caller's");
                }
            }
            match race(self.txgs.next(), came).await {
                Either::Left(txg) => return txg,
                Either::Right(()) => {}
            }
        }
    }

    /// Takes the first of a queue.
    fn asked(&self, queue: impl FnOnce(&mut Asked) -> &mut VecDeque<Change>) -> Option<Change> {
        queue(self.asked.lock().as_mut()?).pop_front()
    }

    async fn sync_one(&self, writer: &mut Syncer, txg: Txg) -> Result<(), SpaError> {
        let begun = self.handle.now();
        let dirty_bytes = self.txgs.dirty().txg_bytes(txg);
        let mut is_change = false;
        while self.handle.now() - begun < CHANGES_MAX {
            let Some(change) = self.asked(|asked| &mut asked.changes) else { break };
            is_change = true;
            change(writer).await?;
        }
        let (synced, serial) = history::Polled::new(self.handle.clone(), Box::pin(writer.sync())).await;
        synced?;
        let root = view::Root::of(writer);
        let before = std::mem::replace(&mut *self.root.lock(), root);
        drop(before);
        self.set_failmode(writer.failmode);
        *self.jobs.lock() = writer.jobs();
        if writer.has_work() {
            self.want_txg();
        }
        self.settle_accounts(writer).await?;
        let record = TxgRecord {
            txg,
            begun,
            took: self.handle.now() - begun,
            dirty_bytes,
            is_change,
            passes: writer.passes(),
            serial,
            space: writer.space_work(),
            phases: writer.take_phases(),
        };
        history::keep(&mut self.records.lock(), record);
        Ok(())
    }
}
