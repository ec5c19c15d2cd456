//! The verdict on a family: the pool has a state that may be there, with the contents of each dataset and snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_dmu::Objset;
use cenote_dsl::Dir;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::DatasetFlags;
use cenote_format::ids::{ObjectId, Txg};
use cenote_spa::View;
use cenote_zpl::FileSystem;
use cenote_zvol::Volume;

use super::actor::InUse;
use super::model::{Contents, Family, From, Known, Partial, Verb, in_use, of};
use crate::judge::{files_of, first_difference, objset, read_files};
use crate::model::Log;
use crate::stage::words;

/// The streams that are received beside a dataset.
const RECEIVED: &str = "/%recv";

/// Names and links of a family, without contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Links {
    heads: BTreeSet<String>,
    origins: BTreeMap<String, String>,
    /// Of each dataset, in their order.
    snapshots: BTreeMap<String, Vec<String>>,
    clones: BTreeMap<String, Vec<String>>,
    holds: BTreeSet<(String, String)>,
    deferred: BTreeSet<String>,
    bookmarks: BTreeSet<String>,
}

impl Links {
    fn of_model(family: &Family) -> Self {
        let mut links = Self {
            heads: family.heads.keys().cloned().collect(),
            origins: family.origins.clone(),
            holds: family.holds.clone(),
            deferred: family.deferred.clone(),
            bookmarks: family.bookmarks.keys().cloned().collect(),
            ..Self::default()
        };
        for snapshot in &family.snapshots {
            links.snapshots.entry(of(&snapshot.name).to_owned()).or_default().push(snapshot.name.clone());
        }
        for (clone, origin) in &family.origins {
            links.clones.entry(origin.clone()).or_default().push(clone.clone());
        }
        links
    }

    fn difference(&self, there: &Self) -> String {
        let Self { heads, origins, snapshots, clones, holds, deferred, bookmarks } = self;
        let mut all = Vec::new();
        let mut say = |what: &str, wanted: String, there: String| {
            if wanted != there {
                all.push(format!("{what} {there} instead of {wanted}"));
            }
        };
        say("datasets", format!("{heads:?}"), format!("{:?}", there.heads));
        say("origins", format!("{origins:?}"), format!("{:?}", there.origins));
        say("snapshots", format!("{snapshots:?}"), format!("{:?}", there.snapshots));
        say("clones", format!("{clones:?}"), format!("{:?}", there.clones));
        say("holds", format!("{holds:?}"), format!("{:?}", there.holds));
        say("deferred", format!("{deferred:?}"), format!("{:?}", there.deferred));
        say("bookmarks", format!("{bookmarks:?}"), format!("{:?}", there.bookmarks));
        all.join("; ")
    }
}

/// Judges a family in a pool as of its txg; the state that is there, to go on from.
pub(crate) async fn judge(view: &View, family: usize, log: &Log<Family>, in_use: &[InUse]) -> Result<Family, String> {
    let txg = view.txg();
    let (there, partials) = found(view, family).await?;
    let mut why = None;
    for state in log.as_of(txg) {
        let wanted = Links::of_model(&state);
        if wanted != there {
            why.get_or_insert_with(|| wanted.difference(&there));
            continue;
        }
        match judge_contents(view, state, in_use).await.and_then(|state| settle(state, &partials, log, txg)) {
            Ok(state) => return Ok(state),
            // The state with such names is the likelier one.
            Err(error) => why = Some(error),
        }
    }
    Err(format!("family {family} is not as of txg {txg}: {}; {}", why.unwrap_or_default(), log.tail(txg)))
}

/// The names and links that a pool has, and the datasets with a receive that did not come to its end.
async fn found(view: &View, family: usize) -> Result<(Links, BTreeSet<String>), String> {
    let dsl = view.dsl();
    let top = dsl.dir(&format!("written/s{family}")).await.map_err(words)?;
    let mut dirs: Vec<Dir> = dsl.tree(top, true).await.map_err(words)?.split_off(1);
    for name in in_use(family) {
        dirs.push(dsl.dir(name).await.map_err(words)?);
    }
    let (mut links, mut partials) = (Links::default(), BTreeSet::new());
    for dir in dirs {
        let head = dsl.head(&dir).await.map_err(words)?.ok_or_else(|| format!("{} has no head", dir.name))?;
        if head.is_inconsistent() {
            partials.insert(dir.name.strip_suffix(RECEIVED).unwrap_or(&dir.name).to_owned());
            continue;
        }
        links.heads.insert(dir.name.clone());
        if dir.phys.origin.0 != 0 {
            let origin = dsl.dataset_name(dir.phys.origin).await.map_err(words)?;
            // All that is no clone is one of the pool's own origin.
            if !origin.contains('$') {
                links.origins.insert(dir.name.clone(), origin);
            }
        }
        for snapshot in dsl.snapshots(&head).await.map_err(words)? {
            let name = snapshot.name();
            let clones = dsl.clones(&snapshot).await.map_err(words)?;
            let clones = clones.into_iter().filter(|clone| !clone.ends_with(RECEIVED));
            let clones: Vec<String> = clones.collect();
            if !clones.is_empty() {
                links.clones.insert(name.clone(), clones);
            }
            let holds = dsl.holds(&snapshot).await.map_err(words)?;
            let count = dsl.hold_count(snapshot.object).await.map_err(words)?;
            if count != holds.len() as u64 {
                return Err(format!("{name} counts {count} holds and has {}", holds.len()));
            }
            links.holds.extend(holds.into_iter().map(|hold| (name.clone(), hold.tag)));
            if snapshot.phys.flags.contains(DatasetFlags::DEFER_DESTROY) {
                links.deferred.insert(name.clone());
            }
            links.snapshots.entry(dir.name.clone()).or_default().push(name);
        }
        let bookmarks = dsl.bookmarks(&head).await.map_err(words)?;
        links.bookmarks.extend(bookmarks.into_iter().map(|bookmark| bookmark.name));
    }
    Ok((links, partials))
}

/// Receives that did not come to their end are there where that was acknowledged, and else only where one was under way.
fn settle(mut state: Family, there: &BTreeSet<String>, log: &Log<Family>, txg: Txg) -> Result<Family, String> {
    if let Some((dataset, _)) = state.partials.iter().find(|(dataset, one)| one.is_noted && !there.contains(*dataset)) {
        return Err(format!("what was received in part of {dataset} is gone"));
    }
    state.partials.retain(|dataset, _| there.contains(dataset));
    // Numbers that something left may have got are not given again.
    state.next += 1 + log.undecided(txg).count() as u64;
    for dataset in there.iter().filter(|dataset| !state.partials.contains_key(*dataset)).cloned().collect::<Vec<_>>() {
        let under_way = log.undecided(txg).find_map(|verb| match verb {
            Verb::Receive { source, from, snapshot, .. } | Verb::ReceivePart { source, from, snapshot }
                if of(snapshot) == dataset =>
            {
                let (source, from, snapshot) = (source.clone(), from.clone(), snapshot.clone());
                Some(Partial { source, from, snapshot, is_noted: false })
            }
            _ => None,
        });
        let under_way = under_way.ok_or_else(|| format!("{dataset} was received in part, and nobody did that"))?;
        state.partials.insert(dataset, under_way);
    }
    Ok(state)
}

/// Compares the contents of all datasets and snapshots.
async fn judge_contents(view: &View, mut state: Family, in_use: &[InUse]) -> Result<Family, String> {
    let mut txgs = state.txgs.clone();
    let snapshots = state.snapshots.clone();
    for snapshot in &snapshots {
        let name = &snapshot.name;
        let dataset = view.dsl().dataset(name).await.map_err(words)?;
        if !snapshot.is_received {
            let of_command = *txgs.entry(snapshot.number).or_insert(dataset.phys.creation_txg);
            if of_command != dataset.phys.creation_txg {
                return Err(format!("{name} is of txg {}, its command of {of_command}", dataset.phys.creation_txg));
            }
        }
        let contents = judge_dataset(view, name, &snapshot.contents, &txgs, &state.known, in_use).await?;
        state.known.extend(contents);
    }
    for (name, contents) in &state.heads {
        // Datasets in use are judged with those who use them.
        if contents.from.as_ref().is_none_or(|from| from.taken.is_some()) {
            let contents = judge_dataset(view, name, contents, &txgs, &state.known, in_use).await?;
            state.known.extend(contents);
        }
    }
    state.txgs = txgs;
    state.forget_unused();
    Ok(state)
}

/// Compares a dataset with its contents. Returns contents of a dataset in use that were not known yet.
async fn judge_dataset(
    view: &View,
    name: &str,
    contents: &Contents,
    txgs: &BTreeMap<u64, Txg>,
    known: &BTreeMap<From, Arc<Known>>,
    in_use: &[InUse],
) -> Result<Option<(From, Arc<Known>)>, String> {
    if let Some(from) = contents.from.as_ref().filter(|_| contents.is_raw()) {
        // Of a head there is no stream.
        if !name.contains('@') {
            return Ok(None);
        }
        let there = super::raw::read(view, name).await.map_err(|error| format!("{name}: {error}"))?;
        return match known.get(from) {
            Some(known) if **known != there => Err(format!("{name} is not what it was: another raw stream")),
            Some(_) => Ok(None),
            None => Ok(Some((from.clone(), Arc::new(there)))),
        };
    }
    let objset = objset(view, name).await?;
    judge_objects(&objset, contents).await.map_err(|error| format!("{name}: {error}"))?;
    let Some(from) = &contents.from else { return Ok(None) };
    let one = in_use.iter().find(|one| one.dataset == from.dataset).ok_or("a dataset of another family")?;
    let there = read(&objset, one).await.map_err(|error| format!("{name}: {error}"))?;
    if let Some(known) = known.get(from) {
        return match **known == there {
            true => Ok(None),
            false => Err(format!("{name} is not what it was: {}", difference(known, &there))),
        };
    }
    let txg = from.taken.and_then(|number| txgs.get(&number)).ok_or("a snapshot of no txg")?;
    is_as_of(one, *txg, &there).map_err(|error| format!("{name} is not {} as of txg {txg}: {error}", from.dataset))?;
    Ok(Some((from.clone(), Arc::new(there))))
}

async fn judge_objects(objset: &Objset, contents: &Contents) -> Result<(), String> {
    let mut numbers = BTreeSet::new();
    let mut from = ObjectId(0);
    while let Some(next) = objset.next_objects(from).await.map_err(words)? {
        for (object, dnode) in next.objects {
            if dnode.map_err(words)?.phys().object_type == DmuType::UINT8_DATA {
                numbers.insert(object.0);
            }
        }
        from = next.next;
    }
    if !numbers.iter().eq(contents.objects.keys()) {
        return Err(format!("objects {numbers:?} instead of {:?}", contents.objects.keys()));
    }
    for (number, bytes) in &contents.objects {
        let object = objset.object(ObjectId(*number)).await.map_err(words)?;
        let there = object.read(0, bytes.len()).await.map_err(words)?;
        if let Some(at) = there.iter().zip(bytes).position(|(there, wanted)| there != wanted) {
            return Err(format!("object {number} has another byte at {at} of {}", bytes.len()));
        }
    }
    Ok(())
}

/// Reads what writers have put into a dataset in use, of a snapshot or a replica of it.
async fn read(objset: &Objset, one: &InUse) -> Result<Known, String> {
    if one.ranges.is_empty() {
        let fs = FileSystem::open(objset.clone()).await.map_err(words)?;
        let mut files = Vec::new();
        for at in 0..one.files.len() {
            files.push(read_files(&fs, at, &mut BTreeSet::new()).await?);
        }
        return Ok(Known::Files(files));
    }
    let volume = Volume::open(objset).await.map_err(words)?;
    let mut ranges = Vec::new();
    for log in &one.ranges {
        let (offset, len) = {
            let range = log.lock().newest();
            (range.offset_bytes, range.bytes.len())
        };
        ranges.push(volume.read(offset, len).await.map_err(words)?.to_vec());
    }
    Ok(Known::Ranges(ranges))
}

/// Compares it with the logs of its writers.
fn is_as_of(one: &InUse, txg: Txg, there: &Known) -> Result<(), String> {
    match there {
        Known::Files(files) => {
            for (at, (log, there)) in one.files.iter().zip(files).enumerate() {
                let log = log.lock();
                let states = log.as_of(txg);
                if !states.iter().any(|state| files_of(state) == *there) {
                    let difference = first_difference(&files_of(&states[0]), there);
                    return Err(format!("writer {at}: {difference}; {}", log.tail(txg)));
                }
            }
        }
        Known::Raw(_) => return Err("a dataset in use is not encrypted".to_owned()),
        Known::Ranges(ranges) => {
            for (at, (log, there)) in one.ranges.iter().zip(ranges).enumerate() {
                let log = log.lock();
                if !log.as_of(txg).iter().any(|state| state.bytes == *there) {
                    return Err(format!("range {at}: {}", log.tail(txg)));
                }
            }
        }
    }
    Ok(())
}

fn difference(known: &Known, there: &Known) -> String {
    match (known, there) {
        (Known::Files(known), Known::Files(there)) => {
            let all = known.iter().zip(there).filter(|(known, there)| known != there);
            all.map(|(known, there)| first_difference(known, there)).collect::<Vec<_>>().join("; ")
        }
        _ => "ranges of a volume".to_owned(),
    }
}
