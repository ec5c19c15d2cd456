//! The parts of a receive that raw streams alone have: the wrapped keys, and the objset that is written without them.
//!
//! ```text
//! begin   new dataset   its key object is made, and it is its own encryption root; feature and `keylocation=prompt` go with it
//!         %recv         shares the key object of the dataset, as clones do
//! end     all           the dataset's wrapped keys become those of the stream (the sender's user may have another key by now)
//!         snapshot      gets the stream's set of IVs, by which the next increment is told from one that does not fit
//! ```
//! **Invariant.** A dataset that is received raw has the sender's master key, or is refused: the key's guid says which it is.

use cenote_dmu::Objset;
use cenote_dsl::{Dataset, Dir, Head};
use cenote_format::dsl::{CryptoKeyPhys, dataset_field as field};
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{ObjectId, ObjsetId, Txg};
use cenote_format::zap::ZapValue;
use cenote_format::zil::ZilHeader;
use cenote_taskq::{Rng, boxed};

use super::receive_spec::{RawSpec, ReceiveRefusal, ReceiveSpec};
use crate::features::by_name;
use crate::sync::Syncer;
use crate::{Refusal, SpaError};

impl Syncer {
    /// The wrapped keys of a dataset, where it is encrypted.
    async fn key_of(&self, dir: ObjectId) -> Result<Option<CryptoKeyPhys>, SpaError> {
        let found = self.dsl().wrapped_key(dir).await;
        Ok(found?.map(|(_, key)| key))
    }

    /// Refuses a stream for a dataset that is there, where one of both is encrypted and that cannot be. `is_whole`: it takes its place.
    pub(super) async fn check_raw_onto(
        &self,
        spec: &ReceiveSpec,
        head: &Dataset,
        is_whole: bool,
    ) -> Result<(), SpaError> {
        let key = self.key_of(head.dir.object).await?;
        match (&spec.raw, key) {
            (None, None) => Ok(()),
            (None, Some(_)) | (Some(_), _) if is_whole => Err(ReceiveRefusal::OverEncrypted.into()),
            (None, Some(_)) => {
                SpaError::unwritable(format!("receiving into an encrypted dataset ('{}')", spec.dataset))
            }
            (Some(_), None) => Err(ReceiveRefusal::RawOntoPlain.into()),
            (Some(raw), Some(key)) if raw.key.guid != key.guid => Err(ReceiveRefusal::OtherKey.into()),
            (Some(_), Some(_)) => Ok(()),
        }
    }

    /// Refuses a stream that does not build on a snapshot as it is here.
    pub(super) async fn check_raw_source(&self, spec: &ReceiveSpec, source: &Dataset) -> Result<(), SpaError> {
        let Some(raw) = &spec.raw else { return Ok(()) };
        let key = self.key_of(source.dir.object).await?;
        if key.ok_or(ReceiveRefusal::RawOntoPlain)?.guid != raw.key.guid {
            return Err(ReceiveRefusal::OtherKey.into());
        }
        let ivset = self.dsl().dataset_field(source, field::IVSET_GUID).await;
        match ivset?.unwrap_or(0) {
            0 => return Err(ReceiveRefusal::NoIvset.into()),
            _ if raw.from_ivset_guid == 0 => return Err(ReceiveRefusal::NoIvset.into()),
            own if own != raw.from_ivset_guid => return Err(ReceiveRefusal::OtherIvset.into()),
            _ => {}
        }
        let objset = self.dsl().open(source).await?;
        let fits = objset.is_none_or(|objset| raw.root.fits(&objset.phys().meta_dnode));
        if fits { Ok(()) } else { Err(ReceiveRefusal::OtherShape.into()) }
    }

    /// Makes the objset and the key of a new dataset that is received raw.
    pub(super) async fn make_raw(
        &mut self,
        raw: &RawSpec,
        dir: ObjectId,
        dataset: ObjectId,
        kind: ObjsetType,
        policy: cenote_dmu::ObjsetPolicy,
    ) -> Result<(), SpaError> {
        let txg = self.txg;
        let dmu = self.blocks.writer.dmu().clone();
        let objset = Objset::create_raw(dmu, ObjsetId(dataset.0), kind, policy, &raw.root);
        assert!(objset.begin_raw(txg, &raw.root), "an objset has the form that it was made with");
        self.mos.dsl.add_head(Head { dataset, objset });
        let key = CryptoKeyPhys { root_dir: dir, refcount: 1, ..raw.key.clone() };
        let zapified = self.mos.dsl.create_wrapped_key(txg, dir, &key).await?;
        self.mos.features.change("extensible_dataset", i64::from(zapified));
        let feature = by_name("encryption").expect("a feature that is known");
        let noted = self.mos.dsl.note_feature(txg, dataset, feature.guid).await?;
        self.mos.features.change("extensible_dataset", i64::from(noted.zapified));
        self.mos.features.change(feature.name, i64::from(noted.is_new));
        let place = ZapValue::from_text("prompt");
        Ok(self.mos.dsl.set_property(txg, dir, "keylocation", &place).await?)
    }

    /// A clone shares the wrapped keys of the dataset whose snapshot it began as.
    pub(crate) async fn share_key(&mut self, txg: Txg, dir: ObjectId, origin: ObjectId) -> Result<(), SpaError> {
        let from = self.mos.dsl.dataset_phys(origin).await?.dir;
        let zapified = self.mos.dsl.share_wrapped_key(txg, dir, from).await?;
        self.mos.features.change("extensible_dataset", i64::from(zapified));
        Ok(())
    }

    /// Whether a stream has the master key of a dataset.
    pub(super) async fn check_key(&mut self, raw: &RawSpec, dir: ObjectId) -> Result<(), SpaError> {
        match self.key_of(dir).await? {
            Some(before) if before.guid == raw.key.guid => Ok(()),
            _ => Err(ReceiveRefusal::OtherKey.into()),
        }
    }

    /// The wrapped keys of a dataset become those of the stream, as [`Self::check_key`] allows.
    pub(super) async fn take_key(&mut self, raw: &RawSpec, dir: ObjectId) -> Result<(), SpaError> {
        Ok(self.mos.dsl.replace_wrapped_key(self.txg, dir, &raw.key).await?)
    }

    /// Makes a dataset an encryption root, or one that has its parent's, with all below it that have the same. The wrapped keys stay: the
    /// caller knows that the root's user key is theirs.
    ///
    /// # Errors
    /// It is not encrypted, or what is above it is not; or the MOS cannot be changed.
    #[boxed]
    pub async fn move_encryption_root(&mut self, name: &str, is_root: bool) -> Result<(), SpaError> {
        let txg = self.txg;
        let dir = self.mos.dsl.dir(name).await?;
        let to = match is_root {
            true => dir.object,
            false => {
                let above = self.key_of(dir.phys.parent).await?;
                let what = || {
                    SpaError::refused(
                        Refusal::Invalid,
                        format!("cannot inherit the key of '{name}': parent is not encrypted"),
                    )
                };
                above.ok_or_else(what)?.root_dir
            }
        };
        self.mos.dsl.move_encryption_root(txg, &dir, to).await?;
        let place = is_root.then(|| ZapValue::from_text("prompt"));
        Ok(self.mos.dsl.change_property(txg, dir.object, "keylocation", place.as_ref()).await?)
    }

    /// Sets the place where the key of an encryption root is found.
    ///
    /// # Errors
    /// It is none, or the place cannot be one; or the MOS cannot be changed.
    #[boxed]
    pub async fn set_key_location(&mut self, name: &str, place: &str) -> Result<(), SpaError> {
        let dir = self.mos.dsl.dir(name).await?;
        self.check_key_location(&dir, place).await?;
        let place = ZapValue::from_text(place);
        Ok(self.mos.dsl.change_property(self.txg, dir.object, "keylocation", Some(&place)).await?)
    }

    /// Refuses a place of a key that cannot be one, or is one of a dataset that has its key from elsewhere.
    pub(super) async fn check_key_location(&self, dir: &Dir, place: &str) -> Result<(), SpaError> {
        let cannot = |why: &str| {
            Err(SpaError::refused(Refusal::Invalid, format!("cannot set property for '{}': {why}", dir.name)))
        };
        if self.key_of(dir.object).await?.is_none_or(|key| key.root_dir != dir.object) {
            return cannot("keylocation can only be set on encryption roots");
        }
        let is_place =
            place == "prompt" || ["file:///", "https://", "http://"].iter().any(|how| place.starts_with(how));
        if is_place { Ok(()) } else { cannot("invalid keylocation") }
    }

    /// Opens a dataset that is received raw, for its receiver.
    pub(super) async fn open_raw(&mut self, raw: &RawSpec, name: &str) -> Result<Head, SpaError> {
        let view = self.dsl().clone();
        let dataset = view.dataset(name).await?;
        if let Some(head) = self.mos.dsl.open_head(dataset.object) {
            return Ok(head);
        }
        let mut policy = cenote_dmu::ObjsetPolicy { copies: 1, ..self.mos.objset.policy() };
        self.obey_properties(&view, &dataset.dir, &mut policy).await?;
        let dmu = self.blocks.writer.dmu().clone();
        let objset = Objset::own_raw(dmu, dataset.objset_id(), dataset.phys.bp, policy).await?;
        if !objset.begin_raw(self.txg, &raw.root) {
            return Err(ReceiveRefusal::OtherShape.into());
        }
        // The snapshot's root has the header of its head's log, whose blocks are not this dataset's.
        if objset.zil_header() != ZilHeader::default() {
            objset.change_zil_header(self.txg, |header| *header = ZilHeader::default());
        }
        let head = Head { dataset: dataset.object, objset };
        self.mos.dsl.add_head(head.clone());
        Ok(head)
    }

    /// The snapshot that was received raw gets the stream's set of IVs.
    pub(super) async fn mark_raw(&mut self, raw: &RawSpec, snapshot: ObjectId, rng: &mut Rng) -> Result<(), SpaError> {
        let ivset = if raw.to_ivset_guid == 0 { rng.next_u64() | 1 } else { raw.to_ivset_guid };
        for (name, value) in [(field::IVSET_GUID, ivset), (field::RAW_RECEIVED, 1)] {
            self.put_field(snapshot, name, &ZapValue::from_u64(value)).await?;
        }
        Ok(())
    }
}
