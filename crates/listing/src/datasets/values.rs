//! The values of properties and their sources.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::error::Result;
use cenote_dmu::Zap;
use cenote_dsl::property::{self as stored, Value};
use cenote_dsl::{DslError, Encryption};
use cenote_format::dsl::{BookmarkFlags, DatasetFlags, DirFlags, dataset_field, dir_field};
use cenote_format::enums::ObjsetType;
use cenote_format::objset::ObjsetFlags;
use cenote_format::zpl::MASTER_NODE;
use cenote_props::{Attribute, Kind, Property, Types, dataset as table};
use cenote_send::receiver::receive_resume_token;
use cenote_taskq::boxed;
use cenote_zpl::FileSystem;
use cenote_zvol::Volume;

use super::fact::{Fact, Raw, Source};
use super::{Cell, Item, shown};

/// Data that was read for one value and is used for others.
#[derive(Default)]
pub(super) struct Caches {
    stored: OnceLock<BTreeMap<String, (Value, Source)>>,
    received: OnceLock<stored::Entries>,
    encryption: OnceLock<Option<Encryption>>,
    filesystem: OnceLock<Option<FileSystem>>,
    volume: OnceLock<Option<Volume>>,
    master: OnceLock<Option<BTreeMap<&'static str, u64>>>,
}

/// Properties whose value, unless it is the default, is always set on the dataset itself.
const OWN: [&str; 9] = [
    "canmount",
    "volsize",
    "quota",
    "refquota",
    "reservation",
    "refreservation",
    "filesystem_limit",
    "snapshot_limit",
    "filesystem_count",
];
/// As [`OWN`].
const OWN_TOO: &str = "snapshot_count";

/// Properties that a mount may override, and the mount options for on and off.
const MOUNT_OPTIONS: [(&str, &str, &str); 8] = [
    ("atime", "atime", "noatime"),
    ("relatime", "relatime", "norelatime"),
    ("devices", "dev", "nodev"),
    ("exec", "exec", "noexec"),
    ("readonly", "ro", "rw"),
    ("setuid", "suid", "nosuid"),
    ("xattr", "xattr", "noxattr"),
    ("nbmand", "mand", "nomand"),
];

impl Item {
    /// A property of the table; `None` if this item does not have it.
    pub(super) async fn cell(&self, property: &'static Property, is_exact: bool) -> Result<Option<Cell>> {
        let Some(fact) = self.fact(property).await? else { return Ok(None) };
        Ok(shown::text(property, &fact, is_exact, self.view.time).map(|text| Cell::new(text, fact.source)))
    }

    /// A user property.
    pub(super) async fn user_cell(&self, name: &str) -> Result<Option<Cell>> {
        let stored = self.stored().await?;
        Ok(stored.get(name).map(|(value, source)| Cell::new(plain(value), source.clone())))
    }

    /// The names of its user properties.
    #[boxed]
    pub(crate) async fn user_properties(&self) -> Result<Vec<String>> {
        let names = self.stored().await?.keys();
        Ok(names.filter(|name| cenote_props::is_user_property(name)).cloned().collect())
    }

    /// The received value of a property, in force or not.
    #[boxed]
    pub async fn received(&self, name: &str, is_exact: bool) -> Result<Option<String>> {
        if self.bookmark.is_some() {
            return Ok(None);
        }
        if self.caches.received.get().is_none() {
            let object = if self.dataset.is_snapshot() {
                self.dataset.phys.properties
            } else {
                self.dataset.dir.phys.properties
            };
            let entries = self.view.pool.dsl().property_entries(object).await?;
            let _ = self.caches.received.set(entries);
        }
        let Some(value) = self.caches.received.get().and_then(|entries| entries.received(name)) else {
            return Ok(None);
        };
        let Some(property) = cenote_props::find(table::PROPERTIES, name) else { return Ok(Some(plain(value))) };
        if property.is_read_only() || !property.types.contains(self.kind) {
            return Ok(None);
        }
        let raw = match (value, property.name) {
            (Value::Text(text), "mountpoint") => Raw::Text(self.mountpoint(text, "")),
            (Value::Text(text), _) => Raw::Text(text.clone()),
            (Value::Number(number), _) => Raw::Number(*number),
        };
        Ok(shown::text(property, &Fact { raw, source: Source::Received }, is_exact, self.view.time))
    }

    /// A property's number or text for sorting; `None` if the property does not apply to this kind of item.
    #[boxed]
    pub(crate) async fn sort_value(&self, property: &'static Property) -> Result<Option<Raw>> {
        if matches!(property.kind, Kind::Text(_)) {
            return Ok(self.fact(property).await?.map(|fact| fact.raw));
        }
        if !property.types.contains(self.kind) {
            return Ok(None);
        }
        let number = match self.fact(property).await? {
            Some(Fact { raw: Raw::Number(number), .. }) => number,
            _ => property.default_number().unwrap_or(0),
        };
        Ok(Some(Raw::Number(number)))
    }

    pub(super) async fn fact(&self, property: &'static Property) -> Result<Option<Fact>> {
        if !property.types.contains(self.kind) {
            return Ok(None);
        }
        match property.name {
            "name" => return Ok(Some(Fact::text(&self.name))),
            "type" => {
                let word = match self.kind {
                    Types::FILESYSTEM => "filesystem",
                    Types::VOLUME => "volume",
                    Types::SNAPSHOT => "snapshot",
                    _ => "bookmark",
                };
                return Ok(Some(Fact::text(word)));
            }
            _ => {}
        }
        if self.bookmark.is_some() {
            return self.bookmark_fact(property.name).await;
        }
        if let Kind::Text(default) = property.kind {
            return self.text_fact(property.name, default).await;
        }
        // Properties that only volumes have also apply to volumes' snapshots; those that only snapshots have apply to all snapshots.
        if self.kind == Types::SNAPSHOT && property.types != Types::SNAPSHOT && !property.types.contains(self.head_kind)
        {
            return Ok(None);
        }
        match property.name {
            "version" | "normalization" | "utf8only" | "casesensitivity" => {
                return Ok(self.filesystem_fact(property.name).await.map(Fact::number));
            }
            "mounted" => {
                return Ok(Some(Fact::number(self.view.mounts.options(&self.name).is_some().into())));
            }
            _ => {}
        }
        let Some(fact) = self.number_fact(property).await? else { return Ok(None) };
        Ok(Some(self.as_mounted(property.name, fact)))
    }

    /// A number: computed, stored, or the default.
    async fn number_fact(&self, property: &'static Property) -> Result<Option<Fact>> {
        let computed = self.statistic(property.name).await?;
        // Most computed values cannot be stored.
        let only_reports = property.attribute == Attribute::ReadOnly;
        let stored = if only_reports { None } else { self.stored().await?.get(property.name) };
        let stored = stored.and_then(|(value, source)| Some((value.number()?, source.clone())));
        let is_own = OWN.contains(&property.name) || property.name == OWN_TOO;
        let unsourced = if is_own { Source::Local } else { Source::None };
        let default = property.default_number().unwrap_or(0);
        let (number, source) = match (computed, stored) {
            (Some(number), Some((_, source))) => (number, source),
            (Some(number), None) if number == default && !only_reports => (number, Source::Default),
            (Some(number), None) => (number, unsourced),
            (None, Some((number, source))) => (number, source),
            (None, None) if only_reports && !is_own => return Ok(None),
            // Each volume has these: if they cannot be read, they are unknown, not the default.
            (None, None) if ["volsize", "volblocksize"].contains(&property.name) => return Ok(None),
            (None, None) => (default, Source::Default),
        };
        Ok(Some(Fact { raw: Raw::Number(number), source }))
    }

    /// The value of a switch in the mount, if it differs from the stored one.
    fn as_mounted(&self, name: &str, fact: Fact) -> Fact {
        let Some((_, on, off)) = MOUNT_OPTIONS.iter().find(|(property, ..)| *property == name) else { return fact };
        let Some(options) = self.view.mounts.options(&self.name) else { return fact };
        let has = |option: &str| options.iter().any(|each| each == option);
        let is_on = fact.raw != Raw::Number(0);
        let temporary = |number| Fact { raw: Raw::Number(number), source: Source::Temporary };
        match is_on {
            false if has(on) => temporary(1),
            true if has(off) => temporary(0),
            _ => fact,
        }
    }

    /// The numbers about the dataset in the MOS.
    async fn statistic(&self, name: &str) -> Result<Option<u64>> {
        let dsl = self.view.pool.dsl();
        let (phys, dir) = (&self.dataset.phys, &self.dataset.dir.phys);
        let is_snapshot = self.dataset.is_snapshot();
        let ratio = |logical: u64, physical: u64| {
            let hundredths = u128::from(logical) * 100;
            hundredths.checked_div(u128::from(physical)).map_or(100, |ratio| u64::try_from(ratio).unwrap_or(u64::MAX))
        };
        let flag = |flag| u64::from(phys.flags.contains(flag));
        let number = match name {
            "creation" => phys.creation_time,
            "createtxg" => phys.creation_txg.0,
            "used" => {
                if is_snapshot {
                    phys.unique_bytes
                } else {
                    dir.used_bytes
                }
            }
            "available" => {
                let usable = self.view.usable_bytes().await?;
                dsl.available_bytes(&self.dataset, usable).await?
            }
            "referenced" => phys.referenced_bytes,
            "refcompressratio" => ratio(phys.uncompressed_bytes, phys.compressed_bytes),
            "compressratio" if is_snapshot => ratio(phys.uncompressed_bytes, phys.compressed_bytes),
            "compressratio" => ratio(dir.uncompressed_bytes, dir.compressed_bytes),
            "logicalreferenced" => phys.uncompressed_bytes,
            "logicalused" => dir.uncompressed_bytes,
            "quota" => dir.quota_bytes,
            "reservation" => dir.reserved_bytes,
            "refquota" | "refreservation" => {
                let stored = self.stored().await?.get(name);
                stored.and_then(|(value, _)| value.number()).unwrap_or(0)
            }
            "usedbysnapshots" | "usedbydataset" | "usedbychildren" | "usedbyrefreservation" => {
                if !dir.flags.contains(DirFlags::USED_BREAKDOWN) {
                    return Ok(None);
                }
                // Head, snapshots, children, reserved for children, refreservation.
                let [head, snapshots, children, reserved, refreservation] = dir.used_breakdown_bytes;
                match name {
                    "usedbysnapshots" => snapshots,
                    "usedbydataset" => head,
                    "usedbychildren" => children.saturating_add(reserved),
                    _ => refreservation,
                }
            }
            "guid" => phys.guid.0,
            "unique" => phys.unique_bytes,
            "objsetid" => self.dataset.object.0,
            "numclones" => phys.child_count.saturating_sub(1),
            "userrefs" => dsl.holds(&self.dataset).await?.len() as u64,
            "defer_destroy" => flag(DatasetFlags::DEFER_DESTROY),
            "inconsistent" => flag(DatasetFlags::INCONSISTENT),
            "redacted" => u64::from(dsl.redaction_snapshots(&self.dataset).await?.is_some()),
            "written" => return Ok(dsl.written_bytes(&self.dataset).await?),
            "filesystem_count" => return Ok(dsl.dir_field(&self.dataset.dir, dir_field::FILESYSTEM_COUNT).await?),
            "snapshot_count" => return Ok(dsl.dir_field(&self.dataset.dir, dir_field::SNAPSHOT_COUNT).await?),
            "snapshots_changed" => {
                let changed = dsl.dir_value(&self.dataset.dir, dir_field::SNAPSHOTS_CHANGED).await?;
                return Ok(changed.and_then(|time| time.integers().next()));
            }
            "useraccounting" => {
                let objset = dsl.open_as_is(&self.dataset).await?;
                let complete = ObjsetFlags::USERACCOUNTING_COMPLETE;
                objset.is_some_and(|objset| objset.phys().flags.contains(complete)).into()
            }
            "volsize" | "volblocksize" => {
                let volume = self.volume().await?;
                return Ok(volume.map(|volume| match name {
                    "volsize" => volume.size_bytes(),
                    _ => volume.block_size_bytes(),
                }));
            }
            "encryption" | "keystatus" | "keyguid" | "keyformat" | "pbkdf2salt" | "pbkdf2iters" | "ivsetguid" => {
                return self.key_number(name).await;
            }
            _ => return Ok(None),
        };
        Ok(Some(number))
    }

    /// The state of the dataset's key.
    async fn key_number(&self, name: &str) -> Result<Option<u64>> {
        const UNAVAILABLE: u64 = 1;
        const AVAILABLE: u64 = 2;
        let Some(encryption) = self.encryption().await? else { return Ok(None) };
        let phys = &encryption.phys;
        Ok(match name {
            "encryption" => Some(phys.suite.number()),
            "keystatus" => Some(if encryption.is_loaded { AVAILABLE } else { UNAVAILABLE }),
            "keyguid" => Some(phys.guid.0),
            "keyformat" => Some(phys.key_format.number()),
            "pbkdf2salt" => Some(phys.pbkdf2_salt),
            "pbkdf2iters" => Some(phys.pbkdf2_iterations),
            _ => self.view.pool.dsl().dataset_field(&self.dataset, dataset_field::IVSET_GUID).await?,
        })
    }

    async fn text_fact(&self, name: &str, default: Option<&'static str>) -> Result<Option<Fact>> {
        let dsl = self.view.pool.dsl();
        let list = |guids: Vec<u64>| match guids.is_empty() {
            true => "none".to_owned(),
            false => guids.iter().map(u64::to_string).collect::<Vec<_>>().join(","),
        };
        let computed = match name {
            "origin" => self.origin().await?,
            "prevsnap" => match self.dataset.phys.prev_snapshot {
                object if object.0 == 0 => None,
                object => Some(dsl.dataset_name(object).await?).filter(|name| !name.contains('$')),
            },
            "clones" => {
                let clones = dsl.clones(&self.dataset).await?;
                (!clones.is_empty()).then(|| clones.join(","))
            }
            "receive_resume_token" => receive_resume_token(dsl, &self.dataset).await?,
            "encryptionroot" => self.encryption().await?.as_ref().map(|encryption| encryption.root.clone()),
            "redact_snaps" => dsl.redaction_snapshots(&self.dataset).await?.map(list),
            _ => {
                let stored = self.stored().await?.get(name);
                let stored = stored.and_then(|(value, source)| Some((value.text()?, source.clone())));
                let Some((text, source)) = stored.or_else(|| Some((default?, Source::Default))) else {
                    return Ok(None);
                };
                if name != "mountpoint" {
                    return Ok(Some(Fact { raw: Raw::Text(text.to_owned()), source }));
                }
                let from = match &source {
                    Source::Inherited(from) => self.name.strip_prefix(from.as_str()).unwrap_or_default(),
                    Source::Default => &self.name,
                    _ => "",
                };
                return Ok(Some(Fact { raw: Raw::Text(self.mountpoint(text, from)), source }));
            }
        };
        Ok(computed.map(Fact::text))
    }

    /// The mount point: a stored one, followed by the part of the name below the dataset where it is set, under the pool's alternate root.
    fn mountpoint(&self, text: &str, below: &str) -> String {
        if !text.starts_with('/') {
            return text.to_owned();
        }
        let root = self.view.pool.altroot().unwrap_or_default().trim_end_matches('/');
        let below = below.trim_start_matches('/');
        let text = if text == "/" && !(root.is_empty() && below.is_empty()) { "" } else { text };
        match below {
            "" => format!("{root}{text}"),
            below => format!("{root}{text}/{below}"),
        }
    }

    async fn origin(&self) -> Result<Option<String>> {
        let origin = self.dataset.dir.phys.origin;
        if origin.0 == 0 || self.dataset.is_snapshot() {
            return Ok(None);
        }
        // The origin of all file systems that are not clones is the pool's empty one.
        let name = self.view.pool.dsl().dataset_name(origin).await?;
        Ok(Some(name).filter(|name| !name.contains('$')))
    }

    /// The properties in the master node.
    async fn filesystem_fact(&self, name: &str) -> Option<u64> {
        if self.caches.master.get().is_none() {
            let read = async {
                // A half-received dataset cannot be opened for use.
                if self.dataset.is_inconsistent() {
                    return None;
                }
                let objset = self.view.pool.dsl().open(&self.dataset).await.ok()??;
                // The master node is not encrypted.
                let objset = if self.is_locked().await.ok()? { objset.without_key() } else { objset };
                let zap = Zap::open(objset.object(MASTER_NODE).await.ok()?).await.ok()?;
                let version = zap.find_u64("VERSION").await.ok()??;
                let mut found = BTreeMap::from([("version", version)]);
                for name in ["normalization", "utf8only", "casesensitivity"] {
                    found.insert(name, zap.find_u64(name).await.ok()?.unwrap_or(0));
                }
                Some(found)
            };
            let _ = self.caches.master.set(read.await);
        }
        self.caches.master.get()?.as_ref()?.get(name).copied()
    }

    async fn bookmark_fact(&self, name: &str) -> Result<Option<Fact>> {
        let Some(bookmark) = &self.bookmark else { return Ok(None) };
        let phys = &bookmark.phys;
        let has_sizes = phys.flags.contains(BookmarkFlags::HAS_FREED_BEFORE_NEXT);
        let number = match name {
            "guid" => phys.guid.0,
            "createtxg" => phys.creation_txg.0,
            "creation" => phys.creation_time,
            "ivsetguid" => phys.ivset_guid,
            "referenced" if has_sizes => phys.referenced_bytes,
            "logicalreferenced" if has_sizes => phys.uncompressed_bytes,
            "redact_snaps" => {
                let guids = self.view.pool.dsl().bookmark_redaction(bookmark).await?;
                return Ok(guids.map(|guids| match guids.is_empty() {
                    true => Fact::text("none"),
                    false => Fact::text(guids.iter().map(u64::to_string).collect::<Vec<_>>().join(",")),
                }));
            }
            _ => return Ok(None),
        };
        Ok(Some(Fact::number(number)))
    }

    /// Properties set here or inherited. A snapshot has its own properties, and its head's inheritable ones.
    async fn stored(&self) -> Result<&BTreeMap<String, (Value, Source)>> {
        if self.caches.stored.get().is_none() {
            let stored = self.read_stored().await?;
            let _ = self.caches.stored.set(stored);
        }
        Ok(self.caches.stored.get_or_init(BTreeMap::new))
    }

    async fn read_stored(&self) -> Result<BTreeMap<String, (Value, Source)>> {
        let mut found = BTreeMap::new();
        if self.bookmark.is_some() {
            return Ok(found);
        }
        let dsl = self.view.pool.dsl();
        let is_snapshot = self.dataset.is_snapshot();
        let native = |name: &str| cenote_props::find(table::PROPERTIES, name);
        let inheritable = |name: &str| native(name).is_none_or(Property::is_inheritable);
        let source = |source| match source {
            stored::Source::Local => Source::Local,
            stored::Source::Received => Source::Received,
            stored::Source::Inherited(from) => Source::Inherited(from),
        };
        if is_snapshot {
            for (name, property) in dsl.snapshot_properties(&self.dataset).await? {
                found.insert(name, (property.value, source(property.source)));
            }
        }
        let dir = &self.dataset.dir;
        for (name, property) in dsl.properties(dir, inheritable).await? {
            let mut source = source(property.source);
            if is_snapshot {
                let belongs = native(&name).is_none_or(|native| native.types.contains(Types::SNAPSHOT));
                if found.contains_key(&name) || !inheritable(&name) || !belongs {
                    continue;
                }
                if !matches!(source, Source::Inherited(_)) {
                    source = Source::Inherited(dir.name.clone());
                }
            }
            found.insert(name, (property.value, source));
        }
        Ok(found)
    }

    async fn encryption(&self) -> Result<&Option<Encryption>> {
        if self.caches.encryption.get().is_none() {
            let encryption = self.view.pool.dsl().encryption(&self.dataset.dir).await?;
            let _ = self.caches.encryption.set(encryption);
        }
        Ok(self.caches.encryption.get_or_init(|| None))
    }

    /// The file system, if it can be opened: not without its key, nor when half received.
    pub(super) async fn filesystem(&self) -> Option<&FileSystem> {
        if self.caches.filesystem.get().is_none() {
            let open = async {
                if self.head_kind != Types::FILESYSTEM {
                    return None;
                }
                let objset = self.view.pool.dsl().open(&self.dataset).await.ok()??;
                FileSystem::open(objset).await.ok()
            };
            let _ = self.caches.filesystem.set(open.await);
        }
        self.caches.filesystem.get()?.as_ref()
    }

    async fn is_locked(&self) -> Result<bool> {
        Ok(self.encryption().await?.as_ref().is_some_and(|encryption| !encryption.is_loaded))
    }

    async fn volume(&self) -> Result<Option<&Volume>> {
        if self.caches.volume.get().is_none() {
            let mut volume = None;
            if self.head_kind == Types::VOLUME
                && !self.dataset.is_inconsistent()
                && let Some(objset) = self.view.pool.dsl().open(&self.dataset).await?
            {
                // A volume's size and block size are not encrypted.
                let objset = if self.is_locked().await? { objset.without_key() } else { objset };
                volume = Some(Volume::open(&objset).await?);
            }
            let _ = self.caches.volume.set(volume);
        }
        Ok(self.caches.volume.get().and_then(Option::as_ref))
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Text(text) => text.clone(),
    }
}

/// The type of a head.
///
/// # Errors
/// It is neither a file system nor a volume.
pub(crate) fn type_of(kind: ObjsetType) -> Result<Types, DslError> {
    match kind {
        ObjsetType::Zvol => Ok(Types::VOLUME),
        ObjsetType::Zfs => Ok(Types::FILESYSTEM),
        other => Err(DslError::Unsupported(format!("datasets of the type '{other}'"))),
    }
}
