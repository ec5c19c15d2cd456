//! Shared by the `zpool` commands: options, and pools with what their server knows of them.

mod names;
pub(crate) mod scripts;

use std::ffi::OsStr;

use anyhow::Result;
use cenote_host::owners;
use cenote_listing::{Facts, Form, Imported, LostPool, WhyLost};
use cenote_server::{Gone, Lost, ServerError, View};

use crate::context::Context;
use crate::outcome::usage;
use crate::output::{Json, json_of};

pub(crate) use names::NameArgs;

/// An open pool, with what the server knows of its devices, if there is one, and how it is imported here.
pub(crate) fn facts(context: &Context, pool: View) -> Facts {
    let guid = pool.guid();
    let served = context.served().cloned();
    let devices = move || served.as_ref()?.devices().filter(|devices| devices.guid == guid);
    let own = context.served().filter(|pool| pool.guid() == guid);
    let unreported = own.map(|pool| pool.scan_unreported()).unwrap_or_default();
    let jobs = own.map(|pool| pool.jobs()).unwrap_or_default();
    let noted = context.noted(guid).map(|(_, entry)| entry);
    let is_served = own.is_some();
    let imported = Imported {
        is_read_only: noted.as_ref().map_or(!is_served, |entry| entry.readonly),
        cachefile: noted.and_then(|entry| entry.cachefile_value()),
        load_guid: owners::own_mark(guid).filter(|_| is_served),
    };
    Facts::with_devices(pool, devices).scanning(unreported).working(jobs).imported(imported)
}

/// The same of one of several pools; the process that has it, if one does, is asked for its state.
pub(crate) fn facts_of_several(context: &Context, pool: View) -> Facts {
    let state = context.owner_of(&pool).and_then(|socket| {
        let line = ["cenote", "zpool", "list", "-H", "-o", "health"].map(OsStr::new);
        let (text, status) = context.asked(&socket, &line).ok()?;
        Some(String::from_utf8(text).ok()?.trim().to_owned()).filter(|_| status == 0)
    });
    facts(context, pool).in_state(state)
}

/// A pool that is imported and cannot be opened, as it is shown.
pub(crate) fn lost_pool(lost: Lost) -> LostPool {
    let why = match lost.error {
        ServerError::Gone(Gone { denied: Some(path), .. }) => WhyLost::Denied(path),
        ServerError::Gone(_) => WhyLost::Gone,
        ServerError::Spa(error) => WhyLost::Pool(error),
        error => WhyLost::Other(error.chain()),
    };
    LostPool { name: lost.name, guid: lost.guid, paths: lost.paths, found: lost.found, why }
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
