//! One object's attributes with the form that they have in it.

use cenote_format::FormatError;
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::Txg;
use cenote_format::sa::{SaHeader, SaView};
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;

use super::form::{Numbered, SaForm, bonus_room_of};
use super::record::SaRecord;
use super::tables::SaTables;
use crate::object::Object;
use crate::{DmuError, DmuErrorKind};

/// The attributes of an object as they are packed in it.
#[derive(Clone, Debug)]
pub struct SaHandle {
    record: SaRecord,
    /// None where the object can keep no other attributes: those of an old znode, or in another byte order than ours.
    form: Option<SaForm>,
    spill: Option<Block>,
}

impl SaTables {
    /// The attributes of an object, from its bonus and, if it has one, its spill.
    ///
    /// # Errors
    /// They cannot be read, or contradict the tables.
    #[boxed]
    pub async fn record(&self, object: &Object) -> Result<SaRecord, DmuError> {
        Ok(self.parsed(object, |_| ()).await?.0)
    }

    /// The same, to be changed.
    ///
    /// # Errors
    /// As [`SaTables::record`].
    #[boxed]
    pub async fn open(&self, object: &Object) -> Result<SaHandle, DmuError> {
        let (record, parts, spill) = self.parsed(object, Numbered::clone).await?;
        let mut parts = parts.into_iter();
        let form = match (parts.next(), record.is_native()) {
            (Some((kept, bonus)), true) => Some(SaForm { kept, bonus, spill: parts.next().map(|(_, layout)| layout) }),
            _ => None,
        };
        Ok(SaHandle { record, form, spill })
    }

    /// The attributes, what `of` makes of the layouts of bonus and spill, each with the number of attributes up to its end, and the
    /// spill block.
    async fn parsed<L>(
        &self,
        object: &Object,
        of: impl Fn(&Numbered) -> L,
    ) -> Result<(SaRecord, Vec<(usize, L)>, Option<Block>), DmuError> {
        let phys = object.phys();
        let fail = |error: FormatError| object.error(error);
        let corrupt = |what: String| object.error(DmuErrorKind::Corrupt(what));
        if phys.bonus_type == DmuType::ZNODE {
            // The fixed layout's numbers are their places, whatever the registry of an upgraded objset says.
            let (registry, layout) = self.legacy_layout();
            let mut record = SaRecord::new(registry);
            record.take(SaView::legacy(&phys.bonus, phys.endian, layout).map_err(fail)?).map_err(fail)?;
            return Ok((record, Vec::new(), None));
        }
        let mut record = self.new_record();
        let mut parts = Vec::new();
        let mut take = |bytes: &[u8]| {
            let Some(header) = SaHeader::parse(bytes).map_err(fail)? else { return Ok(()) };
            let taken = self.with_layout(header.layout_number(), |layout| {
                let is_taken = record.take(SaView::new(bytes, &header, &layout.layout).map_err(fail)?).map_err(fail)?;
                parts.push((record.len(), of(layout)));
                if is_taken { Ok(()) } else { Err(corrupt("an attribute that is there twice".into())) }
            });
            taken.ok_or_else(|| corrupt(format!("attribute layout {} is not known", header.layout)))?
        };
        take(&phys.bonus)?;
        let spill = object.spill().await?.map(|(block, _)| block);
        if let Some(spill) = &spill {
            take(spill)?;
        }
        Ok((record, parts, spill))
    }
}

impl SaHandle {
    /// Gives a new object attributes.
    ///
    /// # Errors
    /// They do not have this form, or do not fit.
    pub fn create(object: &Object, txg: Txg, record: SaRecord, form: SaForm) -> Result<Self, DmuError> {
        let spill = put(object, txg, &record, &form, None)?;
        Ok(Self { record, form: Some(form), spill })
    }

    /// The attributes.
    #[must_use]
    pub fn record(&self) -> &SaRecord {
        &self.record
    }

    /// The form of a record with the same attributes of the same lengths.
    #[must_use]
    pub fn form_of(&self, record: &SaRecord) -> Option<&SaForm> {
        self.form.as_ref().filter(|_| record.has_shape_of(&self.record))
    }

    /// Writes a changed record into the object.
    ///
    /// # Errors
    /// It does not have this form, or does not fit.
    pub fn store(&mut self, object: &Object, txg: Txg, record: SaRecord, form: SaForm) -> Result<(), DmuError> {
        self.spill = put(object, txg, &record, &form, self.spill.as_ref())?;
        (self.record, self.form) = (record, Some(form));
        Ok(())
    }
}

/// Packs a record into an object; returns the new spill block. `before` is the old one.
fn put(
    object: &Object,
    txg: Txg,
    record: &SaRecord,
    form: &SaForm,
    before: Option<&Block>,
) -> Result<Option<Block>, DmuError> {
    let (bonus, spill) = form.emit(record).map_err(|error| object.error(error))?;
    let needed = bonus.len() + if spill.is_some() { Blkptr::SIZE } else { 0 };
    if needed > bonus_room_of(object) {
        return Err(object.error(DmuErrorKind::NoRoom(needed)));
    }
    // A larger bonus takes the place of the spill block's pointer, and the other way round.
    if spill.is_none() && before.is_some() {
        object.set_spill(txg, None);
    }
    object.set_bonus(txg, &bonus)?;
    if spill.is_some() && spill.as_ref() != before {
        object.set_spill(txg, spill.clone());
    }
    Ok(spill)
}
