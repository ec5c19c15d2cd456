//! Redacted streams: blocks that some snapshots have changed were left out, and are holes here.
//!
//! A dataset that is received so notes with respect to which snapshots it was redacted: a stream builds on it only if it brings no less than
//! the dataset has, since what was left out is nowhere here.
//!
//! ```text
//! the source here is redacted by    the stream                            it is received if
//!   S                               whole                                 always: all that S has left out comes, or goes
//!                                   from a source redacted by T           T is part of S
//!                                   redacted by T                         T is part of S
//!                                   of the snapshot t, not redacted       t is one of S: what S has left out, t has
//! ```

use cenote_dsl::Dataset;
use cenote_format::dsl::dataset_field as field;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::ZapValue;

use super::receive_spec::{ReceiveRefusal, ReceiveSpec};
use crate::SpaError;
use crate::sync::Syncer;

const FEATURE: &str = "redacted_datasets";

impl Syncer {
    /// Refuses a stream that brings less than a redacted snapshot lacks.
    pub(super) async fn check_redacted(&self, spec: &ReceiveSpec, source: &Dataset) -> Result<(), SpaError> {
        let own = self.dsl().redaction_snapshots(source).await?;
        let (Some(own), Some(_)) = (own, spec.from_guid) else { return Ok(()) };
        let is_part = |some: &[u64]| some.len() <= own.len() && some.iter().all(|guid| own.contains(guid));
        let is_safe = match (&spec.from_redacted, &spec.redacted) {
            (Some(some), _) | (None, Some(some)) => is_part(some),
            (None, None) => own.contains(&spec.to_guid.0),
        };
        if is_safe { Ok(()) } else { Err(ReceiveRefusal::OtherRedaction.into()) }
    }

    /// Refuses to go on with a dataset that is redacted otherwise.
    pub(super) async fn check_same_redaction(&self, spec: &ReceiveSpec, partial: &Dataset) -> Result<(), SpaError> {
        let own = self.dsl().redaction_snapshots(partial).await?;
        let sorted = |list: &Option<Vec<u64>>| {
            let mut list = list.clone();
            list.iter_mut().for_each(|list| list.sort_unstable());
            list
        };
        if sorted(&own) == sorted(&spec.redacted) { Ok(()) } else { Err(ReceiveRefusal::OtherRedaction.into()) }
    }

    /// Notes by which snapshots a new dataset is redacted; what it has of its origin goes.
    pub(super) async fn note_redaction(
        &mut self,
        txg: Txg,
        dataset: ObjectId,
        spec: &ReceiveSpec,
    ) -> Result<(), SpaError> {
        let forgotten = self.mos.dsl.forget_feature(txg, dataset, field::REDACTED_DATASETS).await?;
        self.mos.features.change(FEATURE, -i64::from(forgotten));
        if let Some(snapshots) = &spec.redacted {
            self.put_field(dataset, field::REDACTED_DATASETS, &ZapValue::from_u64s(snapshots)).await?;
            self.mos.features.change(FEATURE, 1);
        }
        Ok(())
    }

    /// Has two heads that change places, both redacted, change their lists.
    pub(super) async fn swap_redactions(&mut self, one: ObjectId, other: ObjectId) -> Result<(), SpaError> {
        let (first, second) = (self.redaction_of(one).await?, self.redaction_of(other).await?);
        if let (Some(first), Some(second)) = (first, second) {
            self.put_field(one, field::REDACTED_DATASETS, &ZapValue::from_u64s(&second)).await?;
            self.put_field(other, field::REDACTED_DATASETS, &ZapValue::from_u64s(&first)).await?;
        }
        Ok(())
    }

    async fn redaction_of(&self, dataset: ObjectId) -> Result<Option<Vec<u64>>, SpaError> {
        Ok(self.mos.dsl.redaction_of(dataset).await?)
    }
}
