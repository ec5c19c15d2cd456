//! Changes that commands make to a pool that is open for writing: properties, names, whole file systems. Each change belongs to the open
//! txg, and is noted in the pool's history as OpenZFS notes it.

use std::collections::BTreeMap;

use cenote_dmu::Zap;
use cenote_dsl::Birth;
use cenote_dsl::name::{check_new_dataset, check_new_snapshot, check_no_received, is_below, parent_and_last, pool_of};
use cenote_dsl::property::Source;
use cenote_dsl::{Dir, Dsl, DslError};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{dir_field, pool_directory};
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{Guid, ObjectId};
use cenote_format::nvlist::NvList;
use cenote_taskq::{Rng, boxed};
use thiserror::Error;

use crate::admin::dataset::POLICY_PROPERTIES;
use crate::admin::dataset::PropertyValue;
use crate::admin::vdev_properties::AUTOSIT;
use crate::failmode::FailMode;
use crate::sync::vdev_config::set;
use crate::sync::{Syncer, history};
use crate::{Refusal, SpaError};
use cenote_dsl::Head;

/// Properties of the pool that stand in its configuration, so that labels have them too.
pub(crate) const IN_CONFIG: [&str; 2] = ["comment", "compatibility"];

/// Properties of vdevs that change the rules by which errors are judged.
const FAULT_PROPERTIES: [&str; 7] =
    ["checksum_n", "checksum_t", "io_n", "io_t", "slow_io_n", "slow_io_t", "slow_io_events"];

/// Bytes of the name of a property that is kept at most (`ZAP_MAXNAMELEN` less the terminating zero).
const NAME_MAX_BYTES: usize = 255;
/// Bytes of a text that is kept at most (`ZAP_MAXVALUELEN` less the terminating zero).
const TEXT_MAX_BYTES: usize = 8191;

/// A property that no ZAP of the MOS can have.
#[derive(Debug, Error)]
pub(crate) enum PropertyTextError {
    /// Its name is empty, or has a zero in it.
    #[error("invalid property '{property}'")]
    Invalid {
        /// The name.
        property: String,
    },
    /// Its name is too long.
    #[error("property name '{property}' is too long")]
    NameTooLong {
        /// The name.
        property: String,
    },
    /// Its text is too long.
    #[error("property value too long")]
    ValueTooLong,
}

/// Refuses a name or a text that no ZAP of the MOS can have.
pub(crate) fn check_text(property: &str, text: &str) -> Result<(), PropertyTextError> {
    if property.is_empty() || property.contains('\0') {
        return Err(PropertyTextError::Invalid { property: property.to_owned() });
    }
    if property.len() > NAME_MAX_BYTES {
        return Err(PropertyTextError::NameTooLong { property: property.to_owned() });
    }
    if text.len() > TEXT_MAX_BYTES {
        return Err(PropertyTextError::ValueTooLong);
    }
    Ok(())
}

impl PropertyValue {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

impl Syncer {
    fn refused(&self, what: impl Into<String>) -> SpaError {
        SpaError::unsupported(what)
    }

    /// Records a command in the pool's history: its command line, and its user.
    ///
    /// # Errors
    /// The history cannot be read or changed.
    #[boxed]
    pub async fn record_command(&mut self, line: &str, user: u64) -> Result<(), SpaError> {
        let record = history::command(self.time_s(), &self.host.name, user, line);
        self.record(record).await
    }

    /// Notes what a txg did, of the pool or of a dataset.
    pub(crate) async fn record_event(
        &mut self,
        name: &str,
        text: &str,
        dataset: Option<(&str, ObjectId)>,
    ) -> Result<(), SpaError> {
        let mut record = history::event(self.time_s(), self.txg, &self.host.name, name, text);
        if let Some((name, object)) = dataset {
            record.push("dsname", name);
            record.push("dsid", object.0);
        }
        self.record(record).await
    }

    /// A history that cannot be written is told, and no error of what was done: that is done, and a sync task that fails after its first
    /// change fails the pool for all its users.
    async fn record(&mut self, record: NvList) -> Result<(), SpaError> {
        self.blocks.space.events.history(&record);
        if let Err(error) = self.append_record(record).await {
            self.blocks.space.troubles.tell(format!("the pool's history lacks what was done just now: {error}"));
        }
        Ok(())
    }

    async fn append_record(&mut self, record: NvList) -> Result<(), SpaError> {
        let txg = self.txg;
        let directory = Zap::open(self.mos.directory.clone()).await?;
        let found = directory.lookup(pool_directory::HISTORY.as_bytes()).await?;
        // A pool that keeps none gets none.
        let Some(object) = found.and_then(|value| value.as_u64()) else { return Ok(()) };
        let object = self.mos.objset.object(ObjectId(object)).await?;
        Ok(history::append(&object, txg, &record).await?)
    }

    /// Sets a property of the pool; nothing takes it back to what it is by default.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn set_pool_property(&mut self, name: &str, value: Option<&PropertyValue>) -> Result<(), SpaError> {
        let text = value.map(PropertyValue::text).unwrap_or_default();
        check_text(name, &text).map_err(|error| {
            let what = format!("cannot set property for '{}': {error}", self.name);
            SpaError::refused(Refusal::Invalid, what)
        })?;
        let number = match (name, value) {
            ("bootfs", Some(PropertyValue::Text(dataset))) => {
                Some(PropertyValue::Number(self.bootable(dataset).await?.0))
            }
            _ => None,
        };
        let (value, text) = match &number {
            Some(number) => (Some(number), number.text()),
            None => (value, text),
        };
        if name == "multihost" {
            self.set_multihost(matches!(value, Some(PropertyValue::Number(1))))?;
        }
        if IN_CONFIG.contains(&name) {
            match value {
                Some(_) => set(&mut self.devices.old_config, name, text.as_str()),
                None => drop(self.devices.old_config.remove(name)),
            }
            self.devices.config_changed = true;
        } else {
            let mut directory = Zap::open(self.mos.directory.clone()).await?;
            let found = directory.lookup(pool_directory::PROPERTIES.as_bytes()).await;
            let object = match found?.and_then(|value| value.as_u64()) {
                Some(object) => self.mos.objset.object(ObjectId(object)).await?,
                None => {
                    let made = Zap::create_object(&self.mos.objset, self.txg, DmuType::POOL_PROPS, &[]).await?;
                    directory.insert_u64(pool_directory::PROPERTIES, made.id().0).await?;
                    directory.flush(self.txg).await?;
                    made
                }
            };
            let entry = value.map(PropertyValue::zap);
            cenote_dmu::Zap::put_entry(&object, self.txg, name, entry.as_ref()).await?;
            if name == "autotrim" {
                self.blocks.space.set_autotrim(matches!(value, Some(PropertyValue::Number(1..))));
            }
            if name == "failmode" {
                self.failmode = match value {
                    Some(PropertyValue::Number(number)) => FailMode::of_number(*number),
                    _ => FailMode::default(),
                };
            }
        }
        self.record_event("set", &format!("{name}={text}"), None).await
    }

    /// Sets a property of a vdev, in the ZAP that OpenZFS keeps it in; without a value it is taken away.
    ///
    /// # Errors
    /// There is no such vdev, or it has no ZAP, or cannot have this; or the MOS cannot be changed.
    #[boxed]
    pub async fn set_vdev_property(
        &mut self,
        vdev: Guid,
        name: &str,
        value: Option<&PropertyValue>,
    ) -> Result<(), SpaError> {
        let object = self.devices.zap_of(vdev)?;
        if let Some((name, entry)) = self.apply_vdev_property(vdev, name, value).await? {
            let object = self.mos.objset.object(object).await?;
            Zap::put_entry(&object, self.txg, name, entry.map(PropertyValue::zap).as_ref()).await?;
            self.read_settings_of(vdev).await?;
        }
        let text = value.map(PropertyValue::text).unwrap_or_default();
        self.record_event("vdev set", &format!("vdev_guid={}: {name}={text}", vdev.0), None).await
    }

    /// Tells the diagnosis of devices of the properties that vdevs have.
    pub(crate) async fn read_vdev_settings(&mut self) -> Result<(), SpaError> {
        let mut vdevs = Vec::new();
        self.devices.root_vdev.config.walk(&mut |vdev| vdevs.push(vdev.guid));
        for vdev in vdevs {
            self.read_settings_of(vdev).await?;
        }
        Ok(())
    }

    async fn read_settings_of(&self, vdev: Guid) -> Result<(), SpaError> {
        // One without a table has no properties.
        let Ok(object) = self.devices.zap_of(vdev) else { return Ok(()) };
        let zap = Zap::open(self.mos.objset.object(object).await?).await?;
        let mut settings = BTreeMap::new();
        for name in FAULT_PROPERTIES {
            if let Some(number) = zap.lookup(name.as_bytes()).await?.and_then(|value| value.as_u64()) {
                settings.insert(name.to_owned(), number);
            }
        }
        self.blocks.space.events.set_settings(vdev, settings);
        if let Some(number) = zap.lookup(AUTOSIT.as_bytes()).await?.and_then(|value| value.as_u64()) {
            // Another vdev may have one too, and has no use for it.
            let _ = self.devices.tree.set_autosit(vdev, number != 0);
        }
        Ok(())
    }

    /// The dataset that a system is to be booted from, which the pool keeps by its number so that it is found under other names too.
    async fn bootable(&self, name: &str) -> Result<ObjectId, SpaError> {
        let refused =
            |kind, why: &str| SpaError::refused(kind, format!("cannot set property for '{}': {why}", self.name));
        let is_legal = check_no_received(name).is_ok()
            && if name.contains('@') { check_new_snapshot(name) } else { check_new_dataset(name) }.is_ok();
        if !is_legal || pool_of(name) != self.name {
            return Err(refused(Refusal::Invalid, &format!("'{name}' is an invalid name")));
        }
        let view = self.dsl();
        let dataset = match view.dataset(name).await {
            Err(DslError::NoSuchDataset(_)) => return Err(refused(Refusal::NotThere, "no such pool or dataset")),
            result => result?,
        };
        match view.kind(&dataset).await? {
            ObjsetType::Zfs => Ok(dataset.object),
            _ => Err(refused(
                Refusal::Invalid,
                &format!("operation not supported on this type of pool: '{name}' is no file system"),
            )),
        }
    }

    /// A directory by its full name, as of the last txg that was synced.
    async fn dir_of(&self, view: &Dsl, name: &str) -> Result<Dir, SpaError> {
        Ok(view.dir(name).await?)
    }

    /// Whether a property of a dataset can be given this value in this pool: to be asked before anything is changed.
    ///
    /// # Errors
    /// It is none that the property can have, or needs a feature that the pool has not got.
    pub fn check_property(&self, property: &str, value: &PropertyValue) -> Result<(), SpaError> {
        let text = if let PropertyValue::Text(text) = value { text.as_str() } else { "" };
        check_text(property, text).map_err(|error| SpaError::refused(Refusal::Invalid, error.to_string()))?;
        let PropertyValue::Number(number) = value else { return Ok(()) };
        let mut policy = self.mos.objset.policy();
        let needs = self.apply(&mut policy, property, *number)?;
        self.require(needs)
    }

    /// The directory of a dataset, if [`Self::change_property`] would change this property there.
    ///
    /// # Errors
    /// As there.
    #[boxed]
    pub async fn check_change_property(
        &self,
        dataset: &str,
        property: &str,
        value: Option<&PropertyValue>,
    ) -> Result<Dir, SpaError> {
        let view = self.dsl();
        let named = if dataset.contains('@') { view.dataset(dataset).await.ok() } else { None };
        if named.is_some_and(|named| named.is_snapshot()) {
            return Err(self.refused(format!("changing properties of snapshots ('{dataset}')")));
        }
        let dir = self.dir_of(view, dataset).await?;
        if let Some(value) = value {
            self.check_property(property, value)?;
        }
        if let ("filesystem_limit" | "snapshot_limit", Some(PropertyValue::Number(limit))) = (property, value) {
            self.check_limit_value(dataset, *limit)?;
        }
        if let ("keylocation", Some(PropertyValue::Text(place))) = (property, value) {
            self.check_key_location(&dir, place).await?;
        }
        if let ("quota", Some(PropertyValue::Number(bytes))) = (property, value) {
            self.check_quota_value(dataset, &dir, *bytes).await?;
        }
        Ok(dir)
    }

    /// Sets a property of a dataset, or has it inherited from above. It is not checked whether the property exists; what
    /// depends on a feature is refused where the pool has not got it.
    ///
    /// # Errors
    /// There is no such dataset; the value is none that the property can have; what it means cannot be kept up yet.
    #[boxed]
    pub async fn change_property(
        &mut self,
        dataset: &str,
        property: &str,
        value: Option<&PropertyValue>,
    ) -> Result<(), SpaError> {
        let view = self.dsl().clone();
        let dir = self.check_change_property(dataset, property, value).await?;
        let followed = self.policies_with(&view, &dir, property, value).await?;
        if let ("filesystem_limit" | "snapshot_limit", Some(PropertyValue::Number(limit))) = (property, value)
            && *limit != u64::MAX
        {
            self.start_counting(&dir).await?;
        }
        let txg = self.txg;
        let text = value.map(PropertyValue::text).unwrap_or_default();
        if property == "refreservation" {
            let bytes = match value {
                Some(PropertyValue::Number(bytes)) => Some(*bytes),
                _ => None,
            };
            self.mos.dsl.set_refreservation(txg, dir.phys.head_dataset, bytes).await?;
        } else {
            let value = value.map(PropertyValue::zap);
            self.mos.dsl.change_property(txg, dir.object, property, value.as_ref()).await?;
        }
        followed.into_iter().for_each(|(head, policy)| head.objset.set_policy(policy));
        if let ("compression", Some(PropertyValue::Number(number))) = (property, value) {
            let needs = self.apply(&mut self.mos.objset.policy(), property, *number)?;
            self.use_features(txg, dir.phys.head_dataset, needs).await?;
        }
        let event = if value.is_some() { "set" } else { "inherit" };
        self.record_event(event, &format!("{property}={text}"), Some((dataset, dir.phys.head_dataset))).await
    }

    /// Sets a user property of a snapshot, or has it be that of its dataset again (`is_reverted`: or what came with a stream). The caller
    /// has asked [`Self::check_property`].
    ///
    /// # Errors
    /// There is no such snapshot, or the MOS cannot be changed.
    #[boxed]
    pub async fn change_snapshot_property(
        &mut self,
        name: &str,
        property: &str,
        value: Option<&PropertyValue>,
        is_reverted: bool,
    ) -> Result<(), SpaError> {
        let snapshot = self.dsl().dataset(name).await?;
        assert!(snapshot.is_snapshot(), "these are properties of a snapshot");
        let (txg, zap) = (self.txg, value.map(PropertyValue::zap));
        let changed = match is_reverted {
            true => self.mos.dsl.revert_snapshot_property(txg, snapshot.object, property).await,
            false => self.mos.dsl.change_snapshot_property(txg, snapshot.object, property, zap.as_ref()).await,
        };
        changed?;
        let text = value.map(PropertyValue::text).unwrap_or_default();
        let event = if value.is_some() { "set" } else { "inherit" };
        self.record_event(event, &format!("{property}={text}"), Some((name, snapshot.object))).await
    }

    /// Refuses a quota below a directory's used or reserved space, as of the open txg.
    async fn check_quota_value(&self, name: &str, dir: &Dir, bytes: u64) -> Result<(), SpaError> {
        let phys = self.mos.dsl.dir_phys(dir.object).await?;
        if bytes != 0 && bytes < phys.used_bytes.max(phys.reserved_bytes) {
            let why = "size is less than current used or reserved space";
            return Err(SpaError::refused(Refusal::NoSpace, format!("cannot set property for '{name}': {why}")));
        }
        Ok(())
    }

    /// The write policies of the open datasets that will get this value of a property from a directory, which has it or inherits it.
    pub(crate) async fn policies_with(
        &self,
        view: &Dsl,
        dir: &Dir,
        property: &str,
        value: Option<&PropertyValue>,
    ) -> Result<Vec<(Head, cenote_dmu::ObjsetPolicy)>, SpaError> {
        if !POLICY_PROPERTIES.contains(&property) {
            return Ok(Vec::new());
        }
        let number = match value {
            Some(PropertyValue::Number(number)) => Some(*number),
            Some(PropertyValue::Text(_)) => return Ok(Vec::new()),
            None => match view.parent(dir).await? {
                Some(above) => {
                    let found = view.property(&above, property, true).await;
                    found?.and_then(|found| found.value.number())
                }
                None => None,
            },
        };
        let usual = || cenote_props::dataset::find(property).and_then(cenote_props::Property::default_number);
        let Some(number) = number.or_else(usual) else { return Ok(Vec::new()) };
        let mut followed = Vec::new();
        // Mostly nothing is below: then none of the others is asked for its name.
        let has_below = !view.children(dir, true).await?.is_empty();
        let mut heads = self.mos.dsl.heads();
        heads.retain(|head| has_below || head.dataset == dir.phys.head_dataset);
        let names = view.head_names(&heads.iter().map(|head| head.dataset).collect::<Vec<_>>()).await;
        for head in heads {
            let Some(name) = names.get(&head.dataset) else { continue };
            if *name != dir.name {
                if !is_below(name, &dir.name) {
                    continue;
                }
                let below = self.dir_of(view, name).await?;
                let found = view.property(&below, property, true).await?;
                match found.map(|found| found.source) {
                    Some(Source::Inherited(from)) if from.len() <= dir.name.len() => {}
                    Some(Source::Local | Source::Received | Source::Inherited(_)) => continue,
                    _ => {}
                }
            }
            let mut policy = head.objset.policy();
            self.apply(&mut policy, property, number)?;
            followed.push((head.clone(), policy));
        }
        Ok(followed)
    }

    /// The directory that a new dataset would be below, if [`Self::create_dataset`] would make it.
    ///
    /// # Errors
    /// As there.
    #[boxed]
    pub async fn check_create(&self, name: &str) -> Result<Dir, SpaError> {
        self.check_create_with(name, false).await
    }

    /// As [`Self::check_create`]. `is_raw`: it comes with its key, so that what is above may be encrypted.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn check_create_with(&self, name: &str, is_raw: bool) -> Result<Dir, SpaError> {
        cenote_dsl::name::check_new_dataset(name)
            .map_err(|reason| SpaError::refused(Refusal::Invalid, format!("cannot create '{name}': {reason}")))?;
        let Some((above, last)) = parent_and_last(name) else {
            return Err(SpaError::refused(
                Refusal::Invalid,
                format!("cannot create '{name}': a pool's root dataset comes with it"),
            ));
        };
        let view = self.dsl();
        let parent = match view.dir(above).await {
            Err(DslError::NoSuchDataset(_)) => {
                return Err(SpaError::refused(
                    Refusal::NotThere,
                    format!("cannot create '{name}': parent does not exist"),
                ));
            }
            result => result?,
        };
        let exists = view.child(&parent, last).await?.is_some();
        if exists {
            return Err(SpaError::refused(Refusal::Exists, format!("cannot create '{name}': dataset already exists")));
        }
        let head = view.dataset(above).await?;
        if view.kind(&head).await? != ObjsetType::Zfs {
            return Err(SpaError::refused(
                Refusal::Invalid,
                format!("cannot create '{name}': parent is not a filesystem"),
            ));
        }
        match is_raw {
            true => self.check_delegated(view, &parent).await?,
            false => self.check_above(view, &parent).await?,
        }
        self.check_new_below(name, &parent, 1).await?;
        Ok(parent)
    }

    /// Makes a dataset below another, which is to be of this kind; the caller makes that of its objset.
    ///
    /// # Errors
    /// The name is taken or cannot be one; what is above it is of a kind that cannot have it, or not yet.
    #[boxed]
    pub async fn create_dataset(&mut self, name: &str, kind: ObjsetType) -> Result<Head, SpaError> {
        let parent = self.check_create(name).await?;
        let view = self.dsl().clone();
        let (_, last) = parent_and_last(name).expect("checked: it is below another");
        let mut policy = cenote_dmu::ObjsetPolicy { copies: 1, ..self.mos.objset.policy() };
        self.obey_properties(&view, &parent, &mut policy).await?;
        let birth = Birth { time_s: self.time_s(), txg: self.txg };
        let mut rng = Rng::new(self.handle.random_u64());
        let none = ObjectId(0);
        let dir = self.mos.dsl.create_dir(Some(parent.object), last, none, birth).await?;
        self.count_new_dir(dir).await?;
        let dataset = self.mos.dsl.create_dataset(dir, birth, &mut rng).await?;
        let objset = self.new_objset(self.txg, dataset, kind, policy);
        let head = Head { dataset, objset };
        self.mos.dsl.add_head(head.clone());
        self.record_event("create", "", Some((name, dataset))).await?;
        Ok(head)
    }

    /// Whether datasets below this one can be made and destroyed with all that belongs to that.
    pub(crate) async fn check_above(&self, view: &Dsl, dir: &Dir) -> Result<(), SpaError> {
        let mut at = Some(dir.clone());
        while let Some(dir) = at {
            let encrypted = view.dir_field(&dir, dir_field::CRYPTO_KEY_OBJECT).await;
            if encrypted?.is_some() {
                return Err(self.refused(format!("datasets below an encrypted one ('{}')", dir.name)));
            }
            at = view.parent(&dir).await?;
        }
        self.check_delegated(view, dir).await
    }

    /// The same, for what needs no key of what is above.
    pub(crate) async fn check_delegated(&self, view: &Dsl, dir: &Dir) -> Result<(), SpaError> {
        let mut at = Some(dir.clone());
        while let Some(dir) = at {
            if dir.phys.delegations.0 != 0 {
                return Err(self.refused(format!("datasets below one with delegated permissions ('{}')", dir.name)));
            }
            at = view.parent(&dir).await?;
        }
        Ok(())
    }
}
