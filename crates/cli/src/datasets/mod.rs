//! Which datasets a command is about: pools are opened as this process opens them.

use std::sync::Arc;

use anyhow::Result;
use cenote_admin::values::pool_of;
use cenote_host::Mounts;
use cenote_listing::{Item, PoolSource, Selection, SortKey};
use cenote_server::View;

use crate::context::Context;
use crate::outcome::{causes, is_no_such_pool, owned};

/// The selected datasets, sorted; and whether something could not be opened, which has been reported.
pub(crate) async fn select(context: &Context, selection: Selection, keys: &[SortKey]) -> Result<(Vec<Item>, bool)> {
    let first = selection.names.first().map(|name| pool_of(name));
    let is_of_several = selection.names.iter().any(|name| Some(pool_of(name)) != first);
    let alone = is_of_several.then(|| context.without_sending());
    let context = alone.as_ref().unwrap_or(context);
    let mounts = match context.served_pool() {
        Some(served) => Mounts::read().renamed(&served.mounts.names()).with_nested(served.mounts.nested()),
        None => Mounts::read(),
    };
    let mounts = Arc::new(mounts);
    cenote_listing::select(context, mounts, crate::time::format, selection, keys).await
}

impl PoolSource for Context {
    type Error = anyhow::Error;

    async fn all(&self) -> Result<(Vec<View>, bool)> {
        Ok(self.open_pools(&[]).await?)
    }

    async fn open(&self, name: &str) -> Result<View> {
        Ok(self.open_pool(name).await?)
    }

    fn is_missing(error: &anyhow::Error) -> bool {
        is_no_such_pool(error)
    }

    fn is_elsewhere(error: &anyhow::Error) -> bool {
        owned(error).is_some()
    }

    fn text(error: &anyhow::Error) -> String {
        causes(error)
    }

    fn report(&self, text: &str) {
        self.err(text);
    }
}
