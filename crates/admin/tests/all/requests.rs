//! Requests beside users that write down what they notice: in which order, and that none is forgotten where the verb fails.

use cenote_admin::{
    AdminError, Changed, CloneRequest, CreateRequest, DestroyRequest, Going, HoldRequest, InheritRequest, NoUsers,
    PromoteRequest, Reach, RenameRequest, Request, RollbackRequest, SetPoolRequest, SetRequest, SnapshotRequest,
    Suspended, Users,
};
use cenote_sim::{Machine, SINGLE, options};
use cenote_spa::Pool;
use cenote_taskq::sim::disk::SimDiskOptions;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{BoxFuture, Handle, Runtime, boxed};
use std::sync::Arc;

const DISK_BYTES: u64 = 128 << 20;

async fn new_pool(runtime: &Runtime, handle: &Handle) -> Pool {
    let machine = Machine::new(runtime, 1, &SimDiskOptions { size_bytes: DISK_BYTES, ..SimDiskOptions::default() });
    let tops = machine.tops(handle, SINGLE).await.unwrap();
    cenote_sim::new_pool(handle, options("p", tops, 12)).await.unwrap()
}

/// Users that write down what they notice, and have a dataset in use if they are told so.
#[derive(Clone, Default)]
struct Noticed {
    lines: Arc<Mutex<Vec<String>>>,
    is_in_use: bool,
}

impl Noticed {
    fn note(&self, line: String) {
        self.lines.lock().push(line);
    }

    /// The lines since the last call.
    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock())
    }
}

impl Users for Noticed {
    #[boxed]
    async fn before(&self, going: Going<'_>) -> Result<(), AdminError> {
        self.note(format!("before {} {}", going.verb, going.names.join(" ")));
        if self.is_in_use { Err(AdminError::of_users("it is in use")) } else { Ok(()) }
    }

    #[boxed]
    async fn suspend(&self, dataset: &str, other: &str) -> Result<Box<dyn Suspended>, AdminError> {
        self.note(format!("suspend {dataset} {other}"));
        Ok(Box::new(self.clone()) as Box<dyn Suspended>)
    }

    #[boxed]
    async fn after(&self, changed: Changed<'_>) -> Result<(), AdminError> {
        self.note(match changed {
            Changed::Datasets(datasets) => format!("after {}", datasets.join(" ")),
            Changed::Properties { datasets, names } => format!("set {} of {}", names.join(" "), datasets.join(" ")),
        });
        Ok(())
    }

    fn renaming(&self) -> Box<dyn FnOnce() + Send> {
        let this = self.clone();
        Box::new(move || this.note("renaming".to_owned()))
    }

    fn tell(&self, line: &str) {
        self.note(format!("told {line}"));
    }
}

impl Suspended for Noticed {
    fn resume(self: Box<Self>) -> BoxFuture<'static, Result<(), AdminError>> {
        self.note("resume".to_owned());
        Box::pin(async { Ok(()) })
    }
}

fn create(name: &str) -> CreateRequest<'_> {
    CreateRequest { name: name.to_owned(), parents: true, ..CreateRequest::default() }
}

fn snapshot(name: &str) -> SnapshotRequest {
    SnapshotRequest { snapshots: vec![name.to_owned()], ..SnapshotRequest::default() }
}

fn clone(snapshot: &str, name: &str) -> CloneRequest {
    CloneRequest { snapshot: snapshot.to_owned(), name: name.to_owned(), ..CloneRequest::default() }
}

fn rename(from: &str, to: &str) -> RenameRequest {
    RenameRequest { from: from.to_owned(), to: to.to_owned(), ..RenameRequest::default() }
}

fn rollback(snapshot: &str, destroys_newer: bool, destroys_clones: bool) -> RollbackRequest {
    RollbackRequest { snapshot: snapshot.to_owned(), destroys_newer, destroys_clones }
}

#[test]
fn users_notice_each_verb_before_and_after_it_and_continue_where_it_fails() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    runtime.block_on(async {
        let (pool, users) = (new_pool(&runtime, &handle).await, Noticed::default());
        create("p/a/b").run(&pool, &users).await.unwrap();
        assert_eq!(users.taken(), ["after p/a"], "a mount shows all that is new by its outermost");
        snapshot("p/a/b@1").run(&pool, &users).await.unwrap();
        assert_eq!(users.taken(), ["after p/a/b"]);
        clone("p/a/b@1", "p/c").run(&pool, &users).await.unwrap();
        assert_eq!(users.taken(), ["after p/c"]);
        let set = |words: [&str; 2]| SetRequest { arguments: words.map(str::to_owned).to_vec() };
        set(["refreservation=1T", "p/c"]).run(&pool, &users).await.unwrap_err();
        assert!(users.taken().is_empty(), "nothing is different");
        set(["snapdev=visible", "p/c"]).run(&pool, &users).await.unwrap();
        let note = "told note: 'snapdev' is stored; Cenote does not obey it yet";
        assert_eq!(users.taken(), [note, "set snapdev of p/c"]);
        rename("p/c", "p/d").run(&pool, &users).await.unwrap();
        assert_eq!(users.taken(), ["before rename to p/c", "renaming", "after p/c p/d"]);
        rename("p/none", "p/e").run(&pool, &users).await.unwrap_err();
        assert_eq!(users.taken(), ["before rename to p/none"]);
        PromoteRequest("p/d".to_owned()).run(&pool, &users).await.unwrap();
        assert_eq!(users.taken(), ["after p/d p/a/b"]);

        snapshot("p/d@2").run(&pool, &users).await.unwrap();
        clone("p/d@2", "p/e").run(&pool, &users).await.unwrap();
        users.taken();
        rollback("p/d@1", false, false).run(&pool, &users).await.unwrap_err();
        assert_eq!(
            users.taken(),
            ["suspend p/d p/d@1", "resume", "after ", "after p/d"],
            "a refusal comes while they wait"
        );
        rollback("p/d@1", true, false).run(&pool, &users).await.unwrap_err();
        assert!(users.taken().is_empty(), "a clone is in the way: nobody has to wait");
        rollback("p/d@1", false, true).run(&pool, &users).await.unwrap();
        let noticed = ["before destroy p/e", "suspend p/d p/d@1", "resume", "after p/e", "after p/d"];
        assert_eq!(users.taken(), noticed);

        let hold =
            HoldRequest { tag: "t".into(), snapshots: vec!["p/d@1".into(), "p/d@9".into()], ..HoldRequest::default() };
        assert_eq!(hold.run(&pool, &users).await.unwrap(), 1);
        assert_eq!(users.taken(), ["told cannot hold snapshot 'p/d@9': dataset does not exist"]);
        let release = HoldRequest { releases: true, snapshots: vec!["p/d@1".into()], ..hold };
        assert_eq!(release.run(&pool, &users).await.unwrap(), 0);
        assert_eq!(users.taken(), ["before release hold from snapshot p/d@1"]);

        DestroyRequest::new("p/a".into()).run(&pool, &users).await.unwrap_err();
        assert_eq!(users.taken(), ["after p/a"], "one with others below it is taken from nobody");
        let tree =
            DestroyRequest { reach: Reach { recursive: true, clones: false }, ..DestroyRequest::new("p/a".into()) };
        tree.run(&pool, &users).await.unwrap();
        assert_eq!(users.taken(), ["before destroy p/a", "after p/a"]);
        assert!(pool.failure().is_none());
    });
}

#[test]
fn what_users_had_to_give_up_is_shown_again_where_another_is_in_use() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = new_pool(&runtime, &handle).await;
        create("p/a").run(&pool, &NoUsers).await.unwrap();
        snapshot("p/a@1").run(&pool, &NoUsers).await.unwrap();
        snapshot("p/a@2").run(&pool, &NoUsers).await.unwrap();
        clone("p/a@2", "p/c").run(&pool, &NoUsers).await.unwrap();
        let users = Noticed { is_in_use: true, ..Noticed::default() };
        rollback("p/a@1", false, true).run(&pool, &users).await.unwrap_err();
        assert_eq!(users.taken(), ["before destroy p/c", "after p/c", "after p/a"]);
        DestroyRequest::new("p/c".into()).run(&pool, &users).await.unwrap_err();
        assert_eq!(users.taken(), ["before destroy p/c", "after p/c"]);
        let dsl = pool.dsl().unwrap();
        assert!(dsl.find_dir("p/c").await.unwrap().is_some() && dsl.dataset("p/a@2").await.is_ok());
    });
}

/// The root itself remains, but its snapshots go: a mount that shows them is asked, and so are all datasets below.
#[test]
fn a_destroy_of_all_below_the_root_asks_about_the_root_and_each_child() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = new_pool(&runtime, &handle).await;
        create("p/a/b").run(&pool, &NoUsers).await.unwrap();
        create("p/c").run(&pool, &NoUsers).await.unwrap();
        snapshot("p@1").run(&pool, &NoUsers).await.unwrap();
        for reach in [Reach { recursive: true, clones: false }, Reach { recursive: false, clones: true }] {
            let users = Noticed::default();
            let destroy = DestroyRequest { reach, is_dry: true, ..DestroyRequest::new("p".into()) };
            destroy.run(&pool, &users).await.unwrap();
            assert_eq!(users.taken(), ["before destroy p", "before destroy p/a p/c", "after p"], "{reach:?}");
        }
    });
}

#[test]
fn clones_that_users_gave_up_are_shown_again_where_the_destroy_of_a_snapshot_fails_or_is_dry() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = new_pool(&runtime, &handle).await;
        create("p/a").run(&pool, &NoUsers).await.unwrap();
        snapshot("p/a@1").run(&pool, &NoUsers).await.unwrap();
        clone("p/a@1", "p/c").run(&pool, &NoUsers).await.unwrap();
        let reach = Reach { recursive: false, clones: true };
        let users = Noticed { is_in_use: true, ..Noticed::default() };
        let destroy = DestroyRequest { reach, ..DestroyRequest::new("p/a@1".into()) };
        destroy.run(&pool, &users).await.unwrap_err();
        assert_eq!(users.taken(), ["before destroy p/c", "after p/a p/c"]);
        let users = Noticed::default();
        DestroyRequest { is_dry: true, ..destroy }.run(&pool, &users).await.unwrap();
        let noticed = users.taken();
        assert_eq!(noticed.first().map(String::as_str), Some("before destroy p/c"));
        assert_eq!(noticed.last().map(String::as_str), Some("after p/a p/c"));
    });
}

#[test]
fn all_that_a_check_without_the_pool_refuses_is_refused_with_it_too() {
    async fn refused<R: Request>(pool: &Pool, request: R) -> String {
        let before = pool.history().len();
        let refused = request.check().unwrap_err().to_string();
        let users = Noticed::default();
        let run = request.run(pool, &users).await.map(drop).unwrap_err().to_string();
        assert_eq!(refused, run);
        assert!(users.taken().is_empty() && pool.history().len() == before, "{refused}");
        refused
    }
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = new_pool(&runtime, &handle).await;
        let arguments =
            |words: &[&str]| SetRequest { arguments: words.iter().map(|word| (*word).to_owned()).collect() };
        for (told, words) in [
            (refused(&pool, create("p/a%")).await, "cannot create 'p/a%': invalid character '%' in name"),
            (
                refused(&pool, CreateRequest { is_dry: true, ..create("p/") }).await,
                "cannot verify 'p/': trailing slash in name",
            ),
            (refused(&pool, snapshot("p")).await, "'p': missing '@' delimiter in snapshot name"),
            (refused(&pool, clone("p", "p/c")).await, "cannot open 'p': missing '@' delimiter in snapshot name"),
            (refused(&pool, clone("p@1", "q/c")).await, "cannot create 'q/c': source and target pools differ"),
            (
                refused(&pool, rollback("p", true, true)).await,
                "cannot open 'p': missing '@' delimiter in snapshot name",
            ),
            (refused(&pool, arguments(&["p"])).await, "missing property=value argument"),
            (refused(&pool, arguments(&["a:b=c"])).await, "missing dataset name"),
            (
                refused(&pool, InheritRequest { property: "used".into(), ..InheritRequest::default() }).await,
                "used property is read-only",
            ),
            (
                refused(
                    &pool,
                    SetPoolRequest { setting: "size=1".into(), pool: "p".into(), ..SetPoolRequest::default() },
                )
                .await,
                "cannot set property for 'p': property 'size' is readonly",
            ),
            // Without a reader of lists none is set.
            (
                refused(
                    &pool,
                    SetPoolRequest {
                        setting: "compatibility=nothing".into(),
                        pool: "p".into(),
                        ..SetPoolRequest::default()
                    },
                )
                .await,
                "property 'compatibility': cannot use 'nothing'",
            ),
        ] {
            assert_eq!(told, words);
        }
    });
}
