//! Latency of a client that syncs beside other work: another dataset that commits all the time, and files made in its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};
use cenote_dmu::tx::SyncMode;
use cenote_format::enums::ObjsetType;
use cenote_spa::LiveHead;
use cenote_taskq::Class;
use cenote_taskq::buf::Block;
use cenote_zil::Log;
use cenote_zpl::bulk::{BulkWriter, NodeSpec};
use cenote_zpl::{File, FileSystem, FileSystemOptions, NewNode};
use serde_json::{Map, Value};

use super::real::{COLUMNS, SPEC, rows, warmed};
use super::{Options, Round, WRITE_BYTES};
use cenote_bench::report::{Suite, Table, short};
use cenote_bench::writing::rig::{Rig, noise};

const OTHER: &str = "bench/other";
/// Writers of the other dataset.
const OTHER_WRITERS: usize = 16;
/// Files that are made in the same dataset, in bursts: together 10 000 a second.
const BURST: u64 = 10;
const BURST_TIME: Duration = Duration::from_millis(1);
/// Of the time alone.
const TIMES_MAX: f64 = 1.5;

const ALONE: &str = "alone";
const COMMITS: &str = "another dataset commits";
const CREATES: &str = "10 000 files a second";

/// Measures.
pub(super) fn beside(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let mut table = Table::new("4 KiB of one writer, each stable before the next, beside other work", &COLUMNS);
    let mut all = Vec::new();
    let found = rows(&mut table, &mut all, options.rounds, 1, &[ALONE, COMMITS, CREATES], |who| {
        let rig = Rig::new(&options.folder, SPEC)?.keep_file();
        measured(&rig, who, options.seconds).map(Some)
    })?;
    let of = |who: &str| found.iter().find(|row| row.0 == who).map(|row| row.1.median_us);
    for who in [COMMITS, CREATES] {
        if let (Some(busy), Some(alone)) = (of(who), of(ALONE)) {
            let ratio = busy / alone;
            suite.target(
                format!("fsync beside {who}: latency <= {TIMES_MAX} of alone"),
                short(ratio),
                ratio <= TIMES_MAX,
            );
        }
    }
    suite.notes.push(format!(
        "{COMMITS}: {OTHER_WRITERS} writers of another file system sync 4 KiB all the time. {CREATES}: so many files are made in the \
         same file system, and not synced; the writer's own records come after their names in the log."
    ));
    suite.tables.push(table);
    raw.insert("beside".into(), all.into());
    Ok(())
}

/// A file system that is written to, with its log.
struct Opened {
    fs: Arc<FileSystem>,
    log: Arc<Log>,
    files: Vec<File>,
}

async fn opened(head: &LiveHead, writers: usize, data: &Block) -> Result<Opened> {
    let log = Arc::new(head.log(SyncMode::Standard));
    let options = FileSystemOptions { record_bytes: 8 << 10, ..FileSystemOptions::default() };
    let fs = FileSystem::open_logged(head.objset(), log.clone(), options).await?;
    let mut files = Vec::new();
    for writer in 0..writers {
        let new = NewNode { mode: 0o100_644, ..NewNode::default() };
        let (file, _) = fs.create_file(fs.root(), format!("w{writer}").as_bytes(), &new).await?;
        for at in 0..256 {
            file.write(at * WRITE_BYTES as u64, data).await?;
        }
        files.push(file);
    }
    Ok(Opened { fs: Arc::new(fs), log, files })
}

fn measured(rig: &Rig, who: &str, seconds: f64) -> Result<Round> {
    let (head, data) = (rig.head()?, noise(WRITE_BYTES, 5));
    let bytes = data.clone();
    let (mine, other) = rig.run(async move {
        let pool = head.pool();
        let made = pool.create_dataset(OTHER, ObjsetType::Zfs).await?;
        BulkWriter::create(&made.objset, pool.txg(), &NodeSpec { mode: 0o755, ..NodeSpec::default() }).await?;
        let other = pool.open_head(OTHER).await?;
        let opened = (opened(&head, 1, &bytes).await?, opened(&other, OTHER_WRITERS, &bytes).await?);
        head.pool().sync().await?;
        Ok(opened)
    })?;
    let (mine, other, ended) = (Arc::new(mine), Arc::new(other), Arc::new(AtomicBool::new(false)));
    let handle = rig.runtime().handle();
    let mut joins = Vec::new();
    match who {
        COMMITS => joins.extend((0..OTHER_WRITERS).map(|writer| {
            let (other, ended, data) = (other.clone(), ended.clone(), data.clone());
            handle.spawn(Class::Issue, async move {
                for number in 0.. {
                    if ended.load(Ordering::Relaxed) {
                        break;
                    }
                    let file = &other.files[writer];
                    file.write(number % 256 * WRITE_BYTES as u64, &data).await?;
                    other.log.sync(Some(file.id())).await?;
                }
                anyhow::Ok(())
            })
        })),
        CREATES => {
            let (mine, ended, clock) = (mine.clone(), ended.clone(), handle.clone());
            joins.push(handle.spawn(Class::Issue, async move {
                let begun = clock.now();
                for number in 0_u64.. {
                    if ended.load(Ordering::Relaxed) {
                        break;
                    }
                    let new = NewNode { mode: 0o100_644, ..NewNode::default() };
                    mine.fs.create_file(mine.fs.root(), format!("f{number}").as_bytes(), &new).await?;
                    if (number + 1).is_multiple_of(BURST) {
                        let due = begun + BURST_TIME * u32::try_from((number + 1) / BURST)?;
                        let now = clock.now();
                        if due > now {
                            clock.sleep(due - now).await;
                        }
                    }
                }
                anyhow::Ok(())
            }));
        }
        _ => {}
    }
    let (writer, bytes) = (mine.clone(), data.clone());
    let round = warmed(rig, None, 1, seconds, move |_, number: u64| {
        let (mine, data) = (writer.clone(), bytes.clone());
        async move {
            mine.files[0].write(number % 256 * WRITE_BYTES as u64, &data).await?;
            Ok(mine.log.sync(Some(mine.files[0].id())).await?)
        }
    });
    ended.store(true, Ordering::Relaxed);
    for join in joins {
        rig.runtime().block_on(join).map_err(|error| anyhow!("{error}"))??;
    }
    round
}
