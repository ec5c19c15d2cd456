//! The dataset that a stream comes to: found by name or by guid, and refused if it cannot be received into.

use std::io::Read;

use cenote_dsl::DslError;
use cenote_dsl::name::{is_below, parent_and_last, parent_of};
use cenote_format::ids::Guid;
use cenote_format::stream::BeginFlags;
use cenote_send::receiver::Header;
use cenote_spa::ReceiveRefusal;

use super::error::{ReceiveError, ReceiveFailure};
use super::incoming::Incoming;
use super::request::Naming;
use super::run::Run;
use crate::create_filesystem_of;

impl<R: Read> Run<'_, R> {
    pub(super) async fn exists(&self, name: &str) -> Result<bool, ReceiveError> {
        match self.pool.dsl()?.dataset(name).await {
            Ok(_) => Ok(true),
            Err(DslError::NoSuchDataset(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Full name of the pool's snapshot with this guid; of several, that which has most of its path in common with a name.
    async fn by_guid(&self, guid: u64, near: &str) -> Result<Option<String>, ReceiveError> {
        if guid == 0 {
            return Ok(None);
        }
        let common = |name: &str| name.split('/').zip(near.split('/')).take_while(|(one, other)| one == other).count();
        let dsl = self.pool.dsl()?;
        let mut found: Option<(usize, String)> = None;
        for dir in dsl.tree(dsl.root_dir().await?, false).await? {
            let Some(head) = dsl.head(&dir).await? else { continue };
            for snapshot in dsl.snapshots(&head).await? {
                let parts = common(&dir.name);
                if snapshot.phys.guid == Guid(guid) && found.as_ref().is_none_or(|(best, _)| parts > *best) {
                    found = Some((parts, snapshot.name()));
                }
            }
        }
        Ok(found.map(|(_, name)| name))
    }

    /// The reason why a dataset could not be received into, as far as it is known before anything has arrived.
    pub(super) async fn refused(&self, incoming: &Incoming<'_>) -> Result<Option<ReceiveRefusal>, ReceiveError> {
        let dataset = incoming.dataset.as_str();
        let is_there = self.exists(dataset).await?;
        Ok(match (incoming.is_new, is_there) {
            (true, true) if !self.request.is_forced => Some(ReceiveRefusal::Overwrites(dataset.to_owned())),
            (true, false) if self.request.naming != Naming::WithoutPool => match parent_and_last(dataset) {
                Some((above, _)) if !self.exists(above).await? => Some(ReceiveRefusal::Missing(above.to_owned())),
                _ => None,
            },
            (false, false) => Some(ReceiveRefusal::Missing(dataset.to_owned())),
            _ => None,
        })
    }

    /// The snapshot that a clone begins as.
    pub(super) async fn origin(&mut self, header: &Header, target: &str) -> Result<Option<String>, ReceiveError> {
        if let Some(origin) = &self.request.origin {
            let origin = origin.clone();
            if !self.exists(&origin).await? {
                return Err(ReceiveFailure::NoOrigin(origin).into());
            }
            self.tell(format!("using provided clone origin {origin}"));
            return Ok(Some(origin));
        }
        if !header.begin.flags.contains(BeginFlags::CLONE) || header.is_resuming() {
            return Ok(None);
        }
        match self.by_guid(header.begin.from_guid.0, target).await? {
            Some(origin) => {
                self.tell(format!("found clone origin {origin}"));
                Ok(Some(origin))
            }
            None => Err(ReceiveRefusal::NoOrigin(target.to_owned()).into()),
        }
    }

    /// Looks by guid for a dataset that has another name here: the parent of a new one, or the one that a stream builds on.
    pub(super) async fn find_dataset(&mut self, incoming: &mut Incoming<'_>, top: &str) -> Result<(), ReceiveError> {
        let dataset = incoming.dataset.as_str();
        if incoming.is_new {
            if let Some((above, last)) = parent_and_last(dataset)
                && let Some((sent, _)) = incoming.sent
                && !self.exists(above).await?
                && let Some(parent) = self.by_guid(sent.parent_from, above).await?
                && let Some((parent, _)) = parent.split_once('@')
            {
                incoming.dataset = format!("{parent}/{last}");
            }
            return Ok(());
        }
        let may_move = self.request.naming != Naming::Exact || is_below(&incoming.sent_name, top);
        if may_move
            && !self.exists(dataset).await?
            && let Some(source) = self.by_guid(incoming.header.begin.from_guid.0, dataset).await?
            && let Some((found, _)) = source.split_once('@')
        {
            incoming.dataset = found.to_owned();
        }
        Ok(())
    }

    /// Makes the datasets that are missing between the name that was given and a new dataset.
    pub(super) async fn make_parents(&mut self, incoming: &Incoming<'_>) -> Result<(), ReceiveError> {
        let Some(above) = parent_of(&incoming.dataset) else { return Ok(()) };
        if above.len() <= self.request.target.len() || self.exists(above).await? {
            return Ok(());
        }
        let made = create_filesystem_of(self.pool, above, Vec::new(), true, self.request.owner).await;
        made.map(drop).map_err(|error| ReceiveError::new(incoming.action.clone(), error))
    }
}
