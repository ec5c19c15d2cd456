//! The verbs of a pool, each one sync task: what they do stands with [`Syncer`](crate::Syncer)'s methods of the same names.

use cenote_dsl::Head;
use cenote_format::enums::ObjsetType;
use cenote_taskq::BoxFuture;

use super::Pool;
use crate::features::Feature;
use crate::{PropertyValue, SpaError};

impl Pool {
    /// As [`Syncer::create_dataset`](crate::Syncer::create_dataset).
    ///
    /// # Errors
    /// As there.
    pub fn create_dataset<'a>(&'a self, name: &'a str, kind: ObjsetType) -> BoxFuture<'a, Result<Head, SpaError>> {
        Box::pin(async move {
            let name = name.to_owned();
            self.change(move |syncer| Box::pin(async move { syncer.create_dataset(&name, kind).await })).await
        })
    }

    /// As [`Syncer::destroy_dataset`](crate::Syncer::destroy_dataset).
    ///
    /// # Errors
    /// As there.
    pub fn destroy_dataset<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), SpaError>> {
        Box::pin(async move {
            let name = name.to_owned();
            self.change(move |syncer| Box::pin(async move { syncer.destroy_dataset(&name).await })).await
        })
    }

    /// As [`Syncer::rename_dataset`](crate::Syncer::rename_dataset).
    ///
    /// # Errors
    /// As there.
    pub fn rename_dataset<'a>(&'a self, from: &'a str, to: &'a str) -> BoxFuture<'a, Result<(), SpaError>> {
        Box::pin(async move {
            let (from, to) = (from.to_owned(), to.to_owned());
            self.change(move |syncer| Box::pin(async move { syncer.rename_dataset(&from, &to).await })).await
        })
    }

    /// As [`Syncer::rename_snapshots`](crate::Syncer::rename_snapshots).
    ///
    /// # Errors
    /// As there.
    pub fn rename_snapshots<'a>(
        &'a self,
        dataset: &'a str,
        from: &'a str,
        to: &'a str,
        recursive: bool,
    ) -> BoxFuture<'a, Result<(), SpaError>> {
        Box::pin(async move {
            let (dataset, from, to) = (dataset.to_owned(), from.to_owned(), to.to_owned());
            self.change(move |syncer| {
                Box::pin(async move { syncer.rename_snapshots(&dataset, &from, &to, recursive).await })
            })
            .await
        })
    }

    /// As [`Syncer::change_property`](crate::Syncer::change_property).
    ///
    /// # Errors
    /// As there.
    pub fn change_property<'a>(
        &'a self,
        dataset: &'a str,
        property: &'a str,
        value: Option<&'a PropertyValue>,
    ) -> BoxFuture<'a, Result<(), SpaError>> {
        Box::pin(async move {
            let (dataset, property, value) = (dataset.to_owned(), property.to_owned(), value.cloned());
            self.change(move |syncer| {
                Box::pin(async move { syncer.change_property(&dataset, &property, value.as_ref()).await })
            })
            .await
        })
    }

    /// As [`Syncer::set_property`](crate::Syncer::set_property).
    ///
    /// # Errors
    /// As there.
    pub fn set_property<'a>(
        &'a self,
        head: &'a Head,
        property: &'a str,
        value: &'a PropertyValue,
    ) -> BoxFuture<'a, Result<(), SpaError>> {
        Box::pin(async move {
            let (head, property, value) = (head.clone(), property.to_owned(), value.clone());
            self.change(move |syncer| Box::pin(async move { syncer.set_property(&head, &property, &value).await }))
                .await
        })
    }

    /// As [`Syncer::set_pool_property`](crate::Syncer::set_pool_property).
    ///
    /// # Errors
    /// As there.
    pub fn set_pool_property<'a>(
        &'a self,
        name: &'a str,
        value: Option<&'a PropertyValue>,
    ) -> BoxFuture<'a, Result<(), SpaError>> {
        Box::pin(async move {
            let (name, value) = (name.to_owned(), value.cloned());
            self.change(move |syncer| Box::pin(async move { syncer.set_pool_property(&name, value.as_ref()).await }))
                .await
        })
    }

    /// As [`Syncer::record_command`](crate::Syncer::record_command).
    ///
    /// # Errors
    /// As there.
    pub fn record_command<'a>(&'a self, line: &'a str, user: u64) -> BoxFuture<'a, Result<(), SpaError>> {
        Box::pin(async move {
            let line = line.to_owned();
            self.change(move |syncer| Box::pin(async move { syncer.record_command(&line, user).await })).await
        })
    }

    /// As [`Syncer::enable_features`](crate::Syncer::enable_features).
    ///
    /// # Errors
    /// As there.
    pub fn enable_features<'a>(
        &'a self,
        names: &'a [&'a str],
    ) -> BoxFuture<'a, Result<Vec<&'static Feature>, SpaError>> {
        Box::pin(async move {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            self.change(move |syncer| {
                Box::pin(async move {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    syncer.enable_features(&names).await
                })
            })
            .await
        })
    }

    /// Shows other hosts that the pool is in use, from now on (`multihost`), and says so in the labels with the next txg.
    ///
    /// # Errors
    /// The pool is closed or has failed.
    pub fn hold(&self) -> BoxFuture<'_, Result<(), SpaError>> {
        Box::pin(async move {
            self.look(|syncer| {
                Box::pin(async move {
                    syncer.hold();
                    Ok(())
                })
            })
            .await
        })
    }
}
