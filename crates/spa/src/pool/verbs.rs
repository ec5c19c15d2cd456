//! The verbs of a pool, each a change by itself. [`Syncer`](crate::Syncer)'s methods of the same names say what they do.

use std::sync::Arc;

use cenote_dsl::Head;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::Guid;
use cenote_taskq::{BoxFuture, boxed};

use super::Pool;
use crate::admin::command::Command;
use crate::features::Feature;
use crate::{PropertyValue, SpaError};

/// Methods of [`Pool`] that change it by the syncer's method of the same name: parameters, what the change keeps of them, and what it passes.
macro_rules! verbs {
    ($($verb:ident($($name:ident: $type:ty),*) -> $made:ty { $($kept:ident = $owned:expr),*; $($passed:expr),* })*) => {
        impl Pool {
            $(
                #[doc = concat!("As [`Syncer::", stringify!($verb), "`](crate::Syncer::", stringify!($verb), ").\n\n")]
                #[doc = "# Errors\nAs there; or as [`Pool::change`]."]
                pub fn $verb<'a>(&'a self, $($name: $type),*) -> BoxFuture<'a, Result<$made, SpaError>> {
                    $(let $kept = $owned;)*
                    Box::pin(self.change(move |syncer| Box::pin(async move { syncer.$verb($($passed),*).await })))
                }
            )*
        }
    };
}

verbs! {
    create_dataset(name: &str, kind: ObjsetType) -> Head { name = name.to_owned(); &name, kind }
    destroy_dataset(name: &str) -> () { name = name.to_owned(); &name }
    rename_dataset(from: &str, to: &str) -> () { from = from.to_owned(), to = to.to_owned(); &from, &to }
    rename_snapshots(dataset: &str, from: &str, to: &str, recursive: bool) -> () {
        dataset = dataset.to_owned(), from = from.to_owned(), to = to.to_owned(); &dataset, &from, &to, recursive
    }
    change_property(dataset: &str, property: &str, value: Option<&PropertyValue>) -> () {
        dataset = dataset.to_owned(), property = property.to_owned(), value = value.cloned();
        &dataset, &property, value.as_ref()
    }
    set_property(head: &Head, property: &str, value: &PropertyValue) -> () {
        head = head.clone(), property = property.to_owned(), value = value.clone(); &head, &property, &value
    }
    set_pool_property(name: &str, value: Option<&PropertyValue>) -> () {
        name = name.to_owned(), value = value.cloned(); &name, value.as_ref()
    }
    set_vdev_property(vdev: Guid, name: &str, value: Option<&PropertyValue>) -> () {
        name = name.to_owned(), value = value.cloned(); vdev, &name, value.as_ref()
    }
    record_command(line: &str, user: u64) -> () { line = line.to_owned(); &line, user }
    enable_features(names: &[&str]) -> Vec<&'static Feature> {
        names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        &names.iter().map(String::as_str).collect::<Vec<_>>()
    }
}

impl Pool {
    /// Shows other hosts that the pool is in use, from now on (`multihost`), and says so in the labels with the next txg.
    ///
    /// # Errors
    /// The pool is closed or has failed.
    #[boxed]
    pub async fn hold(&self) -> Result<(), SpaError> {
        self.look(|syncer| {
            Box::pin(async move {
                syncer.hold();
                Ok(())
            })
        })
        .await
    }

    /// Gives the pool another guid. When this is done in the background the pool on disk has it.
    ///
    /// # Errors
    /// A device is missing or not whole, or the pool has a checkpoint: the pool is as it was. The pool is closed or suspended.
    #[boxed]
    pub async fn reguid(&self, guid: Guid) -> Result<(), SpaError> {
        self.change(move |syncer| Box::pin(async move { syncer.enter_guid(guid).await })).await?;
        *self.shared.guid.lock() = guid;
        Ok(())
    }

    /// A handle for a command: its line is in the pool's history in the txg of the first change that is made by the handle.
    #[must_use]
    pub fn recording(&self, line: &str, user: u64) -> Self {
        Self { command: Some(Arc::new(Command::new(line, user))), ..self.clone() }
    }

    /// The handle without a command.
    pub(super) fn without_command(&self) -> Self {
        Self { command: None, ..self.clone() }
    }

    /// The handle's command.
    pub(crate) fn command(&self) -> Option<Arc<Command>> {
        self.command.clone()
    }

    fn unrecorded(&self) -> Option<Arc<Command>> {
        self.command.clone().filter(|command| !command.is_recorded())
    }

    /// Records the handle's command now, unless a change has: what it changed was no change of the pool itself.
    ///
    /// # Errors
    /// As [`Pool::change`].
    #[boxed]
    pub async fn record(&self) -> Result<(), SpaError> {
        let Some(command) = self.unrecorded() else { return Ok(()) };
        self.change(move |syncer| Box::pin(async move { command.record(syncer).await })).await
    }

    /// As [`Self::record`], and the caller does not wait: not for devices either, if they fail.
    ///
    /// # Errors
    /// The pool is closed.
    pub fn record_later(&self) -> Result<(), SpaError> {
        let Some(command) = self.unrecorded() else { return Ok(()) };
        let what = "a command cannot be recorded in the pool's history";
        self.change_later(what, move |syncer| Box::pin(async move { command.record(syncer).await }))
    }
}
