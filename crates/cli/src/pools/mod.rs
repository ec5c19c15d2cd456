//! What the `zpool` commands show: pools, the vdevs they are made of, and what is said about their health.
//!
//! # Theory
//!
//! **Need.** OpenZFS's tables, trees and JSON from a pool that was opened here.
//!
//! **Shape.** [`Facts`] is an open pool, with its properties and the tree of its vdevs, which `status`, `list -v` and `import` each lay out;
//! it is crate `listing`'s. Here are the words that are said of health, scans and what a pool needs.

pub(crate) mod activity;
pub(crate) mod advice;
mod names;
pub(crate) mod scan;

use anyhow::Result;
use cenote_listing::{Facts, PoolColumn};
use cenote_spa::{Pool, View};

use crate::context::Context;
use crate::outcome::usage;
use crate::output::{Json, json_of};

pub(crate) use names::NameArgs;

/// An open pool, with what the server knows of its devices, if there is one.
pub(crate) fn facts(context: &Context, pool: View) -> Facts {
    let devices = context.served().and_then(Pool::devices).filter(|devices| devices.guid == pool.guid());
    Facts::with_devices(pool, devices)
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
            return Err(usage("'json-pool-key-guid' only works with '-j' option"));
        }
        Ok(json)
    }
}

/// A list of properties; `None` for `all`.
pub(crate) fn parse_columns(list: &str) -> Result<Option<Vec<PoolColumn>>> {
    if list == "all" {
        return Ok(None);
    }
    if list.is_empty() {
        return Err(usage("bad property list: no properties specified"));
    }
    let find = |name: &str| {
        PoolColumn::find(name).ok_or_else(|| usage(format!("bad property list: invalid property '{name}'")))
    };
    list.split(',').map(find).collect::<Result<_>>().map(Some)
}
