//! Many at once, while txgs are synced: nothing is lost, whatever order things happen in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_taskq::{Class, Rng, Runtime, RuntimeOptions};
use cenote_zpl::{AttributeChange, Cursor, FileSystemOptions, NewNode, RenameMode, XattrSet};

use super::{Live, fresh, judged};
use cenote_sim::written::files::make_file_system;
use cenote_sim::written::{SINGLE, options};

const TASKS: u64 = 12;

#[test]
fn what_many_do_at_once_in_one_tree_adds_up() {
    for seed in 0..8 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        runtime.block_on(async {
            let options = FileSystemOptions { record_bytes: 4096, ..FileSystemOptions::default() };
            let (machine, live) = fresh(&runtime, &handle, options).await;
            let root = live.fs.root();
            let mut dirs = vec![root];
            for name in [b"a", b"b", b"c"] {
                let new = NewNode { mode: 0o040_755, ..NewNode::default() };
                dirs.push(live.fs.create(root, name, &new).await.unwrap().object);
            }
            let mut joins = Vec::new();
            for task in 0..TASKS {
                let (fs, dirs, timer) = (live.fs.clone(), dirs.clone(), handle.clone());
                joins.push(handle.spawn(Class::Issue, async move {
                    let mut rng = Rng::new(seed << 8 | task);
                    for _ in 0..60 {
                        let dir = dirs[rng.below(4) as usize];
                        let to = dirs[rng.below(4) as usize];
                        let name = format!("n{}", rng.below(8)).into_bytes();
                        let other = format!("n{}", rng.below(8)).into_bytes();
                        // Any result is accepted: others are at the same names. The invariants are judged in the end.
                        let new = NewNode { mode: 0o100_644, uid: rng.below(3) as u32, ..NewNode::default() };
                        match rng.below(8) {
                            0 | 1 => drop(fs.create(dir, &name, &new).await),
                            2 => drop(fs.unlink(dir, &name).await),
                            3 => drop(fs.rename(dir, &name, to, &other, RenameMode::Replace).await),
                            4 => drop(fs.rename(dir, &name, to, &other, RenameMode::Exchange).await),
                            5 => {
                                if let Ok(id) = fs.lookup(dir, &name).await {
                                    drop(fs.link(id, to, &other).await);
                                }
                            }
                            6 => {
                                if let Ok(id) = fs.lookup(dir, &name).await {
                                    let change = AttributeChange { uid: Some(7), ..AttributeChange::default() };
                                    drop(fs.set_attributes(id, &change).await);
                                    drop(fs.set_xattr(id, b"user.x", &[1; 3000], XattrSet::Any).await);
                                }
                            }
                            _ => {
                                if let Ok(id) = fs.lookup(dir, &name).await
                                    && let Ok(open) = fs.open_file(id).await
                                {
                                    open.write(rng.below(40_000), &[5; 6000]).await.unwrap();
                                    timer.sleep(Duration::from_micros(rng.below(300))).await;
                                    open.close().await.unwrap();
                                }
                            }
                        }
                    }
                }));
            }
            let (fs, timer) = (live.fs.clone(), handle.clone());
            let reaper = handle.spawn(Class::Background, async move {
                for _ in 0..20 {
                    timer.sleep(Duration::from_micros(500)).await;
                    fs.reap().await.unwrap();
                }
            });
            let mut rng = Rng::new(seed);
            for _ in 0..25 {
                handle.sleep(Duration::from_micros(rng.below(800))).await;
                live.want_sync();
            }
            for join in joins {
                join.await.unwrap();
            }
            reaper.await.unwrap();
            live.fs.reap().await.unwrap();
            live.stop().await.export().await.unwrap();
            judged(&handle, &machine.paths).await.0.close().await;
        });
    }
}

/// A file's size and times are changed by all who write it; a later txg's change must not be undone by an earlier one's.
#[test]
fn writers_of_one_file_lose_nothing_between_txgs() {
    for seed in 0..8 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        runtime.block_on(async {
            let options = FileSystemOptions { record_bytes: 4096, ..FileSystemOptions::default() };
            let (machine, live) = fresh(&runtime, &handle, options).await;
            let new = NewNode { mode: 0o100_644, ..NewNode::default() };
            let id = live.fs.create(live.fs.root(), b"f", &new).await.unwrap().object;
            let mut joins = Vec::new();
            for task in 0..TASKS {
                let (fs, timer) = (live.fs.clone(), handle.clone());
                joins.push(handle.spawn(Class::Issue, async move {
                    let open = fs.open_file(id).await.unwrap();
                    let mut rng = Rng::new(seed << 8 | task);
                    // Parts of blocks that others write other parts of.
                    for round in 0..40 {
                        open.write((round * TASKS + task) * 1000, &[task as u8 + 1; 1000]).await.unwrap();
                        timer.sleep(Duration::from_micros(rng.below(200))).await;
                    }
                    open.close().await.unwrap();
                }));
            }
            let mut rng = Rng::new(seed);
            for _ in 0..20 {
                handle.sleep(Duration::from_micros(rng.below(500))).await;
                live.want_sync();
            }
            for join in joins {
                join.await.unwrap();
            }
            let listed = live.fs.list(live.fs.root(), Cursor::START, 10).await.unwrap();
            assert_eq!(listed.len(), 1);
            live.stop().await.export().await.unwrap();
            let (pool, fs) = judged(&handle, &machine.paths).await;
            let read = fs.open_file(id).await.unwrap().read(0, 1 << 20).await.unwrap();
            assert_eq!(read.len() as u64, 40 * TASKS * 1000);
            for (index, part) in read.chunks(1000).enumerate() {
                let task = index as u64 % TASKS;
                assert!(part.iter().all(|byte| *byte == task as u8 + 1), "seed {seed} part {index}");
            }
            pool.close().await;
        });
    }
}

/// A name can be found as soon as it is in the directory, by tasks on other cores before the one that makes the file goes on.
#[test]
fn a_new_file_that_is_opened_at_once_by_its_name_is_one_node() {
    const FILES: usize = 4_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk0");
    std::fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
    let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
    let handle = runtime.handle();
    let paths = vec![path];
    runtime.block_on(async {
        let pool =
            make_file_system(&handle, options(cenote_sim::tops(&handle, SINGLE, &paths).await.unwrap(), 12)).await;
        let live = Live::start(&handle, pool, FileSystemOptions::default()).await;
        let fs = live.fs.clone();
        let name = |at: usize| format!("n{at}").into_bytes();
        let (opener, is_over) = (fs.clone(), Arc::new(AtomicBool::new(false)));
        let ends = is_over.clone();
        let opening = handle.spawn(Class::Issue, async move {
            let mut opened = Vec::new();
            while opened.len() < FILES && !ends.load(Ordering::SeqCst) {
                if let Ok(id) = opener.lookup(opener.root(), &name(opened.len())).await {
                    opened.push(opener.hold(id).await.unwrap());
                }
            }
            opened
        });
        let new = NewNode { mode: 0o100_644, ..NewNode::default() };
        let making = handle.spawn(Class::Issue, async move {
            let mut made = Vec::new();
            for at in 0..FILES {
                made.push(fs.create_file(fs.root(), &name(at), &new).await.unwrap().0);
            }
            for (at, file) in made.iter().enumerate().step_by(100) {
                file.write(0, &[7; 9][..1 + at % 9]).await.unwrap();
            }
            made
        });
        let made = making.await;
        is_over.store(made.is_err(), Ordering::SeqCst);
        let (opened, made) = (opening.await.unwrap(), made.unwrap());
        for (made, opened) in made.iter().zip(&opened) {
            assert_eq!((made.id(), made.size_bytes()), (opened.id(), opened.size_bytes()));
        }
        drop((made, opened));
        live.stop().await.export().await.unwrap();
    });
}
