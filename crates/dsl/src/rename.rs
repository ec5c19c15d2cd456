//! Renaming: of directories, which may move below another one with all that they use, and of snapshots.

use cenote_dmu::{SpaceDelta, Zap};
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::ZapValue;
use cenote_taskq::boxed;

use crate::Dsl;
use crate::DslError;
use crate::accounts::{count_child, signed};
use crate::dir::Dir;
use crate::limits::Counted;

impl Dsl {
    /// Renames a directory, below the same parent or another one. That is not below it, and has no child of this name. Used and reserved space
    /// moves to the new parents' accounts.
    ///
    /// # Errors
    /// The MOS cannot be changed, or contradicts itself.
    #[boxed]
    pub async fn rename_dir(&self, txg: Txg, dir: &Dir, parent: ObjectId, name: &str) -> Result<(), DslError> {
        self.forget_name(txg, dir).await?;
        let dir = dir.object;
        let mut phys = self.dir_phys(dir).await?;
        let before = phys.parent;
        assert!(dir != parent && dir != self.root_object(), "a directory does not come to lie below itself");
        let names = self.mos().object(self.dir_phys(parent).await?.child_dirs).await?;
        Zap::put_entry(&names, txg, name, Some(&ZapValue::from_u64(dir.0))).await?;
        self.renamed();
        if parent == before {
            return Ok(());
        }
        // Directories below one with counts have counts too.
        for (counted, own) in [(Counted::Datasets, 1), (Counted::Snapshots, 0)] {
            if let Some(count) = self.count(dir, counted).await? {
                let moved = signed(count) + own;
                self.adjust_count(txg, before, counted, -moved).await?;
                self.adjust_count(txg, parent, counted, moved).await?;
            }
        }
        phys.parent = parent;
        self.put_dir(txg, dir, &phys).await?;
        let moved = SpaceDelta {
            used_bytes: signed(phys.used_bytes.max(phys.reserved_bytes)),
            compressed_bytes: signed(phys.compressed_bytes),
            uncompressed_bytes: signed(phys.uncompressed_bytes),
        };
        let used = signed(phys.used_bytes);
        for (at, delta, used) in [(before, moved.negated(), -used), (parent, moved, used)] {
            let mut above = self.dir_phys(at).await?;
            count_child(&mut above, used, delta.used_bytes);
            self.charge_up(txg, at, above, delta).await?;
        }
        Ok(())
    }

    /// Removes a directory from its parent's list. Finds it by name, so that n siblings do not take n searches of a list of n.
    pub(crate) async fn forget_name(&self, txg: Txg, dir: &Dir) -> Result<(), DslError> {
        let above = self.mos().object(self.dir_phys(dir.phys.parent).await?.child_dirs).await?;
        let mut names = Zap::open(above).await?;
        let name = dir.last_name();
        if names.lookup(name.as_bytes()).await?.and_then(|value| value.as_u64()) != Some(dir.object.0) {
            let what = format!("the directory above does not list it as '{name}'");
            return Err(DslError::Corrupt { object: dir.object.0, what });
        }
        names.remove(name.as_bytes()).await?;
        Ok(names.flush(txg).await?)
    }

    /// Renames a snapshot of a head dataset. No other has the new name.
    ///
    /// # Errors
    /// There is no such snapshot, or the MOS cannot be changed.
    #[boxed]
    pub async fn rename_snapshot(&self, txg: Txg, head: ObjectId, from: &str, to: &str) -> Result<(), DslError> {
        let names = self.mos().object(self.dataset_phys(head).await?.snapshot_names).await?;
        let zap = Zap::open(names.clone()).await?;
        let snapshot = zap.lookup(from.as_bytes()).await?;
        let snapshot = snapshot.ok_or_else(|| DslError::NoSuchDataset(format!("@{from}")))?;
        Zap::put_entry(&names, txg, from, None).await?;
        Ok(Zap::put_entry(&names, txg, to, Some(&snapshot)).await?)
    }
}
