//! Other names for file systems, volumes and snapshots.

use cenote_dsl::name::{
    NAME_MAX_BYTES, NameError, check_depth, check_new_dataset, check_new_snapshot, check_no_received, is_at_or_below,
    is_below, parent_and_last,
};
use cenote_dsl::{Dataset, Dir, Dsl, DslError};
use cenote_format::enums::ObjsetType;
use cenote_format::ids::ObjectId;
use cenote_taskq::boxed;

use crate::sync::Syncer;
use crate::{Refusal, SpaError};

impl Syncer {
    /// Gives a file system, a volume or a snapshot another name; of a file system or volume also one below another parent of
    /// the pool, where it inherits what that has.
    ///
    /// # Errors
    /// There is none of the one name, or one of the other; the new place is below the old one, is no file system, or has
    /// no room; what is moved cannot be yet.
    #[boxed]
    pub async fn rename_dataset(&mut self, from: &str, to: &str) -> Result<(), SpaError> {
        let view = self.dsl().clone();
        // `from` may be a file system with '@' in its own name: only a file system can get a name without '@'.
        let misnamed = match to.contains('@') {
            false if from.contains('@') => view.find_dir(from).await?,
            _ => None,
        };
        let dataset = match misnamed {
            Some(dir) => view.head(&dir).await?,
            None => Some(view.dataset(from).await?),
        };
        let Some(dataset) = dataset else { return Err(cannot(from, Refusal::Invalid, "it has no contents")) };
        check_no_received(from).map_err(|reason| cannot(from, Refusal::Invalid, &reason.to_string()))?;
        if dataset.is_inconsistent() {
            return Err(cannot(from, Refusal::Busy, "dataset is busy"));
        }
        match (from.split_once('@').filter(|_| dataset.is_snapshot()), to.split_once('@')) {
            (Some((head, old)), Some((new_head, new))) => {
                check_new_snapshot(to).map_err(|reason| cannot(from, Refusal::Invalid, &reason.to_string()))?;
                if head != new_head {
                    return Err(cannot(from, Refusal::Invalid, "snapshots must be part of same dataset"));
                }
                return self.rename_snapshots(head, old, new, false).await;
            }
            (None, None) => {
                check_new_dataset(to).map_err(|reason| cannot(from, Refusal::Invalid, &reason.to_string()))?;
                let (parent, name) = self.check_move(&view, &dataset.dir, to).await?;
                self.count_below(&dataset.dir).await?;
                self.mos.dsl.rename_dir(self.txg, &dataset.dir, parent.object, &name).await?;
            }
            _ => {
                return Err(cannot(
                    from,
                    Refusal::Invalid,
                    "a snapshot stays a snapshot, and nothing else becomes one",
                ));
            }
        }
        self.record_event("rename", &format!("-> {to}"), Some((from, dataset.object))).await
    }

    /// Heads with a snapshot of this name, as it can have the other name: of a dataset, and `recursive` of all below it.
    ///
    /// # Errors
    /// One has one of the other name, or the full name would become too long.
    #[boxed]
    async fn check_rename_snapshots(
        &self,
        dataset: &str,
        from: &str,
        to: &str,
        recursive: bool,
    ) -> Result<Vec<(Dataset, ObjectId)>, SpaError> {
        let view = self.dsl().clone();
        let name = format!("{dataset}@{from}");
        check_new_snapshot(&format!("{dataset}@{to}"))
            .map_err(|reason| cannot(&name, Refusal::Invalid, &reason.to_string()))?;
        let top = view.dir(dataset).await?;
        let dirs = if recursive { view.tree(top, true).await? } else { vec![top] };
        let mut found = Vec::new();
        for dir in dirs.into_iter().filter(|dir| !dir.last_name().starts_with('$')) {
            let Some(head) = view.head(&dir).await? else { continue };
            let Some(snapshot) = view.snapshot_object(&head, from).await? else { continue };
            if view.snapshot_object(&head, to).await?.is_some() {
                let why = match recursive {
                    true => "a child dataset already has a snapshot with the new name",
                    false => "dataset already exists",
                };
                return Err(cannot(&name, Refusal::Exists, why));
            }
            if dir.name.len() + 1 + to.len() > NAME_MAX_BYTES {
                return Err(cannot(&name, Refusal::Invalid, "dataset name is too long"));
            }
            found.push((head, snapshot));
        }
        Ok(found)
    }

    /// Gives a dataset's snapshot another name, and `recursive` those of the same name of all datasets below. Datasets without one are passed
    /// over.
    ///
    /// # Errors
    /// As [`Self::check_rename_snapshots`], or the MOS cannot be changed.
    #[boxed]
    pub async fn rename_snapshots(
        &mut self,
        dataset: &str,
        from: &str,
        to: &str,
        recursive: bool,
    ) -> Result<(), SpaError> {
        for (head, snapshot) in self.check_rename_snapshots(dataset, from, to, recursive).await? {
            let name = format!("{}@{from}", head.dir.name);
            self.record_event("rename", &format!("-> @{to}"), Some((&name, snapshot))).await?;
            self.mos.dsl.rename_snapshot(self.txg, head.object, from, to).await?;
        }
        Ok(())
    }

    /// Whether a directory can have this name; the directory above it then, and the last part.
    async fn check_move(&self, view: &Dsl, dir: &Dir, to: &str) -> Result<(Dir, String), SpaError> {
        let from = dir.name.as_str();
        let (Some((above, last)), false) = (parent_and_last(to), dir.phys.parent.0 == 0) else {
            return Err(cannot(
                from,
                Refusal::Invalid,
                "the root dataset has its pool's name, and nothing else can have one like it",
            ));
        };
        if is_at_or_below(above, from) {
            return Err(cannot(
                from,
                Refusal::Invalid,
                "New dataset name cannot be a descendant of current dataset name",
            ));
        }
        if to.split('/').next() != from.split('/').next() {
            return Err(cannot(from, Refusal::Invalid, "datasets must be within same pool"));
        }
        let parent = match view.dir(above).await {
            Err(DslError::NoSuchDataset(_)) => return Err(cannot(from, Refusal::NotThere, "parent does not exist")),
            result => result?,
        };
        if view.child(&parent, last).await?.is_some() {
            return Err(cannot(from, Refusal::Exists, "dataset already exists"));
        }
        let head = view.dataset(above).await?;
        if view.kind(&head).await? != ObjsetType::Zfs {
            return Err(cannot(from, Refusal::Invalid, "parent is not a filesystem"));
        }
        let longer = to.len().saturating_sub(from.len());
        let is_deeper = to.matches('/').count() > from.matches('/').count();
        for below in view.tree(dir.clone(), false).await? {
            let mut longest = below.name.len();
            if let Some(head) = view.head(&below).await? {
                let snapshots = view.snapshots(&head).await?;
                let bookmarks = view.bookmarks(&head).await?;
                let snapshots = snapshots.iter().map(|snapshot| snapshot.name().len());
                let lens = snapshots.chain(bookmarks.iter().map(|bookmark| bookmark.name.len()));
                longest = lens.max().unwrap_or(0).max(longest);
            }
            if longest + longer > NAME_MAX_BYTES {
                return Err(cannot(from, Refusal::Invalid, &NameError::TooLong.to_string()));
            }
            // As in OpenZFS what lies too deep already may move to where it lies no deeper.
            let name = format!("{to}{}", below.name.strip_prefix(from).unwrap_or_default());
            if is_deeper && let Err(reason) = check_depth(&name) {
                return Err(cannot(from, Refusal::Invalid, &reason.to_string()));
            }
        }
        if parent.object != dir.phys.parent {
            self.check_above(view, &parent).await?;
            self.check_above(view, dir).await?;
            self.check_room(view, dir, &parent).await?;
            let (datasets, snapshots) = view.counted_below(dir).await?;
            let old = view.parent(dir).await?;
            let may = match &old {
                Some(old) => self.may_move(old, &parent, datasets.saturating_add(1), snapshots).await?,
                None => true,
            };
            if !may {
                return Err(cannot(from, Refusal::NoSpace, "out of space"));
            }
        }
        Ok((parent, last.to_owned()))
    }

    /// Whether quotas above the new place have room for all that a directory uses.
    async fn check_room(&self, view: &Dsl, dir: &Dir, parent: &Dir) -> Result<(), SpaError> {
        let moved_bytes = dir.phys.used_bytes.max(dir.phys.reserved_bytes);
        let mut at = Some(parent.clone());
        while let Some(above) = at {
            // An ancestor of both places already counts these bytes.
            let is_common = is_below(&dir.name, &above.name);
            let quota = above.phys.quota_bytes;
            if !is_common && quota != 0 && above.phys.used_bytes.saturating_add(moved_bytes) > quota {
                return Err(cannot(&dir.name, Refusal::NoSpace, "out of space"));
            }
            at = view.parent(&above).await?;
        }
        Ok(())
    }
}

fn cannot(from: &str, kind: Refusal, why: &str) -> SpaError {
    SpaError::refused(kind, format!("cannot rename '{from}': {why}"))
}

#[cfg(test)]
mod tests {
    use cenote_dsl::Birth;
    use cenote_taskq::{Rng, Runtime};

    use super::*;
    use crate::config::PoolState;
    use crate::refcount::tests::{add_disk, made};
    use cenote_dsl::Head;

    /// A file system with a name that the rules for new names forbid.
    async fn misnamed(writer: &mut Syncer, part: &str) {
        let birth = Birth { time_s: writer.time_s(), txg: writer.txg };
        let dir =
            writer.mos.dsl.create_dir(Some(writer.mos.dsl.root_object()), part, ObjectId(0), birth).await.unwrap();
        let dataset = writer.mos.dsl.create_dataset(dir, birth, &mut Rng::new(part.len() as u64)).await.unwrap();
        let objset = writer.new_objset(writer.txg, dataset, ObjsetType::Zfs, writer.mos.objset.policy());
        writer.mos.dsl.add_head(Head { dataset, objset });
    }

    #[test]
    fn what_is_called_as_nothing_can_be_called_is_renamed_and_destroyed() {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        add_disk(&runtime, "/misnamed");
        runtime.block_on(async {
            let mut writer = made(&handle, "/misnamed").await;
            for part in ["a@b", "c#d", "e@f#g", "h%i", "*"] {
                misnamed(&mut writer, part).await;
            }
            writer.sync().await.unwrap();
            for name in ["shared/x@y", "shared/x#y", "shared/x%y", "shared/x$y", "shared/x*"] {
                let refused = writer.create_dataset(name, ObjsetType::Zfs).await.map(drop).unwrap_err();
                assert!(refused.to_string().starts_with(&format!("cannot create '{name}': ")), "{refused}");
            }
            for (from, to) in [("shared/a@b", "shared/a"), ("shared/c#d", "shared/c"), ("shared/*", "shared/star")] {
                writer.rename_dataset(from, to).await.unwrap();
            }
            // OpenZFS renames nothing with this letter either: it is that of half-received datasets.
            let refused = writer.rename_dataset("shared/h%i", "shared/hi").await.unwrap_err();
            assert_eq!(refused.to_string(), "cannot rename 'shared/h%i': invalid character '%' in name");
            for name in ["shared/e@f#g", "shared/h%i"] {
                writer.destroy_dataset(name).await.unwrap();
            }
            writer.sync().await.unwrap();
            let view = writer.dsl().clone();
            let root = view.root_dir().await.unwrap();
            let left: Vec<_> = view.children(&root, false).await.unwrap().into_iter().map(|(name, _)| name).collect();
            assert_eq!(left, ["a", "c", "star"]);
            for name in ["shared/a@b", "shared/e@f#g"] {
                assert!(view.dataset(name).await.is_err(), "{name}");
            }
            writer.end(PoolState::Exported).await.unwrap();
        });
    }
}
