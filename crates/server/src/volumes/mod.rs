//! The volumes of a pool, and their snapshots, as NBD exports.
//!
//! An export's name is the dataset's: `tank/vm/disk0`, `tank/vm/disk0@monday`. A volume is opened when a client asks for it, so a pool with
//! thousands is served as quickly as one with a few. [`PoolVolumes`] serves a pool that does not change, [`LiveVolumes`] one whose volumes are
//! written, which are [`OpenVolumes`].

mod errors;
mod gate;
mod live;
mod open;
mod reading;
mod zvol_state;

use std::sync::Arc;

use cenote_dsl::{Dataset, Dsl, DslError};
use cenote_format::enums::ObjsetType;
use cenote_inuse::{Frozen, OpenError, Opened, Source, open_volume};
use cenote_nbd::{Export, ExportError, ExportErrorKind, ExportName, Exports};
use cenote_spa::View;
use cenote_taskq::boxed;
use cenote_zvol::Volume;

pub use live::LiveVolumes;
pub(crate) use open::Locked;
pub use open::OpenVolumes;
use reading::ReadOnly;
pub(crate) use zvol_state::SuspendedVolume;
use zvol_state::user;

/// The volumes at and below datasets of pools as of a txg each.
pub(crate) struct PoolVolumes(Vec<(View, String)>);

impl PoolVolumes {
    /// The volumes at and below these datasets.
    pub(crate) const fn new(of: Vec<(View, String)>) -> Self {
        Self(of)
    }

    /// The names of all volumes and their snapshots.
    pub(crate) async fn names(&self) -> Result<Vec<ExportName>, DslError> {
        let mut all = Vec::new();
        for (pool, below) in &self.0 {
            all.extend(names(pool.dsl(), below).await?);
        }
        Ok(sorted(all))
    }

    async fn volume(&self, name: &str) -> Result<Option<Frozen<Volume>>, OpenError> {
        let Some((view, _)) = self.0.iter().find(|(_, below)| is_at_or_below(name, below)) else { return Ok(None) };
        let Some(dataset) = find(view.dsl(), name).await? else { return Ok(None) };
        match open_volume(Source::View(view), &dataset, &user()).await? {
            Opened::Frozen(volume) => Ok(Some(volume)),
            Opened::Live(_) => unreachable!("a view does not change"),
        }
    }
}

/// Names in order, each once: one served dataset may be below another.
fn sorted(mut names: Vec<ExportName>) -> Vec<ExportName> {
    names.sort_by(|a, b| a.name.cmp(&b.name));
    names.dedup_by(|a, b| a.name == b.name);
    names
}

/// The names of all volumes at and below a dataset, and of their snapshots.
async fn names(dsl: &Dsl, below: &str) -> Result<Vec<ExportName>, DslError> {
    let mut names = Vec::new();
    for dir in dsl.tree(dsl.dir(below).await?, false).await? {
        let Some(head) = dsl.head(&dir).await? else { continue };
        if head.is_inconsistent() || dsl.kind(&head).await? != ObjsetType::Zvol {
            continue;
        }
        names.push(ExportName { name: head.name(), description: "volume".into() });
        for snapshot in dsl.snapshots(&head).await? {
            names.push(ExportName { name: snapshot.name(), description: "snapshot of a volume".into() });
        }
    }
    Ok(names)
}

/// True if a dataset or snapshot is `below`, a snapshot of it, or below it.
fn is_at_or_below(name: &str, below: &str) -> bool {
    cenote_dsl::name::is_at_or_below(name.split('@').next().unwrap_or(name), below)
}

/// The volume or snapshot with this name, if it is one.
async fn find(dsl: &Dsl, name: &str) -> Result<Option<Dataset>, DslError> {
    let dataset = match dsl.dataset(name).await {
        Ok(dataset) => dataset,
        Err(DslError::NoSuchDataset(_) | DslError::BadName { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok((dsl.kind(&dataset).await? == ObjsetType::Zvol).then_some(dataset))
}

/// The name of the requested export. An empty name means the default: the only volume, if there is just one.
async fn chosen(exports: &dyn Exports, name: &str) -> Result<Option<String>, ExportError> {
    if !name.is_empty() {
        return Ok(Some(name.to_owned()));
    }
    let mut names = exports.list().await?;
    Ok(if names.len() == 1 { names.pop().map(|export| export.name) } else { None })
}

fn io_error(error: &impl std::fmt::Display) -> ExportError {
    ExportError::new(ExportErrorKind::Io, error.to_string())
}

impl Exports for PoolVolumes {
    #[boxed]
    async fn list(&self) -> Result<Vec<ExportName>, ExportError> {
        self.names().await.map_err(|error| io_error(&error))
    }

    #[boxed]
    async fn open(&self, name: &str) -> Result<Option<Arc<dyn Export>>, ExportError> {
        let Some(name) = chosen(self, name).await? else { return Ok(None) };
        let volume = self.volume(&name).await.map_err(|error| io_error(&error))?;
        Ok(volume.map(|volume| Arc::new(ReadOnly { volume, name }) as Arc<dyn Export>))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_served_is_at_or_below_the_dataset() {
        for name in ["tank/vm", "tank/vm@monday", "tank/vm/disk", "tank/vm/disk@monday"] {
            assert!(is_at_or_below(name, "tank/vm"), "{name}");
        }
        for name in ["tank", "tank/vms", "tank/vm-2/disk", "other/tank/vm", ""] {
            assert!(!is_at_or_below(name, "tank/vm"), "{name}");
        }
    }
}
