//! System attributes of files that are written: the registry, layouts made as they are needed, bonus and spill.

use std::collections::BTreeMap;

use cenote_dmu::{ORDER, Object, ObjectSpec, Objset, Zap};
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::bonus_capacity_bytes;
use cenote_format::ids::{ObjectId, ObjsetId, Txg};
use cenote_format::sa::{LAYOUT_MAX, SA_LAYOUTS, SA_REGISTRY, SaHeader, SaRegistry, ZplAttribute, emit, layout_number};
use cenote_format::zap::ZapValue;
use cenote_taskq::buf::{Block, Buf};

use crate::ZplError;

/// The first number of a layout: those below are reserved.
const LAYOUT_FIRST: u16 = 2;
/// What all files have, in the order in which OpenZFS packs it and looks for it.
pub(crate) const USUAL: [ZplAttribute; 12] = [
    ZplAttribute::Mode,
    ZplAttribute::Size,
    ZplAttribute::Gen,
    ZplAttribute::Uid,
    ZplAttribute::Gid,
    ZplAttribute::Parent,
    ZplAttribute::Flags,
    ZplAttribute::Atime,
    ZplAttribute::Mtime,
    ZplAttribute::Ctime,
    ZplAttribute::Crtime,
    ZplAttribute::Links,
];
/// Entries of a table of attributes at most.
const TABLE_ENTRIES_MAX: usize = 1 << 16;
/// A spill block is no larger.
const SPILL_MAX_BYTES: usize = 128 << 10;

/// One attribute with its value, as stored.
pub(super) type Value = (ZplAttribute, Vec<u8>);

/// The attribute tables of a file system that is written.
pub(super) struct SaMut {
    registry: SaRegistry,
    layouts: BTreeMap<Vec<u16>, u16>,
    object: Object,
    zap: Zap,
    /// The next layout's number.
    next: u16,
}

/// Attributes packed: for the bonus, and for the spill block where they did not fit.
pub(super) struct Packed {
    pub(super) bonus: Vec<u8>,
    pub(super) spill: Option<Block>,
}

impl SaMut {
    /// Makes the tables; the object that names them comes back too.
    pub(super) async fn create(objset: &Objset, txg: Txg) -> Result<(Self, ObjectId), ZplError> {
        let mut registry = SaRegistry::new();
        // OpenZFS registers no sequence numbers.
        for attribute in ZplAttribute::ALL.iter().filter(|attribute| **attribute != ZplAttribute::Seq) {
            let word = attribute.describe(*attribute as u16).word();
            registry.register(attribute.name(), word).map_err(|error| format_error(objset.id(), error))?;
        }
        let words: Vec<(String, ZapValue)> =
            registry.iter().map(|(name, attribute)| (name.to_owned(), ZapValue::from_u64(attribute.word()))).collect();
        let entries: Vec<(&str, ZapValue)> = words.iter().map(|(name, word)| (name.as_str(), word.clone())).collect();
        let registry_object = Zap::create_object(objset, txg, DmuType::SA_ATTR_REGISTRATION, &entries).await?;
        let object = objset.create_object(txg, &ObjectSpec::new(DmuType::SA_ATTR_LAYOUTS, 512))?;
        let mut zap = Zap::create(object.clone())?;
        zap.flush(txg).await?;
        let master = [
            (SA_REGISTRY, ZapValue::from_u64(registry_object.id().0)),
            (SA_LAYOUTS, ZapValue::from_u64(object.id().0)),
        ];
        let master = Zap::create_object(objset, txg, DmuType::SA_MASTER_NODE, &master).await?.id();
        Ok((Self { registry, layouts: BTreeMap::new(), object, zap, next: LAYOUT_FIRST }, master))
    }

    /// The tables of a file system that exists.
    pub(super) async fn open(objset: &Objset, master: ObjectId) -> Result<Self, ZplError> {
        let master = Zap::open(objset.object(master).await?).await?;
        let table = async |name: &str| {
            let value = master.lookup(name.as_bytes()).await?.and_then(|value| value.as_u64());
            let id = value.ok_or_else(|| ZplError::Corrupt { object: 0, what: format!("no table '{name}'") })?;
            Ok::<_, ZplError>(objset.object(ObjectId(id)).await?)
        };
        let (names, object) = (table(SA_REGISTRY).await?, table(SA_LAYOUTS).await?);
        let mut registry = SaRegistry::new();
        for entry in Zap::open(names).await?.entries(TABLE_ENTRIES_MAX).await? {
            let word = entry.value.as_u64().unwrap_or(0);
            let name = String::from_utf8_lossy(entry.name()).into_owned();
            registry.register(&name, word).map_err(|error| format_error(objset.id(), error))?;
        }
        let zap = Zap::open(object.clone()).await?;
        let (mut layouts, mut next) = (BTreeMap::new(), LAYOUT_FIRST);
        for entry in zap.entries(TABLE_ENTRIES_MAX).await? {
            let Some(number) = layout_number(entry.name()) else { continue };
            let numbers: Vec<u16> = entry.value.integers().map(|number| number as u16).collect();
            next = next.max(number.saturating_add(1));
            layouts.insert(numbers, number);
        }
        Ok(Self { registry, layouts, object, zap, next })
    }

    /// Whether a bonus begins with the attributes that all files have, in the usual order; where they begin, then.
    pub(super) fn usual_start(&self, bonus: &[u8]) -> Option<usize> {
        let header = SaHeader::parse(bonus).ok()??;
        let usual: Vec<u16> = USUAL.iter().filter_map(|attribute| self.registry.zpl(*attribute)).collect();
        let (numbers, _) = self.layouts.iter().find(|(_, number)| **number == header.layout_number())?;
        let is_usual = header.endian == ORDER && usual.len() == USUAL.len() && numbers.starts_with(&usual);
        is_usual.then_some(header.size_bytes)
    }

    /// The number of the layout with these attributes, made if there is none.
    async fn layout(&mut self, txg: Txg, numbers: &[u16]) -> Result<u16, ZplError> {
        if let Some(number) = self.layouts.get(numbers) {
            return Ok(*number);
        }
        let number = self.next;
        if number > LAYOUT_MAX {
            return Err(ZplError::Unsupported(
                "a file system with more layouts of attributes than there are numbers".into(),
            ));
        }
        self.next += 1;
        self.zap.insert(number.to_string().as_bytes(), &ZapValue::from_u16s(numbers)).await?;
        self.zap.flush(txg).await?;
        self.layouts.insert(numbers.to_vec(), number);
        Ok(number)
    }

    async fn emit(&mut self, txg: Txg, values: &[Value]) -> Result<Vec<u8>, ZplError> {
        let numbers: Vec<u16> = values.iter().filter_map(|(attribute, _)| self.registry.zpl(*attribute)).collect();
        let number = self.layout(txg, &numbers).await?;
        let layout = self.registry.layout(&numbers).map_err(|error| format_error(self.object.objset_id(), error))?;
        let bytes: Vec<&[u8]> = values.iter().map(|(_, value)| value.as_slice()).collect();
        emit(number, &layout, &bytes, ORDER).map_err(|error| format_error(self.object.objset_id(), error))
    }

    /// Packs attributes for a dnode of so many slots: in their order into the bonus, and from the first on that does not fit
    /// into a spill block.
    pub(super) async fn pack(&mut self, txg: Txg, slots: u8, values: &[Value]) -> Result<Packed, ZplError> {
        let room = bonus_capacity_bytes(usize::from(slots.max(1)));
        let size = |values: &[Value]| {
            let variable = values.iter().filter(|(attribute, _)| is_variable(*attribute)).count();
            // The header's own length is in the eight bytes; each variable length takes two more behind the first.
            let header = (6 + 2 * variable.max(1)).next_multiple_of(8);
            values.iter().fold(header, |size, (_, value)| size.next_multiple_of(8) + value.len())
        };
        if size(values) <= room {
            return Ok(Packed { bonus: self.emit(txg, values).await?, spill: None });
        }
        let mut kept = values.len();
        while kept > 1 && size(&values[..kept]) > room - Blkptr::SIZE {
            kept -= 1;
        }
        let bonus = self.emit(txg, &values[..kept]).await?;
        let spilled = self.emit(txg, &values[kept..]).await?;
        if spilled.len() > SPILL_MAX_BYTES {
            let what = format!("{} bytes of attributes in one file", spilled.len());
            return Err(ZplError::Unsupported(what));
        }
        let mut block = Buf::zeroed(spilled.len().next_multiple_of(512));
        block[..spilled.len()].copy_from_slice(&spilled);
        Ok(Packed { bonus, spill: Some(block.freeze()) })
    }
}

fn format_error(objset: ObjsetId, error: cenote_format::FormatError) -> ZplError {
    ZplError::Dmu(cenote_dmu::DmuError::new(objset, ObjectId(0), error))
}

const fn is_variable(attribute: ZplAttribute) -> bool {
    matches!(attribute, ZplAttribute::Symlink | ZplAttribute::DaclAces | ZplAttribute::Dxattr)
}

/// Words as a value.
pub(super) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| ORDER.bytes64(*word)).collect()
}
