//! The attribute tables of a file system that is changed: which numbers attributes have, and which layouts there are.
//!
//! A layout that is needed and not there is added in a change of its own, before the operation that needs it begins: one
//! that is never used does no harm.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::tx::{Cost, TxgSource};
use cenote_dmu::{ORDER, Object, Objset, Zap};
use cenote_format::blkptr::Blkptr;
use cenote_format::dnode::bonus_capacity_bytes;
use cenote_format::ids::ObjectId;
use cenote_format::sa::{LAYOUT_MAX, SA_LAYOUTS, SA_REGISTRY, SaLayout, SaRegistry, emit, layout_number};
use cenote_format::zap::ZapValue;
use cenote_taskq::AsyncMutex;
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::sync::Mutex;

use super::record::Record;
use crate::ZplError;

/// The first number of a layout: those below are reserved.
const LAYOUT_FIRST: u16 = 2;
/// Entries of a table at most.
const TABLE_ENTRIES_MAX: usize = 1 << 16;
/// A spill block is no larger.
pub(super) const SPILL_MAX_BYTES: usize = 128 << 10;

/// A layout and its number.
#[derive(Clone, Debug)]
pub(super) struct Numbered {
    pub(super) number: u16,
    pub(super) layout: Arc<SaLayout>,
}

/// How a record is packed: so many attributes into the bonus, the others into the spill block.
#[derive(Clone, Debug)]
pub(super) struct Form {
    pub(super) kept: usize,
    pub(super) bonus: Numbered,
    pub(super) spill: Option<Numbered>,
}

#[derive(Debug, Default)]
struct Layouts {
    by_number: BTreeMap<u16, Arc<SaLayout>>,
    numbers: BTreeMap<Vec<u16>, u16>,
    next: u16,
}

/// The tables.
pub(super) struct Tables {
    pub(super) registry: Arc<SaRegistry>,
    object: Object,
    layouts: Mutex<Layouts>,
    adding: AsyncMutex<()>,
}

impl Tables {
    /// Reads the tables that the object `master` names.
    pub(super) async fn open(objset: &Objset, master: ObjectId) -> Result<Self, ZplError> {
        let names = Zap::open(objset.object(master).await?).await?;
        let table = async |name: &str| {
            let value = names.lookup(name.as_bytes()).await?.and_then(|value| value.as_u64());
            let missing = || ZplError::Corrupt { object: master.0, what: format!("no table '{name}'") };
            Ok::<_, ZplError>(objset.object(ObjectId(value.ok_or_else(missing)?)).await?)
        };
        let (attributes, object) = (table(SA_REGISTRY).await?, table(SA_LAYOUTS).await?);
        let fail = |error| ZplError::Format { object: master.0, error };
        let mut registry = SaRegistry::new();
        for entry in Zap::open(attributes).await?.entries(TABLE_ENTRIES_MAX).await? {
            let name = String::from_utf8_lossy(entry.name()).into_owned();
            registry.register(&name, entry.value.as_u64().unwrap_or(0)).map_err(fail)?;
        }
        let mut layouts = Layouts { next: LAYOUT_FIRST, ..Layouts::default() };
        layouts.by_number.insert(1, Arc::new(SaLayout::empty()));
        for entry in Zap::open(object.clone()).await?.entries(TABLE_ENTRIES_MAX).await? {
            let Some(number) = layout_number(entry.name()) else { continue };
            let numbers: Vec<u16> = entry.value.integers().map(|number| number as u16).collect();
            layouts.next = layouts.next.max(number.saturating_add(1));
            layouts.by_number.insert(number, Arc::new(registry.layout(&numbers).map_err(fail)?));
            layouts.numbers.insert(numbers, number);
        }
        let (layouts, adding) = (Mutex::new(layouts), AsyncMutex::new(()));
        Ok(Self { registry: Arc::new(registry), object, layouts, adding })
    }

    /// The layout with this number.
    pub(super) fn numbered(&self, number: u16) -> Option<Numbered> {
        let layout = self.layouts.lock().by_number.get(&number).cloned()?;
        Some(Numbered { number, layout })
    }

    fn find(&self, numbers: &[u16]) -> Option<Numbered> {
        let layouts = self.layouts.lock();
        let number = *layouts.numbers.get(numbers)?;
        Some(Numbered { number, layout: layouts.by_number.get(&number)?.clone() })
    }

    /// The layout with these attributes, made if there is none. The caller holds no txg.
    async fn layout(&self, source: &dyn TxgSource, numbers: &[u16]) -> Result<Numbered, ZplError> {
        if let Some(found) = self.find(numbers) {
            return Ok(found);
        }
        let _turn = self.adding.lock().await;
        if let Some(found) = self.find(numbers) {
            return Ok(found);
        }
        let number = self.layouts.lock().next;
        if number > LAYOUT_MAX {
            let what = "not supported yet: more layouts of attributes in a file system than there are numbers";
            return Err(ZplError::Unsupported(what.into()));
        }
        let fail = |error| ZplError::Format { object: self.object.id().0, error };
        let layout = Arc::new(self.registry.layout(numbers).map_err(fail)?);
        let mut zap = Zap::open(self.object.clone()).await?;
        zap.insert(number.to_string().as_bytes(), &ZapValue::from_u16s(numbers)).await?;
        let tx = source.begin(Cost::default().with_entries(1)).await?;
        zap.flush(tx.txg()).await?;
        let mut layouts = self.layouts.lock();
        layouts.next += 1;
        layouts.by_number.insert(number, layout.clone());
        layouts.numbers.insert(numbers.to_vec(), number);
        Ok(Numbered { number, layout })
    }

    /// How a record is packed for an object: in its order into the bonus, and from the first on that does not fit into a
    /// spill block. The caller holds no txg.
    pub(super) async fn form(&self, source: &dyn TxgSource, room: Room, record: &Record) -> Result<Form, ZplError> {
        let values = record.values();
        let mut kept = values.len();
        if self.size(values) > room.bonus_bytes {
            while kept > 0 && self.size(&values[..kept]) > room.bonus_bytes.saturating_sub(Blkptr::SIZE) {
                kept -= 1;
            }
        }
        let numbers: Vec<u16> = values.iter().map(|(number, _)| *number).collect();
        let spill = match kept < values.len() {
            true => Some(self.layout(source, &numbers[kept..]).await?),
            false => None,
        };
        if self.size(&values[kept..]) > SPILL_MAX_BYTES {
            return Err(ZplError::TooLarge);
        }
        Ok(Form { kept, bonus: self.layout(source, &numbers[..kept]).await?, spill })
    }

    /// Bytes of a buffer with these attributes.
    fn size(&self, values: &[(u16, Vec<u8>)]) -> usize {
        let is_variable = |number: u16| self.registry.attribute(number).is_some_and(|it| it.length_bytes == 0);
        let variable = values.iter().filter(|(number, _)| is_variable(*number)).count();
        let header = (6 + 2 * variable).next_multiple_of(8);
        values.iter().fold(header, |size, (_, value)| size.next_multiple_of(8) + value.len())
    }
}

/// Room for attributes in a dnode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) bonus_bytes: usize,
}

impl Room {
    /// That of an object.
    pub(super) fn of(object: &Object) -> Self {
        let head = object.phys();
        let pointers = (usize::from(head.blkptr_count).max(1) - 1) * Blkptr::SIZE;
        Self { bonus_bytes: bonus_capacity_bytes(head.slots()).saturating_sub(pointers) }
    }

    /// That of a new object of so many slots.
    pub(super) fn of_slots(slots: u8) -> Self {
        Self { bonus_bytes: bonus_capacity_bytes(usize::from(slots.max(1))) }
    }
}

impl Form {
    /// The record's bytes: bonus, and spill block.
    pub(super) fn emit(&self, record: &Record) -> Result<(Vec<u8>, Option<Block>), cenote_format::FormatError> {
        let (bonus, spill) = record.values().split_at(self.kept.min(record.values().len()));
        let pack = |layout: &Numbered, values: &[(u16, Vec<u8>)]| {
            let values: Vec<&[u8]> = values.iter().map(|(_, value)| value.as_slice()).collect();
            emit(layout.number, &layout.layout, &values, ORDER)
        };
        let spill = match &self.spill {
            Some(layout) => {
                let bytes = pack(layout, spill)?;
                let mut block = Buf::zeroed(bytes.len().next_multiple_of(512));
                block[..bytes.len()].copy_from_slice(&bytes);
                Some(block.freeze())
            }
            None => None,
        };
        Ok((pack(&self.bonus, bonus)?, spill))
    }
}
