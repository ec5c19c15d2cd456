//! The verbs of a pool, each one sync task: what they do stands with [`Syncer`](crate::Syncer)'s methods of the same names.

use cenote_dsl::Head;
use cenote_format::enums::ObjsetType;

use super::Pool;
use crate::features::Feature;
use crate::{PropertyValue, SpaError};

impl Pool {
    /// As [`Syncer::create_dataset`](crate::Syncer::create_dataset).
    ///
    /// # Errors
    /// As there.
    pub async fn create_dataset(&self, name: &str, kind: ObjsetType) -> Result<Head, SpaError> {
        let name = name.to_owned();
        self.change(move |syncer| Box::pin(async move { syncer.create_dataset(&name, kind).await })).await
    }

    /// As [`Syncer::destroy_dataset`](crate::Syncer::destroy_dataset).
    ///
    /// # Errors
    /// As there.
    pub async fn destroy_dataset(&self, name: &str) -> Result<(), SpaError> {
        let name = name.to_owned();
        self.change(move |syncer| Box::pin(async move { syncer.destroy_dataset(&name).await })).await
    }

    /// As [`Syncer::rename_dataset`](crate::Syncer::rename_dataset).
    ///
    /// # Errors
    /// As there.
    pub async fn rename_dataset(&self, from: &str, to: &str) -> Result<(), SpaError> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.change(move |syncer| Box::pin(async move { syncer.rename_dataset(&from, &to).await })).await
    }

    /// As [`Syncer::rename_snapshots`](crate::Syncer::rename_snapshots).
    ///
    /// # Errors
    /// As there.
    pub async fn rename_snapshots(&self, dataset: &str, from: &str, to: &str, recursive: bool) -> Result<(), SpaError> {
        let (dataset, from, to) = (dataset.to_owned(), from.to_owned(), to.to_owned());
        self.change(move |syncer| {
            Box::pin(async move { syncer.rename_snapshots(&dataset, &from, &to, recursive).await })
        })
        .await
    }

    /// As [`Syncer::change_property`](crate::Syncer::change_property).
    ///
    /// # Errors
    /// As there.
    pub async fn change_property(
        &self,
        dataset: &str,
        property: &str,
        value: Option<&PropertyValue>,
    ) -> Result<(), SpaError> {
        let (dataset, property, value) = (dataset.to_owned(), property.to_owned(), value.cloned());
        self.change(move |syncer| {
            Box::pin(async move { syncer.change_property(&dataset, &property, value.as_ref()).await })
        })
        .await
    }

    /// As [`Syncer::set_property`](crate::Syncer::set_property).
    ///
    /// # Errors
    /// As there.
    pub async fn set_property(&self, head: &Head, property: &str, value: &PropertyValue) -> Result<(), SpaError> {
        let (head, property, value) = (head.clone(), property.to_owned(), value.clone());
        self.change(move |syncer| Box::pin(async move { syncer.set_property(&head, &property, &value).await })).await
    }

    /// As [`Syncer::set_pool_property`](crate::Syncer::set_pool_property).
    ///
    /// # Errors
    /// As there.
    pub async fn set_pool_property(&self, name: &str, value: Option<&PropertyValue>) -> Result<(), SpaError> {
        let (name, value) = (name.to_owned(), value.cloned());
        self.change(move |syncer| Box::pin(async move { syncer.set_pool_property(&name, value.as_ref()).await })).await
    }

    /// As [`Syncer::record_command`](crate::Syncer::record_command).
    ///
    /// # Errors
    /// As there.
    pub async fn record_command(&self, line: &str, user: u64) -> Result<(), SpaError> {
        let line = line.to_owned();
        self.change(move |syncer| Box::pin(async move { syncer.record_command(&line, user).await })).await
    }

    /// As [`Syncer::enable_features`](crate::Syncer::enable_features).
    ///
    /// # Errors
    /// As there.
    pub async fn enable_features(&self, names: &[&str]) -> Result<Vec<&'static Feature>, SpaError> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        self.change(move |syncer| {
            Box::pin(async move {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                syncer.enable_features(&names).await
            })
        })
        .await
    }

    /// Shows other hosts that the pool is in use, from now on (`multihost`), and says so in the labels with the next txg.
    ///
    /// # Errors
    /// The pool is closed or has failed.
    pub async fn hold(&self) -> Result<(), SpaError> {
        self.look(|syncer| {
            Box::pin(async move {
                syncer.hold();
                Ok(())
            })
        })
        .await
    }
}
