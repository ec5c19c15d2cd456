//! Goal: a mount knows of its datasets what is so, whatever commands did, though each command names only those that it has changed.
//! Method: random commands are carried out on a pool with a tree over it, as the program does it, and after each the tree's knowledge is
//! compared with a look at all datasets ([`Tree::audit`]); at the end with what a new tree shows.

#![allow(clippy::disallowed_methods)]

use crate::support;

use std::sync::Arc;

use cenote_format::enums::ObjsetType;
use cenote_fuse::{Layout, Tree, TreeOptions};
use cenote_spa::{Pool, PropertyValue, SpaError};
use cenote_taskq::{Rng, Runtime, RuntimeOptions};
use cenote_zpl::bulk::{BulkWriter, NodeSpec};

use support::live::new_pool;

const TOP: &str = "mounted/top";

async fn make(pool: &Pool, name: String) -> Result<(), SpaError> {
    let made = pool.change(move |syncer| {
        Box::pin(async move {
            syncer.check_create(&name).await?;
            let head = syncer.create_dataset(&name, ObjsetType::Zfs).await?;
            let spec = NodeSpec { mode: 0o755, ..NodeSpec::default() };
            BulkWriter::create(&head.objset, syncer.txg(), &spec).await.unwrap();
            Ok::<(), SpaError>(())
        })
    });
    made.await.map(drop)
}

/// Names of all datasets, the pool's own first.
async fn names(pool: &Pool) -> Vec<String> {
    let dsl = pool.dsl().unwrap();
    let tree = dsl.tree(dsl.root_dir().await.unwrap(), false).await.unwrap();
    tree.into_iter().map(|dir| dir.name).collect()
}

/// One random command: whether it was carried out, and the datasets that it has changed.
async fn command(pool: &Pool, tree: &Tree, rng: &mut Rng, number: u64) -> Option<Vec<String>> {
    let all = names(pool).await;
    let one = all[rng.below(all.len() as u64) as usize].clone();
    match rng.below(10) {
        0..4 => {
            let name = format!("{one}/{}", ["a", "b", "c", "d", "a-b"][rng.below(5) as usize]);
            make(pool, name.clone()).await.ok()?;
            Some(vec![name])
        }
        4..6 => {
            let parent = &all[rng.below(all.len() as u64) as usize];
            let to = format!("{parent}/r{number}");
            pool.change({
                let (one, to) = (one.clone(), to.clone());
                move |syncer| Box::pin(async move { syncer.rename_dataset(&one, &to).await })
            })
            .await
            .ok()?;
            Some(vec![one, to])
        }
        6 => {
            if one == TOP || tree.release_datasets(std::slice::from_ref(&one)).await.unwrap().is_some() {
                return None;
            }
            let gone = one.clone();
            let destroyed =
                pool.change(move |syncer| Box::pin(async move { syncer.destroy_dataset(&gone).await })).await;
            // Also where it stays: it has left the mount.
            tree.refresh(std::slice::from_ref(&one)).await.unwrap();
            destroyed.ok().map(|_| vec![one])
        }
        7 => {
            let at = ["/mounted/top/x", "/mounted/top/x/y", "/mounted/top", "/elsewhere", "none", "/mounted/top/a"];
            let value = PropertyValue::Text(at[rng.below(6) as usize].to_owned());
            let value = (rng.below(3) > 0).then_some(value);
            pool.change_property(&one, "mountpoint", value.as_ref()).await.ok()?;
            Some(vec![one])
        }
        8 => {
            pool.change_property(&one, "canmount", Some(&PropertyValue::Number(rng.below(3)))).await.ok()?;
            Some(vec![one])
        }
        _ => {
            let (property, number) = [("readonly", 1), ("recordsize", 4096), ("exec", 0)][rng.below(3) as usize];
            let value = (rng.below(2) > 0).then_some(PropertyValue::Number(number));
            pool.change_property(&one, property, value.as_ref()).await.ok()?;
            // Several at once, of which some are below others.
            Some(vec![one.clone(), TOP.to_owned(), one])
        }
    }
}

#[test]
fn what_a_mount_knows_of_its_datasets_is_so_after_any_commands() {
    for (seed, layout) in [(1, Layout::Mountpoints), (2, Layout::Mountpoints), (3, Layout::Names)] {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
        let handle = runtime.handle();
        runtime.block_on(async {
            let pool = new_pool(&handle, &folder.path().join("disk")).await;
            make(&pool, TOP.to_owned()).await.unwrap();
            let options = || TreeOptions { layout, report: Arc::new(|_| {}), ..TreeOptions::default() };
            let tree = Tree::open_live(&pool, TOP, options()).await.unwrap();
            let mut rng = Rng::new(seed);
            let mut done = 0;
            for number in 0..120 {
                let Some(changed) = command(&pool, &tree, &mut rng, number).await else { continue };
                done += 1;
                // The mounted dataset may have another name now.
                tree.refresh(&changed).await.unwrap();
                tree.audit().await.unwrap();
            }
            assert!(done > 40, "seed {seed}: {done} commands were carried out");
            tree.close().await;
            drop(tree);
            pool.export().await.unwrap();
        });
    }
}
