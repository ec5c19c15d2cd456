//! Pools, their vdevs, and the values of their properties.
//!
//! [`Facts`] is an open pool with values that are computed only once; [`Values`] are its properties. [`Tree`] is the tree of vdevs: names,
//! classes, states and figures in one structure, which each command formats.
//!
//! **Intended differences from OpenZFS**: space always includes all space maps and their logs (a read-only import by OpenZFS leaves the logs
//! out); a vdev's path is the one where it was found; error counts are those of this process, or of the server that has the pool; a leaf that
//! has missed txgs, and its ancestors, are DEGRADED and not ONLINE, since it is not resilvered.

mod advice;
mod errors;
mod events;
mod features;
mod history;
mod importable;
mod iostat;
mod lost;
mod names;
mod properties;
mod rows;
mod scripts;
mod status;
mod vdev_properties;
mod vdevs;

use std::sync::OnceLock;

use cenote_metaslab::PoolSpace;
use cenote_spa::{JobStatus, Unreported, View};
use cenote_taskq::boxed;
use cenote_vdev::tree::VdevStatus;
use serde_json::{Map, Value, json};

use crate::Json;
use crate::error::Result;

pub use errors::{place, places};
pub use events::{event_line, event_members};
pub use history::history_line;
pub use importable::Importable;
pub use iostat::{IoTable, NamedVdev, VdevIo};
pub use lost::{LostPool, WhyLost};
pub use names::Names;
pub(crate) use properties::Values;
pub(crate) use properties::all_columns;
pub use properties::{Column as PoolColumn, parse_pool_columns};
pub use scripts::ScriptColumns;
pub use status::{Left, Status, StatusOptions, has_hanging, suspended_json, suspended_text};
pub use vdev_properties::get_vdevs;
pub use vdevs::{DEDUP, LOGS, Reason, SPECIAL, Sizes, Tree, Vdev};

/// Returns the present health of a pool's devices, if it is known.
type Devices = Box<dyn Fn() -> Option<VdevStatus> + Send + Sync>;

/// An open pool.
pub struct Facts {
    /// The pool.
    pub pool: View,
    space: OnceLock<PoolSpace>,
    /// The health of its devices now, from the server that has the pool.
    devices: Option<Devices>,
    /// The pool's state, from the process that has the pool.
    told_state: Option<String>,
    /// Bytes of blocks that a scrub or resilver of this process has come to, and not read yet.
    unreported: Unreported,
    /// The background jobs of the process that has the pool.
    jobs: Vec<JobStatus>,
    imported: Imported,
}

/// The data about an imported pool that OpenZFS keeps in the kernel's memory.
#[derive(Clone, Debug, Default)]
pub struct Imported {
    /// It is open only for inspection, or was imported with `readonly=on`.
    pub is_read_only: bool,
    /// The value of `cachefile`.
    pub cachefile: Option<String>,
    /// The number drawn by the process that has it, on opening it.
    pub load_guid: Option<u64>,
}

impl Facts {
    /// For a pool that no other process has.
    pub fn new(pool: View) -> Self {
        let imported = Imported { is_read_only: true, ..Imported::default() };
        Self {
            pool,
            space: OnceLock::new(),
            devices: None,
            told_state: None,
            unreported: Unreported::default(),
            jobs: Vec::new(),
            imported,
        }
    }

    /// With the present health of its devices, from the process that has the pool; none if that is not known.
    pub fn with_devices(pool: View, devices: impl Fn() -> Option<VdevStatus> + Send + Sync + 'static) -> Self {
        Self { devices: Some(Box::new(devices)), ..Self::new(pool) }
    }

    /// With the pool's state, from the process that has the pool: that knows of errors that a reader has not met.
    #[must_use]
    pub fn in_state(self, told_state: Option<String>) -> Self {
        Self { told_state, ..self }
    }

    /// With the work of a scrub or resilver that it has not reported.
    #[must_use]
    pub fn scanning(self, unreported: Unreported) -> Self {
        Self { unreported, ..self }
    }

    /// With the background jobs of the process that has the pool.
    #[must_use]
    pub fn working(self, jobs: Vec<JobStatus>) -> Self {
        Self { jobs, ..self }
    }

    /// With data about its import.
    #[must_use]
    pub fn imported(self, imported: Imported) -> Self {
        Self { imported, ..self }
    }

    /// A background job of the process that has the pool, by its name.
    pub(crate) fn job(&self, name: &str) -> Option<&JobStatus> {
        self.jobs.iter().find(|job| job.name == name)
    }

    /// The health of its devices now.
    pub(crate) fn devices(&self) -> VdevStatus {
        self.devices.as_ref().and_then(|devices| devices()).unwrap_or_else(|| self.pool.tree().status())
    }

    /// The pool's space. The first call reads the space maps.
    #[boxed]
    pub(crate) async fn space(&self) -> Result<&PoolSpace> {
        if self.space.get().is_none() {
            let space = self.pool.space().await?;
            let _ = self.space.set(space);
        }
        Ok(self.space.get_or_init(PoolSpace::default))
    }

    /// The state to show for the whole pool.
    pub(crate) fn state(&self) -> String {
        self.told_state.clone().unwrap_or_else(|| self.devices().state.name().to_owned())
    }

    /// The beginning of its object in JSON.
    pub fn json(&self, json: Json, has_type: bool) -> Map<String, Value> {
        const POOL_VERSION: &str = "5000";
        const FILESYSTEM_VERSION: &str = "5";
        let mut map = Map::new();
        map.insert("name".into(), json!(self.pool.name()));
        if has_type {
            map.insert("type".into(), json!("POOL"));
        }
        map.insert("state".into(), json!(self.state()));
        map.insert("pool_guid".into(), json.number(self.pool.guid().0));
        map.insert("txg".into(), json.number(self.pool.txg().0));
        map.insert("spa_version".into(), json.text(POOL_VERSION));
        map.insert("zpl_version".into(), json.text(FILESYSTEM_VERSION));
        map
    }

    /// The key of the pool's object in JSON.
    pub fn key(&self, is_guid: bool) -> String {
        if is_guid { self.pool.guid().0.to_string() } else { self.pool.name().to_owned() }
    }
}
