//! The verdict on what intent logs give back: a pool that was cut is opened to be written, its logs are replayed, and what is there then is
//! compared with what clients were told.
//!
//! A log has the changes of names in their order, so the names are those of one moment, which is not before the last that a client was
//! told of. Data is logged apart from names, read when it is asked for, and in several records where it is long: so a file's size is that
//! of one such moment or between two of them, and each of its bytes is of one.

use std::collections::BTreeMap;

use cenote_format::ids::Txg;
use cenote_zpl::FileSystem;
use cenote_zvol::Volume;

use crate::judge::{Seen, files_of, first_difference, read_files};
use crate::load::key_bytes;
use crate::model::{Bytes, File, FileChange, Files, Log, Name};
use crate::models::{Models, shared};
use crate::stage::{FILE_SYSTEMS, VOLUME, WRITERS, words};

/// Keys of extended attributes that a writer sets.
const KEYS: u8 = 4;

/// Compares file systems and a volume whose logs were replayed on a pool as of a txg; models that go on from there.
pub(crate) async fn compare(
    models: &Models,
    filesystems: &[FileSystem],
    volume: &Volume,
    txg: Txg,
) -> Result<Models, String> {
    let mut files = Vec::new();
    let mut logs = models.files.iter();
    for (fs, name) in filesystems.iter().zip(FILE_SYSTEMS) {
        for (at, log) in logs.by_ref().take(WRITERS).enumerate() {
            let there = read_files(fs, at, &mut Default::default()).await;
            let there = there.map_err(|error| format!("files of {name}, replayed: {error}"))?;
            let log = log.lock();
            let state = explained(&log, txg, &there)
                .map_err(|error| format!("writer {at} of {name}, replayed on txg {txg}: {error}; {}", log.tail(txg)))?;
            files.push(shared(state));
        }
    }
    let mut ranges = Vec::new();
    for log in &models.ranges {
        let log = log.lock().clone();
        let mut state = log.newest();
        let there = volume.read(state.offset_bytes, state.bytes.len()).await.map_err(words)?;
        let mut bytes = Bytes::new(&there);
        log.each_later(txg, |state| bytes.look(&state.bytes));
        if let Some(at) = bytes.unexplained() {
            let offset = state.offset_bytes;
            return Err(format!("{VOLUME} from {offset} on, replayed on txg {txg}, at +{at}: {}", log.tail(txg)));
        }
        state.bytes = there.to_vec();
        ranges.push(shared(state));
    }
    let Models { datasets, grown, families, .. } = models;
    Ok(Models { files, ranges, datasets: datasets.clone(), grown: grown.clone(), families: families.clone() })
}

/// The state that was found, if the changes since a txg explain it.
pub(crate) fn explained(log: &Log<Files>, txg: Txg, there: &Seen) -> Result<Files, String> {
    let places = |seen: &Seen| -> Vec<_> { seen.iter().map(|(name, file)| (name.clone(), file.0)).collect() };
    let wanted = places(there);
    let mut candidates: Vec<BTreeMap<Name, u64>> = Vec::new();
    let mut nearest = None;
    let is_of_names = |state: &Files, change: &FileChange| state.subject(change).is_none();
    log.each_later_about(txg, is_of_names, |state| {
        let seen = files_of(state);
        if places(&seen) == wanted && candidates.last() != Some(&state.names) {
            candidates.push(state.names.clone());
        }
        nearest.get_or_insert(seen);
    });
    let mut why = format!("names: {}", first_difference(&nearest.unwrap_or_default(), there));
    for names in candidates {
        match contents(log, txg, &names, there) {
            Ok(files) => return Ok(Files::with_files(names, files)),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// The files that these names lead to, each with what was found, if that is explained.
fn contents(
    log: &Log<Files>,
    txg: Txg,
    names: &BTreeMap<Name, u64>,
    there: &Seen,
) -> Result<BTreeMap<u64, File>, String> {
    let mut files = BTreeMap::new();
    for (name, number) in names {
        let key = (name.0, crate::load::name_bytes(*name));
        let Some((_, bytes, xattrs)) = there.get(&key) else { return Err(format!("{name:?} is not there")) };
        let (mut found, mut is_size, mut is_key) = (Bytes::new(bytes), false, [false; KEYS as usize]);
        let mut before = None;
        let is_of_it = |state: &Files, change: &FileChange| state.subject(change) == Some(*number);
        log.each_later_about(txg, is_of_it, |state| {
            let Some(file) = state.files.get(number) else { return };
            found.look(&file.bytes);
            let size = file.bytes.len();
            is_size |= (before.unwrap_or(size).min(size)..=size).contains(&bytes.len());
            before = Some(size);
            for key in 0..KEYS {
                is_key[usize::from(key)] |= file.xattrs.get(&key) == xattrs.get(&key_bytes(key));
            }
        });
        if let Some(at) = found.unexplained() {
            let mut known = Vec::new();
            log.each_later_about(txg, is_of_it, |state| {
                known.extend(state.files.get(number).map(|file| file.bytes.get(at).copied()))
            });
            known.dedup();
            return Err(format!("{name:?} has at {at} of {} the byte {}, not {known:?}", bytes.len(), bytes[at]));
        }
        if !is_size || is_key.contains(&false) {
            return Err(format!("{name:?} has a size ({}) or attributes ({is_key:?}) of no time", bytes.len()));
        }
        let known = (0..KEYS).filter_map(|key| Some((key, xattrs.get(&key_bytes(key))?.clone())));
        files.insert(*number, File { bytes: bytes.clone(), xattrs: known.collect() });
    }
    Ok(files)
}
