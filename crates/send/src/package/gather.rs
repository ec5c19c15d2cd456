//! The list of a package: its datasets, each with snapshots, properties and holds.

use cenote_dmu::Zap;
use cenote_dsl::property::{Property, Value};
use cenote_dsl::{DEPTH_MAX, Dataset, Dir};
use cenote_format::ids::{Guid, ObjectId};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_props::{Kind, dataset as table, is_user_property};
use cenote_spa::View;

use super::{PackageError, PackageRequest, snapshots};

/// Children of a dataset, and holds of a snapshot, at most, as a bound on memory.
const ENTRIES_MAX: usize = 1 << 22;
/// Properties that limit space: a dataset has them, its snapshots do not.
const LIMITS: [&str; 4] = ["quota", "reservation", "refquota", "refreservation"];

/// A dataset of a package.
pub(super) struct Entry {
    pub(super) head: Dataset,
    /// The snapshot of its parent that it builds on.
    pub(super) parent_from: Guid,
    /// The origin of a clone.
    pub(super) origin: Option<Guid>,
    /// Its snapshots, oldest first.
    pub(super) snapshots: Vec<(String, Guid)>,
    list: NvList,
}

/// The list of a package.
pub struct List {
    pub(super) entries: Vec<Entry>,
}

impl List {
    pub(super) fn packed(&self) -> NvList {
        let mut list = NvList::new();
        for entry in &self.entries {
            list.push(format!("{:#x}", entry.head.phys.guid.0).as_str(), entry.list.clone());
        }
        list
    }
}

/// Values that a dataset takes from its parent.
#[derive(Clone, Copy, Default)]
struct Above {
    parent_from: Guid,
    to_txg: u64,
}

/// Gathers the list of a package. `say` gets messages.
///
/// # Errors
/// A dataset to be sent lacks the snapshot, or is encrypted; or something cannot be read.
pub async fn gather(
    pool: &View,
    request: &PackageRequest,
    say: &mut (dyn FnMut(String) + Send),
) -> Result<List, PackageError> {
    let mut list = List { entries: Vec::new() };
    let top = pool.dsl().dir(&request.dataset).await?;
    let mut pending = vec![(top, Above::default(), 0)];
    while let Some((dir, above, depth)) = pending.pop() {
        if depth > DEPTH_MAX {
            let what = format!("'{}' is deeper than {DEPTH_MAX} levels", dir.name);
            return Err(cenote_dsl::DslError::Corrupt { object: dir.object.0, what }.into());
        }
        if request.excludes(&dir.name) {
            continue;
        }
        let Some((entry, below)) = entry(pool, request, &dir, above, say).await? else { continue };
        list.entries.push(entry);
        if request.replicate {
            let children = children(pool, &dir).await?;
            pending.extend(children.into_iter().rev().map(|child| (child, below, depth + 1)));
        }
    }
    Ok(list)
}

/// The child directories, in the order of their ZAP.
async fn children(pool: &View, dir: &Dir) -> Result<Vec<Dir>, PackageError> {
    let mut children = Vec::new();
    if dir.phys.child_dirs.0 == 0 {
        return Ok(children);
    }
    let zap = Zap::open(pool.mos().object(dir.phys.child_dirs).await?).await?;
    for entry in zap.entries(ENTRIES_MAX).await? {
        let name = String::from_utf8_lossy(entry.name()).into_owned();
        let Some(object) = entry.value.as_u64() else { continue };
        // The pool's own, and half-received ones.
        if !name.contains(['$', '%']) {
            children.push(pool.dsl().dir_object(ObjectId(object), format!("{}/{name}", dir.name)).await?);
        }
    }
    Ok(children)
}

async fn entry(
    pool: &View,
    request: &PackageRequest,
    dir: &Dir,
    above: Above,
    say: &mut (dyn FnMut(String) + Send),
) -> Result<Option<(Entry, Above)>, PackageError> {
    let dsl = pool.dsl();
    let Some(head) = dsl.head(dir).await? else { return Ok(None) };
    let all = dsl.snapshots(&head).await?;
    let txg_of = |name: &str| {
        let found = all.iter().find(|snapshot| snapshot.snapshot.as_deref() == Some(name));
        found.map_or(0, |snapshot| snapshot.phys.creation_txg.0)
    };
    let (own_to, own_from) = (txg_of(&request.to), request.from.as_deref().map_or(0, txg_of));
    let to_txg = if own_to == 0 { above.to_txg } else { own_to };
    if own_to == 0 {
        if to_txg != 0 && head.phys.creation_txg.0 > to_txg {
            if request.is_verbose {
                say(format!("skipping dataset {}: snapshot {} does not exist", dir.name, request.to));
            }
        } else if request.skip_missing {
            say(format!(
                "WARNING: skipping dataset {} and its children: snapshot {} does not exist",
                dir.name, request.to
            ));
        } else {
            return Err(PackageError::NoSnapshot {
                top: request.dataset.clone(),
                snapshot: request.to.clone(),
                how: if request.replicate { " recursively" } else { "" },
                dataset: dir.name.clone(),
            });
        }
        return Ok(None);
    }
    let mut list = NvList::new();
    list.push("name", dir.name.as_str());
    list.push("parentfromsnap", above.parent_from.0);
    let origin = origin(pool, &head).await?.map(|origin| origin.phys.guid);
    if let Some(origin) = origin {
        list.push("origin", origin.0);
    }
    if request.props || request.backup || request.replicate {
        list.push("props", properties(pool, dir.phys.properties, request.backup, Some(dir)).await?);
    }
    if let Some(encryption) = dsl.encryption(dir).await? {
        if encryption.root == dir.name {
            list.push("is_encroot", NvValue::Boolean);
        }
        if !request.raw && !request.without_encryption {
            return Err(PackageError::Encrypted {
                top: request.dataset.clone(),
                snapshot: request.to.clone(),
                dataset: dir.name.clone(),
            });
        }
        if !request.raw {
            say(format!("WARNING: no-preserve-encryption flag set, sending dataset {} without encryption", dir.name));
        }
    }

    let listed = if request.do_all || request.replicate {
        let (min, max) = if request.replicate { (0, 0) } else { (own_from, own_to) };
        snapshots(pool, &head, min, max).await?
    } else {
        all.into_iter().filter(|snapshot| snapshot.snapshot.as_deref() == Some(&request.to)).collect()
    };
    let mut found = Snapshots {
        seen_from: !request.do_all && !request.replicate && request.from.is_some(),
        ..Snapshots::default()
    };
    for snapshot in listed {
        found.add(pool, request, &snapshot, to_txg, say).await?;
    }
    let Snapshots { names, parent_from, properties, holds, .. } = found;
    let mut guids = NvList::new();
    for (name, guid) in &names {
        guids.push(name.as_str(), guid.0);
    }
    list.push("snaps", guids);
    list.push("snapprops", properties);
    if request.holds {
        list.push("snapholds", holds);
    }
    let entry = Entry { head, parent_from: above.parent_from, origin, snapshots: names, list };
    Ok(Some((entry, Above { parent_from, to_txg })))
}

/// The origin of a dataset that is a clone.
pub(super) async fn origin(pool: &View, head: &Dataset) -> Result<Option<Dataset>, PackageError> {
    let object = head.dir.phys.origin;
    if object.0 == 0 {
        return Ok(None);
    }
    let name = pool.dsl().dataset_name(object).await?;
    // `$ORIGIN@$ORIGIN`, the origin of every dataset that is not a clone.
    if name.contains('$') {
        return Ok(None);
    }
    Ok(Some(pool.dsl().dataset(&name).await?))
}

/// The data gathered about a dataset's snapshots.
#[derive(Default)]
struct Snapshots {
    names: Vec<(String, Guid)>,
    parent_from: Guid,
    seen_from: bool,
    seen_to: bool,
    properties: NvList,
    holds: NvList,
}

impl Snapshots {
    async fn add(
        &mut self,
        pool: &View,
        request: &PackageRequest,
        snapshot: &Dataset,
        to_txg: u64,
        say: &mut (dyn FnMut(String) + Send),
    ) -> Result<(), PackageError> {
        let name = snapshot.snapshot.clone().unwrap_or_default();
        let (is_from, is_to) = (request.from.as_deref() == Some(&name), request.to == name);
        if to_txg != 0 && snapshot.phys.creation_txg.0 > to_txg {
            if request.is_verbose {
                say(format!(
                    "skipping snapshot {} because it was created after the destination snapshot ({})",
                    snapshot.name(),
                    request.to
                ));
            }
            return Ok(());
        }
        self.names.push((name.clone(), snapshot.phys.guid));
        // A dataset that is newer than the incremental source is sent as a whole.
        if is_from || self.parent_from.0 == 0 && is_to {
            self.parent_from = snapshot.phys.guid;
        }
        if !request.replicate {
            self.seen_from |= request.do_all && request.from.is_none();
            if !self.seen_from && is_from {
                self.seen_from = true;
                return Ok(());
            }
            let is_all = is_to && request.from.is_none();
            if (self.seen_to || !self.seen_from) && !is_all {
                return Ok(());
            }
            self.seen_to |= is_to;
        }
        let own = properties(pool, snapshot.phys.properties, request.backup, None).await?;
        self.properties.push(name.as_str(), own);
        if request.holds {
            self.holds.push(name.as_str(), holds(pool, snapshot).await?);
        }
        Ok(())
    }
}

/// The holds of a snapshot, in the order of its ZAP.
async fn holds(pool: &View, snapshot: &Dataset) -> Result<NvList, PackageError> {
    let mut list = NvList::new();
    if snapshot.phys.user_refs.0 != 0 {
        let zap = Zap::open(pool.mos().object(snapshot.phys.user_refs).await?).await?;
        for entry in zap.entries(ENTRIES_MAX).await? {
            if let Some(time) = entry.value.as_u64() {
                list.push(String::from_utf8_lossy(entry.name()).as_ref(), time);
            }
        }
    }
    Ok(list)
}

/// The properties set on a dataset or snapshot itself that can be set elsewhere too. `dir`: a dataset's directory.
async fn properties(pool: &View, object: ObjectId, is_backup: bool, dir: Option<&Dir>) -> Result<NvList, PackageError> {
    let mut list = NvList::new();
    for (name, Property { value, .. }) in pool.dsl().own_properties(object, is_backup).await? {
        let is_limit = LIMITS.contains(&name.as_str());
        if is_limit && dir.is_none() {
            continue;
        }
        let is_text = if is_user_property(&name) {
            true
        } else {
            // Older software could not send a property that newer software set, either.
            let Some(property) =
                table::find(&name).filter(|property| property.name == name && !property.is_read_only())
            else {
                continue;
            };
            matches!(property.kind, Kind::Text(_))
        };
        match value {
            Value::Text(text) if is_text => list.push(name.as_str(), text.as_str()),
            Value::Number(number) if !is_text => list.push(name.as_str(), number),
            // The wrong type: no receiver could set it.
            Value::Text(_) | Value::Number(_) => {}
        }
    }
    // Pools of old versions record these only in the directory.
    if let Some(dir) = dir.filter(|_| !is_backup) {
        for (name, bytes) in [("quota", dir.phys.quota_bytes), ("reservation", dir.phys.reserved_bytes)] {
            if bytes != 0 && !list.has(name) {
                list.push(name, bytes);
            }
        }
    }
    Ok(list)
}
