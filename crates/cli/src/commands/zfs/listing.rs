//! Options that `zfs list` and `zfs get` share: how far down, and how it is printed.

use cenote_admin::values::Types;
use cenote_listing::{Form, json_of};

use crate::prelude::*;

#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(super) struct Listing {
    /// Also what is below.
    #[arg(short = 'r')]
    recursive: bool,
    /// Also what is below, at most as deep.
    #[arg(short = 'd', value_name = "DEPTH")]
    depth: Option<u64>,
    /// Tabs in place of columns, no heading.
    #[arg(short = 'H')]
    pub(super) scripted: bool,
    /// Exact numbers.
    #[arg(short = 'p')]
    exact: bool,
    /// Print JSON.
    #[arg(short = 'j', long)]
    pub(super) json: bool,
    /// In JSON, numbers as numbers.
    #[arg(long)]
    json_int: bool,
}

impl Listing {
    /// The form of the table. Refuses what makes no sense without `-j`.
    pub(super) fn form(&self) -> Result<Form> {
        let json = Some(json_of(self.json, self.json_int)?).filter(|_| self.json);
        Ok(Form { is_scripted: self.scripted, is_exact: self.exact || self.json_int, json, is_by_guid: false })
    }

    /// How far to go down. Snapshots or bookmarks alone are those of the datasets named.
    pub(super) fn depth(&self, types: Types, has_names: bool) -> Option<u64> {
        let is_part = types == Types::SNAPSHOT || types == Types::BOOKMARK;
        match self.depth {
            Some(depth) => Some(depth),
            None if self.recursive => Some(u64::MAX),
            None if is_part && has_names => Some(1),
            None => None,
        }
    }
}
