//! Transactions in simulation: the clock is virtual, so what is waited for is seen exactly.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cenote_format::ids::Txg;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Handle, Rng, Runtime};

use super::*;

const MIB: u64 = 1 << 20;

/// The txgs that the sync of the test has seen.
#[derive(Default)]
struct Seen {
    synced: Vec<Txg>,
    /// Changes made in each txg.
    changes: BTreeMap<Txg, u64>,
}

struct Pool {
    handle: Handle,
    txgs: Transactions,
    seen: Arc<Mutex<Seen>>,
}

impl Pool {
    /// Transactions with a sync that takes `sync_ms`.
    fn start(handle: &Handle, tunables: TxTunables, sync_ms: u64) -> Self {
        Self::start_with(handle, tunables, sync_ms, |_, _| ())
    }

    /// The same, with something that each sync ends with.
    fn start_with(
        handle: &Handle,
        tunables: TxTunables,
        sync_ms: u64,
        at_end: impl Fn(&Transactions, Txg) + Send + 'static,
    ) -> Self {
        let txgs = Transactions::new(handle, Txg(4), tunables);
        let seen = Arc::new(Mutex::new(Seen::default()));
        let quiescing = txgs.clone();
        handle.detach(Class::Sync, async move { quiescing.quiesce().await });
        let (syncing, told, clock) = (txgs.clone(), seen.clone(), handle.clone());
        handle.detach(Class::Sync, async move {
            while let Some(txg) = syncing.next().await {
                let before = told.lock().changes.get(&txg).copied();
                clock.sleep(Duration::from_millis(sync_ms)).await;
                let mut seen = told.lock();
                assert_eq!(seen.changes.get(&txg).copied(), before, "a txg changed while it was synced");
                assert!(seen.synced.last().is_none_or(|last| last.0 + 1 == txg.0), "txgs are synced in order");
                seen.synced.push(txg);
                drop(seen);
                at_end(&syncing, txg);
                syncing.done(txg, Ok(()));
            }
        });
        Self { handle: handle.clone(), txgs, seen }
    }

    async fn change(&self, bytes: u64) -> Result<Txg, TxError> {
        let tx = self.txgs.assign(Cost::write(0, bytes, bytes), None).await?;
        self.txgs.dirty().change(tx.txg(), bytes as i64);
        *self.seen.lock().changes.entry(tx.txg()).or_default() += 1;
        Ok(tx.txg())
    }
}

fn small() -> TxTunables {
    TxTunables { zfs_dirty_data_max: 10 * MIB, ..TxTunables::default() }
}

#[test]
fn a_change_is_on_disk_after_the_timeout_though_nobody_asks() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = Pool::start(&handle, small(), 10);
        let begun = handle.now();
        let txg = pool.change(4096).await.unwrap();
        while pool.txgs.synced_txg() < txg {
            handle.sleep(Duration::from_millis(1)).await;
        }
        let took = handle.now() - begun;
        assert!((Duration::from_secs(5)..Duration::from_secs(6)).contains(&took), "{took:?}");
        handle.sleep(Duration::from_secs(60)).await;
        assert_eq!(pool.seen.lock().synced.len(), 1, "a pool that nobody changes is not written");
    });
}

#[test]
fn waiting_for_a_txg_has_it_written_at_once() {
    let runtime = Runtime::simulated(2);
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = Pool::start(&handle, small(), 10);
        let begun = handle.now();
        let txg = pool.change(4096).await.unwrap();
        pool.txgs.wait_synced(txg).await.unwrap();
        assert!(handle.now() - begun < Duration::from_millis(100));
    });
}

#[test]
fn a_held_txg_is_not_synced_and_others_go_on_in_the_next() {
    let runtime = Runtime::simulated(3);
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = Pool::start(&handle, small(), 10);
        let held = pool.txgs.enter().unwrap();
        let (txgs, txg) = (pool.txgs.clone(), held.txg());
        let waiting = handle.spawn(Class::Issue, async move { txgs.wait_synced(txg).await });
        handle.sleep(Duration::from_secs(1)).await;
        let next = pool.txgs.enter().unwrap();
        assert_eq!(next.txg().0, txg.0 + 1);
        assert_eq!(pool.txgs.synced_txg().0 + 1, txg.0);
        drop(held);
        waiting.await.unwrap().unwrap();
        assert!(pool.txgs.synced_txg() >= txg);
        drop(next);
    });
}

#[test]
fn txgs_never_go_down_and_changes_are_slowed_not_stopped() {
    for seed in 0..20 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        runtime.block_on(async {
            // 2 MiB of every txg are written in 100 ms: a writer of more is slowed.
            let pool = Arc::new(Pool::start(&handle, small(), 100));
            let newest = Rc::new(RefCell::new(Txg(0)));
            let longest = Rc::new(RefCell::new(Duration::ZERO));
            let writers = (0..8_u64).map(|writer| {
                let (pool, newest, longest) = (pool.clone(), newest.clone(), longest.clone());
                async move {
                    let mut rng = Rng::new(seed ^ (writer << 32));
                    for _ in 0..400 {
                        let begun = pool.handle.now();
                        let txg = pool.change(4096 + rng.below(16 << 10)).await.unwrap();
                        let took = pool.handle.now() - begun;
                        let slowest = (*longest.borrow()).max(took);
                        *longest.borrow_mut() = slowest;
                        assert!(txg >= *newest.borrow(), "{txg} after {}", newest.borrow());
                        *newest.borrow_mut() = txg;
                        assert!(pool.txgs.dirty().total_bytes() <= 10 * MIB + (1 << 20));
                    }
                }
            });
            cenote_taskq::join_all(writers).await;
            let last = pool.txgs.sync().await.unwrap();
            let seen = pool.seen.lock();
            assert_eq!(seen.changes.values().sum::<u64>(), 3200);
            assert!(seen.synced.contains(&last));
            assert!(*longest.borrow() < Duration::from_millis(250), "{:?}", longest.borrow());
        });
    }
}

#[test]
fn what_is_dirty_is_forgotten_when_it_is_on_disk() {
    let runtime = Runtime::simulated(5);
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = Pool::start(&handle, small(), 10);
        for _ in 0..100 {
            pool.change(MIB).await.unwrap();
        }
        pool.txgs.sync().await.unwrap();
        assert_eq!(pool.txgs.dirty().total_bytes(), 0);
    });
}

#[test]
fn closing_writes_what_came_in_and_lets_nobody_in() {
    let runtime = Runtime::simulated(6);
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = Pool::start(&handle, small(), 10);
        let txg = pool.change(4096).await.unwrap();
        pool.txgs.close();
        pool.txgs.wait_synced(txg).await.unwrap();
        assert_eq!(pool.change(4096).await, Err(TxError::Closed));
        assert_eq!(pool.seen.lock().synced, [txg]);
    });
}

#[test]
fn a_txg_that_quiesced_behind_one_that_failed_is_not_synced() {
    let runtime = Runtime::simulated(7);
    let handle = runtime.handle();
    runtime.block_on(async {
        let txgs = Transactions::new(&handle, Txg(4), small());
        let quiescing = txgs.clone();
        handle.detach(Class::Sync, async move { quiescing.quiesce().await });
        for txg in [4, 5] {
            let waiting = txgs.clone();
            handle.detach(Class::Sync, async move { drop(waiting.wait_synced(Txg(txg)).await) });
        }
        assert_eq!(txgs.next().await, Some(Txg(4)));
        handle.sleep(Duration::from_secs(1)).await;
        assert_eq!(txgs.open_txg(), Txg(6), "the next one has quiesced");
        txgs.done(Txg(4), Err(TxgFailure::unwritten("the disk is on fire")));
        assert_eq!(txgs.next().await, None);
    });
}

#[test]
fn a_failed_sync_tells_everyone_and_nothing_follows() {
    let runtime = Runtime::simulated(7);
    let handle = runtime.handle();
    runtime.block_on(async {
        let txgs = Transactions::new(&handle, Txg(4), small());
        let quiescing = txgs.clone();
        handle.detach(Class::Sync, async move { quiescing.quiesce().await });
        let syncing = txgs.clone();
        let sync = handle.spawn(Class::Sync, async move {
            let txg = syncing.next().await.unwrap();
            syncing.done(txg, Err(TxgFailure::unwritten("the disk is on fire")));
            syncing.next().await
        });
        let txg = txgs.enter().unwrap().txg();
        let failed = TxError::Suspended("the disk is on fire".to_owned());
        assert_eq!(txgs.wait_synced(txg).await, Err(failed.clone()));
        assert_eq!(sync.await.unwrap(), None);
        handle.sleep(Duration::from_secs(1)).await;
        assert_eq!(txgs.enter().unwrap_err(), failed);
        assert_eq!(txgs.assign(Cost::objects(1), None).await.unwrap_err(), failed);
    });
}

#[test]
fn changes_come_in_while_there_is_space_and_not_after() {
    let runtime = Runtime::simulated(8);
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = Pool::start(&handle, small(), 10);
        let root = Arc::new(Account::new(None, None));
        let dir = Account::new(Some("tank/a".to_owned()), Some(root.clone()));
        let cost = Cost::default().with_bytes(MIB - 512);
        let some = |bytes| Left { bytes: Some(bytes), to_free_bytes: Some(bytes + MIB), ..Left::default() };
        root.set(Txg(3), &some(10 * MIB), 100 * MIB, |_| 0);
        dir.set(Txg(3), &some(2 * MIB), 100 * MIB, |_| 0);
        // Two fit; the third waits for a sync, and as nothing tells it otherwise it comes in again then.
        drop(pool.txgs.assign(cost, Some(&dir)).await.unwrap());
        drop(pool.txgs.assign(cost, Some(&dir)).await.unwrap());
        let txg = pool.txgs.sync().await.unwrap();
        dir.set(txg, &some(0), 100 * MIB, |_| 0);
        let refused = pool.txgs.assign(cost, Some(&dir)).await.unwrap_err();
        assert_eq!(refused, TxError::Quota("tank/a".to_owned()));
        drop(pool.txgs.assign(cost.that_frees(), Some(&dir)).await.unwrap());
        dir.set(txg, &Left::default(), 100 * MIB, |_| 0);
        root.set(txg, &some(0), 100 * MIB, |_| 0);
        assert_eq!(pool.txgs.assign(cost, Some(&dir)).await.unwrap_err(), TxError::NoSpace);
        let txg = pool.txgs.sync().await.unwrap();
        root.set(txg, &some(0), 100 * MIB, |_| 0);
        // Space that is reserved for a dataset is there for it though the pool is full.
        dir.set(txg, &Left { cushion_bytes: MIB, ..Left::default() }, 100 * MIB, |_| 0);
        drop(pool.txgs.assign(cost, Some(&dir)).await.unwrap());
    });
}

#[test]
fn an_account_that_becomes_tight_counts_changes_that_are_still_being_made() {
    let runtime = Runtime::simulated(10);
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = Pool::start(&handle, small(), 10);
        let account = Account::new(None, None);
        let cost = Cost::default().with_bytes(MIB - 512);
        // There is plenty of space, so this is not counted; nor is it dirty before it has been made.
        let held = pool.txgs.assign(cost, Some(&account)).await.unwrap();
        assert_eq!(pool.txgs.dirty().total_bytes(), 0);
        let left = Left { bytes: Some(MIB + MIB / 2), to_free_bytes: Some(2 * MIB), ..Left::default() };
        account.set(Txg(held.txg().0 - 1), &left, 100 * MIB, |later| pool.txgs.coming_bytes(later));
        let asking = pool.txgs.assign(cost, None).await.unwrap();
        assert_eq!(asking.txg(), held.txg());
        let verdict = account.reserve(asking.txg(), &cost, 512, || pool.txgs.coming_bytes(asking.txg()));
        assert!(matches!(verdict, super::account::Verdict::Later));
        let txg = held.txg();
        drop((held, asking));
        assert_eq!(pool.txgs.coming_bytes(txg), 0);
    });
}

/// A change of the same object again and again: its worst case has the object's metadata each time.
#[test]
fn changes_that_take_less_than_their_worst_case_share_a_txg_in_a_pool_that_is_nearly_full() {
    let runtime = Runtime::simulated(11);
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = Pool::start(&handle, small(), 10);
        let root = Account::new(None, None);
        let cost = Cost::write(0, 4096, 4096);
        let worst = cost.data_bytes(512) + cost.metadata_bytes();
        // Room for three worst cases.
        let left = Left { bytes: Some(3 * worst), to_free_bytes: Some(3 * worst), ..Left::default() };
        root.set(Txg(3), &left, 100 * MIB, |_| 0);
        let mut txgs = Vec::new();
        for _ in 0..20 {
            let tx = pool.txgs.assign(cost, Some(&root)).await.unwrap();
            pool.txgs.dirty().change(tx.txg(), 4096);
            txgs.push(tx.txg());
        }
        assert_eq!(
            (txgs[0], txgs[19]),
            (Txg(4), Txg(4)),
            "what the first changes did not take is there for the others"
        );
    });
}

/// Changes take no more than was left, for any share of their worst cases and any number at a time.
#[test]
fn changes_let_in_never_take_more_than_was_left() {
    for seed in 0..60 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let (left_bytes, percent) = (MIB + rng.below(MIB), 100 + rng.below(150));
            let left = move |bytes: u64| Left {
                bytes: Some(bytes),
                to_free_bytes: Some(bytes),
                data_percent: percent,
                ..Left::default()
            };
            let account = Arc::new(Account::new(None, None));
            account.set(Txg(3), &left(left_bytes), 100 * MIB, |_| 0);
            // Bytes that changes took, by txg. Nothing is freed here, so all of it stays taken; the account is told after each sync.
            let taken: Arc<Mutex<BTreeMap<Txg, u64>>> = Arc::default();
            let (told, all) = (account.clone(), taken.clone());
            let pool = Arc::new(Pool::start_with(&handle, small(), 10, move |txgs, txg| {
                let used: u64 = all.lock().range(..=txg).map(|(_, bytes)| *bytes).sum();
                told.set(txg, &left(left_bytes - used), 100 * MIB, |later| txgs.coming_bytes(later));
            }));
            let mut tasks = Vec::new();
            for _ in 0..4 {
                let mut rng = Rng::new(rng.next_u64());
                let (pool, account, taken, clock) = (pool.clone(), account.clone(), taken.clone(), handle.clone());
                tasks.push(handle.spawn(Class::Issue, async move {
                    for _ in 0..60 {
                        let cost = Cost::objects(rng.below(2)).with_bytes(rng.below(96 << 10));
                        let Ok(tx) = pool.txgs.assign(cost, Some(&account)).await else { return };
                        // All of it, nothing, or a part, in two steps.
                        let worst = cost.data_bytes(512) + cost.metadata_bytes();
                        let takes = [0, worst, rng.below(worst + 1)][rng.below(3) as usize];
                        let first = rng.below(takes + 1);
                        for step in [first, takes - first] {
                            clock.sleep(Duration::from_micros(rng.below(3000))).await;
                            pool.txgs.dirty().change(tx.txg(), step as i64);
                            let mut taken = taken.lock();
                            *taken.entry(tx.txg()).or_default() += step;
                            let sum: u64 = taken.values().sum();
                            assert!(sum <= left_bytes, "{sum} bytes where {left_bytes} were left");
                        }
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            let taken = taken.lock();
            let (sum, txgs) = (taken.values().sum::<u64>(), taken.len());
            assert!(sum >= left_bytes / 2, "changes go on while there is room: {sum} of {left_bytes} in {txgs} txgs");
        });
    }
}

#[test]
fn a_full_pool_is_called_full_though_every_sync_frees_something() {
    let runtime = Runtime::simulated(9);
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = Pool::start(&handle, small(), 10);
        let root = Account::new(None, None);
        let full = Left { bytes: Some(0), to_free_bytes: Some(0), has_deferred: true, ..Left::default() };
        root.set(Txg(3), &full, MIB, |_| 0);
        let refused = pool.txgs.assign(Cost::objects(1), Some(&root)).await.unwrap_err();
        assert_eq!(refused, TxError::NoSpace);
        assert!(pool.seen.lock().synced.len() <= 4, "a few txgs tell");
    });
}

/// A block takes whole sectors, whatever its size: 8 times its own where it has 512 bytes and the sector 4 KiB.
#[test]
fn blocks_smaller_than_a_sector_are_charged_the_sector() {
    let pointers = 256;
    let small = Cost::write(0, 1 << 20, 512);
    assert_eq!(small.data_bytes(512), (1 << 20) + 2048 * pointers);
    assert_eq!(small.data_bytes(4096), 2048 * (4096 + pointers));
    assert_eq!(small.data_bytes(8192), 2048 * (8192 + pointers));
    // Files of 4.5 KiB have one block of that size.
    assert_eq!(Cost::default().with_bytes(4608).data_bytes(4096), 8192 + pointers);
    // A whole sector, or several, has nothing to fill.
    assert_eq!(Cost::write(0, 1 << 20, 1 << 17).data_bytes(4096), (1 << 20) + 8 * pointers);
    // Of sizes that differ never less than all of them take.
    let mixed = small.with_bytes(1 << 17).with_bytes(4608);
    let true_bytes = 2048 * (4096 + pointers) + (1 << 17) + pointers + 8192 + pointers;
    assert!(mixed.data_bytes(4096) >= true_bytes);
    assert_eq!(Cost::objects(3).data_bytes(4096), 0);
}
