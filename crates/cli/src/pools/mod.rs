//! What the `zpool` commands show: pools, the vdevs they are made of, and what is said about their health.
//!
//! # Theory
//!
//! **Need.** OpenZFS's tables, trees and JSON from a pool that was opened here.
//!
//! **Shape.** [`Facts`] is an open pool and what is computed once for it; [`properties`] its properties as `zpool list` and
//! `zpool get` show them. [`vdevs`] is the tree that `status`, `list -v` and `import` print: names, classes, states and
//! figures in one structure, which each of them lays out.
//!
//! **Differences to OpenZFS** that are meant: space is always that of all maps and logs together (a read-only import of
//! OpenZFS leaves the logs out); a vdev's path is where it was found; error counts are those of this command, or of the server
//! that has the pool; a leaf that has missed txgs, and what is above it, is DEGRADED and not ONLINE, since nothing resilvers it.

pub(crate) mod activity;
pub(crate) mod advice;
pub(crate) mod errors;
pub(crate) mod features;
mod names;
pub(crate) mod properties;
pub(crate) mod scan;
pub(crate) mod vdevs;

use std::sync::OnceLock;

use anyhow::Result;
use cenote_metaslab::PoolSpace;
use cenote_spa::{Pool, View};
use cenote_vdev::tree::VdevStatus;
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::output::{Json, json_of};

pub(crate) use names::{NameArgs, Names};

/// An open pool.
pub(crate) struct Facts {
    pub(crate) pool: View,
    space: OnceLock<PoolSpace>,
    /// The health of its devices as the server knows it that writes the pool.
    devices: Option<VdevStatus>,
}

impl Facts {
    pub(crate) fn new(pool: View) -> Self {
        Self { pool, space: OnceLock::new(), devices: None }
    }

    /// With what the server knows of the devices, if there is one.
    pub(crate) fn of(context: &Context, pool: View) -> Self {
        let devices = context.served().and_then(Pool::devices).filter(|devices| devices.guid == pool.guid());
        Self { devices, ..Self::new(pool) }
    }

    /// The health of its devices.
    pub(crate) fn devices(&self) -> VdevStatus {
        self.devices.clone().unwrap_or_else(|| self.pool.tree().status())
    }

    /// The pool's space. Reads the space maps, the first time.
    pub(crate) async fn space(&self) -> Result<&PoolSpace> {
        if self.space.get().is_none() {
            let space = self.pool.space().await?;
            let _ = self.space.set(space);
        }
        Ok(self.space.get_or_init(PoolSpace::default))
    }

    /// The state that is shown for all of it.
    pub(crate) fn state(&self) -> &'static str {
        self.devices().state.name()
    }

    /// The head of its object in JSON.
    pub(crate) fn json(&self, json: Json, has_type: bool) -> Map<String, Value> {
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

    /// By what a pool's object is found in JSON.
    pub(crate) fn key(&self, is_guid: bool) -> String {
        if is_guid { self.pool.guid().0.to_string() } else { self.pool.name().to_owned() }
    }
}

/// Options for JSON that the `zpool` commands share.
#[derive(Clone, Copy, Debug, Default, clap::Args, serde::Serialize, serde::Deserialize)]
pub(crate) struct JsonArgs {
    /// Print JSON.
    #[arg(short = 'j', long)]
    pub(crate) json: bool,
    /// In JSON, numbers as numbers.
    #[arg(long)]
    pub(crate) json_int: bool,
    /// In JSON, find pools by their guids.
    #[arg(long)]
    pub(crate) json_pool_key_guid: bool,
}

impl JsonArgs {
    /// Refuses what makes no sense without `-j`.
    pub(crate) fn check(self) -> Result<Json> {
        let json = json_of(self.json, self.json_int)?;
        if self.json_pool_key_guid && !self.json {
            return Err(crate::outcome::usage("'json-pool-key-guid' only works with '-j' option"));
        }
        Ok(json)
    }
}
