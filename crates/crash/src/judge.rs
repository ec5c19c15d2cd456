//! The verdict: imports the pool that a cut has left, verifies it, and compares it with the models as of its txg.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use cenote_dmu::{Objset, Zap};
use cenote_dsl::property::Source;
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::int_key;
use cenote_format::zpl::{MASTER_NODE, master_node};
use cenote_scan::{BadBlock, VerifyOptions, VerifyReport, verify};
use cenote_spa::{FoundPool, ImportOptions, Rewind, View, find, import};
use cenote_taskq::Handle;
use cenote_vdev::config::VdevKind;
use cenote_zpl::{Cursor, FileSystem};
use cenote_zvol::Volume;

use crate::load::{dataset_name, key_bytes, name_bytes, object_len};
use crate::machine::{Machine, Shape};
use crate::model::{Datasets, Files, Grown, content};
use crate::models::{Models, shared};
use crate::snapshots::FAMILIES;
use crate::stage::{CACHE_BYTES, FILE_SYSTEMS, VOLUME, WRITERS, dir_name, words};

/// Entries of the delete queue at most.
const QUEUE_MAX: usize = 1 << 16;
/// Bytes that a file system may use beyond its quota: nothing is let in that does not fit at worst, and metadata costs more than that
/// only where it is not worth a word.
const QUOTA_SLACK_BYTES: u64 = 64 << 10;

/// Devices that have missed writes, and whose dirty time logs say so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Behind {
    /// None has.
    #[default]
    None,
    /// This one, by its path.
    One(String),
    /// Which of them is not known: all have failed for a while.
    Any,
}

/// The expectations of a pool after a cut.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// The last txg that was reported synced.
    pub(crate) promised: Txg,
    /// As of an earlier txg: then nothing is promised but that all of it is there.
    pub(crate) rewind: Option<Txg>,
    /// Devices of which copies may be stale, and are known to be.
    pub(crate) behind: Behind,
    /// A device that is lost, or has stale bytes that nobody knows of.
    pub(crate) lost: Option<String>,
    /// The log device was removed: its disks are not the pool's any more, also where it is wound back.
    pub(crate) log_went: bool,
}

pub(crate) async fn found(handle: &Handle, paths: &[PathBuf]) -> Result<FoundPool, String> {
    let (mut pools, skipped) = find(handle, paths).await;
    if pools.len() != 1 {
        return Err(format!("{} pools are found; {skipped:?}", pools.len()));
    }
    Ok(pools.remove(0))
}

pub(crate) fn import_options() -> ImportOptions {
    let mut tunables = cenote_spa::tunables::settings();
    // Blocks are small here: many writes are to be logged by reference all the same.
    tunables.set_from("zfs_immediate_write_sz=6000").expect("a tunable that there is");
    ImportOptions { cache_bytes: CACHE_BYTES, force: true, tunables, ..ImportOptions::default() }
}

/// A pool that is open to be read, and the txg that it is as of.
pub(crate) async fn imported(handle: &Handle, machine: &Machine, expected: &Expected) -> Result<View, String> {
    let rewind = expected.rewind.map_or(Rewind::None, Rewind::ToTxg);
    // Before the txg that removed a log device the pool had one, on which nothing was any more.
    let missing_log = expected.rewind.is_some() && expected.log_went;
    let options = ImportOptions { rewind, missing_log, ..import_options() };
    let pool = import(handle, found(handle, &machine.paths).await?, &options).await;
    pool.map_err(|error| format!("not imported: {error}"))
}

/// Judges an imported pool; models that go on from there.
pub(crate) async fn judge(
    handle: &Handle,
    pool: &View,
    shape: &Shape,
    models: &Models,
    expected: &Expected,
) -> Result<(Txg, Models), String> {
    let txg = pool.txg();
    match expected.rewind {
        Some(wanted) if txg != wanted => return Err(format!("wound back to txg {txg} instead of {wanted}")),
        Some(_) => {}
        None if txg < expected.promised => {
            return Err(format!("txg {} was reported synced, {txg} is there", expected.promised));
        }
        None => models.broken_promise(txg).map_or(Ok(()), Err)?,
    }
    let report = verify(handle, pool, VerifyOptions::default(), &mut |_| true).await.map_err(words)?;
    check_report(&report, expected).map_err(|error| format!("as of txg {txg}: {error}"))?;
    pool.audit().await.map_err(words)?;
    if models.has_snapshots() {
        let space = cenote_sim::audit_space(pool).await;
        space.map_err(|error| format!("as of txg {txg}, space: {error:#}"))?;
    }
    let mut families = Vec::new();
    for (family, log) in models.families.iter().enumerate() {
        let log = log.lock().clone();
        families.push(shared(crate::snapshots::judge(pool, family, &log, &models.in_use(family)).await?));
    }
    let mut files = Vec::new();
    let mut logs = models.files.iter();
    for name in FILE_SYSTEMS {
        let objset = objset(pool, name).await?;
        let fs = FileSystem::open(objset.clone()).await.map_err(words)?;
        let mut objects = BTreeSet::new();
        for (at, log) in logs.by_ref().take(WRITERS).enumerate() {
            let there = read_files(&fs, at, &mut objects).await.map_err(|error| format!("files of {name}: {error}"))?;
            let log = log.lock();
            let state = log.as_of(txg).into_iter().find(|state| files_of(state) == there);
            let state = state.ok_or_else(|| {
                let difference = first_difference(&files_of(&log.as_of(txg)[0]), &there);
                format!("writer {at} of {name} is not as of txg {txg}: {difference}; {}", log.tail(txg))
            })?;
            files.push(shared(state));
        }
        // Attribute directories have files too, which have no names of their own.
        if !shape.has_xattr_dirs() {
            check_objects(&objset, objects).await.map_err(|error| format!("{name} as of txg {txg}: {error}"))?;
        }
    }
    let volume = Volume::open(&objset(pool, VOLUME).await?).await.map_err(words)?;
    let mut ranges = Vec::new();
    for log in &models.ranges {
        let log = log.lock().clone();
        let state = log.as_of(txg).remove(0);
        let there = volume.read(state.offset_bytes, state.bytes.len()).await.map_err(words)?;
        if there[..] != state.bytes[..] {
            let at = there.iter().zip(&state.bytes).position(|(there, wanted)| there != wanted).unwrap_or(0);
            let offset = state.offset_bytes;
            return Err(format!("the volume from {offset} on is not as of txg {txg} at +{at}: {}", log.tail(txg)));
        }
        ranges.push(shared(state));
    }
    let log = models.datasets.lock().clone();
    let state = log.as_of(txg).remove(0);
    check_datasets(pool, &state).await.map_err(|error| format!("as of txg {txg}: {error}; {}", log.tail(txg)))?;
    if let Some(quota_bytes) = shape.quota_bytes {
        let dir = pool.dsl().dir(FILE_SYSTEMS[1]).await.map_err(words)?;
        if dir.phys.used_bytes > quota_bytes + QUOTA_SLACK_BYTES {
            return Err(format!(
                "{} uses {} bytes with a quota of {quota_bytes}",
                FILE_SYSTEMS[1], dir.phys.used_bytes
            ));
        }
    }
    let tops = pool.vdevs().children.len() - shape.top_count();
    let log = models.grown.lock().clone();
    let log_device = shape.log_place().and_then(|place| pool.vdevs().children.get(place));
    let there = Grown { tops, is_log_gone: log_device.is_some_and(|vdev| vdev.kind == VdevKind::Hole) };
    if !log.as_of(txg).contains(&there) {
        return Err(format!("as of txg {txg} it has {there:?}; {}", log.tail(txg)));
    }
    let grown = there;
    Ok((txg, Models { files, ranges, datasets: shared(state), grown: shared(grown), families }))
}

/// Everything can be read and the account adds up; bad copies are only where they may be.
fn check_report(report: &VerifyReport, expected: &Expected) -> Result<(), String> {
    let excused = |bad: &BadBlock| {
        let bad = &bad.why;
        let is_on = |device: &Option<String>| device.as_ref().is_some_and(|device| bad.contains(device.as_str()));
        let is_behind = match &expected.behind {
            Behind::None => false,
            Behind::One(device) => bad.contains(device.as_str()),
            Behind::Any => true,
        };
        is_on(&expected.lost) || is_behind && (bad.contains("stale") || bad.contains("unavailable"))
    };
    let is_whole = report.error_count == 0
        && report.misuse_count == 0
        && report.leaked_bytes == 0
        && report.problems.is_empty()
        && report.statistics.accounted_bytes() == report.allocated_bytes;
    match is_whole && report.bad_copies.iter().all(excused) {
        true => Ok(()),
        false => Err(report.to_string()),
    }
}

/// Every file there is has a name, or stands in the delete queue.
async fn check_objects(objset: &Objset, mut known: BTreeSet<ObjectId>) -> Result<(), String> {
    let master = Zap::open(objset.object(MASTER_NODE).await.map_err(words)?).await.map_err(words)?;
    if let Some(queue) = master.find_u64(master_node::UNLINKED_SET).await.map_err(words)? {
        let queue = Zap::open(objset.object(ObjectId(queue)).await.map_err(words)?).await.map_err(words)?;
        let entries = queue.entries(QUEUE_MAX).await.map_err(words)?;
        known.extend(entries.iter().filter_map(|entry| int_key(entry.name())).map(ObjectId));
    }
    let mut from = ObjectId(0);
    while let Some(next) = objset.next_objects(from).await.map_err(words)? {
        for (object, dnode) in next.objects {
            let dnode = dnode.map_err(words)?;
            if dnode.phys().object_type == DmuType::PLAIN_FILE_CONTENTS && !known.contains(&object) {
                return Err(format!("file {object} has no name and is not in the delete queue"));
            }
        }
        from = next.next;
    }
    Ok(())
}

pub(crate) async fn objset(pool: &View, name: &str) -> Result<Objset, String> {
    let dataset = pool.dsl().dataset(name).await.map_err(words)?;
    pool.dsl().open(&dataset).await.map_err(words)?.ok_or_else(|| format!("{name} has no objset"))
}

/// Names with which file (by number, in the order of first names), content and attributes.
pub(crate) type Seen = BTreeMap<(u8, Vec<u8>), (usize, Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>)>;

pub(crate) fn files_of(state: &Files) -> Seen {
    let mut order = BTreeMap::new();
    let mut sorted: Vec<_> = state.names.iter().map(|(name, number)| ((name.0, name_bytes(*name)), *number)).collect();
    sorted.sort();
    let mut seen = Seen::new();
    for (name, number) in sorted {
        let count = order.len();
        let place = *order.entry(number).or_insert(count);
        let file = state.files.get(&number).cloned().unwrap_or_default();
        let xattrs = file.xattrs.into_iter().map(|(key, value)| (key_bytes(key), value)).collect();
        seen.insert(name, (place, file.bytes, xattrs));
    }
    seen
}

pub(crate) async fn read_files(
    fs: &FileSystem,
    writer: usize,
    objects: &mut BTreeSet<ObjectId>,
) -> Result<Seen, String> {
    let mut found: BTreeMap<(u8, Vec<u8>), ObjectId> = BTreeMap::new();
    for which in 0..2_u8 {
        let name = dir_name(writer * 2 + usize::from(which));
        let dir = fs.lookup(fs.root(), name.as_bytes()).await.map_err(words)?;
        let mut cursor = Cursor::default();
        loop {
            let entries = fs.list(dir, cursor, 100).await.map_err(words)?;
            let Some(last) = entries.last() else { break };
            cursor = last.next;
            found.extend(entries.into_iter().map(|entry| ((which, entry.name), entry.object)));
        }
    }
    let mut order: BTreeMap<ObjectId, usize> = BTreeMap::new();
    let mut links: BTreeMap<ObjectId, u64> = BTreeMap::new();
    found.values().for_each(|object| *links.entry(*object).or_default() += 1);
    let mut seen = Seen::new();
    for (name, object) in found {
        let count = order.len();
        let place = *order.entry(object).or_insert(count);
        objects.insert(object);
        let file = fs.open_file(object).await.map_err(words)?;
        let attributes = file.attributes().map_err(words)?;
        if Some(attributes.link_count) != links.get(&object).copied() {
            return Err(format!(
                "object {object} has {:?} names and counts {}",
                links.get(&object),
                attributes.link_count
            ));
        }
        let size = usize::try_from(attributes.size_bytes).map_err(words)?;
        let bytes = file.read(0, size).await.map_err(words)?.to_vec();
        let xattrs = fs.xattrs(object).await.map_err(words)?;
        seen.insert(name, (place, bytes, xattrs));
    }
    Ok(seen)
}

pub(crate) fn first_difference(wanted: &Seen, there: &Seen) -> String {
    for name in wanted.keys().chain(there.keys()) {
        let at = format!("{}/{}", name.0, String::from_utf8_lossy(&name.1));
        match (wanted.get(name), there.get(name)) {
            (Some(wanted), Some(there)) if wanted != there => {
                let place = wanted.1.iter().zip(&there.1).position(|(wanted, there)| wanted != there);
                return format!(
                    "{at}: file {} of {} bytes with {} attributes, not file {} of {} bytes with {} attributes; first \
                     other byte {place:?}",
                    there.0,
                    there.1.len(),
                    there.2.len(),
                    wanted.0,
                    wanted.1.len(),
                    wanted.2.len()
                );
            }
            (Some(_), None) => return format!("{at} is not there"),
            (None, Some(_)) => return format!("{at} should not be there"),
            _ => {}
        }
    }
    "nothing".to_owned()
}

async fn check_datasets(pool: &View, state: &Datasets) -> Result<(), String> {
    let dsl = pool.dsl();
    let root = dsl.root_dir().await.map_err(words)?;
    let mut names: Vec<String> =
        dsl.children(&root, false).await.map_err(words)?.into_iter().map(|child| child.0).collect();
    names.sort();
    let mut wanted: Vec<String> = state.datasets.keys().map(|number| dataset_name(*number)).collect();
    wanted.extend(FILE_SYSTEMS.iter().chain([&VOLUME]).map(|name| (*name).to_owned()));
    wanted.extend((0..FAMILIES).map(|family| format!("written/s{family}")));
    let mut wanted: Vec<&str> = wanted.iter().filter_map(|name| name.strip_prefix("written/")).collect();
    wanted.sort_unstable();
    if names != wanted {
        return Err(format!("datasets {names:?} instead of {wanted:?}"));
    }
    for (number, dataset) in &state.datasets {
        let name = dataset_name(*number);
        let dir = dsl.dir(&name).await.map_err(words)?;
        for property in ["copies", "atime", "quota", "compression"] {
            let there = if property == "quota" {
                (dir.phys.quota_bytes != 0).then_some(dir.phys.quota_bytes)
            } else {
                let found = dsl.property(&dir, property, true).await.map_err(words)?;
                let own = found.filter(|found| found.source == Source::Local);
                own.and_then(|found| found.value.number())
            };
            let wanted = dataset.properties.get(property).copied();
            if there != wanted {
                return Err(format!("{name} has {property} {there:?} instead of {wanted:?}"));
            }
        }
        let objset = objset(pool, &name).await?;
        let mut objects = Vec::new();
        let mut from = ObjectId(0);
        while let Some(next) = objset.next_objects(from).await.map_err(words)? {
            for (_, dnode) in next.objects {
                let dnode = dnode.map_err(words)?;
                if dnode.phys().object_type == DmuType::UINT8_DATA {
                    objects.push(dnode);
                }
            }
            from = next.next;
        }
        if objects.len() != dataset.objects.len() {
            return Err(format!("{name} has {} objects instead of {}", objects.len(), dataset.objects.len()));
        }
        for (dnode, (_, seed)) in objects.iter().zip(&dataset.objects) {
            let wanted = content(*seed, object_len(*seed));
            let there = dnode.read(0, wanted.len()).await.map_err(words)?;
            if there[..] != wanted[..] {
                return Err(format!("object {} of {name} has other content", dnode.id()));
            }
        }
    }
    let comment = pool.config().str("comment");
    let wanted = state.comment.map(|comment| comment.to_string());
    if comment != wanted.as_deref() {
        return Err(format!("comment {comment:?} instead of {wanted:?}"));
    }
    Ok(())
}
