//! `filesystem_limit` and `snapshot_limit`: limits on the number of datasets and snapshots below a dataset.
//!
//! ```text
//! directory (a table of extra fields)   filesystem_count   directories below it, at any depth
//!                                       snapshot_count     snapshots of its head and of those of all below
//! ```
//! **Need.** A user with the permission to create datasets or snapshots below a dataset must not exceed the limit that the administrator
//! set there (`filesystem_limit`, `snapshot_limit`). Counting them at each creation would take too long.
//!
//! **Life of a count.** A directory gets its counts, as do all below it, with the first limit that is set on it or above it
//! ([`Dsl::start_counts`]). From then on, each creation and each destruction below it changes the counts of all directories above that have
//! counts. The counts remain when the limit is removed.
//!
//! **Invariants.** 1. All directories below a directory with counts have counts. 2. Each count is the number of existing datasets or
//! snapshots (asserted by `audit`).
//!
//! As in OpenZFS, the feature is counted once, with the first limit of a pool, and remains.

use std::collections::BTreeMap;

use cenote_dmu::Zap;
use cenote_format::dsl::dir_field;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::ZapValue;
use cenote_taskq::boxed;

use crate::{DEPTH_MAX, Dir, Dsl, DslError};

/// The things that are counted and limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// File systems and volumes.
    Datasets,
    /// Snapshots.
    Snapshots,
}

impl Counted {
    const fn field(self) -> &'static str {
        match self {
            Self::Datasets => dir_field::FILESYSTEM_COUNT,
            Self::Snapshots => dir_field::SNAPSHOT_COUNT,
        }
    }

    const fn property(self) -> &'static str {
        match self {
            Self::Datasets => "filesystem_limit",
            Self::Snapshots => "snapshot_limit",
        }
    }
}

/// True if limits do not count a directory of this name: one of the pool's own (`$MOS` and the like), or one being received (`%recv`).
pub(crate) fn is_hidden(name: &str) -> bool {
    name.starts_with(['$', '%'])
}

/// Counts of a directory.
struct Below {
    dir: ObjectId,
    datasets: u64,
    snapshots: u64,
    /// They are on disk.
    is_known: bool,
}

impl Dsl {
    /// The count of a directory; `None` where it has none.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn count(&self, dir: ObjectId, counted: Counted) -> Result<Option<u64>, DslError> {
        self.object_field(dir, counted.field()).await
    }

    /// Adds to the counts of a directory and of all above it that have counts.
    ///
    /// # Errors
    /// The MOS cannot be changed, or directories form a cycle.
    #[boxed]
    pub(crate) async fn adjust_count(
        &self,
        txg: Txg,
        dir: ObjectId,
        counted: Counted,
        by: i64,
    ) -> Result<(), DslError> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            let Some(count) = self.count(at, counted).await?.filter(|_| by != 0) else { return Ok(()) };
            let value = ZapValue::from_u64(count.saturating_add_signed(by));
            Zap::put_entry(&self.mos().object(at).await?, txg, counted.field(), Some(&value)).await?;
            at = self.dir_phys(at).await?.parent;
            if at.0 == 0 {
                return Ok(());
            }
        }
        Err(DslError::Corrupt { object: dir.0, what: "its parents form a cycle".to_owned() })
    }

    /// Starts the counts of a new directory, which has no datasets below, at zero. Returns true if this zapified it.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn count_from_none(&self, txg: Txg, dir: ObjectId) -> Result<bool, DslError> {
        self.put_counts(txg, dir, 0, 0).await
    }

    async fn put_counts(&self, txg: Txg, dir: ObjectId, datasets: u64, snapshots: u64) -> Result<bool, DslError> {
        let zapified =
            self.put_dataset_field(txg, dir, Counted::Datasets.field(), &ZapValue::from_u64(datasets)).await?;
        self.put_dataset_field(txg, dir, Counted::Snapshots.field(), &ZapValue::from_u64(snapshots)).await?;
        Ok(zapified)
    }

    /// The counts of a directory and of all below it, parents last: those on disk, and those still to be stored.
    async fn counts_below(&self, dir: &Dir) -> Result<Vec<Below>, DslError> {
        let mut found = Vec::new();
        let mut sums: BTreeMap<ObjectId, (u64, u64)> = BTreeMap::new();
        // From the bottom up: in a tree parents come first.
        for dir in self.tree(dir.clone(), true).await?.into_iter().rev() {
            if is_hidden(dir.last_name()) {
                continue;
            }
            let known =
                [self.count(dir.object, Counted::Datasets).await?, self.count(dir.object, Counted::Snapshots).await?];
            let (datasets, snapshots) = sums.remove(&dir.object).unwrap_or_default();
            let below = match known {
                [Some(datasets), Some(snapshots)] => Below { dir: dir.object, datasets, snapshots, is_known: true },
                _ => {
                    let snapshots = snapshots.saturating_add(self.snapshot_count(&dir).await?);
                    Below { dir: dir.object, datasets, snapshots, is_known: false }
                }
            };
            let above = sums.entry(dir.phys.parent).or_default();
            above.0 = above.0.saturating_add(below.datasets).saturating_add(1);
            above.1 = above.1.saturating_add(below.snapshots);
            found.push(below);
        }
        Ok(found)
    }

    /// The datasets below a directory, and the snapshots of its head and of those.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn counted_below(&self, dir: &Dir) -> Result<(u64, u64), DslError> {
        let below = self.counts_below(dir).await?;
        Ok(below.last().map_or((0, 0), |top| (top.datasets, top.snapshots)))
    }

    /// Starts the counts of a directory and of all below it that have none. Returns the number of directories that this zapified.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn start_counts(&self, txg: Txg, dir: &Dir) -> Result<u64, DslError> {
        let mut zapified = 0;
        for below in self.counts_below(dir).await?.into_iter().filter(|below| !below.is_known) {
            zapified += u64::from(self.put_counts(txg, below.dir, below.datasets, below.snapshots).await?);
        }
        Ok(zapified)
    }

    /// The number of a directory's own snapshots, without those that a receive makes for itself.
    async fn snapshot_count(&self, dir: &Dir) -> Result<u64, DslError> {
        let Some(head) = self.head(dir).await? else { return Ok(0) };
        let snapshots = self.snapshots(&head).await?;
        let is_counted = |name: &str| !name.starts_with('%');
        Ok(snapshots.iter().filter(|it| it.snapshot.as_deref().is_some_and(is_counted)).count() as u64)
    }

    /// True if `more` in a directory are within its limit and those above it. The directory `until`, if met, ends the check.
    ///
    /// # Errors
    /// The MOS cannot be read, or directories form a cycle.
    #[boxed]
    pub async fn is_within_limits(
        &self,
        dir: &Dir,
        counted: Counted,
        more: u64,
        until: Option<ObjectId>,
    ) -> Result<bool, DslError> {
        let mut at = dir.clone();
        for _ in 0..DEPTH_MAX {
            // A directory without counts has no limit, nor has any above it.
            let Some(count) = self.count(at.object, counted).await?.filter(|_| more != 0 && until != Some(at.object))
            else {
                return Ok(true);
            };
            let limit = self.property(&at, counted.property(), false).await?;
            let limit = limit.and_then(|limit| limit.value.number()).unwrap_or(u64::MAX);
            if count.saturating_add(more) > limit {
                return Ok(false);
            }
            let Some(above) = self.parent(&at).await? else { return Ok(true) };
            at = above;
        }
        Err(DslError::Corrupt { object: dir.object.0, what: "its parents form a cycle".to_owned() })
    }

    /// Checks the counts of all directories.
    pub(crate) async fn audit_counts(&self) -> Result<(), DslError> {
        for dir in self.tree(self.root_dir().await?, true).await? {
            let counts =
                [self.count(dir.object, Counted::Datasets).await?, self.count(dir.object, Counted::Snapshots).await?];
            let [Some(datasets), Some(snapshots)] = counts else { continue };
            let (mut below, mut of_below) = (0, self.snapshot_count(&dir).await?);
            for (name, child) in self.children(&dir, true).await? {
                if !is_hidden(&name) {
                    let counts =
                        [self.count(child, Counted::Datasets).await?, self.count(child, Counted::Snapshots).await?];
                    let [Some(datasets), Some(snapshots)] = counts else {
                        panic!("{}/{name}: all below a directory with counts have counts", dir.name)
                    };
                    (below, of_below) = (below + datasets + 1, of_below + snapshots);
                }
            }
            assert_eq!((datasets, snapshots), (below, of_below), "{}: counts are of what is there", dir.name);
        }
        Ok(())
    }
}
