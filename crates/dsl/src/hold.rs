//! Holds on snapshots: tags that keep a snapshot from being destroyed.

use cenote_dmu::Zap;
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::ZapValue;
use cenote_taskq::boxed;
use cenote_taskq::mutant::{self, Mutant};

use crate::{Dsl, DslError};

impl Dsl {
    /// Puts a hold on a snapshot, which has none with this tag.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn add_hold(&self, txg: Txg, snapshot: ObjectId, tag: &str, time_s: u64) -> Result<(), DslError> {
        let mut phys = self.dataset_phys(snapshot).await?;
        if phys.user_refs.0 == 0 {
            phys.user_refs = Zap::create_object(self.mos(), txg, DmuType::USERREFS, &[]).await?.id();
            if !mutant::is(Mutant::HoldUnlinked) {
                self.put_dataset(txg, snapshot, &phys).await?;
            }
        }
        let holds = self.mos().object(phys.user_refs).await?;
        Ok(Zap::put_entry(&holds, txg, tag, Some(&ZapValue::from_u64(time_s))).await?)
    }

    /// Releases a hold on a snapshot. Returns true if others remain.
    ///
    /// # Errors
    /// There is no such hold, or the MOS cannot be changed.
    #[boxed]
    pub async fn release_hold(&self, txg: Txg, snapshot: ObjectId, tag: &str) -> Result<bool, DslError> {
        let phys = self.dataset_phys(snapshot).await?;
        let mut holds = Zap::open(self.mos().object(phys.user_refs).await?).await?;
        holds.remove(tag.as_bytes()).await?;
        holds.flush(txg).await?;
        Ok(holds.entry_count()? > 0)
    }

    /// The number of holds on a snapshot.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn hold_count(&self, snapshot: ObjectId) -> Result<u64, DslError> {
        let phys = self.dataset_phys(snapshot).await?;
        if phys.user_refs.0 == 0 {
            return Ok(0);
        }
        Ok(Zap::open(self.mos().object(phys.user_refs).await?).await?.entry_count()?)
    }
}
