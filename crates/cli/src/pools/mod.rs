//! Shared by the `zpool` commands: options, and pools with what their server knows of them.

mod names;

use anyhow::Result;
use cenote_host::owners;
use cenote_listing::{Facts, Form, Imported, LostPool};
use cenote_server::{Lost, View};

use crate::context::Context;
use crate::outcome::usage;
use crate::output::{Json, json_of};

pub(crate) use names::NameArgs;

/// An open pool, with what the server knows of its devices, if there is one, and how it is imported here.
pub(crate) fn facts(context: &Context, pool: View) -> Facts {
    let devices = context.served().and_then(|pool| pool.devices()).filter(|devices| devices.guid == pool.guid());
    let guid = pool.guid();
    let noted = context.noted(guid).map(|(_, entry)| entry);
    let is_served = context.served().is_some_and(|pool| pool.guid() == guid);
    let imported = Imported {
        is_read_only: noted.as_ref().map_or(!is_served, |entry| entry.readonly),
        is_for_boot: noted.is_some_and(|entry| entry.boot.is_some()),
        load_guid: owners::own_mark(guid).filter(|_| is_served),
    };
    Facts::with_devices(pool, devices).imported(imported)
}

/// A pool that is imported and cannot be opened, as it is shown.
pub(crate) fn lost_pool(lost: Lost) -> LostPool {
    LostPool { name: lost.name, guid: lost.guid, paths: lost.paths }
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
    /// The form of a table with these options.
    pub(crate) fn form(self, is_scripted: bool, is_exact: bool) -> Result<Form> {
        let json = Some(self.check()?).filter(|_| self.json);
        Ok(Form { is_scripted, is_exact: is_exact || self.json_int, json, is_by_guid: self.json_pool_key_guid })
    }

    /// Refuses what makes no sense without `-j`.
    pub(crate) fn check(self) -> Result<Json> {
        let json = json_of(self.json, self.json_int)?;
        if self.json_pool_key_guid && !self.json {
            return Err(usage("'json-pool-key-guid' only works with '-j' option"));
        }
        Ok(json)
    }
}
