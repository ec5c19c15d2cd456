//! Setting properties and having them inherited.

use cenote_format::enums::ObjsetType;
use cenote_props::{Types, dataset, find, is_user_property};
use cenote_spa::{PropertyValue, SyncTask, Syncer};
use cenote_taskq::BoxFuture;

use crate::error::{AdminError, Reason, Verb};
use crate::values::invalid;
use crate::volume::{Resize, check_reservation, set_reserved};
use crate::{AUTO, Setting};

/// Sets properties of a dataset: [`set_properties`](crate::set_properties).
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

    fn check<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
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
        })
    }

    fn sync<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
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
        })
    }
}

/// Has a dataset inherit a property: [`inherit_property`](crate::inherit_property).
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

    fn check<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            self.is_snapshot = pool.dsl().dataset(&self.dataset).await?.is_snapshot();
            if self.is_snapshot {
                self.names = vec![self.dataset.clone()];
                if !is_user_property(&self.property) {
                    let why = "property doesn't apply to datasets of this type";
                    return Err(
                        invalid(format!("cannot inherit {} for '{}': {why}", self.property, self.dataset)).into()
                    );
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
        })
    }

    fn sync<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
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
        })
    }
}
