//! Lines of commands in the pool's history: each is there once, with the first change of its command, before any user is told.

use cenote_admin::{
    AdminError, Changed, CreateRequest, Going, HoldRequest, NoUsers, RenameRequest, Request, RollbackRequest,
    SetRequest, SnapshotRequest, Suspended, Users,
};
use cenote_dmu::tx::TxTunables;
use cenote_sim::{Machine, SINGLE, options};
use cenote_spa::{ImportOptions, Pool, find, import};
use cenote_taskq::sim::disk::{Crash, SimDiskOptions};
use cenote_taskq::{Handle, Runtime, boxed};

/// The lines of commands that are in the history on disk.
async fn lines(handle: &Handle, machine: &Machine) -> Vec<String> {
    let (mut pools, _) = find(handle, &machine.paths).await;
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let view = import(handle, pools.remove(0), &options).await.unwrap();
    let mut found = Vec::new();
    view.history(|record| found.extend(record.str("history command").map(str::to_owned))).await.unwrap();
    view.close().await;
    found
}

/// Users whose machine loses its power when they are told of a change, or are to continue after one.
struct Cut<'a>(&'a Machine);

impl Cut<'_> {
    fn cut(&self) {
        self.0.disks.iter().for_each(|disk| disk.crash(Crash::Random));
    }
}

impl Users for Cut<'_> {
    #[boxed]
    async fn before(&self, _: Going<'_>) -> Result<(), AdminError> {
        Ok(())
    }

    #[boxed]
    async fn suspend(&self, dataset: &str, other: &str) -> Result<Box<dyn Suspended>, AdminError> {
        NoUsers.suspend(dataset, other).await
    }

    #[boxed]
    async fn after(&self, _: Changed<'_>) -> Result<(), AdminError> {
        self.cut();
        Ok(())
    }
}

/// A pool in the background with `p/a`, its snapshots `1` and `2`, and `p/v`.
async fn prepared(runtime: &Runtime, machine: &Machine) -> Pool {
    let handle = runtime.handle();
    let tops = machine.tops(&handle, SINGLE).await.unwrap();
    let pool = cenote_sim::new_pool(&handle, options("p", tops, 12)).await.unwrap();
    let pool = pool.start(TxTunables::for_memory(64 << 20)).await;
    let create = |name: &str| CreateRequest { name: name.to_owned(), ..CreateRequest::default() };
    create("p/a").run(&pool, &NoUsers).await.unwrap();
    for name in ["p/a@1", "p/a@2"] {
        snapshot(name).run(&pool, &NoUsers).await.unwrap();
    }
    pool
}

fn snapshot(name: &str) -> SnapshotRequest {
    SnapshotRequest { snapshots: vec![name.to_owned()], ..SnapshotRequest::default() }
}

fn check_cut<R: Request>(request: &R) {
    let runtime = Runtime::simulated(7);
    runtime.block_on(cut(&runtime, request));
}

async fn cut<R: Request>(runtime: &Runtime, request: &R) {
    let machine = Machine::new(runtime, 1, &SimDiskOptions { size_bytes: 128 << 20, ..SimDiskOptions::default() });
    let pool = prepared(runtime, &machine).await;
    let before = lines(&pool.handle().clone(), &machine).await;
    let line = request.history_line().unwrap();
    let _ = request.run(&pool.recording(line.text(), 0), &Cut(&machine)).await;
    machine.disks.iter().for_each(|disk| disk.power_on());
    let after = lines(&pool.handle().clone(), &machine).await;
    assert_eq!(after[before.len()..], [line.text()], "the change and its line are on disk before users notice it");
}

#[test]
fn a_power_cut_while_users_are_told_of_a_change_leaves_its_line_in_the_history() {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    check_cut(&CreateRequest { name: "p/b".to_owned(), ..CreateRequest::default() });
    check_cut(&SetRequest { arguments: words(&["atime=off", "p/a"]) });
    check_cut(&snapshot("p/a@3"));
    check_cut(&RollbackRequest { snapshot: "p/a@1".into(), destroys_newer: true, destroys_clones: false });
    check_cut(&RenameRequest { from: "p/a".into(), to: "p/c".into(), ..RenameRequest::default() });
}

#[test]
fn a_command_has_one_line_and_a_refused_one_none() {
    let runtime = Runtime::simulated(8);
    let machine = Machine::new(&runtime, 1, &SimDiskOptions { size_bytes: 128 << 20, ..SimDiskOptions::default() });
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = prepared(&runtime, &machine).await;
        let before = lines(&handle, &machine).await.len();
        let hold = |tag: &str| HoldRequest {
            tag: tag.into(),
            snapshots: vec!["p/a@1".into(), "p/a@2".into()],
            ..HoldRequest::default()
        };
        let held = pool.recording("held", 0);
        assert_eq!(hold("t").run(&held, &NoUsers).await.unwrap(), 0);
        held.record().await.unwrap();
        let refused = pool.recording("refused", 0);
        snapshot("p/a@1").run(&refused, &NoUsers).await.unwrap_err();
        let at_the_end = pool.recording("at the end", 0);
        at_the_end.record_later().unwrap();
        pool.sync().await.unwrap();
        at_the_end.record().await.unwrap();
        pool.export().await.unwrap();
        assert_eq!(lines(&handle, &machine).await[before..], ["held", "at the end"], "two holds are two changes");
    });
}
