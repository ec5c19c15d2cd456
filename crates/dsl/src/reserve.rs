//! Refreservations: space guaranteed for a dataset's own data, even if others fill the pool.
//!
//! ```text
//!   reserved  |#########################|          unique: the bytes that only the dataset has
//!   unique    |###############          |          the reserved bytes that are not used count as used by the directory, and so by
//!             |               ^^^^^^^^^^           all above it, in a part of their own (`DD_USED_REFRSRV`)
//! ```
//! So writing into reserved space only moves bytes from one part to another and changes nothing above, until the reservation is used up.

use cenote_dmu::{SpaceDelta, Zap};
use cenote_format::dsl::{DatasetFlags, PropertyEntry};
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::ZapValue;
use cenote_taskq::boxed;

use crate::Dsl;
use crate::DslError;
use crate::accounts::{UsedBy, signed};

/// The property with the reserved bytes.
const REFRESERVATION: &str = "refreservation";

/// The additional bytes that count above a dataset when it has `own_bytes` more alone.
fn counts_above(unique_bytes: u64, own_bytes: i64, reserved_bytes: u64) -> i64 {
    let after = unique_bytes.saturating_add_signed(own_bytes).max(reserved_bytes);
    let above = after.wrapping_sub(unique_bytes.max(reserved_bytes)).cast_signed();
    assert!(
        (own_bytes.min(0)..=own_bytes.max(0)).contains(&above),
        "no more counts above than a dataset has more, and none the other way"
    );
    above
}

impl Dsl {
    /// The reservation (`refreservation`) of a directory's head dataset, in bytes.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn refreservation_bytes(&self, dir: ObjectId) -> Result<u64, DslError> {
        let properties = self.dir_phys(dir).await?.properties;
        if properties.0 == 0 {
            return Ok(0);
        }
        let zap = Zap::open(self.mos().object(properties).await?).await?;
        if let Some(value) = zap.lookup(REFRESERVATION.as_bytes()).await? {
            return Ok(value.as_u64().unwrap_or(0));
        }
        if zap.lookup(PropertyEntry::Inherited.name(REFRESERVATION).as_bytes()).await?.is_some() {
            return Ok(0);
        }
        let received = zap.lookup(PropertyEntry::Received.name(REFRESERVATION).as_bytes()).await?;
        Ok(received.and_then(|value| value.as_u64()).unwrap_or(0))
    }

    /// Sets the refreservation of a head dataset: 0 for none; `None` for none even if one was received. The caller checks that the space is
    /// available.
    ///
    /// # Errors
    /// The MOS cannot be changed, or the dataset's `unique` is not accurate.
    #[boxed]
    pub async fn set_refreservation(&self, txg: Txg, dataset: ObjectId, bytes: Option<u64>) -> Result<(), DslError> {
        let phys = self.dataset_phys(dataset).await?;
        if !phys.flags.contains(DatasetFlags::UNIQUE_ACCURATE) {
            return Err(DslError::Unsupported("reserving space for datasets of pools before version 9".to_owned()));
        }
        let before = self.refreservation_bytes(phys.dir).await?;
        self.change_property(txg, phys.dir, REFRESERVATION, bytes.map(ZapValue::from_u64).as_ref()).await?;
        self.reserve_differently(txg, dataset, before, bytes.unwrap_or(0)).await
    }

    /// Reverts the refreservation of a head dataset to the one received, `received`; 0 if there is none. The caller checks that the space is
    /// available.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn revert_refreservation(&self, txg: Txg, dataset: ObjectId, received: u64) -> Result<(), DslError> {
        let dir = self.dataset_phys(dataset).await?.dir;
        let before = self.refreservation_bytes(dir).await?;
        self.revert_property(txg, dir, REFRESERVATION, None).await?;
        self.reserve_differently(txg, dataset, before, received).await
    }

    /// Charges the change of a head dataset's refreservation from `before` to `bytes`.
    pub(crate) async fn reserve_differently(
        &self,
        txg: Txg,
        dataset: ObjectId,
        before: u64,
        bytes: u64,
    ) -> Result<(), DslError> {
        let phys = self.dataset_phys(dataset).await?;
        let unused = |reserved: u64| signed(reserved.saturating_sub(phys.unique_bytes));
        let delta = SpaceDelta { used_bytes: unused(bytes) - unused(before), ..SpaceDelta::default() };
        self.charge(txg, phys.dir, UsedBy::Refreservation, delta).await
    }

    /// Charges additional bytes of a head dataset alone, some of which may have been reserved for it.
    pub(crate) async fn charge_head(
        &self,
        txg: Txg,
        dir: ObjectId,
        unique_bytes: u64,
        own: SpaceDelta,
    ) -> Result<(), DslError> {
        let reserved = self.refreservation_bytes(dir).await?;
        let above = counts_above(unique_bytes, own.used_bytes, reserved);
        self.charge(txg, dir, UsedBy::Head, SpaceDelta { used_bytes: above, ..own }).await?;
        let moved = own.used_bytes - above;
        if moved == 0 {
            return Ok(());
        }
        self.change_dir(txg, dir, |phys| {
            let [head, .., reserved] = &mut phys.used_breakdown_bytes;
            *head = head.saturating_add_signed(moved);
            *reserved = reserved.saturating_add_signed(-moved);
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_counts_above_until_it_is_used_up() {
        // Nothing reserved: all of it.
        assert_eq!(counts_above(10, 5, 0), 5);
        assert_eq!(counts_above(10, -5, 0), -5);
        // Within what is reserved: nothing.
        assert_eq!(counts_above(10, 5, 100), 0);
        assert_eq!(counts_above(10, -10, 100), 0);
        // Across the limit, both ways: the bytes beyond it.
        assert_eq!(counts_above(90, 30, 100), 20);
        assert_eq!(counts_above(120, -30, 100), -20);
        assert_eq!(counts_above(120, 30, 100), 30);
    }
}
