//! The properties and holds that come with a stream, or in place of those.

use std::io::Read;

use cenote_props::Types;
use cenote_spa::SpaError;

use super::error::{ReceiveError, ReceiveFailure};
use super::incoming::Incoming;
use super::list::Sent;
use super::request::{OF_ENCRYPTION, Told};
use super::run::Run;
use crate::Setting;

impl<R: Read> Run<'_, R> {
    /// Refuses properties that were named and are none of datasets of these types. In a tree of both, those of the other type are left out.
    pub(super) fn check_properties(&mut self, incoming: &Incoming<'_>, is_recursive: bool) -> Result<(), ReceiveError> {
        let refused = |why: String| Err(ReceiveError::new(incoming.action.clone(), ReceiveFailure::Use(why)));
        let named = self.request.encryption.iter().chain(&self.request.excluded);
        let is_raw = incoming.header.is_raw();
        if let Some(name) = named.filter(|_| is_raw).find(|name| OF_ENCRYPTION.contains(&name.as_str())) {
            return refused(format!("encryption property '{name}' cannot be set or excluded for raw streams."));
        }
        let foreign = |name: &&str| !applies(name, incoming.types);
        let given = self.request.overrides.iter().map(|(name, _)| name.as_str());
        if let Some(name) = given.filter(|_| !is_recursive).find(foreign) {
            return refused(format!("property '{name}' does not apply to datasets of this type"));
        }
        for name in self.request.excluded.iter().map(String::as_str).filter(foreign) {
            let dataset = &incoming.dataset;
            let text = format!("Warning: {dataset}: property '{name}' does not apply to datasets of this type");
            self.caller.told(Told::Err(text));
        }
        Ok(())
    }

    /// The properties that a dataset gets.
    pub(super) fn properties(&self, incoming: &Incoming<'_>) -> Properties {
        let (request, dataset, types) = (self.request, incoming.dataset.as_str(), incoming.types);
        let is_top = self.outcome.datasets.first().is_none_or(|first| first == dataset);
        // Below the top what is set there comes from there, or is as it is by default.
        let is_from_top = |name: &str| !is_top && request.overrides.iter().any(|(other, _)| other == name);
        let is_excluded = |name: &str| request.excluded.iter().any(|other| other == name);
        let is_inherited =
            |name: &str| cenote_props::dataset::find(name).is_none_or(cenote_props::Property::is_inheritable);
        let mut received = incoming.sent.and_then(|(sent, _)| sent.properties.clone());
        let mut hidden = Vec::new();
        if let Some(list) = &mut received {
            for (name, _) in list.iter().filter(|(name, _)| is_excluded(name) || is_from_top(name)) {
                hidden.push((name.clone(), is_excluded(name)));
            }
            // Properties that are not inherited cannot be hidden by a value above: they do not come.
            list.retain(|(name, _)| is_inherited(name) || !hidden.iter().any(|(other, _)| other == name));
            hidden.retain(|(name, _)| is_inherited(name));
        }
        let local = request.overrides.iter().filter(|(name, _)| is_top && applies(name, types));
        let (reserved, local) = local.cloned().partition(|(name, _): &Setting| name == "refreservation");
        Properties { local, reserved, hidden, received }
    }

    /// Reserves as much as was requested: it depends on a volume's size, and on the room that is left.
    pub(super) async fn reserve(&mut self, dataset: &str, properties: &Properties) {
        for setting in properties.reserved.iter().cloned() {
            let set = crate::set_properties(self.pool, &[dataset.to_owned()], &[setting]).await;
            if let Err(error) = set {
                self.caller.told(Told::Err(error.to_string()));
            }
        }
    }

    /// Sets the properties and holds of the snapshot.
    pub(super) async fn finish(&mut self, target: &str, sent: Option<(&Sent, &str)>) -> Result<(), crate::AdminError> {
        let Some((sent, name)) = sent else { return Ok(()) };
        let properties = sent.properties_of(name).to_vec();
        if !properties.is_empty() {
            let (target, snapshot) = (target.to_owned(), target);
            let set = self.pool.change(move |syncer| {
                Box::pin(async move { syncer.receive_snapshot_properties(&target, &properties).await })
            });
            for (property, why) in set.await? {
                let text = format!("cannot receive {property} property on {snapshot}: {why}");
                self.caller.told(Told::Err(text));
            }
        }
        if !self.request.skips_holds {
            for tag in sent.holds_of(name) {
                crate::hold(self.pool, tag, &[target.to_owned()]).await?;
            }
        }
        Ok(())
    }
}

/// Returns true if datasets of these types have such a property; all have those of users.
fn applies(name: &str, types: Types) -> bool {
    cenote_props::dataset::find(name).is_none_or(|property| property.types.intersects(types))
}

/// The properties that a dataset gets with a stream.
#[derive(Clone, Debug)]
pub(super) struct Properties {
    /// Set here.
    local: Vec<Setting>,
    /// Those of them that are set when all has arrived.
    reserved: Vec<Setting>,
    /// Inherited, whatever arrived; each with true if a value that was set here remains in force.
    hidden: Vec<(String, bool)>,
    /// Received; `None` if the stream has none.
    received: Option<Vec<Setting>>,
}

/// Sets them. Returns those that are refused, each with the reason.
pub(super) async fn set_properties(
    pool: &cenote_spa::Pool,
    dataset: &str,
    properties: &Properties,
) -> Result<Vec<(String, String)>, SpaError> {
    let (dataset, properties) = (dataset.to_owned(), properties.clone());
    if properties.local.is_empty() && properties.received.is_none() {
        return Ok(Vec::new());
    }
    let set = pool.change(move |syncer| {
        Box::pin(async move {
            let mut refused = Vec::new();
            if let Some(received) = &properties.received {
                let received = syncer.receive_properties(&dataset, received).await?;
                refused.extend(received.into_iter().map(|(name, error)| (name, error.to_string())));
            }
            for (name, keeps_own) in &properties.hidden {
                let is_own = *keeps_own && syncer.has_own_property(&dataset, name).await?;
                if !is_own {
                    syncer.change_property(&dataset, name, None).await?;
                }
            }
            for (name, value) in &properties.local {
                match syncer.check_change_property(&dataset, name, Some(value)).await {
                    Ok(_) => syncer.change_property(&dataset, name, Some(value)).await?,
                    Err(error) => refused.push((name.clone(), error.to_string())),
                }
            }
            Ok::<_, SpaError>(refused)
        })
    });
    set.await
}
