//! Limits of how many datasets and snapshots there are (`filesystem_limit`, `snapshot_limit`): set, and obeyed.

use std::collections::BTreeMap;

use cenote_dsl::name::{is_at_or_below, parent_of};
use cenote_dsl::{Counted, Dir};
use cenote_format::ids::ObjectId;
use cenote_taskq::boxed;

use crate::pool::Pool;
use crate::sync::Syncer;
use crate::sync::mos::Mos;
use crate::{Refusal, SpaError};

/// The feature of counts and limits.
const FEATURE: &str = "filesystem_limits";

impl Pool {
    /// From now on `filesystem_limit` and `snapshot_limit` apply to changes of the pool. As in OpenZFS they do not stop root,
    /// nor, before this is called, anybody.
    ///
    /// # Errors
    /// The pool is closed or has failed.
    #[boxed]
    pub async fn obey_limits(&self) -> Result<(), SpaError> {
        self.look(|syncer| {
            Box::pin(async move {
                syncer.mos.obeys_limits = true;
                Ok(())
            })
        })
        .await
    }
}

impl Mos {
    /// True if so many more are within the limits of a directory and of those above, up to the directory `until`.
    pub(crate) async fn is_within_limits(
        &self,
        dir: &Dir,
        counted: Counted,
        more: u64,
        until: Option<ObjectId>,
    ) -> Result<bool, SpaError> {
        if !self.obeys_limits || self.features.count(FEATURE) == 0 {
            return Ok(true);
        }
        Ok(self.dsl.is_within_limits(dir, counted, more, until).await?)
    }
}

impl Syncer {
    /// Whether limits let so many datasets be made below a directory, one below the other.
    ///
    /// # Errors
    /// They do not, or the MOS cannot be read.
    #[boxed]
    pub async fn check_new_below(&self, name: &str, parent: &Dir, count: u64) -> Result<(), SpaError> {
        match self.mos.is_within_limits(parent, Counted::Datasets, count, None).await? {
            true => Ok(()),
            false => Err(SpaError::refused(Refusal::NoSpace, format!("cannot create '{name}': out of space"))),
        }
    }

    /// Whether limits let these snapshots be taken together.
    pub(crate) async fn check_new_snapshots<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<(), SpaError> {
        if !self.mos.obeys_limits || self.mos.features.count(FEATURE) == 0 {
            return Ok(());
        }
        // Each counts to its dataset and to all above.
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for name in names {
            let mut at = name.split('@').next();
            while let Some(dataset) = at {
                *counts.entry(dataset).or_default() += 1;
                at = parent_of(dataset);
            }
        }
        for (name, count) in counts {
            let dir = self.mos.dsl.dir(name).await?;
            if !self.mos.is_within_limits(&dir, Counted::Snapshots, count, Some(dir.phys.parent)).await? {
                return Err(SpaError::refused(
                    Refusal::NoSpace,
                    format!("cannot create snapshot '{name}': out of space"),
                ));
            }
        }
        Ok(())
    }

    /// Has a directory that was just made count what comes below it, where the pool counts.
    pub(crate) async fn count_new_dir(&mut self, dir: ObjectId) -> Result<(), SpaError> {
        if self.mos.features.count(FEATURE) == 0 {
            return Ok(());
        }
        let zapified = self.mos.dsl.count_from_none(self.txg, dir).await?;
        self.mos.features.change("extensible_dataset", i64::from(zapified));
        Ok(())
    }

    /// Whether a limit can be set in this pool.
    pub(crate) fn check_limit_value(&self, name: &str, value: u64) -> Result<(), SpaError> {
        if value == u64::MAX || self.mos.features.has(FEATURE) {
            return Ok(());
        }
        let why = "pool and or dataset must be upgraded to set this property or value";
        Err(SpaError::refused(Refusal::NeedsFeature, format!("cannot set property for '{name}': {why}")))
    }

    /// Counts what is below a directory that gets a limit.
    pub(crate) async fn start_counting(&mut self, dir: &Dir) -> Result<(), SpaError> {
        if self.mos.features.count(FEATURE) == 0 {
            // Counted once, for the whole pool.
            self.mos.features.change(FEATURE, 1);
        }
        self.count_below(dir).await
    }

    /// Counts what is below a directory that comes to another place, where the pool counts.
    pub(crate) async fn count_below(&mut self, dir: &Dir) -> Result<(), SpaError> {
        if self.mos.features.count(FEATURE) == 0 {
            return Ok(());
        }
        let zapified = self.mos.dsl.start_counts(self.txg, dir).await?;
        self.mos.features.change("extensible_dataset", i64::try_from(zapified).unwrap_or(i64::MAX));
        Ok(())
    }

    /// Whether limits let what is in one directory come below another: a number of datasets and of snapshots.
    pub(crate) async fn may_move(&self, from: &Dir, to: &Dir, datasets: u64, snapshots: u64) -> Result<bool, SpaError> {
        // Directories above both count the same as before.
        let mut common = Some(to.clone());
        while let Some(dir) = &common
            && !is_at_or_below(&from.name, &dir.name)
        {
            common = self.mos.dsl.parent(dir).await?;
        }
        let until = common.map(|dir| dir.object);
        Ok(self.mos.is_within_limits(to, Counted::Datasets, datasets, until).await?
            && self.mos.is_within_limits(to, Counted::Snapshots, snapshots, until).await?)
    }
}
