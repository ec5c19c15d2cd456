//! Destroying datasets.

use cenote_spa::{Pool, SyncTask, Syncer};
use cenote_taskq::BoxFuture;

use crate::error::{AdminError, Reason, Verb};

/// Destroys a dataset, or a tree of them: [`destroy`](crate::destroy()).
pub struct Destroy {
    pool: Pool,
    name: String,
    recursive: bool,
    names: Vec<String>,
}

impl Destroy {
    /// The task.
    #[must_use]
    pub fn new(pool: &Pool, name: &str, recursive: bool) -> Self {
        Self { pool: pool.clone(), name: name.to_owned(), recursive, names: Vec::new() }
    }

    /// Once checked: the datasets that go, in their order.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

impl SyncTask for Destroy {
    type Made = ();
    type Error = AdminError;

    fn check<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            self.names = vec![self.name.clone()];
            if self.recursive {
                let tree = pool.dsl().tree(pool.dsl().dir(&self.name).await?, false).await?;
                // Those below first; the pool's own goes with the pool alone.
                self.names = tree.into_iter().rev().map(|dir| dir.name).filter(|name| name.contains('/')).collect();
            }
            for name in &self.names {
                let dataset = pool.check_destroy(name, self.recursive).await?;
                if self.pool.is_used(dataset.object) || pool.has_log_in_use(dataset.object) {
                    return Err(AdminError::refused(Verb::Destroy, name, Reason::Busy));
                }
            }
            Ok(())
        })
    }

    fn sync<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            for name in &self.names {
                pool.destroy_dataset(name).await?;
            }
            Ok(())
        })
    }
}
