//! Properties as the MOS stores them, resolved along the tree.
//!
//! The crates that show or use properties know their names, values and defaults; here a property is a name whose value is a number or text,
//! set locally, received, or inherited.

use std::collections::BTreeMap;

use cenote_dmu::Zap;
use cenote_format::dsl::{PropertyEntry, split_property};
use cenote_format::ids::ObjectId;
use cenote_format::zap::ZapValue;
use cenote_taskq::boxed;

use crate::{Dataset, Dir, Dsl, DslError};

/// Properties of one dataset at most, user properties included.
const PROPERTIES_MAX: usize = 1 << 20;

/// A property's value as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number: a size, a switch, or an index into a table.
    Number(u64),
    /// Text.
    Text(String),
}

impl Value {
    fn from_zap(value: &ZapValue) -> Option<Self> {
        // An empty text is one byte, not a number.
        let Some(bytes) = value.as_bytes() else { return value.as_u64().map(Self::Number) };
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Some(Self::Text(String::from_utf8_lossy(&bytes[..end]).into_owned()))
    }

    /// The number, if it is one.
    #[must_use]
    pub const fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) => None,
        }
    }

    /// The text, if it is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Number(_) => None,
            Self::Text(text) => Some(text),
        }
    }
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Set on the dataset itself.
    Local,
    /// Received with a stream.
    Received,
    /// From the dataset with this name.
    Inherited(String),
}

/// A property's value and source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// The value in force.
    pub value: Value,
    /// Its source.
    pub source: Source,
}

/// The entries of one ZAP of properties.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    local: BTreeMap<String, Value>,
    received: BTreeMap<String, Value>,
    inherit: BTreeMap<String, ()>,
}

impl Entries {
    /// The value that this directory gives a property, and its source: local or received.
    fn own(&self, name: &str) -> Option<(&Value, Source)> {
        if let Some(value) = self.local.get(name) {
            return Some((value, Source::Local));
        }
        if self.inherit.contains_key(name) {
            return None;
        }
        self.received.get(name).map(|value| (value, Source::Received))
    }

    /// The received value, in force or not.
    #[must_use]
    pub fn received(&self, name: &str) -> Option<&Value> {
        self.received.get(name)
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        self.local.keys().chain(self.received.keys())
    }
}

impl Dsl {
    /// The entries of a property ZAP; empty for object 0.
    #[boxed]
    pub async fn property_entries(&self, object: ObjectId) -> Result<Entries, DslError> {
        let mut entries = Entries::default();
        if object.0 == 0 {
            return Ok(entries);
        }
        let mut meant = BTreeMap::new();
        let zap = Zap::open(self.mos_object(object).await?).await?;
        for entry in zap.entries(PROPERTIES_MAX).await? {
            let name = String::from_utf8_lossy(entry.name()).into_owned();
            let (property, variant) = split_property(&name);
            let Some(value) = Value::from_zap(&entry.value) else { continue };
            match variant {
                PropertyEntry::Local => drop(entries.local.insert(property.to_owned(), value)),
                PropertyEntry::Received => drop(entries.received.insert(property.to_owned(), value)),
                PropertyEntry::Inherited => drop(entries.inherit.insert(property.to_owned(), ())),
                // The value that newer software means; the plain entry beside it is for older software.
                PropertyEntry::IgnoreUnknownValue => drop(meant.insert(property.to_owned(), value)),
            }
        }
        entries.local.extend(meant);
        Ok(entries)
    }

    /// The properties that a property ZAP itself sets, in the ZAP's order; none for object 0. `only_received`: received values, in force or not.
    #[boxed]
    pub async fn own_properties(
        &self,
        object: ObjectId,
        only_received: bool,
    ) -> Result<Vec<(String, Property)>, DslError> {
        let mut found = Vec::new();
        if object.0 == 0 {
            return Ok(found);
        }
        let entries = self.property_entries(object).await?;
        let zap = Zap::open(self.mos_object(object).await?).await?;
        for entry in zap.entries(PROPERTIES_MAX).await? {
            let full = String::from_utf8_lossy(entry.name()).into_owned();
            let (name, variant) = split_property(&full);
            let own = match variant {
                PropertyEntry::Received if only_received => {
                    entries.received.get(name).map(|value| (value, Source::Received))
                }
                PropertyEntry::Local if !only_received => entries.own(name),
                PropertyEntry::Received if !entries.local.contains_key(name) => entries.own(name),
                _ => None,
            };
            if let Some((value, source)) = own {
                found.push((name.to_owned(), Property { value: value.clone(), source }));
            }
        }
        Ok(found)
    }

    /// All properties set on the directory or inherited by it, by name. `inheritable` tells which of the properties of the directories above it
    /// inherits.
    pub async fn properties(
        &self,
        dir: &Dir,
        inheritable: impl Fn(&str) -> bool,
    ) -> Result<BTreeMap<String, Property>, DslError> {
        let mut found: BTreeMap<String, Property> = BTreeMap::new();
        let mut at = Some(dir.clone());
        let mut is_own = true;
        while let Some(dir) = at {
            let entries = self.property_entries(dir.phys.properties).await?;
            for name in entries.names() {
                if found.contains_key(name) || !(is_own || inheritable(name)) {
                    continue;
                }
                let Some((value, source)) = entries.own(name) else { continue };
                let source = if is_own { source } else { Source::Inherited(dir.name.clone()) };
                found.insert(name.clone(), Property { value: value.clone(), source });
            }
            is_own = false;
            at = self.parent(&dir).await?;
        }
        Ok(found)
    }

    /// One property of a directory, as [`Dsl::properties`].
    #[boxed]
    pub async fn property(&self, dir: &Dir, name: &str, inheritable: bool) -> Result<Option<Property>, DslError> {
        let mut at = Some(dir.clone());
        let mut is_own = true;
        while let Some(dir) = at {
            let entries = self.property_entries(dir.phys.properties).await?;
            if let Some((value, source)) = entries.own(name) {
                let source = if is_own { source } else { Source::Inherited(dir.name.clone()) };
                return Ok(Some(Property { value: value.clone(), source }));
            }
            if !inheritable {
                break;
            }
            is_own = false;
            at = self.parent(&dir).await?;
        }
        Ok(None)
    }

    /// The properties set on a snapshot itself (user properties, and a few others). It takes all others from its head's directory.
    #[boxed]
    pub async fn snapshot_properties(&self, dataset: &Dataset) -> Result<BTreeMap<String, Property>, DslError> {
        let entries = self.property_entries(dataset.phys.properties).await?;
        let own = |name: &String| {
            entries.own(name).map(|(value, source)| (name.clone(), Property { value: value.clone(), source }))
        };
        Ok(entries.names().filter_map(own).collect())
    }
}
