//! One object's attributes in memory: all of them, in the order in which they are packed, those that we do not know
//! included.

use std::sync::Arc;

use cenote_dmu::ORDER;
use cenote_format::FormatError;
use cenote_format::sa::{SaHeader, SaRegistry, SaView, ZplAttribute};
use cenote_format::znode::ZnodeFlags;

use super::tables::{Form, Tables};
use crate::write::USUAL;
use crate::{Time, ZplError};

/// A record.
#[derive(Clone, Debug)]
pub(super) struct Record {
    registry: Arc<SaRegistry>,
    values: Vec<(u16, Vec<u8>)>,
}

/// Words as a value.
pub(super) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| ORDER.bytes64(*word)).collect()
}

impl Record {
    /// An empty one.
    pub(super) fn new(tables: &Tables) -> Self {
        Self { registry: tables.registry.clone(), values: Vec::new() }
    }

    /// Reads an object's bonus and spill block, with the form that they have.
    pub(super) fn parse(
        tables: &Tables,
        object: u64,
        bonus: &[u8],
        spill: Option<&[u8]>,
    ) -> Result<(Self, Form), ZplError> {
        let corrupt = |what: &str| ZplError::Corrupt { object, what: what.to_owned() };
        let fail = |error: FormatError| ZplError::Format { object, error };
        let mut record = Self::new(tables);
        let mut take = |bytes: &[u8]| {
            let header = SaHeader::parse(bytes).map_err(fail)?.ok_or_else(|| corrupt("no attributes"))?;
            if header.endian != ORDER {
                let what = "not supported yet: changing attributes that a big-endian machine wrote";
                return Err(ZplError::Unsupported(what.into()));
            }
            let numbered = tables.numbered(header.layout_number());
            let numbered = numbered.ok_or_else(|| corrupt("a layout of attributes that is not in the table"))?;
            let view = SaView::new(bytes, &header, &numbered.layout).map_err(fail)?;
            for item in view.iter() {
                let (attribute, bytes) = item.map_err(fail)?;
                if record.at(attribute.number).is_some() {
                    return Err(corrupt("an attribute that is there twice"));
                }
                record.values.push((attribute.number, bytes.to_vec()));
            }
            Ok((record.values.len(), numbered))
        };
        let (kept, bonus) = take(bonus)?;
        let spill = spill.map(&mut take).transpose()?.map(|(_, numbered)| numbered);
        Ok((record, Form { kept, bonus, spill }))
    }

    /// All attributes by number, in their order.
    pub(super) fn values(&self) -> &[(u16, Vec<u8>)] {
        &self.values
    }

    fn at(&self, number: u16) -> Option<usize> {
        self.values.iter().position(|(other, _)| *other == number)
    }

    /// The bytes of an attribute.
    pub(super) fn bytes(&self, attribute: ZplAttribute) -> Option<&[u8]> {
        let at = self.at(self.registry.zpl(attribute)?)?;
        Some(&self.values[at].1)
    }

    fn word(&self, attribute: ZplAttribute, index: usize) -> Option<u64> {
        let bytes = self.bytes(attribute)?.get(index * 8..index * 8 + 8)?;
        Some(ORDER.u64(bytes.try_into().ok()?))
    }

    /// An attribute that is a word; 0 if it is not there.
    pub(super) fn u64(&self, attribute: ZplAttribute) -> u64 {
        self.word(attribute, 0).unwrap_or(0)
    }

    /// An attribute that is a time.
    pub(super) fn time(&self, attribute: ZplAttribute) -> Time {
        let word = |index| self.word(attribute, index).unwrap_or(0);
        Time { seconds: word(0).cast_signed(), nanoseconds: word(1) }
    }

    /// Its flags.
    pub(super) fn flags(&self) -> ZnodeFlags {
        ZnodeFlags::from_bits_retain(self.u64(ZplAttribute::Flags))
    }

    /// Whether an attribute is there.
    pub(super) fn has(&self, attribute: ZplAttribute) -> bool {
        self.bytes(attribute).is_some()
    }

    /// Sets an attribute: in its place, or behind all others; a project behind the links, where accounting looks for it.
    pub(super) fn set(&mut self, attribute: ZplAttribute, value: Vec<u8>) -> Result<(), ZplError> {
        let number = self.registry.zpl(attribute).ok_or_else(|| {
            let name = attribute.name();
            ZplError::Unsupported(format!(
                "not supported yet: registering the attribute '{name}' in an old file system"
            ))
        })?;
        if let Some(at) = self.at(number) {
            self.values[at].1 = value;
            return Ok(());
        }
        let links = self.registry.zpl(ZplAttribute::Links).and_then(|links| self.at(links));
        let at = match (attribute, links) {
            (ZplAttribute::Projid, Some(links)) => links + 1,
            _ => self.values.len(),
        };
        self.values.insert(at, (number, value));
        Ok(())
    }

    /// Sets attributes that are words, which are there.
    pub(super) fn put(&mut self, attribute: ZplAttribute, value: u64) -> Result<(), ZplError> {
        self.set(attribute, words(&[value]))
    }

    /// Sets an attribute that is a time.
    pub(super) fn put_time(&mut self, attribute: ZplAttribute, time: Time) -> Result<(), ZplError> {
        self.set(attribute, words(&[time.seconds.cast_unsigned(), time.nanoseconds]))
    }

    /// Takes an attribute out.
    pub(super) fn remove(&mut self, attribute: ZplAttribute) {
        if let Some(number) = self.registry.zpl(attribute) {
            self.values.retain(|(other, _)| *other != number);
        }
    }

    /// Whether it begins with what all files have in the usual order, so that accounting finds owner and project.
    pub(super) fn is_usual(&self) -> bool {
        let number = |attribute: &ZplAttribute| self.registry.zpl(*attribute);
        let begins = |(index, attribute)| {
            number(attribute).is_some() && number(attribute) == self.values.get(index).map(|(number, _)| *number)
        };
        USUAL.iter().enumerate().all(begins)
    }

    /// Whether another has the same attributes with the same lengths, so that it fits the same form.
    pub(super) fn has_shape_of(&self, other: &Self) -> bool {
        let shape = |record: &Self| -> Vec<(u16, usize)> {
            record.values.iter().map(|(number, value)| (*number, value.len())).collect()
        };
        shape(self) == shape(other)
    }
}
