//! The users of a pool's datasets in this program, as a verb meets them: whatever is open.

use cenote_admin::{AdminError, Changed, Going, NoUsers, Suspended, Users, Verb};
use cenote_taskq::BoxFuture;

use crate::dataset::Reach;
use crate::filesystem;
use crate::pool::Pool;

impl Users for Pool {
    fn before<'a>(&'a self, going: Going<'a>) -> BoxFuture<'a, Result<(), AdminError>> {
        let reach = if going.is_recursive { Reach::AllBelow } else { Reach::Itself };
        let consequence = match going.verb {
            Verb::Rename => "it cannot be renamed",
            Verb::SetProperty => "its size cannot be changed",
            _ => "it cannot be destroyed",
        };
        Box::pin(async move {
            for name in going.names {
                self.let_go(name, reach, consequence).await.map_err(AdminError::of_users)?;
            }
            Ok(())
        })
    }

    fn suspend<'a>(&'a self, dataset: &'a str, _: &'a str) -> BoxFuture<'a, Result<Box<dyn Suspended>, AdminError>> {
        Box::pin(async move {
            let gone = self.let_go(dataset, Reach::Itself, "it cannot be rolled back").await;
            gone.map_err(AdminError::of_users)?;
            Ok(Box::new(NoUsers) as Box<dyn Suspended>)
        })
    }

    fn after<'a>(&'a self, changed: Changed<'a>) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            match changed {
                Changed::Datasets(_) => Ok(()),
                Changed::Properties { .. } => filesystem::refresh(self).await.map_err(AdminError::of_users),
            }
        })
    }
}

impl Pool {
    /// Changes the pool by a verb.
    pub(crate) async fn make<R: cenote_admin::Request>(&self, request: &R) -> Result<R::Made, crate::Error> {
        use crate::raise::Raise as _;
        request.run(self.writable()?, self).await.raised()
    }
}
