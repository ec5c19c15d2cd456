//! Goal: limits of how many datasets and snapshots there are hold for whoever obeys them, in every verb that makes more of them somewhere,
//! and counts are right whatever comes and goes. Method: each verb at its limit and one beyond, beside the counts that are expected.

use std::fmt::Display;

use cenote_admin::{Reach, clone_dataset, create_filesystem, destroy, destroy_snapshots, promote, take_snapshots};
use cenote_dsl::Counted;
use cenote_spa::{Pool, PropertyValue};
use cenote_taskq::Runtime;
use cenote_taskq::sim::disk::Latency;

use cenote_sim::written::*;

async fn counts(pool: &Pool, name: &str) -> Option<(u64, u64)> {
    let dsl = pool.dsl().unwrap();
    let dir = dsl.dir(name).await.unwrap().object;
    let count = async |counted| dsl.count(dir, counted).await.unwrap();
    Some((count(Counted::Datasets).await?, count(Counted::Snapshots).await?))
}

async fn limit(pool: &Pool, name: &str, property: &str, value: u64) {
    pool.change_property(name, property, Some(&PropertyValue::Number(value))).await.unwrap();
}

fn assert_refused<T, E: Display>(result: Result<T, E>, expected: &str) {
    match result {
        Ok(_) => panic!("not refused: {expected}"),
        Err(error) => assert_eq!(error.to_string(), expected),
    }
}

#[test]
fn limits_hold_in_every_verb_that_makes_more() {
    let runtime = Runtime::simulated(7);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    let paths = machine.paths.clone();
    runtime.block_on(async {
        let pool = make(&handle, options(machine.tops(&handle, LAYOUTS[0]).await.unwrap(), 12)).await;
        let make = async |name: &str| create_filesystem(&pool, name, Vec::new(), true).await;
        let snapshots = async |names: &[&str]| {
            take_snapshots(&pool, &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), &[]).await
        };
        make("written/a/b").await.unwrap();
        make("written/z/y").await.unwrap();
        snapshots(&["written/a/b@0", "written/z/y@0"]).await.unwrap();
        assert_eq!(counts(&pool, "written/a").await, None, "nothing is counted before there is a limit");
        // One of none counts nothing either.
        limit(&pool, "written/a", "snapshot_limit", u64::MAX).await;
        assert_eq!(counts(&pool, "written/a").await, None);
        limit(&pool, "written/a", "filesystem_limit", 2).await;
        limit(&pool, "written/a", "snapshot_limit", 3).await;
        assert_eq!(counts(&pool, "written/a").await, Some((1, 1)));
        assert_eq!(counts(&pool, "written/a/b").await, Some((0, 1)));
        assert_eq!([counts(&pool, "written").await, counts(&pool, "written/z").await], [None, None]);

        // Root is not stopped.
        make("written/a/c").await.unwrap();
        make("written/a/d").await.unwrap();
        assert_eq!(counts(&pool, "written/a").await, Some((3, 1)));
        destroy(&pool, "written/a/d", Reach::default()).await.unwrap();
        pool.obey_limits().await.unwrap();
        assert_refused(make("written/a/d").await, "cannot create 'written/a/d': out of space");
        assert_refused(make("written/a/b/c/d").await, "cannot create 'written/a/b/c': out of space");
        let cloned = clone_dataset(&pool, "written/a/b@0", "written/a/d", Vec::new()).await;
        assert_refused(cloned, "cannot create 'written/a/d': out of space");
        let moved = pool.rename_dataset("written/z/y", "written/a/y").await;
        assert_refused(moved, "cannot rename 'written/z/y': out of space");
        limit(&pool, "written/a", "filesystem_limit", 3).await;
        // Both that it would make count.
        assert_refused(make("written/a/b/c/d").await, "cannot create 'written/a/b/c/d': out of space");
        pool.rename_dataset("written/z/y", "written/a/y").await.unwrap();
        assert_eq!(counts(&pool, "written/a").await, Some((3, 2)));
        assert_eq!(counts(&pool, "written/a/y").await, Some((0, 1)));

        let refused = "cannot create snapshot 'written/a': out of space";
        assert_refused(snapshots(&["written/a@1", "written/a/b@1"]).await, refused);
        snapshots(&["written/a@1"]).await.unwrap();
        assert_refused(snapshots(&["written/a/b@1"]).await, refused);
        destroy_snapshots(&pool, &["written/a@1".into()], false, &|_| ()).await.unwrap();
        limit(&pool, "written/a/b", "snapshot_limit", 1).await;
        assert_refused(snapshots(&["written/a/b@1"]).await, "cannot create snapshot 'written/a/b': out of space");
        snapshots(&["written/a/c@1"]).await.unwrap();

        // A clone elsewhere takes the origin along.
        clone_dataset(&pool, "written/a/b@0", "written/z/clone", Vec::new()).await.unwrap();
        limit(&pool, "written/z", "snapshot_limit", 0).await;
        assert_refused(promote(&pool, "written/z/clone").await, "cannot promote 'written/z/clone': out of space");
        limit(&pool, "written/z", "snapshot_limit", u64::MAX).await;
        promote(&pool, "written/z/clone").await.unwrap();
        assert_eq!(counts(&pool, "written/z").await, Some((1, 1)));
        assert_eq!(counts(&pool, "written/a").await, Some((3, 2)));
        // A move within the limited part counts no more there.
        pool.rename_dataset("written/a/y", "written/a/c/y").await.unwrap();
        assert_eq!(
            [counts(&pool, "written/a").await, counts(&pool, "written/a/c").await],
            [Some((3, 2)), Some((1, 2))]
        );
        pool.rename_dataset("written/a/c", "written/z/c").await.unwrap();
        assert_eq!([counts(&pool, "written/a").await, counts(&pool, "written/z").await], [Some((1, 0)), Some((3, 3))]);
        limit(&pool, "written", "filesystem_limit", 100).await;
        assert_eq!(counts(&pool, "written").await, Some((6, 3)));
        destroy(&pool, "written/z", Reach { recursive: true, clones: true }).await.unwrap();
        assert_eq!(counts(&pool, "written").await, Some((1, 0)));
        while pool.peek(|syncer| syncer.has_work()).await.unwrap() {
            pool.sync().await.unwrap();
        }
        pool.export().await.unwrap();
        let (_, report) = check(&handle, &paths).await;
        assert_clean(&report, "at the end");
    });
}
