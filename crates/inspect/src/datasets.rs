//! Datasets as objects of the MOS, and the walk over all of them that other inspections use.

use std::collections::BTreeMap;

use cenote_dmu::{KeyAccess, Objset};
use cenote_dsl::{DEPTH_MAX, Dir};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::ids::{ObjectId, ObjsetId};
use cenote_spa::View;
use cenote_taskq::boxed;
use serde_json::{Value, json};

use crate::objects::Objects;
use crate::report::Report;

/// A dataset as an object of the MOS.
pub(crate) struct Found {
    /// Its object.
    pub object: ObjectId,
    /// Its name; `None` where no directory leads to it.
    pub name: Option<String>,
    /// Its fields.
    pub phys: DslDatasetPhys,
}

impl Found {
    /// The name, or the object's number.
    pub(crate) fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("(object {})", self.object))
    }
}

/// All datasets, around what cannot be read, in the order of their objects.
pub(crate) async fn all(report: &mut Report, pool: &View) -> Vec<Found> {
    let names = names(report, pool).await;
    let mut found = Vec::new();
    let mut objects = Objects::new(pool.mos(), ObjectId(1));
    while let Some(next) = objects.next().await {
        let dnode = match next {
            Ok(dnode) => dnode,
            Err(error) => {
                report.problem(format_args!("MOS: {error}"));
                continue;
            }
        };
        if dnode.phys().bonus_type != DmuType::DSL_DATASET {
            continue;
        }
        let what = format!("dataset object {}", dnode.id());
        if let Some(phys) = report.take(&what, dnode.bonus(DslDatasetPhys::parse)) {
            found.push(Found { object: dnode.id(), name: names.get(&dnode.id().0).cloned(), phys });
        }
    }
    found
}

/// Names by object, as far as directories and lists of snapshots can be read.
async fn names(report: &mut Report, pool: &View) -> BTreeMap<u64, String> {
    let dsl = pool.dsl();
    let mut names = BTreeMap::new();
    let mut pending: Vec<(Dir, usize)> = Vec::new();
    if let Some(root) = report.take("the root directory", dsl.root_dir().await) {
        pending.push((root, 0));
    }
    while let Some((dir, depth)) = pending.pop() {
        if depth > DEPTH_MAX {
            report.problem(format_args!("'{}' is deeper than {DEPTH_MAX} levels", dir.name));
            continue;
        }
        for (name, object) in report.take(&dir.name, dsl.children(&dir, true).await).unwrap_or_default() {
            let full = format!("{}/{name}", dir.name);
            match dsl.dir_object(object, full.clone()).await {
                Ok(child) if child.phys.parent == dir.object => pending.push((child, depth + 1)),
                Ok(_) => report.problem(format_args!("'{full}' does not name '{}' as its parent", dir.name)),
                Err(error) => report.problem(format_args!("'{full}': {error}")),
            }
        }
        let Some(Some(head)) = report.take(&dir.name, dsl.head(&dir).await) else { continue };
        if names.insert(head.object.0, dir.name.clone()).is_some() {
            continue;
        }
        for snapshot in report.take(&dir.name, dsl.snapshots(&head).await).unwrap_or_default() {
            names.insert(snapshot.object.0, snapshot.name());
        }
    }
    names
}

/// A row for each dataset and snapshot, in the order of names; those without a name last.
#[boxed]
pub async fn datasets(report: &mut Report, pool: &View) {
    let mut found = all(report, pool).await;
    found.sort_by_key(|found| (found.name.is_none(), found.name.clone(), found.object));
    let total = found.len() as u64;
    let mut rows = Vec::new();
    for found in found.iter().take(report.limit) {
        rows.push(row(report, pool, found).await);
    }
    report.put("txg", pool.txg().0);
    report.list_of(total, "datasets", rows);
}

async fn row(report: &mut Report, pool: &View, found: &Found) -> Value {
    let phys = &found.phys;
    let mut kind = None;
    let mut objects = None;
    if !phys.bp.is_hole() {
        let id = ObjsetId(found.object.0);
        let opened = Objset::open(pool.dmu().clone(), id, phys.bp, KeyAccess::Without).await;
        if let Some(objset) = report.take(&found.name(), opened) {
            kind = objset.phys().objset_type().map(|kind| kind.to_string());
            let phys = objset.phys();
            let pointers = phys.meta_dnode.blkptrs();
            objects = Some(pointers.iter().fold(0, |sum: u64, bp| sum.saturating_add(bp.fill())));
        }
    }
    json!({
        "name": found.name(),
        "type": kind,
        "object": found.object.0,
        "creation_txg": phys.creation_txg.0,
        "referenced_bytes": phys.referenced_bytes,
        "unique_bytes": phys.unique_bytes,
        "objects": objects,
        "guid": phys.guid.0,
        "flags": format!("{:#x}", phys.flags.bits()),
    })
}
