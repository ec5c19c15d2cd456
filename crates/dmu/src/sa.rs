//! System attributes: the named attributes of an object, packed into its bonus and spill.
//!
//! An objset with system attributes has a *registry* (name -> number, length, kind) and *layouts* (number -> list of
//! attributes), both in ZAPs; an object's bonus begins with the number of the layout that it is packed by, and what does
//! not fit follows in a spill block with a layout of its own. The old znode is treated as one more, fixed layout, so
//! that what is above sees attributes only.
//!
//! [`SaTable`] is the registry and layouts of an objset, read once; [`SaValues`] one object's attributes, copied out.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_format::dmu_type::DmuType;
use cenote_format::ids::ObjectId;
use cenote_format::sa::{SA_LAYOUTS, SA_REGISTRY, SaHeader, SaLayout, SaRegistry, SaView, ZplAttribute, layout_number};
use cenote_format::{Endian, FormatError};

use crate::object::Object;
use crate::objset::Objset;
use crate::zap::Zap;
use crate::{DmuError, DmuErrorKind};

/// Bound on the entries of registry and layouts: numbers have 10 bits.
const TABLE_ENTRIES_MAX: usize = 1024;

/// The attribute registry and layouts of an objset. Cheap to clone.
#[derive(Clone)]
pub struct SaTable {
    shared: Arc<Tables>,
}

struct Tables {
    layouts: BTreeMap<u16, SaLayout>,
    legacy: SaLayout,
    /// Which attribute of file systems a number stands for here.
    known: BTreeMap<u16, ZplAttribute>,
}

impl SaTable {
    /// Reads the tables that the ZAP `master` names.
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
        let mut layouts = BTreeMap::new();
        layouts.insert(1, SaLayout::empty());
        let object = ObjectId(master.lookup_u64(SA_LAYOUTS).await?);
        let zap = Zap::open(objset.object(object).await?).await?;
        for entry in zap.entries(TABLE_ENTRIES_MAX).await? {
            let Some(number) = layout_number(entry.name()) else {
                return Err(zap.object().error(DmuErrorKind::Corrupt("a layout whose name is no number".into())));
            };
            let numbers: Vec<u16> = entry.value.integers().map(|number| number as u16).collect();
            let layout = registry.layout(&numbers).map_err(|error| zap.object().error(error))?;
            layouts.insert(number, layout);
        }
        let known =
            ZplAttribute::ALL.iter().filter_map(|attribute| Some((registry.zpl(*attribute)?, *attribute))).collect();
        Ok(Self { shared: Arc::new(Tables { layouts, legacy: SaLayout::legacy(), known }) })
    }

    /// The tables of file systems from before system attributes: only the old znode's fixed layout.
    #[must_use]
    pub fn legacy() -> Self {
        let known = ZplAttribute::LEGACY.iter().map(|attribute| (*attribute as u16, *attribute)).collect();
        Self { shared: Arc::new(Tables { layouts: BTreeMap::new(), legacy: SaLayout::legacy(), known }) }
    }

    /// The attributes of an object, from its bonus and, if it has one, its spill.
    ///
    /// # Errors
    /// They cannot be read, or contradict the tables.
    pub async fn values(&self, object: &Object) -> Result<SaValues, DmuError> {
        let mut values = SaValues::default();
        let phys = object.phys();
        let fail = |error: FormatError| object.error(error);
        if phys.bonus_type == DmuType::ZNODE {
            let view = SaView::legacy(&phys.bonus, phys.endian, &self.shared.legacy).map_err(fail)?;
            // The fixed layout's numbers are their places, whatever the registry of an upgraded dataset says.
            values.take(view, |number| ZplAttribute::LEGACY.get(usize::from(number)).copied()).map_err(fail)?;
        } else {
            self.packed(object, &phys.bonus, &mut values)?;
        }
        if let Some((block, _)) = object.spill().await? {
            self.packed(object, &block, &mut values)?;
        }
        Ok(values)
    }

    fn packed(&self, object: &Object, bytes: &[u8], values: &mut SaValues) -> Result<(), DmuError> {
        let Some(header) = SaHeader::parse(bytes).map_err(|error| object.error(error))? else { return Ok(()) };
        let Some(layout) = self.shared.layouts.get(&header.layout_number()) else {
            return Err(object.error(DmuErrorKind::Corrupt(format!("attribute layout {} is not known", header.layout))));
        };
        let view = SaView::new(bytes, &header, layout).map_err(|error| object.error(error))?;
        values.take(view, |number| self.shared.known.get(&number).copied()).map_err(|error| object.error(error))
    }
}

/// One object's attributes.
#[derive(Clone, Debug, Default)]
pub struct SaValues {
    bytes: Vec<u8>,
    places: [Option<Place>; ZplAttribute::COUNT],
}

#[derive(Clone, Copy, Debug)]
struct Place {
    start: usize,
    len: usize,
    order: Endian,
}

impl SaValues {
    fn take(&mut self, view: SaView<'_>, known: impl Fn(u16) -> Option<ZplAttribute>) -> Result<(), FormatError> {
        for item in view.iter() {
            let (attribute, bytes) = item?;
            if let Some(known) = known(attribute.number) {
                let place = Place { start: self.bytes.len(), len: bytes.len(), order: view.endian() };
                self.bytes.extend_from_slice(bytes);
                self.places[known as usize] = Some(place);
            }
        }
        Ok(())
    }

    /// The bytes of an attribute, as stored.
    #[must_use]
    pub fn bytes(&self, attribute: ZplAttribute) -> Option<&[u8]> {
        let place = self.places[attribute as usize]?;
        self.bytes.get(place.start..place.start + place.len)
    }

    /// The byte order in which an attribute is stored.
    #[must_use]
    pub fn byte_order(&self, attribute: ZplAttribute) -> Option<Endian> {
        Some(self.places[attribute as usize]?.order)
    }

    /// An attribute that is one 64-bit integer.
    #[must_use]
    pub fn u64(&self, attribute: ZplAttribute) -> Option<u64> {
        self.words::<1>(attribute).map(|[word]| word)
    }

    /// An attribute that begins with `N` 64-bit integers.
    #[must_use]
    pub fn words<const N: usize>(&self, attribute: ZplAttribute) -> Option<[u64; N]> {
        let order = self.byte_order(attribute)?;
        let bytes = self.bytes(attribute)?;
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = order.u64(bytes.try_into().ok()?);
        }
        (bytes.len() >= N * 8).then_some(words)
    }
}
