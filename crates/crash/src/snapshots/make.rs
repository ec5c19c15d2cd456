//! Verbs of a family, made as their commands make them.

use cenote_admin::{
    AdminError, Reach, clone_dataset, create_bookmarks, destroy, destroy_bookmarks, destroy_snapshots, hold, promote,
    release, rollback,
};
use cenote_dmu::ObjectSpec;
use cenote_dmu::tx::{Cost, TxError};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_spa::{NewBookmark, NewSnapshot, Refusal, SpaError};

use super::actor::Snapshotter;
use super::model::{Family, Outcome, Verb, of};
use crate::model::content;
use crate::stage::words;

/// The number of objects that a write makes or changes.
const ONE_OBJECT: u64 = 1;

impl Snapshotter {
    pub(super) async fn make(&mut self, state: &Family, verb: Verb) -> Result<Outcome, String> {
        let pool = &self.pool;
        let made: Result<(), AdminError> = match &verb {
            Verb::Write { .. } | Verb::Free { .. } => return self.write(state, verb).await,
            Verb::Take { names, .. } => return self.take(names.clone(), verb).await,
            Verb::Receive { .. } | Verb::ReceivePart { .. } => return self.receive(state, verb).await,
            Verb::Clone { snapshot, name } => clone_dataset(pool, snapshot, name, Vec::new()).await,
            Verb::DestroySnapshots { names, is_deferred } => {
                destroy_snapshots(pool, names, *is_deferred, &|_| ()).await
            }
            Verb::Rollback(snapshot) => rollback(pool, snapshot, true).await,
            Verb::Hold { tag, names } => hold(pool, tag, names).await,
            Verb::Release { tag, names } => release(pool, tag, names).await,
            Verb::Destroy(head) => destroy(pool, head, Reach { recursive: true, clones: false }).await,
            Verb::Promote(head) => promote(pool, head).await,
            Verb::Rename { from, to } => pool.rename_dataset(from, to).await.map_err(AdminError::from),
            Verb::RenameSnapshot { from, to } => {
                let ((head, from), (_, to)) = from.split_once('@').zip(to.split_once('@')).ok_or("no snapshots")?;
                pool.rename_snapshots(head, from, to, false).await.map_err(AdminError::from)
            }
            Verb::Bookmark { names, source } => {
                let new = |name: &String| NewBookmark { name: name.clone(), source: source.clone() };
                create_bookmarks(pool, names.iter().map(new).collect()).await
            }
            Verb::DestroyBookmarks(names) => destroy_bookmarks(pool, names.clone()).await,
            Verb::Abort(dataset) => pool.abort_receive(dataset).await.map_err(AdminError::from),
        };
        match made {
            Ok(()) => Ok(Outcome::Made { verb, txg: None }),
            Err(AdminError::Spa(error)) if is_full(&error) => Ok(Outcome::Refused),
            Err(error) => Err(words(error)),
        }
    }

    /// Snapshots are of a txg that has all that was made before they were asked for.
    async fn take(&self, names: Vec<String>, verb: Verb) -> Result<Outcome, String> {
        let made_before: Vec<(&str, Txg)> = self
            .in_use
            .iter()
            .filter(|one| names.iter().any(|name| of(name) == one.dataset))
            .map(|one| (one.dataset, one.last_txg()))
            .collect();
        let wanted = names.iter().map(|name| NewSnapshot { name: name.clone(), ..NewSnapshot::default() });
        match self.pool.take_snapshots(wanted.collect()).await {
            Ok(txg) => {
                if let Some((dataset, before)) = made_before.into_iter().find(|(_, before)| *before > txg) {
                    return Err(format!("of txg {txg}, and {dataset} had been changed in {before}"));
                }
                let Verb::Take { names, number, .. } = verb else { return Err("no snapshots".to_owned()) };
                Ok(Outcome::Made { verb: Verb::Take { names, number, txg: Some(txg) }, txg: Some(txg) })
            }
            Err(error) if is_full(&error) => Ok(Outcome::Refused),
            Err(error) => Err(words(error)),
        }
    }

    /// Changes an object of a dataset of its own; one of number 0 is made.
    async fn write(&self, state: &Family, verb: Verb) -> Result<Outcome, String> {
        let (Verb::Write { head: name, .. } | Verb::Free { head: name, .. }) = &verb else {
            return Err("no write".to_owned());
        };
        let head = self.pool.open_head(name).await.map_err(words)?;
        let cost = match &verb {
            Verb::Write { len, .. } => Cost::objects(ONE_OBJECT).with_bytes(*len as u64 + (1 << 17)),
            _ => Cost::objects(ONE_OBJECT).that_frees(),
        };
        let tx = match head.begin(cost).await {
            Ok(tx) => tx,
            Err(TxError::NoSpace | TxError::Quota(_)) => return Ok(Outcome::Refused),
            Err(error) => return Err(words(error)),
        };
        let txg = tx.txg();
        let verb = match verb {
            Verb::Free { head: name, object } => {
                head.objset().object(ObjectId(object)).await.map_err(words)?.free(txg);
                Verb::Free { head: name, object }
            }
            Verb::Write { head: name, object, offset, len, seed } => {
                let object = match object {
                    0 => {
                        let spec = ObjectSpec::new(DmuType::UINT8_DATA, 512 << (seed % 7));
                        head.objset().create_object(txg, &spec).map_err(words)?
                    }
                    number => head.objset().object(ObjectId(number)).await.map_err(words)?,
                };
                object.write(txg, offset as u64, &content(seed, len)).await.map_err(words)?;
                let number = object.id().0;
                let is_known = state.heads.get(&name).is_some_and(|own| own.objects.contains_key(&number));
                debug_assert!(!is_known || offset > 0 || len > 0, "an object is written");
                Verb::Write { head: name, object: number, offset, len, seed }
            }
            other => other,
        };
        // The txg is let go when the log has it, in one step.
        let mut log = self.log.lock();
        log.begin(verb.clone());
        log.entered(txg);
        drop(tx);
        Ok(Outcome::Written { verb, txg })
    }
}

/// Refused for want of room, in a dataset with a quota for instance.
fn is_full(error: &SpaError) -> bool {
    matches!(error, SpaError::Refused { why: Refusal::NoSpace, .. })
}
