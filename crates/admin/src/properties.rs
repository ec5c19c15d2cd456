//! Setting properties and having them inherited.

use cenote_dsl::name::pool_of;
use cenote_format::enums::ObjsetType;
use cenote_props::{Types, WrongUse, dataset, find, is_user_property};
use cenote_spa::{Pool, PropertyValue, SyncTask, Syncer};
use cenote_taskq::boxed;

use crate::error::{AdminError, Reason, Verb};
use crate::request::{Changed, Going, Line, Request, Users};
use crate::values::{When, check_once, dataset_settings, inherited_property, invalid, stored_of_datasets};
use crate::volume::{Resize, check_reservation, resize_in_use, set_reserved};
use crate::{AUTO, Setting};

/// Properties to be set: `zfs set`.
#[derive(Clone, Debug, Default)]
pub struct SetRequest {
    /// Settings, `PROPERTY=VALUE`, and datasets.
    pub arguments: Vec<String>,
}

impl SetRequest {
    /// The settings as they are stored, and the datasets.
    fn parsed(&self) -> Result<(Vec<Setting>, Vec<String>), AdminError> {
        let (settings, datasets): (Vec<String>, Vec<String>) =
            self.arguments.iter().cloned().partition(|text| text.contains('='));
        if settings.is_empty() {
            return Err(WrongUse::new("missing property=value argument").into());
        }
        let first = datasets.first().ok_or_else(|| WrongUse::new("missing dataset name"))?;
        if datasets.iter().any(|dataset| pool_of(dataset) != pool_of(first)) {
            return Err(WrongUse::new("not supported yet: datasets of several pools in one command").into());
        }
        check_once(&settings)?;
        let parsed = dataset_settings(&settings, When::Later, Types::DATASET);
        let parsed = parsed.map_err(|error| AdminError::refused(Verb::SetProperty, first, Reason::Setting(error)))?;
        check_together(datasets.len(), &parsed).map_err(|error| WrongUse::new(error.to_string()))?;
        Ok((parsed, datasets))
    }
}

impl Request for SetRequest {
    type Made = ();

    fn subject(&self) -> &str {
        self.arguments.iter().find(|text| !text.contains('=')).map_or("", String::as_str)
    }

    fn check(&self) -> Result<(), AdminError> {
        self.parsed().map(drop)
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<(), AdminError> {
        let (settings, datasets) = self.parsed()?;
        match (&settings[..], &datasets[..]) {
            ([(name, PropertyValue::Number(bytes))], [dataset]) if name == "volsize" => {
                let (verb, names) = (Verb::SetProperty, &datasets[..]);
                users.before(Going { verb, names, is_recursive: false, is_going: &|_| false, is_dry: false }).await?;
                match users.volumes().await {
                    Some(volumes) => resize_in_use(pool, volumes, dataset, *bytes).await?,
                    None => set_properties(pool, &datasets, &settings).await?,
                }
            }
            _ => set_properties(pool, &datasets, &settings).await?,
        }
        stored_of_datasets(&settings).iter().for_each(|note| users.tell(note));
        let names: Vec<String> = settings.into_iter().map(|(name, _)| name).collect();
        users.after(Changed::Properties { datasets: &datasets, names: &names }).await?;
        Ok(())
    }

    fn history_line(&self) -> Option<Line> {
        Some(Line::new("zfs set").words(&self.arguments))
    }
}

/// A property to be inherited: `zfs inherit`.
#[derive(Clone, Debug, Default)]
pub struct InheritRequest {
    /// The property.
    pub property: String,
    /// Datasets below do so too.
    pub recursive: bool,
    /// A received value takes effect, if there is one.
    pub received: bool,
    /// The datasets.
    pub datasets: Vec<String>,
}

impl Request for InheritRequest {
    type Made = ();

    fn subject(&self) -> &str {
        self.datasets.first().map_or("", String::as_str)
    }

    fn check(&self) -> Result<(), AdminError> {
        inherited_property(&self.property, self.received)?;
        match self.datasets.iter().find(|dataset| pool_of(dataset) != pool_of(self.subject())) {
            Some(other) => {
                let what = format!("not supported yet: datasets of several pools in one command, as '{other}'");
                Err(WrongUse::new(what).into())
            }
            None => Ok(()),
        }
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<(), AdminError> {
        self.check()?;
        let names = [inherited_property(&self.property, self.received)?];
        inherit_property(pool, &self.datasets, &names[0], self.recursive, self.received).await?;
        users.after(Changed::Properties { datasets: &self.datasets, names: &names }).await?;
        Ok(())
    }

    fn history_line(&self) -> Option<Line> {
        let line = Line::new("zfs inherit").flag(self.recursive, "-r").flag(self.received, "-S");
        Some(line.word(&self.property).words(&self.datasets))
    }
}

/// Refuses settings that cannot be made in one change. The checks of `volsize` and `refreservation` use the dataset's space before the
/// change, so neither may be set together with another property, nor for several datasets.
fn check_together(dataset_count: usize, settings: &[Setting]) -> Result<(), AdminError> {
    let needs_room = settings.iter().any(|(property, _)| ["volsize", "refreservation"].contains(&property.as_str()));
    if needs_room && (dataset_count > 1 || settings.len() > 1) {
        return Err(AdminError::NotTogether);
    }
    Ok(())
}

/// Sets properties of datasets: all of them, or none.
///
/// # Errors
/// As [`check_together`]; there is no such dataset, a property does not apply to it or cannot have its value, there is no room for what is reserved; or as
/// [`Pool::change`].
#[boxed]
pub async fn set_properties(pool: &Pool, datasets: &[String], settings: &[Setting]) -> Result<(), AdminError> {
    check_together(datasets.len(), settings)?;
    let tasks = datasets.iter().map(|dataset| SetProperties::new(dataset, settings.to_vec())).collect();
    pool.sync_tasks(tasks).await.map(drop)
}

/// Clears a local property of datasets so that they inherit it, with `recursive` also on all datasets below: on all, or none. With
/// `received` (`-S`) a received value takes effect, if there is one.
///
/// # Errors
/// There is no such dataset, the property does not apply to it, or what was received cannot be in force; a reservation of several
/// datasets was to be reverted; or as [`Pool::change`].
#[boxed]
pub async fn inherit_property(
    pool: &Pool,
    datasets: &[String],
    property: &str,
    recursive: bool,
    received: bool,
) -> Result<(), AdminError> {
    if received && property == "refreservation" && datasets.len() > 1 {
        return Err(AdminError::NotTogether);
    }
    let task = |dataset: &String| InheritProperty::new(dataset, property, recursive, received);
    let tasks = datasets.iter().map(task).collect();
    pool.sync_tasks(tasks).await.map(drop)
}

/// Sets properties of a dataset: [`set_properties`].
pub(crate) struct SetProperties {
    dataset: String,
    settings: Vec<Setting>,
    /// As checked: what to do for each.
    steps: Vec<Step>,
}

enum Step {
    Resize(Resize),
    Reserve(u64),
    Change(Setting),
    OfSnapshot(Setting),
}

impl SetProperties {
    /// The task.
    pub(crate) fn new(dataset: &str, settings: Vec<Setting>) -> Self {
        Self { dataset: dataset.to_owned(), settings, steps: Vec::new() }
    }

    /// A snapshot has user properties alone of its own.
    fn check_of_snapshot(&mut self, pool: &Syncer) -> Result<(), AdminError> {
        for (property, value) in &self.settings {
            if !is_user_property(property) {
                return Err(AdminError::refused(Verb::SetProperty, &self.dataset, Reason::NotOfSnapshots));
            }
            let checked = pool.check_property(property, value);
            checked.map_err(|error| AdminError::refused(Verb::SetProperty, &self.dataset, Reason::Value(error)))?;
            self.steps.push(Step::OfSnapshot((property.clone(), value.clone())));
        }
        Ok(())
    }

    /// Refuses properties that do not apply to the dataset: file systems and volumes have different ones.
    async fn check_types(&self, pool: &Syncer) -> Result<(), AdminError> {
        let dsl = pool.dsl();
        let found = dsl.dataset(&self.dataset).await?;
        // The kind cannot be read without the dataset's key; without that the change is refused anyway.
        let Ok(kind) = dsl.kind(&found).await else { return Ok(()) };
        let types = if kind == ObjsetType::Zvol { Types::VOLUME } else { Types::FILESYSTEM };
        let refused = |reason| Err(AdminError::refused(Verb::SetProperty, &self.dataset, reason));
        for (property, value) in &self.settings {
            if find(dataset::PROPERTIES, property).is_some_and(|known| !known.types.contains(types)) {
                return refused(Reason::DoesNotApply(property.clone()));
            }
            // A limit of that number is none.
            let is_auto = property == "refreservation" && matches!(value, PropertyValue::Number(AUTO));
            if is_auto && types != Types::VOLUME {
                return refused(Reason::AutoOfVolumesOnly(property.clone()));
            }
        }
        Ok(())
    }
}

impl SyncTask for SetProperties {
    type Made = ();
    type Error = AdminError;

    #[boxed]
    async fn check(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        self.steps.clear();
        if pool.dsl().dataset(&self.dataset).await?.is_snapshot() {
            return self.check_of_snapshot(pool);
        }
        self.check_types(pool).await?;
        for (property, value) in &self.settings {
            self.steps.push(match (property.as_str(), value) {
                ("volsize", PropertyValue::Number(bytes)) => {
                    Step::Resize(Resize::plan(pool, &self.dataset, *bytes).await?)
                }
                ("refreservation", PropertyValue::Number(bytes)) => {
                    Step::Reserve(check_reservation(pool, &self.dataset, *bytes).await?)
                }
                _ => {
                    pool.check_change_property(&self.dataset, property, Some(value)).await?;
                    Step::Change((property.clone(), value.clone()))
                }
            });
        }
        Ok(())
    }

    #[boxed]
    async fn sync(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        for step in &self.steps {
            match step {
                Step::Resize(resize) => resize.make(pool, &self.dataset).await?,
                Step::OfSnapshot((property, value)) => {
                    pool.change_snapshot_property(&self.dataset, property, Some(value), false).await?;
                }
                Step::Reserve(bytes) => set_reserved(pool, &self.dataset, *bytes).await?,
                Step::Change((property, value)) => {
                    pool.change_property(&self.dataset, property, Some(value)).await?;
                }
            }
        }
        Ok(())
    }
}

/// Has a dataset inherit a property: [`inherit_property`].
pub(crate) struct InheritProperty {
    dataset: String,
    property: String,
    recursive: bool,
    /// Received values come into force again.
    received: bool,
    names: Vec<String>,
    is_snapshot: bool,
}

impl InheritProperty {
    /// The task.
    pub(crate) fn new(dataset: &str, property: &str, recursive: bool, received: bool) -> Self {
        let (dataset, property) = (dataset.to_owned(), property.to_owned());
        Self { dataset, property, recursive, received, names: Vec::new(), is_snapshot: false }
    }

    /// Whether datasets of a directory's kind have the property.
    async fn applies(&self, pool: &Syncer, name: &str) -> Result<bool, AdminError> {
        let known = find(dataset::PROPERTIES, &self.property);
        let Some(known) = known.filter(|known| !known.types.contains(Types::FILESYSTEM | Types::VOLUME)) else {
            return Ok(true);
        };
        let dsl = pool.dsl();
        // The kind cannot be read without the dataset's key.
        let Ok(kind) = dsl.kind(&dsl.dataset(name).await?).await else { return Ok(true) };
        let types = if kind == ObjsetType::Zvol { Types::VOLUME } else { Types::FILESYSTEM };
        Ok(known.types.contains(types))
    }
}

impl SyncTask for InheritProperty {
    type Made = ();
    type Error = AdminError;

    #[boxed]
    async fn check(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        self.is_snapshot = pool.dsl().dataset(&self.dataset).await?.is_snapshot();
        if self.is_snapshot {
            self.names = vec![self.dataset.clone()];
            if !is_user_property(&self.property) {
                let why = "property doesn't apply to datasets of this type";
                return Err(invalid(format!("cannot inherit {} for '{}': {why}", self.property, self.dataset)).into());
            }
            return Ok(());
        }
        let dir = pool.dsl().dir(&self.dataset).await?;
        let dirs = if self.recursive { pool.dsl().tree(dir, false).await? } else { vec![dir] };
        self.names.clear();
        for name in dirs.into_iter().map(|dir| dir.name) {
            if self.applies(pool, &name).await? {
                self.names.push(name);
            } else if !self.recursive {
                let why = "property doesn't apply to datasets of this type";
                return Err(invalid(format!("cannot inherit {} for '{name}': {why}", self.property)).into());
            }
        }
        // As in `check_together`.
        if self.received && self.property == "refreservation" && self.names.len() > 1 {
            return Err(AdminError::NotTogether);
        }
        for name in &self.names {
            match self.received {
                true => drop(pool.check_revert_property(name, &self.property).await?),
                false => drop(pool.check_change_property(name, &self.property, None).await?),
            }
        }
        Ok(())
    }

    #[boxed]
    async fn sync(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        for name in &self.names {
            match self.received {
                received if self.is_snapshot => {
                    pool.change_snapshot_property(name, &self.property, None, received).await?;
                }
                true => pool.revert_property(name, &self.property).await?,
                false => pool.change_property(name, &self.property, None).await?,
            }
        }
        Ok(())
    }
}
