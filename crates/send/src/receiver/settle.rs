//! Applies records now, or after those that were deferred: see [`super::deferred`].

use cenote_format::stream::Body;

use super::ReceiverError;
use super::apply::Applier;
use super::deferred::{Deferred, Incoming, PutBy, Stands};

impl Applier {
    /// Applies a record, or defers it.
    pub(super) async fn take_record(&mut self, incoming: Incoming<'_>) -> Result<(), ReceiverError> {
        let is_made = match self.deferred.stands(incoming.body) {
            Stands::Apart => self.make(&incoming).await?,
            Stands::Behind => false,
            Stands::After => {
                self.settle().await?;
                // The search for objects sees only those on disk.
                if matches!(incoming.body, Body::FreeObjects(_)) {
                    self.sync().await?;
                }
                self.make(&incoming).await?
            }
        };
        if is_made {
            return Ok(());
        }
        let (point, range) = (self.reached(), self.range);
        self.deferred.push(&incoming, point, range);
        match self.deferred.is_full() {
            true => self.settle().await,
            false => Ok(()),
        }
    }

    /// Applies all deferred records.
    pub(super) async fn settle(&mut self) -> Result<(), ReceiverError> {
        if self.deferred.records.is_empty() {
            return Ok(());
        }
        // Freed objects occupy their slots until the free is on disk.
        self.sync().await?;
        let (records, range) = (std::mem::take(&mut self.deferred.records), self.range);
        debug_assert!(self.deferred.point.is_some(), "a receive resumes before what is deferred (invariant 3)");
        let mut is_made = true;
        for put_by in &records {
            self.range = put_by.range;
            let PutBy { body, payload, at, read_bytes, .. } = put_by;
            is_made = self.make(&Incoming { body, payload, block: None, at: *at, read_bytes: *read_bytes }).await?;
            if !is_made {
                break;
            }
        }
        self.range = range;
        assert!(self.deferred.records.is_empty(), "a record that was deferred is not deferred again (invariant 1)");
        if !is_made {
            return Err(self.invalid("an object in the middle of another"));
        }
        self.deferred = Deferred::default();
        Ok(())
    }
}
