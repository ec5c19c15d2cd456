//! The users of a pool's datasets in this program, as a verb meets them: whatever is open.

use cenote_admin::{AdminError, Changed, Going, NoUsers, Suspended, Users, Verb};
use cenote_taskq::boxed;

use crate::dataset::Reach;
use crate::filesystem;
use crate::pool::Pool;

impl Users for Pool {
    #[boxed]
    async fn before(&self, going: Going<'_>) -> Result<(), AdminError> {
        let reach = if going.is_recursive { Reach::AllBelow } else { Reach::Itself };
        let consequence = match going.verb {
            Verb::Rename => "it cannot be renamed",
            Verb::SetProperty => "its size cannot be changed",
            _ => "it cannot be destroyed",
        };
        for name in going.names {
            self.let_go(name, reach, consequence).await.map_err(AdminError::of_users)?;
        }
        Ok(())
    }

    #[boxed]
    async fn suspend(&self, dataset: &str, _: &str) -> Result<Box<dyn Suspended>, AdminError> {
        let gone = self.let_go(dataset, Reach::Itself, "it cannot be rolled back").await;
        gone.map_err(AdminError::of_users)?;
        Ok(Box::new(NoUsers) as Box<dyn Suspended>)
    }

    #[boxed]
    async fn after(&self, changed: Changed<'_>) -> Result<(), AdminError> {
        match changed {
            Changed::Datasets(_) => Ok(()),
            Changed::Properties { .. } => filesystem::refresh(self).await.map_err(AdminError::of_users),
        }
    }
}

impl Pool {
    /// Changes the pool by a verb.
    pub(crate) async fn make<R: cenote_admin::Request>(&self, request: &R) -> Result<R::Made, crate::Error> {
        use crate::raise::Raise as _;
        request.run(self.writable()?, self).await.raised()
    }
}
