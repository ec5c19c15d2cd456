//! Receiving a snapshot: the beginning, the recorded place to resume from, and the end. The receiver writes the records in between.
//!
//! # Life of a receive
//!
//! ```text
//! begin (one txg)    the dataset is new: it is made, with nothing in it or as a clone
//!                    it is there: `%recv` is made below it, a clone of the snapshot that the stream builds on
//!                    either is marked as inconsistent, so nobody else opens it
//! records            go into it, in as many txgs as they take; where it may be resumed, each few seconds the place is noted
//! sync_and_close     all of it is on disk; who has the dataset mounted or served closes it, and has its users wait until the end is made
//! end (one txg)      what the dataset has had since the snapshot goes; both change places; the snapshot is taken, with the guid and
//!                    the time of the stream; `%recv` is destroyed with what was there before
//! ```
//! # Invariants
//!
//! 1. Until the end nothing that is seen has changed; the end is one txg.
//! 2. The place that is noted is not behind any record that is not on disk: it is noted in no txg before those that have the records before
//!    it. Records after it may be on disk; to receive them once more changes nothing.
//! 3. From `sync_and_close` to the end the dataset that was written counts as in use, so nobody destroys it or receives into it. The end knows it by its
//!    object: names may change meanwhile.
//! 4. The end refuses before its first change, or not at all: a change that fails half-made fails the pool.
//! 5. When the end is made neither dataset is open or dirty: what was received is on disk, and the users of the other wait.
//!
//! # Crash
//!
//! A dataset that was begun and has no place to go on from is of no use. As in OpenZFS it is destroyed when the pool is next opened for
//! writing ([`Syncer::clear_interrupted`]); where its process lives on, by the next receive into the same name or by
//! [`Syncer::abort_receive`].

use cenote_dsl::name::{NameError, check_new_snapshot, check_no_received, parent_and_last, parent_of};
use cenote_dsl::{Birth, Dataset, DslError, EmptyRefs, Head};
use cenote_format::dsl::dataset_field as field;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_format::needs::Needs;
use cenote_format::zap::ZapValue;
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{Rng, boxed};

use super::receive_spec::{ReceivePoint, ReceiveRefusal, ReceiveSpec, Resumable};
use crate::features::{FEATURES, by_name};
use crate::inuse::User;
use crate::pool::{HeadHold, LiveHead, Pool};
use crate::sync::Syncer;
use crate::{Refusal, SpaError};

/// The name of what is received for a dataset that is there.
pub(crate) const RECEIVED: &str = "%recv";
/// The same behind the name of that dataset.
const BESIDE: &str = "/%recv";

/// A receive that is under way.
pub struct Receiving {
    spec: ReceiveSpec,
    /// The dataset that is written.
    head: LiveHead,
    /// It is `%recv`, for a dataset that is there.
    is_beside: bool,
    /// The place that an earlier receive had come to.
    point: ReceivePoint,
}

impl Receiving {
    /// The dataset that is written.
    #[must_use]
    pub const fn head(&self) -> &LiveHead {
        &self.head
    }

    /// Whether the dataset is new.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        !self.is_beside
    }

    /// The place that is gone on from.
    #[must_use]
    pub const fn point(&self) -> ReceivePoint {
        self.point
    }

    /// Notes the place up to which all is received. The caller has made all changes that come before it.
    ///
    /// # Errors
    /// As [`Pool::change`].
    #[boxed]
    pub async fn note(&self, point: ReceivePoint) -> Result<(), SpaError> {
        let dataset = self.head.dataset();
        // Before the first object there is no place: the one that a receive begins with stays.
        if self.spec.resumable.is_none() || point.object == 0 {
            return Ok(());
        }
        let pool = self.head.pool();
        // A change of the pool is made in the txg that is synced next. It may be closed already, and have nothing of what came last: that is
        // in the open txg, which is the next one when all before it are on disk.
        if !mutant::is(Mutant::ReceiveNotedEarly) {
            pool.wait_synced(Txg(pool.txg().0 - 1)).await?;
        }
        pool.change(move |syncer| Box::pin(async move { syncer.note_received(dataset, point).await })).await
    }

    /// Writes everything that was received to disk, and closes the dataset that was received into.
    ///
    /// # Errors
    /// The pool has failed.
    pub async fn sync_and_close(self) -> Result<Received, SpaError> {
        let Self { spec, head, is_beside, .. } = self;
        let (pool, written) = (head.pool().clone(), head.dataset());
        pool.sync().await?;
        let hold = head.hold();
        drop(head);
        Ok(Received { pool, spec, written, is_beside, hold })
    }

    /// Gives up the receive. The data received so far is destroyed, unless the receive may be resumed.
    ///
    /// # Errors
    /// As [`Pool::change`].
    pub async fn give_up(self) -> Result<(), SpaError> {
        let Self { spec, head, .. } = self;
        let (pool, written) = (head.pool().clone(), head.dataset());
        drop(head);
        pool.sync().await?;
        match spec.resumable {
            Some(_) => Ok(()),
            None => pool.abort_received(written).await,
        }
    }
}

/// A receive of which all has come. [`Self::end`] makes it visible.
pub struct Received {
    pool: Pool,
    spec: ReceiveSpec,
    /// The dataset that was written.
    written: ObjectId,
    is_beside: bool,
    /// Nobody else destroys it or receives into it.
    hold: HeadHold,
}

impl Received {
    /// The full name of the dataset that was written, if it takes the place of another at the end. Nobody may have that one open then.
    #[must_use]
    pub fn replacing(&self) -> Option<String> {
        self.is_beside.then(|| format!("{}/{RECEIVED}", self.spec.dataset))
    }

    /// Ends it: the snapshot is there, and the dataset as it was received, and that is on disk. Where that cannot be, what was received goes,
    /// unless it may be resumed.
    ///
    /// # Errors
    /// The dataset was changed meanwhile, or somebody has it open; or as [`Pool::change`].
    pub async fn end(self) -> Result<(), SpaError> {
        let Self { pool, spec, written, is_beside, hold } = self;
        let (own, asked) = (pool.clone(), spec.clone());
        let change = pool.change(move |syncer| {
            Box::pin(async move {
                let ended = syncer.end_receive(&own, asked, written, is_beside).await;
                // With the slot: nobody comes in between, and what has gone is in no use when the txg is synced.
                drop(hold);
                ended
            })
        });
        match change.await {
            Ok(()) => pool.sync().await.map(drop),
            Err(error) => {
                // The first fault is told; what is left is cleared by the next receive.
                if spec.resumable.is_none() {
                    let _ = pool.abort_received(written).await;
                }
                Err(error)
            }
        }
    }

    /// Gives up the receive. The data received so far is destroyed, unless the receive may be resumed.
    ///
    /// # Errors
    /// As [`Pool::change`].
    pub async fn give_up(self) -> Result<(), SpaError> {
        let Self { pool, spec, written, hold, .. } = self;
        drop(hold);
        match spec.resumable {
            Some(_) => Ok(()),
            None => pool.abort_received(written).await,
        }
    }
}

impl Pool {
    /// Begins to receive a snapshot.
    ///
    /// # Errors
    /// It cannot be received, and why not; or as [`Pool::change`].
    #[boxed]
    pub async fn begin_receive(&self, spec: ReceiveSpec) -> Result<Receiving, SpaError> {
        self.wait_logs_freed().await?;
        let (pool, name) = (self.clone(), spec.dataset.clone());
        let clear = self.change(move |syncer| Box::pin(async move { syncer.clear_broken(&pool, &name).await }));
        clear.await?;
        let (pool, asked) = (self.clone(), spec.clone());
        let begun = self.change(move |syncer| {
            Box::pin(async move {
                let (name, point) = syncer.begin_receive(&pool, &asked).await?;
                let head = match &asked.raw {
                    None => syncer.open_received(&name).await?,
                    Some(raw) => syncer.open_raw(raw, &name).await?,
                };
                let is_beside = name != asked.dataset;
                Ok::<_, SpaError>((pool.adopt(syncer, &name, head, User::Command).await?, is_beside, point))
            })
        });
        let (head, is_beside, point) = begun.await?;
        Ok(Receiving { spec, head, is_beside, point })
    }

    /// Gives up a receive by the dataset that was written, whatever its name is by now.
    async fn abort_received(&self, written: ObjectId) -> Result<(), SpaError> {
        let pool = self.clone();
        let aborted = self.change(move |syncer| {
            Box::pin(async move {
                let name = syncer.mos.dsl.dataset_name(written).await?;
                syncer.abort_receive(&pool, name.strip_suffix(BESIDE).unwrap_or(&name)).await
            })
        });
        aborted.await
    }

    /// Gives up what was received in part of a dataset (`zfs receive -A`).
    ///
    /// # Errors
    /// There is nothing; or as [`Pool::change`].
    #[boxed]
    pub async fn abort_receive(&self, name: &str) -> Result<(), SpaError> {
        let (pool, name) = (self.clone(), name.to_owned());
        self.change(move |syncer| Box::pin(async move { syncer.abort_receive(&pool, &name).await })).await
    }
}

/// Whether what was received is too much for a `refquota` (0: none). As in OpenZFS it may exceed that by what one transaction may take on
/// disk, since a dataset that was written under the same quota may have done so.
const fn exceeds_refquota(referenced_bytes: u64, quota_bytes: u64) -> bool {
    const TRANSACTION_MAX_BYTES: u64 = 64 << 20;
    const INFLATION: u64 = 24;
    quota_bytes != 0 && referenced_bytes > quota_bytes.saturating_add(TRANSACTION_MAX_BYTES * INFLATION)
}

/// The dataset that receives, found.
enum Place {
    New,
    /// Beside a dataset, as a clone of this snapshot; of none for a whole stream.
    Beside {
        snapshot: Option<ObjectId>,
    },
    /// Going on.
    Resumed {
        name: String,
        point: ReceivePoint,
    },
}

impl Syncer {
    async fn find(&self, name: &str) -> Result<Option<Dataset>, SpaError> {
        match self.dsl().dataset(name).await {
            Err(DslError::NoSuchDataset(_)) => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    async fn resume_field(&self, dataset: &Dataset, name: &str) -> Result<Option<u64>, SpaError> {
        Ok(self.dsl().dataset_field(dataset, name).await?)
    }

    /// The dataset that would be written, and the place that is gone on from.
    async fn begin_receive(&mut self, pool: &Pool, spec: &ReceiveSpec) -> Result<(String, ReceivePoint), SpaError> {
        let beside = format!("{}/{RECEIVED}", spec.dataset);
        let cannot = |reason: NameError| {
            SpaError::refused(Refusal::Invalid, format!("cannot receive into '{}': {reason}", spec.dataset))
        };
        check_no_received(&spec.dataset).map_err(cannot)?;
        check_new_snapshot(&format!("{}@{}", spec.dataset, spec.snapshot)).map_err(cannot)?;
        for feature in spec.needs.names().chain(spec.enabled.iter().copied()) {
            if !self.mos.features.has(feature) {
                return Err(ReceiveRefusal::NoFeature(feature).into());
            }
        }
        match self.place_of(pool, spec).await? {
            Place::Resumed { name, point } => Ok((name, point)),
            Place::New => {
                let (above, last) = parent_and_last(&spec.dataset).expect("checked: it is below another");
                let origin = match &spec.origin {
                    Some(name) if spec.raw.is_none() => Some(self.check_clone(name, &spec.dataset).await?.object),
                    // The origin of a clone is looked at with the place.
                    Some(name) => self.find(name).await?.map(|origin| origin.object),
                    None => None,
                };
                self.make_received(spec, above, last, origin).await?;
                Ok((spec.dataset.clone(), ReceivePoint::default()))
            }
            Place::Beside { snapshot } => {
                self.make_received(spec, &spec.dataset, RECEIVED, snapshot).await?;
                Ok((beside, ReceivePoint::default()))
            }
        }
    }

    /// Destroys what a receive has left that cannot be gone on with.
    async fn clear_broken(&mut self, pool: &Pool, name: &str) -> Result<(), SpaError> {
        for name in [format!("{name}/{RECEIVED}"), name.to_owned()] {
            let Some(left) = self.find(&name).await? else { continue };
            let is_broken = left.is_inconsistent() && self.resume_field(&left, field::RESUME_TO_GUID).await?.is_none();
            if is_broken && !pool.is_used(left.object) {
                self.destroy_dataset(&name).await?;
            }
        }
        Ok(())
    }

    /// Destroys those of these datasets that a receive has left which cannot be gone on with. One that cannot be destroyed yet stays.
    pub(crate) async fn clear_interrupted(&mut self, half_received: Vec<Dataset>) -> Result<(), SpaError> {
        for left in half_received {
            let name = left.name();
            // A receive was begun and not ended, or a dataset was half destroyed by software that did so before there were such marks.
            if self.resume_field(&left, field::RESUME_TO_GUID).await?.is_some() {
                continue;
            }
            let origins = std::slice::from_ref(&left);
            if self.check_destroy(&name, false).await.is_ok() && self.check_origins_go(origins).await.is_ok() {
                self.destroy_dataset(&name).await?;
                self.notes.push(format!(
                    "'{name}' was half received when its process ended, and could not be gone on with: destroyed"
                ));
            }
        }
        Ok(())
    }

    async fn place_of(&mut self, pool: &Pool, spec: &ReceiveSpec) -> Result<Place, SpaError> {
        let name = spec.dataset.as_str();
        let refuse = |refusal: ReceiveRefusal| Err(SpaError::from(refusal));
        let partial = self.find(&format!("{name}/{RECEIVED}")).await?;
        let found = self.find(name).await?;
        if spec.resumes {
            return self.resumed_place(pool, spec, partial, found).await;
        }
        let Some(head) = found else { return self.new_place(spec).await };
        if !spec.users_wait && (pool.is_used(head.object) || self.has_log_in_use(head.object)) {
            return refuse(ReceiveRefusal::Busy);
        }
        // Readers as of a txg on disk are not made to wait.
        if self.is_long_held(head.object) {
            return refuse(ReceiveRefusal::Busy);
        }
        if partial.is_some() || self.resume_field(&head, field::RESUME_TO_GUID).await?.is_some() {
            return refuse(ReceiveRefusal::HasPartial(name.to_owned()));
        }
        let snapshots = self.dsl().snapshots(&head).await?;
        let is_there = snapshots.iter().any(|snapshot| snapshot.snapshot.as_deref() == Some(&spec.snapshot));
        if is_there && spec.from_guid.is_some() && spec.origin.is_none() {
            return refuse(ReceiveRefusal::Exists(format!("{name}@{}", spec.snapshot)));
        }
        let dsl = self.dsl().clone();
        self.check_remapped(&dsl, &head).await?;
        self.check_new_snapshots(std::iter::once(name)).await?;
        self.check_delegated(&dsl, &head.dir).await?;
        let is_whole = spec.from_guid.is_none() || spec.origin.is_some();
        if spec.is_forced || !is_whole {
            self.check_raw_onto(spec, &head, is_whole).await?;
        }
        let children = self.dsl().children(&head.dir, false).await?;
        match (spec.from_guid.filter(|_| spec.origin.is_none()), children.first()) {
            (Some(from), _) => self.place_on(spec, &head, &snapshots, from).await,
            (None, _) if !spec.is_forced => refuse(ReceiveRefusal::Overwrites(name.to_owned())),
            (None, _) if !snapshots.is_empty() => refuse(ReceiveRefusal::HasSnapshots(snapshots[0].name())),
            (None, _) if head.dir.phys.origin != self.dsl().origin() && head.dir.phys.origin.0 != 0 => {
                refuse(ReceiveRefusal::IsClone(name.to_owned()))
            }
            (None, _) if spec.kind == ObjsetType::Zvol && !name.contains('/') => {
                refuse(ReceiveRefusal::IsRoot(name.to_owned()))
            }
            (None, Some((child, _))) if spec.kind == ObjsetType::Zvol => {
                refuse(ReceiveRefusal::HasChildren(format!("{name}/{child}")))
            }
            (None, _) => Ok(Place::Beside { snapshot: None }),
        }
    }

    /// A new dataset.
    async fn new_place(&mut self, spec: &ReceiveSpec) -> Result<Place, SpaError> {
        let name = spec.dataset.as_str();
        let refuse = |refusal: ReceiveRefusal| Err(SpaError::from(refusal));
        let wants_new = spec.from_guid.is_none() || spec.origin.is_some();
        let Some(above) = parent_of(name).filter(|_| wants_new) else {
            return refuse(ReceiveRefusal::Missing(name.to_owned()));
        };
        let Some(parent) = self.find(above).await? else {
            return refuse(ReceiveRefusal::Missing(above.to_owned()));
        };
        let kind = self.dsl().kind(&parent).await?;
        if kind != ObjsetType::Zfs {
            return refuse(ReceiveRefusal::WrongParent(above.to_owned()));
        }
        let parent = self.check_create_with(name, spec.raw.is_some()).await?;
        self.check_new_below(name, &parent, 1).await?;
        if let Some(origin) = &spec.origin {
            self.check_origin(spec, origin).await?;
        }
        Ok(Place::New)
    }

    /// Beside a dataset that has the snapshot which the stream builds on.
    async fn place_on(
        &self,
        spec: &ReceiveSpec,
        head: &Dataset,
        snapshots: &[Dataset],
        from: Guid,
    ) -> Result<Place, SpaError> {
        let name = &spec.dataset;
        if self.dsl().kind(head).await? != spec.kind {
            return Err(ReceiveRefusal::OtherKind(name.clone()).into());
        }
        let Some(source) = snapshots.iter().find(|snapshot| snapshot.phys.guid == from) else {
            return Err(ReceiveRefusal::NoSource(name.clone()).into());
        };
        if !spec.needs.contains(Needs::LARGE_BLOCKS) {
            let feature = by_name("large_blocks").expect("a feature that is known");
            let has = self.dsl().has_noted(source.object, feature.guid).await;
            if has? {
                return Err(ReceiveRefusal::LargeBlocks.into());
            }
        }
        self.check_raw_source(spec, source).await?;
        self.check_redacted(spec, source).await?;
        if spec.is_forced {
            return Ok(Place::Beside { snapshot: Some(source.object) });
        }
        // A raw stream builds on the very IVs of its source: a snapshot after it has others.
        let has_later = spec.raw.is_some() && head.phys.prev_snapshot != source.object;
        if has_later || self.is_modified(head, source).await? {
            return Err(ReceiveRefusal::Modified(name.clone()).into());
        }
        Ok(Place::Beside { snapshot: Some(head.phys.prev_snapshot) })
    }

    /// Whether a dataset has other contents than an earlier snapshot. A root that is newer and differs in its intent log alone is none.
    async fn is_modified(&self, head: &Dataset, snapshot: &Dataset) -> Result<bool, SpaError> {
        if head.phys.bp.logical_birth() <= snapshot.phys.creation_txg {
            return Ok(false);
        }
        let open = async |dataset: &Dataset| {
            let objset = self.dsl().open(dataset).await?;
            Ok::<_, SpaError>(objset.map(|objset| objset.phys().meta_dnode.clone()))
        };
        Ok(open(head).await? != open(snapshot).await?)
    }

    async fn check_origin(&self, spec: &ReceiveSpec, origin: &str) -> Result<(), SpaError> {
        let missing = || ReceiveRefusal::NoOrigin(format!("{}@{}", spec.dataset, spec.snapshot));
        let Some(found) = self.find(origin).await? else { return Err(missing().into()) };
        match spec.from_guid {
            Some(guid) if guid != found.phys.guid => Err(ReceiveRefusal::NoSource(spec.dataset.clone()).into()),
            _ if !found.is_snapshot() || found.is_inconsistent() => Err(missing().into()),
            _ => {
                self.check_redacted(spec, &found).await?;
                self.check_raw_source(spec, &found).await
            }
        }
    }

    /// The partial receive, if this stream goes on with it.
    async fn resumed_place(
        &self,
        pool: &Pool,
        spec: &ReceiveSpec,
        partial: Option<Dataset>,
        found: Option<Dataset>,
    ) -> Result<Place, SpaError> {
        let is_beside = partial.is_some();
        let nothing = || SpaError::from(ReceiveRefusal::NotResumable(spec.dataset.clone()));
        let Some(dataset) = partial.or(found) else {
            return Err(ReceiveRefusal::Missing(spec.dataset.clone()).into());
        };
        if pool.is_used(dataset.object) {
            return Err(ReceiveRefusal::Busy.into());
        }
        let to = self.resume_field(&dataset, field::RESUME_TO_GUID).await?;
        let from = self.resume_field(&dataset, field::RESUME_FROM_GUID).await?;
        if !dataset.is_inconsistent() || to != Some(spec.to_guid.0) || from.map(Guid) != spec.from_guid {
            return Err(nothing());
        }
        let was_raw = self.resume_field(&dataset, field::RESUME_RAW).await?.is_some();
        if was_raw != spec.raw.is_some() {
            return Err(nothing());
        }
        self.check_same_redaction(spec, &dataset).await?;
        if let Some(raw) = &spec.raw {
            let own = self.dsl().wrapped_key(dataset.dir.object).await?;
            if own.is_none_or(|(_, own)| own.guid != raw.key.guid) {
                return Err(ReceiveRefusal::OtherKey.into());
            }
        }
        if is_beside && spec.from_guid.is_none() && !spec.is_forced {
            return Err(ReceiveRefusal::ResumesOver(spec.dataset.clone()).into());
        }
        let number = async |name| Ok::<_, SpaError>(self.resume_field(&dataset, name).await?.unwrap_or(0));
        let point = ReceivePoint {
            object: number(field::RESUME_OBJECT).await?,
            offset_bytes: number(field::RESUME_OFFSET).await?,
            bytes: number(field::RESUME_BYTES).await?,
        };
        Ok(Place::Resumed { name: dataset.name(), point })
    }

    /// Makes the dataset that is written.
    async fn make_received(
        &mut self,
        spec: &ReceiveSpec,
        above: &str,
        last: &str,
        origin: Option<ObjectId>,
    ) -> Result<(), SpaError> {
        let txg = self.txg;
        let parent = self.mos.dsl.dir(above).await?;
        // Before the first change: a value of another's may be none that is obeyed here.
        let mut policy = cenote_dmu::ObjsetPolicy { copies: 1, ..self.mos.objset.policy() };
        self.obey_properties(&self.dsl().clone(), &parent, &mut policy).await?;
        let birth = Birth { time_s: self.time_s(), txg };
        let mut rng = Rng::new(self.handle.random_u64());
        let name = format!("{above}/{last}");
        self.share_empty_bpobj().await?;
        let dir = self.mos.dsl.create_dir(Some(parent.object), last, ObjectId(0), birth).await?;
        if last != RECEIVED {
            self.count_new_dir(dir).await?;
        }
        let dataset = match origin {
            Some(origin) => {
                let mut refs = EmptyRefs::default();
                let made = self.mos.dsl.create_clone(dir, origin, birth, &mut rng, &mut refs).await?;
                self.mos.count_empty_refs(self.txg, refs).await?;
                // A clone that takes its dataset's place in the end would lose its livelist then.
                if last != RECEIVED {
                    self.add_livelist(dir).await?;
                }
                self.hand_down_features(origin, made).await?;
                self.share_key(txg, dir, origin).await?;
                if spec.raw.is_none() {
                    self.clear_log_header(&name).await?;
                }
                made
            }
            None => {
                let made = self.mos.dsl.create_dataset(dir, birth, &mut rng).await?;
                match &spec.raw {
                    None => {
                        let objset = self.new_objset(txg, made, spec.kind, policy);
                        self.mos.dsl.add_head(Head { dataset: made, objset });
                    }
                    Some(raw) => self.make_raw(raw, dir, made, spec.kind, policy).await?,
                }
                made
            }
        };
        self.mos.dsl.set_inconsistent(txg, dataset, true).await?;
        if spec.ignores_case {
            self.mos.dsl.set_case_insensitive(txg, dataset).await?;
        }
        self.use_features(txg, dataset, spec.needs).await?;
        self.note_redaction(txg, dataset, spec).await?;
        if let Some(resumable) = &spec.resumable {
            self.note_resumable(dataset, spec, resumable).await?;
        }
        self.record_event("receive", "", Some((&name, dataset))).await
    }

    pub(super) async fn put_field(&mut self, dataset: ObjectId, name: &str, value: &ZapValue) -> Result<(), SpaError> {
        let zapified = self.mos.dsl.put_dataset_field(self.txg, dataset, name, value).await?;
        self.mos.features.change("extensible_dataset", i64::from(zapified));
        Ok(())
    }

    async fn note_resumable(&mut self, dataset: ObjectId, spec: &ReceiveSpec, of: &Resumable) -> Result<(), SpaError> {
        if let Some(from) = spec.from_guid {
            self.put_field(dataset, field::RESUME_FROM_GUID, &ZapValue::from_u64(from.0)).await?;
        }
        self.put_field(dataset, field::RESUME_TO_GUID, &ZapValue::from_u64(spec.to_guid.0)).await?;
        self.put_field(dataset, field::RESUME_TO_NAME, &ZapValue::from_text(&of.to_name)).await?;
        for (name, is_set) in [
            (field::RESUME_LARGE_BLOCK, of.large_blocks),
            (field::RESUME_EMBED, of.embedded),
            (field::RESUME_COMPRESS, of.compressed),
            (field::RESUME_RAW, spec.raw.is_some()),
        ] {
            if is_set {
                self.put_field(dataset, name, &ZapValue::from_u64(1)).await?;
            }
        }
        if let Some(snapshots) = &spec.from_redacted {
            self.put_field(dataset, field::RESUME_REDACT_SNAPSHOTS, &ZapValue::from_u64s(snapshots)).await?;
        }
        // As OpenZFS begins: before the first object.
        self.note_received(dataset, ReceivePoint { object: 1, ..ReceivePoint::default() }).await
    }

    async fn note_received(&mut self, dataset: ObjectId, point: ReceivePoint) -> Result<(), SpaError> {
        for (name, value) in [
            (field::RESUME_OBJECT, point.object),
            (field::RESUME_OFFSET, point.offset_bytes),
            (field::RESUME_BYTES, point.bytes),
        ] {
            self.put_field(dataset, name, &ZapValue::from_u64(value)).await?;
        }
        Ok(())
    }

    /// The snapshots that are destroyed so that a dataset ends with the one that a clone began as, the newest first.
    async fn later_snapshots(&self, head: &Dataset, since: ObjectId) -> Result<Vec<String>, SpaError> {
        let snapshots = self.dsl().snapshots(head).await?;
        let at = snapshots.iter().position(|snapshot| snapshot.object == since).map_or(0, |at| at + 1);
        Ok(snapshots[at..].iter().rev().map(Dataset::name).collect())
    }

    /// Ends a receive whose data is on disk.
    async fn end_receive(
        &mut self,
        pool: &Pool,
        mut spec: ReceiveSpec,
        written: ObjectId,
        is_beside: bool,
    ) -> Result<(), SpaError> {
        let txg = self.txg;
        // The dataset may have another name by now.
        let written_name = self.mos.dsl.dataset_name(written).await?;
        spec.dataset = match is_beside {
            true => written_name.strip_suffix(BESIDE).unwrap_or(&spec.dataset).to_owned(),
            false => written_name,
        };
        let (spec, name) = (&spec, &spec.dataset);
        let open = self.mos.dsl.open_head(written);
        assert!(
            open.is_none_or(|head| !head.objset.is_dirty(txg)),
            "all that was received is on disk before its snapshot is taken"
        );
        let Some(head) = self.find(name).await? else { return Err(ReceiveRefusal::Missing(name.clone()).into()) };
        let snapshots = self.dsl().snapshots(&head).await?;
        if snapshots.iter().any(|snapshot| snapshot.snapshot.as_deref() == Some(&spec.snapshot)) {
            return Err(ReceiveRefusal::Exists(format!("{name}@{}", spec.snapshot)).into());
        }
        if let Some(raw) = &spec.raw {
            self.check_key(raw, head.dir.object).await?;
        }
        if is_beside {
            self.check_swap(pool, spec, &head, written).await?;
            self.swap_received(&head, written).await?;
        }
        // From here on nothing is refused: the pool has been changed.
        // The key not before: a stream that breaks off changes nothing of the datasets that share it.
        if let Some(raw) = &spec.raw {
            self.take_key(raw, head.dir.object).await?;
        }
        self.record_event("finish receiving", &format!("snap={}", spec.snapshot), Some((name, written))).await?;
        self.take_received(spec, head.object).await?;
        if is_beside {
            self.destroy_dataset(&format!("{name}/{RECEIVED}")).await?;
        }
        self.mos.dsl.retain_heads(|open| open.dataset != head.object && open.dataset != written);
        Ok(())
    }

    /// Whether what was received can take the place of the dataset; later snapshots go.
    async fn check_swap(
        &mut self,
        pool: &Pool,
        spec: &ReceiveSpec,
        head: &Dataset,
        written: ObjectId,
    ) -> Result<(), SpaError> {
        // A client may have opened, changed and closed it since its users were made to wait: those changes are not on disk.
        let is_dirty = self.mos.dsl.open_head(head.object).is_some_and(|open| open.objset.is_dirty(self.txg));
        let is_used = pool.is_used(head.object) || self.has_log_in_use(head.object);
        if is_used || is_dirty || self.is_long_held(head.object) {
            return Err(ReceiveRefusal::Busy.into());
        }
        let received = self.mos.dsl.dataset_phys(written).await?;
        let since = received.prev_snapshot;
        let quota = self.dsl().property(&head.dir, "refquota", false).await?;
        let quota = quota.and_then(|found| found.value.number()).unwrap_or(0);
        if exceeds_refquota(received.referenced_bytes, quota) {
            return Err(ReceiveRefusal::OverQuota(spec.dataset.clone()).into());
        }
        let later = self.later_snapshots(head, since).await?;
        if !spec.is_forced {
            let snapshot = self.dsl().dataset_object(since, head.dir.clone(), None).await?;
            if !later.is_empty() || self.is_modified(head, &snapshot).await? {
                return Err(ReceiveRefusal::Modified(spec.dataset.clone()).into());
            }
        }
        for name in &later {
            self.check_destroy_snapshot(name, false).await?;
        }
        let goes = self.check_destroy(&format!("{}/{RECEIVED}", spec.dataset), false).await?;
        // The source may be marked to be destroyed with its last clone.
        self.check_origins_go(std::slice::from_ref(&goes)).await?;
        for name in &later {
            self.destroy_snapshot(name, false).await?;
        }
        Ok(())
    }

    async fn swap_received(&mut self, head: &Dataset, written: ObjectId) -> Result<(), SpaError> {
        let txg = self.txg;
        self.mos.dsl.retain_heads(|open| open.dataset != head.object && open.dataset != written);
        self.mos.headers_only.remove(&head.object);
        // Lists of what each has of its own are not the other's.
        let other = self.mos.dsl.dataset_phys(written).await?;
        for dir in [head.dir.object, other.dir] {
            self.mos.drop_livelist(self.txg, dir).await?;
        }
        self.mos.dsl.swap_heads(txg, head.object, written).await?;
        self.swap_redactions(head.object, written).await?;
        for feature in FEATURES.iter().filter(|feature| feature.per_dataset) {
            let noted = async |dataset| self.mos.dsl.has_noted(dataset, feature.guid).await;
            let (old, new) = (noted(head.object).await?, noted(written).await?);
            if old == new {
                continue;
            }
            let (from, to) = if old { (head.object, written) } else { (written, head.object) };
            let copied = self.mos.dsl.copy_feature(txg, from, to, feature.guid).await?;
            self.mos.features.change("extensible_dataset", i64::from(copied.zapified));
            let forgot = self.mos.dsl.forget_feature(txg, from, feature.guid).await;
            assert!(forgot?, "a feature that was noted is forgotten");
        }
        self.mos.used_features.remove(&head.object);
        self.mos.used_features.remove(&written);
        Ok(())
    }

    /// Takes the snapshot that was received.
    async fn take_received(&mut self, spec: &ReceiveSpec, head: ObjectId) -> Result<(), SpaError> {
        let txg: Txg = self.txg;
        let birth = Birth { time_s: spec.creation_time_s, txg };
        let mut rng = Rng::new(self.handle.random_u64());
        let mut refs = EmptyRefs::default();
        self.mos.dsl.set_inconsistent(txg, head, false).await?;
        self.mos.dsl.forget_resume(txg, head).await?;
        self.share_empty_bpobj().await?;
        let snapshot =
            self.mos.dsl.take_snapshot(head, &spec.snapshot, birth, Some(spec.to_guid), &mut rng, &mut refs).await?;
        self.mos.count_empty_refs(self.txg, refs).await?;
        let dir = self.mos.dsl.dataset_phys(head).await?.dir;
        self.snapshots_changed(dir).await?;
        self.hand_down_features(head, snapshot).await?;
        if let Some(raw) = &spec.raw {
            self.mark_raw(raw, snapshot, &mut rng).await?;
        }
        let name = format!("{}@{}", spec.dataset, spec.snapshot);
        self.record_event("snapshot", "", Some((&name, snapshot))).await
    }

    async fn abort_receive(&mut self, pool: &Pool, name: &str) -> Result<(), SpaError> {
        let beside = format!("{name}/{RECEIVED}");
        for name in [beside, name.to_owned()] {
            let Some(left) = self.find(&name).await? else { continue };
            if !left.is_inconsistent() {
                continue;
            }
            if pool.is_used(left.object) {
                return Err(ReceiveRefusal::Busy.into());
            }
            return self.destroy_dataset(&name).await;
        }
        Err(SpaError::refused(
            Refusal::NotThere,
            format!("'{name}' does not have any resumable receive state to abort"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refquota_may_be_exceeded_by_a_transaction() {
        let slack = (64 << 20) * 24;
        for (referenced, quota, exceeds) in [
            (u64::MAX, 0, false),
            (slack + 1, 0, false),
            (slack + 1000, 1000, false),
            (slack + 1001, 1000, true),
            (u64::MAX, u64::MAX, false),
        ] {
            assert_eq!(exceeds_refquota(referenced, quota), exceeds, "{referenced} of {quota}");
        }
    }
}
