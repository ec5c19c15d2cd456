//! Properties that come with a stream. They stand beside those that were set here, which stay in force before them.

use cenote_dmu::Zap;
use cenote_dsl::property::{Source, Value};
use cenote_dsl::{Dir, DslError};
use cenote_format::dsl::PropertyEntry;
use cenote_format::zap::ZapValue;
use cenote_taskq::boxed;
use thiserror::Error;

use crate::admin::dataset::PropertyValue;
use crate::sync::Syncer;
use crate::{ReceiveRefusal, Refusal, SpaError};

/// Properties that are kept in accounts which are not kept up yet.
const UNSUPPORTED: [&str; 1] = ["reservation"];

/// Why a property that came with a stream is not in force.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReceivedPropertyError {
    /// It is kept in accounts that are not kept up yet.
    #[error("not supported yet")]
    NotYet,
    /// The pool cannot have this value, or cannot be read.
    #[error(transparent)]
    Spa(#[from] SpaError),
    /// The dataset cannot be read.
    #[error(transparent)]
    Dsl(#[from] DslError),
    /// There is no room for it.
    #[error(transparent)]
    Receive(#[from] ReceiveRefusal),
}

impl Syncer {
    /// Has a dataset have these received properties, and no others that came with an earlier stream. Those that it cannot have come back,
    /// each with the reason.
    ///
    /// # Errors
    /// There is no such dataset, or the MOS cannot be changed.
    #[boxed]
    pub async fn receive_properties(
        &mut self,
        dataset: &str,
        values: &[(String, PropertyValue)],
    ) -> Result<Vec<(String, ReceivedPropertyError)>, SpaError> {
        let mut refused = Vec::new();
        let dsl = self.dsl().clone();
        let dir = dsl.dir(dataset).await?.object;
        let earlier = dsl.received_names(dir).await?;
        for name in earlier.iter().filter(|name| !values.iter().any(|(other, _)| other == *name)) {
            self.put_received(dataset, name, None).await?;
        }
        for (name, value) in values {
            let checked = match UNSUPPORTED.contains(&name.as_str()) {
                true => Err(ReceivedPropertyError::NotYet),
                false => self.check_received(dataset, name, value).await,
            };
            match checked {
                Ok(()) => self.put_received(dataset, name, Some(value)).await?,
                Err(error) => refused.push((name.clone(), error)),
            }
        }
        Ok(refused)
    }

    async fn check_received(
        &self,
        dataset: &str,
        name: &str,
        value: &PropertyValue,
    ) -> Result<(), ReceivedPropertyError> {
        self.check_property(name, value)?;
        if let ("refreservation", PropertyValue::Number(bytes)) = (name, value) {
            let dsl = self.dsl();
            let head = dsl.dataset(dataset).await?;
            let now = dsl.refreservation_bytes(head.dir.object).await?;
            let free = self.available_bytes(dsl, &head.dir).await?;
            // Only bytes beyond those already reserved or in use have to be free.
            let own = head.phys.unique_bytes;
            if (*bytes).max(own).saturating_sub(now.max(own)) > free {
                return Err(ReceiveRefusal::NoSpace.into());
            }
        }
        Ok(())
    }

    async fn put_received(&mut self, dataset: &str, name: &str, value: Option<&PropertyValue>) -> Result<(), SpaError> {
        let txg = self.txg;
        let view = self.dsl().clone();
        let dir = view.dir(dataset).await?;
        let own = self.mos.objset.object(dir.phys.properties).await?;
        let own = Zap::open(own).await?;
        let mut is_hidden = false;
        for entry in [PropertyEntry::Local, PropertyEntry::Inherited] {
            let found = own.lookup(entry.name(name).as_bytes()).await;
            is_hidden |= found?.is_some();
        }
        let followed = match is_hidden {
            true => Vec::new(),
            false => self.policies_with(&view, &dir, name, value).await?,
        };
        let zap = value.map(PropertyValue::zap);
        self.mos.dsl.set_received(txg, dir.object, name, zap.as_ref()).await?;
        followed.into_iter().for_each(|(head, policy)| head.objset.set_policy(policy));
        if let ("compression", Some(PropertyValue::Number(number))) = (name, value) {
            let needs = self.apply(&mut self.mos.objset.policy(), name, *number)?;
            self.use_features(txg, dir.phys.head_dataset, needs).await?;
        }
        Ok(())
    }

    /// The directory of a dataset, and the received value of a property, if [`Self::revert_property`] would have it be in force there.
    ///
    /// # Errors
    /// As there.
    #[boxed]
    pub async fn check_revert_property(
        &self,
        dataset: &str,
        property: &str,
    ) -> Result<(Dir, Option<PropertyValue>), SpaError> {
        let view = self.dsl();
        let dir = self.check_change_property(dataset, property, None).await?;
        let entries = view.property_entries(dir.phys.properties).await?;
        let received = entries.received(property).map(|value| match value {
            Value::Number(number) => PropertyValue::Number(*number),
            Value::Text(text) => PropertyValue::Text(text.clone()),
        });
        if let Some(received) = &received {
            self.check_change_property(dataset, property, Some(received)).await?;
            self.check_received(dataset, property, received)
                .await
                .map_err(|why| SpaError::refused(Refusal::NoSpace, format!("cannot inherit '{property}': {why}")))?;
        }
        Ok((dir, received))
    }

    /// Has a property of a dataset be as it was received (`zfs inherit -S`), or be inherited from above where nothing was.
    ///
    /// # Errors
    /// There is no such dataset; what was received cannot be in force any more, as a quota that is used up.
    #[boxed]
    pub async fn revert_property(&mut self, dataset: &str, property: &str) -> Result<(), SpaError> {
        let view = self.dsl().clone();
        let (dir, received) = self.check_revert_property(dataset, property).await?;
        let followed = self.policies_with(&view, &dir, property, received.as_ref()).await?;
        let txg = self.txg;
        let number = match received {
            Some(PropertyValue::Number(number)) => Some(number),
            _ => None,
        };
        if let ("filesystem_limit" | "snapshot_limit", Some(limit)) = (property, number)
            && limit != u64::MAX
        {
            self.start_counting(&dir).await?;
        }
        let reverted = match property {
            "refreservation" => {
                self.mos.dsl.revert_refreservation(txg, dir.phys.head_dataset, number.unwrap_or(0)).await
            }
            _ => {
                let value = received.as_ref().map(PropertyValue::zap);
                self.mos.dsl.revert_property(txg, dir.object, property, value.as_ref()).await
            }
        };
        reverted?;
        followed.into_iter().for_each(|(head, policy)| head.objset.set_policy(policy));
        if let ("compression", Some(number)) = (property, number) {
            let needs = self.apply(&mut self.mos.objset.policy(), property, number)?;
            self.use_features(txg, dir.phys.head_dataset, needs).await?;
        }
        self.record_event("inherit", &format!("{property}="), Some((dataset, dir.phys.head_dataset))).await
    }

    /// Whether a property was set of a dataset itself.
    ///
    /// # Errors
    /// There is no such dataset, or the MOS cannot be read.
    #[boxed]
    pub async fn has_own_property(&self, dataset: &str, property: &str) -> Result<bool, SpaError> {
        let dir = self.dsl().dir(dataset).await?;
        let found = self.dsl().property(&dir, property, false).await?;
        Ok(found.is_some_and(|found| found.source == Source::Local))
    }

    /// Gives a snapshot properties that came with a stream. Those that no snapshot can have come back, each with the reason.
    ///
    /// # Errors
    /// There is no such snapshot, or the MOS cannot be changed.
    #[boxed]
    pub async fn receive_snapshot_properties(
        &mut self,
        name: &str,
        values: &[(String, PropertyValue)],
    ) -> Result<Vec<(String, SpaError)>, SpaError> {
        let mut refused = Vec::new();
        let snapshot = self.dsl().dataset(name).await?;
        assert!(snapshot.is_snapshot(), "these are properties of a snapshot");
        for (property, value) in values {
            if let Err(error) = self.check_property(property, value) {
                refused.push((property.clone(), error));
                continue;
            }
            let entry = PropertyEntry::Received.name(property);
            self.mos.dsl.set_snapshot_property(self.txg, snapshot.object, &entry, &value.zap()).await?;
        }
        if !values.is_empty() {
            let mark = ZapValue::from_u64(0);
            self.mos.dsl.set_snapshot_property(self.txg, snapshot.object, "$hasrecvd", &mark).await?;
        }
        Ok(refused)
    }
}
