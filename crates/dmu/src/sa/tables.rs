//! The attribute tables of an objset: which numbers attributes have, and which layouts there are.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::sa::{LAYOUT_MAX, SA_LAYOUTS, SA_REGISTRY, SaLayout, SaRegistry, ZplAttribute, layout_number};
use cenote_format::zap::ZapValue;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{AsyncMutex, AsyncMutexGuard, boxed};

use super::form::{Numbered, SaForm};
use super::record::SaRecord;
use crate::object::{Object, ObjectSpec};
use crate::objset::Objset;
use crate::zap::Zap;
use crate::{DmuError, DmuErrorKind};

/// The first number of a layout: those below are reserved.
const LAYOUT_FIRST: u16 = 2;
/// Bound on the entries of registry and layouts: numbers have 10 bits.
const TABLE_ENTRIES_MAX: usize = 1024;
/// A spill block is no larger.
const SPILL_MAX_BYTES: usize = 128 << 10;

/// The attribute registry and layouts of an objset. Cheap to clone.
#[derive(Clone)]
pub struct SaTables {
    shared: Arc<Shared>,
}

struct Shared {
    registry: Arc<SaRegistry>,
    legacy: (Arc<SaRegistry>, SaLayout),
    /// As they were when the tables were opened: found without a lock.
    layouts: Layouts,
    /// Those that were added since.
    added: Mutex<Layouts>,
    /// The object that keeps the layouts; none where there are only old znodes.
    object: Option<Object>,
    /// Held by the task that adds layouts.
    adding: AsyncMutex<()>,
}

#[derive(Default)]
struct Layouts {
    by_number: BTreeMap<u16, Numbered>,
    numbers: BTreeMap<Vec<u16>, u16>,
}

impl Layouts {
    fn find(&self, numbers: &[u16]) -> Option<Numbered> {
        self.by_number.get(self.numbers.get(numbers)?).cloned()
    }

    fn insert(&mut self, number: u16, layout: SaLayout, numbers: Vec<u16>) {
        self.by_number.insert(number, Numbered { number, layout: Arc::new(layout) });
        self.numbers.insert(numbers, number);
    }

    fn next(&self) -> u16 {
        self.by_number.last_key_value().map_or(0, |(last, _)| last + 1)
    }
}

/// How many attributes of a record go into the bonus.
struct Split {
    numbers: Vec<u16>,
    kept: usize,
}

impl SaTables {
    fn of(registry: SaRegistry, layouts: Layouts, object: Option<Object>) -> Self {
        Self {
            shared: Arc::new(Shared {
                registry: Arc::new(registry),
                legacy: (Arc::new(SaRegistry::legacy()), SaLayout::legacy()),
                layouts,
                added: Mutex::default(),
                object,
                adding: AsyncMutex::new(()),
            }),
        }
    }

    /// The tables of file systems from before system attributes: only the old znode's fixed layout.
    #[must_use]
    pub fn legacy() -> Self {
        Self::of(SaRegistry::legacy(), Layouts::default(), None)
    }

    /// Reads the tables that the ZAP `master` names.
    ///
    /// # Errors
    /// They cannot be read, or are not valid.
    #[boxed]
    pub async fn load(objset: &Objset, master: ObjectId) -> Result<Self, DmuError> {
        let master = Zap::open(objset.object(master).await?).await?;
        let mut registry = SaRegistry::new();
        let object = ObjectId(master.lookup_u64(SA_REGISTRY).await?);
        let zap = Zap::open(objset.object(object).await?).await?;
        for entry in zap.entries(TABLE_ENTRIES_MAX).await? {
            let name = String::from_utf8_lossy(entry.name()).into_owned();
            let word = entry.value.as_u64().ok_or_else(|| {
                zap.object().error(DmuErrorKind::WrongType(format!("attribute {name:?} is not described by one word")))
            })?;
            registry.register(&name, word).map_err(|error| zap.object().error(error))?;
        }
        let mut layouts = Layouts::default();
        layouts.by_number.insert(1, Numbered { number: 1, layout: Arc::new(SaLayout::empty()) });
        let object = objset.object(ObjectId(master.lookup_u64(SA_LAYOUTS).await?)).await?;
        for entry in Zap::open(object.clone()).await?.entries(TABLE_ENTRIES_MAX).await? {
            let Some(number) = layout_number(entry.name()) else {
                return Err(object.error(DmuErrorKind::Corrupt("a layout whose name is no number".into())));
            };
            let numbers: Vec<u16> = entry.value.integers().map(|number| number as u16).collect();
            let layout = registry.layout(&numbers).map_err(|error| object.error(error))?;
            layouts.insert(number, layout, numbers);
        }
        Ok(Self::of(registry, layouts, Some(object)))
    }

    /// Makes the tables of a new file system; also returns the number of the object that names them.
    ///
    /// # Errors
    /// The objset cannot be changed.
    #[boxed]
    pub async fn create(objset: &Objset, txg: Txg) -> Result<(Self, ObjectId), DmuError> {
        let fail = |error| DmuError::new(objset.id(), ObjectId(0), DmuErrorKind::Format(error));
        let mut registry = SaRegistry::new();
        // OpenZFS registers no sequence numbers.
        for attribute in ZplAttribute::ALL.iter().filter(|attribute| **attribute != ZplAttribute::Seq) {
            let word = attribute.describe(*attribute as u16).word();
            registry.register(attribute.name(), word).map_err(fail)?;
        }
        let entries: Vec<(&str, ZapValue)> =
            registry.iter().map(|(name, attribute)| (name, ZapValue::from_u64(attribute.word()))).collect();
        let names = Zap::create_object(objset, txg, DmuType::SA_ATTR_REGISTRATION, &entries).await?;
        let object = objset.create_object(txg, &ObjectSpec::new(DmuType::SA_ATTR_LAYOUTS, 512))?;
        Zap::create(object.clone())?.flush(txg).await?;
        let master = [(SA_REGISTRY, ZapValue::from_u64(names.id().0)), (SA_LAYOUTS, ZapValue::from_u64(object.id().0))];
        let master = Zap::create_object(objset, txg, DmuType::SA_MASTER_NODE, &master).await?.id();
        Ok((Self::of(registry, Layouts::default(), Some(object)), master))
    }

    /// A record without attributes.
    #[must_use]
    pub fn new_record(&self) -> SaRecord {
        SaRecord::new(&self.shared.registry)
    }

    pub(super) fn legacy_layout(&self) -> (&Arc<SaRegistry>, &SaLayout) {
        (&self.shared.legacy.0, &self.shared.legacy.1)
    }

    /// Looks at the layout with this number.
    pub(super) fn with_layout<T>(&self, number: u16, look: impl FnOnce(&Numbered) -> T) -> Option<T> {
        if let Some(found) = self.shared.layouts.by_number.get(&number) {
            return Some(look(found));
        }
        let found = self.shared.added.lock().by_number.get(&number).cloned()?;
        Some(look(&found))
    }

    /// The layout with this number.
    #[must_use]
    pub fn layout(&self, number: u16) -> Option<SaLayout> {
        self.with_layout(number, |found| SaLayout::clone(&found.layout))
    }

    fn find(&self, numbers: &[u16]) -> Option<Numbered> {
        self.shared.layouts.find(numbers).or_else(|| self.shared.added.lock().find(numbers))
    }

    /// How a record is packed into a bonus of so many bytes: in its order into the bonus, and from the first attribute on that does
    /// not fit into a spill block. `None` if a layout for that is to be added first ([`SaTables::adding`]).
    ///
    /// # Errors
    /// It fits into no spill block, or a big-endian machine wrote it.
    pub fn form(&self, room_bytes: usize, record: &SaRecord) -> Result<Option<SaForm>, DmuErrorKind> {
        let split = self.split(room_bytes, record)?;
        let (bonus, spill) = split.numbers.split_at(split.kept);
        let Some(bonus) = self.find(bonus) else { return Ok(None) };
        let spill = match spill.is_empty() {
            true => None,
            false => match self.find(spill) {
                Some(found) => Some(found),
                None => return Ok(None),
            },
        };
        Ok(Some(SaForm { kept: split.kept, bonus, spill }))
    }

    fn split(&self, room_bytes: usize, record: &SaRecord) -> Result<Split, DmuErrorKind> {
        if !record.is_native() {
            return Err(DmuErrorKind::Unsupported("changing attributes that a big-endian machine wrote".into()));
        }
        let values: Vec<(u16, usize)> = record.values().map(|(number, value)| (number, value.len())).collect();
        let mut kept = values.len();
        if self.size(&values) > room_bytes {
            while kept > 0 && self.size(&values[..kept]) > room_bytes.saturating_sub(Blkptr::SIZE) {
                kept -= 1;
            }
        }
        let spilled = self.size(&values[kept..]);
        if spilled > SPILL_MAX_BYTES {
            return Err(DmuErrorKind::NoRoom(spilled));
        }
        Ok(Split { numbers: values.into_iter().map(|(number, _)| number).collect(), kept })
    }

    /// Bytes of a buffer with attributes of these numbers and lengths.
    fn size(&self, values: &[(u16, usize)]) -> usize {
        let is_variable = |number: u16| self.shared.registry.attribute(number).is_some_and(|it| it.length_bytes == 0);
        let variable = values.iter().filter(|(number, _)| is_variable(*number)).count();
        let header = (6 + 2 * variable).next_multiple_of(8);
        values.iter().fold(header, |size, (_, len)| size.next_multiple_of(8) + len)
    }

    /// Waits until no other task adds layouts, and keeps others from it. The caller holds no txg yet.
    ///
    /// # Errors
    /// The layouts cannot be read.
    #[boxed]
    pub async fn adding(&self) -> Result<AddingLayouts<'_>, DmuError> {
        let turn = self.shared.adding.lock().await;
        let zap = match &self.shared.object {
            Some(object) => Some(Zap::open(object.clone()).await?),
            None => None,
        };
        Ok(AddingLayouts { tables: self, zap, _turn: turn })
    }
}

impl fmt::Debug for SaTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SaTables({} layouts)", self.shared.layouts.by_number.len())
    }
}

/// The right to add layouts.
pub struct AddingLayouts<'a> {
    tables: &'a SaTables,
    zap: Option<Zap>,
    _turn: AsyncMutexGuard<'a, ()>,
}

impl AddingLayouts<'_> {
    /// The form of a record, with the layouts that it needs added in a txg.
    ///
    /// # Errors
    /// As [`SaTables::form`]; or there are no more numbers for layouts.
    #[boxed]
    pub async fn form(&mut self, txg: Txg, room_bytes: usize, record: &SaRecord) -> Result<SaForm, DmuErrorKind> {
        let split = self.tables.split(room_bytes, record)?;
        let (bonus, spill) = split.numbers.split_at(split.kept);
        let bonus = self.layout(txg, bonus).await?;
        let spill = if spill.is_empty() { None } else { Some(self.layout(txg, spill).await?) };
        Ok(SaForm { kept: split.kept, bonus, spill })
    }

    /// The layout with these attributes, made if there is none.
    async fn layout(&mut self, txg: Txg, numbers: &[u16]) -> Result<Numbered, DmuErrorKind> {
        if let Some(found) = self.tables.find(numbers) {
            return Ok(found);
        }
        let shared = &self.tables.shared;
        let number = LAYOUT_FIRST.max(shared.layouts.next()).max(shared.added.lock().next());
        assert!(self.tables.with_layout(number, |_| ()).is_none(), "a new layout's number is none that is there");
        let Some(zap) = self.zap.as_mut().filter(|_| number <= LAYOUT_MAX) else {
            let what = "more layouts of attributes in a file system than there are numbers";
            return Err(DmuErrorKind::Unsupported(what.into()));
        };
        let layout = shared.registry.layout(numbers)?;
        let written = async {
            zap.insert(number.to_string().as_bytes(), &ZapValue::from_u16s(numbers)).await?;
            zap.flush(txg).await
        };
        written.await.map_err(|error: DmuError| error.kind)?;
        let mut added = shared.added.lock();
        added.insert(number, layout, numbers.to_vec());
        added.find(numbers).ok_or_else(|| DmuErrorKind::Corrupt("a layout that was just added is not there".into()))
    }
}
