//! Properties and holds as ZAP entries.
//!
//! A property ZAP maps a property's name to its value: one 64-bit integer (sizes, switches, indices) or text as bytes
//! with a terminating zero. Suffixes tell variants apart: `compression` was set here, `compression$recvd` came with a
//! stream, `compression$inherit` (whatever its value) says that a received value is not to count. `snapdir$iuv` (ignore
//! unknown values) is a local value that older software does not know; beside it stands `snapdir` with the default, for
//! that software's sake.
//!
//! A hold is an entry of the snapshot's ZAP of holds, tag to time in seconds; temporary holds, to be dropped at the next
//! import, are listed in the pool's `tmp_userrefs` too, as `<dataset in hexadecimal>-<tag>`.

/// Which variant of a property an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PropertyEntry {
    /// Set here.
    Local,
    /// Received.
    Received,
    /// Inherited in spite of a received value.
    Inherited,
    /// Set here, to a value that older software does not know.
    IgnoreUnknownValue,
}

impl PropertyEntry {
    /// The suffix that the property's name gets in the ZAP.
    #[must_use]
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::Local => "",
            Self::Received => "$recvd",
            Self::Inherited => "$inherit",
            Self::IgnoreUnknownValue => "$iuv",
        }
    }

    /// The entry's name.
    #[must_use]
    pub fn name(self, property: &str) -> String {
        format!("{property}{}", self.suffix())
    }
}

/// Parts an entry's name into property and variant.
#[must_use]
pub fn split_property(name: &str) -> (&str, PropertyEntry) {
    for entry in [PropertyEntry::Received, PropertyEntry::Inherited, PropertyEntry::IgnoreUnknownValue] {
        if let Some(property) = name.strip_suffix(entry.suffix()) {
            return (property, entry);
        }
    }
    (name, PropertyEntry::Local)
}
