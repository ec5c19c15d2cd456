//! The list of a package: the datasets and snapshots that its sender has.

use std::collections::BTreeMap;

use cenote_format::nvlist::{NvList, NvValue};
use cenote_props::{Kind, dataset as table, is_user_property};
use cenote_spa::PropertyValue;

use crate::Setting;

/// A dataset of a package.
#[derive(Clone, Debug, Default)]
pub(super) struct Sent {
    pub(super) name: String,
    /// Guid of the snapshot of its parent that it builds on; 0 if there is none.
    pub(super) parent_from: u64,
    /// Guid of the snapshot that it is a clone of; 0 if it is none.
    pub(super) origin: u64,
    /// It is an encryption root.
    pub(super) is_encryption_root: bool,
    /// The place where its key is found, if the package has properties and it is a root.
    pub(super) key_location: Option<String>,
    /// Properties, if the package has them.
    pub(super) properties: Option<Vec<Setting>>,
    /// Properties of snapshots, by their names.
    snapshot_properties: BTreeMap<String, Vec<Setting>>,
    /// Tags of holds, by the names of snapshots.
    holds: BTreeMap<String, Vec<String>>,
}

/// The list of a package.
#[derive(Clone, Debug, Default)]
pub(super) struct List {
    pub(super) from_snapshot: Option<String>,
    pub(super) is_recursive: bool,
    /// Encrypted datasets come as they lie on the sender's disk.
    pub(super) is_raw: bool,
    datasets: Vec<Sent>,
    /// By guid: the dataset and the name of a snapshot.
    snapshots: BTreeMap<u64, (usize, String)>,
}

impl List {
    /// Reads it. `None` if it is no such list.
    pub(super) fn parse(list: &NvList) -> Option<Self> {
        let mut this = Self {
            from_snapshot: list.str("fromsnap").map(str::to_owned),
            is_recursive: !list.has("not_recursive"),
            is_raw: list.has("raw"),
            ..Self::default()
        };
        for (_, value) in list.list("fss")?.iter() {
            let NvValue::Nvlist(entry) = value else { return None };
            let mut sent = Sent {
                name: entry.str("name")?.to_owned(),
                parent_from: entry.u64("parentfromsnap").unwrap_or(0),
                origin: entry.u64("origin").unwrap_or(0),
                is_encryption_root: entry.has("is_encroot"),
                key_location: entry.list("props").and_then(|list| Some(list.str("keylocation")?.to_owned())),
                properties: entry.list("props").map(settings),
                ..Sent::default()
            };
            for (name, value) in entry.list("snaps")?.iter() {
                let (Some(name), NvValue::Uint64(guid)) = (name.as_str(), value) else { return None };
                this.snapshots.insert(*guid, (this.datasets.len(), name.to_owned()));
            }
            let lists = |of: &str| {
                let found = entry.list(of).into_iter().flat_map(NvList::iter);
                found.filter_map(|(name, value)| match value {
                    NvValue::Nvlist(list) => Some((name.as_str()?.to_owned(), list.clone())),
                    _ => None,
                })
            };
            sent.snapshot_properties = lists("snapprops").map(|(name, list)| (name, settings(&list))).collect();
            let tags = |list: &NvList| list.iter().filter_map(|(tag, _)| Some(tag.as_str()?.to_owned())).collect();
            sent.holds = lists("snapholds").map(|(name, list)| (name, tags(&list))).collect();
            this.datasets.push(sent);
        }
        Some(this)
    }

    /// The dataset that has a snapshot of this guid, and the snapshot's name there.
    pub(super) fn find(&self, guid: u64) -> Option<(&Sent, &str)> {
        let (at, name) = self.snapshots.get(&guid)?;
        Some((&self.datasets[*at], name))
    }
}

impl Sent {
    pub(super) fn properties_of(&self, snapshot: &str) -> &[Setting] {
        self.snapshot_properties.get(snapshot).map_or(&[], Vec::as_slice)
    }

    pub(super) fn holds_of(&self, snapshot: &str) -> &[String] {
        self.holds.get(snapshot).map_or(&[], Vec::as_slice)
    }
}

/// Properties that a dataset can be given. Others say something of the sender alone.
fn settings(list: &NvList) -> Vec<Setting> {
    let mut settings = Vec::new();
    for (name, value) in list.iter() {
        let Some(name) = name.as_str() else { continue };
        // An older sender has a list of value and source.
        let value = match value {
            NvValue::Nvlist(list) => {
                list.iter().find(|(name, _)| name.as_str() == Some("value")).map(|(_, value)| value)
            }
            value => Some(value),
        };
        let known = table::find(name);
        let is_text = match known {
            _ if is_user_property(name) => true,
            Some(property) if !property.is_read_only() && name != "keylocation" => {
                matches!(property.kind, Kind::Text(_))
            }
            _ => continue,
        };
        let value = match value {
            Some(NvValue::Uint64(number)) if !is_text => PropertyValue::Number(*number),
            Some(NvValue::String(text)) if is_text => match text.as_str() {
                Some(text) => PropertyValue::Text(text.to_owned()),
                None => continue,
            },
            _ => continue,
        };
        settings.push((known.map_or(name, |known| known.name).to_owned(), value));
    }
    settings
}
