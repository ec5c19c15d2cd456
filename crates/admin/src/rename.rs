//! Other names for datasets and snapshots.

use cenote_dsl::name::{check_new_dataset, check_new_snapshot, is_below, parent_of, pool_of};
use cenote_props::WrongUse;
use cenote_spa::Pool;
use cenote_taskq::boxed;

use crate::create::{Owner, create_filesystem_of, outermost_new};
use crate::error::{AdminError, Reason, Verb};
use crate::request::{Changed, Going, Line, Request, Users};
use crate::snapshot::tree_names;

/// A dataset or snapshot to be renamed: `zfs rename`.
#[derive(Clone, Debug, Default)]
pub struct RenameRequest {
    /// The dataset or snapshot.
    pub from: String,
    /// Its new name; for a snapshot also only the part from the `@` on, or after it.
    pub to: String,
    /// Snapshots of this name of all datasets below.
    pub recursive: bool,
    /// Missing file systems above the new name are created.
    pub parents: bool,
    /// The owner of their root directories.
    pub owner: Owner,
    /// Flags without effect here, for the record in the history: `-f`.
    pub is_forced: bool,
    /// `-u`.
    pub keeps_unmounted: bool,
}

impl Request for RenameRequest {
    /// False if a snapshot has the name already.
    type Made = bool;

    fn subject(&self) -> &str {
        &self.from
    }

    fn check(&self) -> Result<(), AdminError> {
        let both = [(self.recursive, "-p and -r"), (self.keeps_unmounted, "-u and -p")];
        if let Some((_, options)) = both.iter().find(|(is_set, _)| *is_set && self.parents) {
            return Err(WrongUse::new(format!("{options} options are mutually exclusive")).into());
        }
        if self.recursive && !self.from.contains('@') {
            return Err(WrongUse::new("source dataset for recursive rename must be a snapshot").into());
        }
        Ok(())
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<bool, AdminError> {
        self.check()?;
        let changed = match self.from.split_once('@') {
            Some((dataset, snapshot)) if pool.dsl()?.find_dir(&self.from).await?.is_none() => {
                self.snapshots(pool, users, dataset, snapshot).await?
            }
            _ => self.dataset(pool, users).await?,
        };
        users.after(Changed::Datasets(&changed)).await?;
        Ok(!changed.is_empty())
    }

    fn history_line(&self) -> Option<Line> {
        let line = Line::new("zfs rename").flag(self.recursive, "-r").flag(self.parents, "-p");
        let line = line.flag(self.is_forced, "-f").flag(self.keeps_unmounted, "-u");
        Some(line.words([&self.from, &self.to]))
    }

    fn is_void(&self, is_renamed: &bool) -> bool {
        !is_renamed
    }
}

impl RenameRequest {
    /// Renames a dataset. The datasets that are different then.
    async fn dataset(&self, pool: &Pool, users: &dyn Users) -> Result<Vec<String>, AdminError> {
        let (verb, names) = (Verb::Rename, std::slice::from_ref(&self.from));
        users.before(Going { verb, names, is_recursive: true, is_going: &|_| false, is_dry: false }).await?;
        let outermost = outermost_new(pool, &self.to).await?;
        if self.parents {
            self.make_above(pool).await?;
        }
        let (from, to, renaming) = (self.from.clone(), self.to.clone(), users.renaming());
        let renamed = pool.change(move |syncer| {
            Box::pin(async move {
                syncer.rename_dataset(&from, &to).await?;
                renaming();
                Ok::<_, AdminError>(())
            })
        });
        renamed.await?;
        Ok(vec![self.from.clone(), outermost])
    }

    /// Creates the missing file systems above the new name, if the dataset can move there at all.
    async fn make_above(&self, pool: &Pool) -> Result<(), AdminError> {
        pool.dsl()?.dataset(&self.from).await?;
        // The rename reports an invalid name.
        if let Some(above) = parent_of(&self.to)
            && pool_of(&self.to) == pool_of(&self.from)
            && !is_below(&self.to, &self.from)
            && check_new_dataset(&self.to).is_ok()
            && above.contains('/')
        {
            create_filesystem_of(pool, above, Vec::new(), true, self.owner).await?;
        }
        Ok(())
    }

    /// Renames a snapshot, or with `-r` those of this name. The datasets that are different then; none if it has the name.
    async fn snapshots(
        &self,
        pool: &Pool,
        users: &dyn Users,
        dataset: &str,
        snapshot: &str,
    ) -> Result<Vec<String>, AdminError> {
        let Self { from, to, recursive, .. } = self;
        if self.parents || self.keeps_unmounted {
            let why = "snapshot delimiter '@' is not expected here".to_owned();
            return Err(AdminError::refused(Verb::Open, from, Reason::Said(why)));
        }
        let refused = |reason| AdminError::refused(Verb::Rename, to, reason);
        let found = pool.dsl()?.dataset(from).await?;
        let new = match to.split_once('@') {
            None => to,
            Some((head, new)) if head.is_empty() || head == dataset => new,
            Some(_) => return Err(refused(Reason::Said("snapshots must be part of same dataset".to_owned()))),
        };
        if to == from {
            return Ok(Vec::new());
        }
        check_new_snapshot(&format!("{dataset}@{new}")).map_err(|error| refused(Reason::Name(error)))?;
        debug_assert!(found.is_snapshot(), "a name with an '@' that is no directory's is a snapshot's");
        pool.rename_snapshots(dataset, snapshot, new, *recursive).await?;
        users.renaming()();
        match recursive {
            true => tree_names(pool, dataset).await,
            false => Ok(vec![dataset.to_owned()]),
        }
    }
}
