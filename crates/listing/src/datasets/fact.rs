//! Values before formatting, and their sources.

/// The source of a value, as `zfs get` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// None: the property is read-only.
    None,
    /// Nothing was set.
    Default,
    /// Set on the dataset itself.
    Local,
    /// In force while the dataset is mounted.
    Temporary,
    /// Set on the dataset with this name.
    Inherited(String),
    /// Received with a stream.
    Received,
}

impl Source {
    /// Its text in the column `SOURCE`.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::None => "-".into(),
            Self::Default => "default".into(),
            Self::Local => "local".into(),
            Self::Temporary => "temporary".into(),
            Self::Inherited(from) => format!("inherited from {from}"),
            Self::Received => "received".into(),
        }
    }

    /// Its word for `-s`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Default => "default",
            Self::Local => "local",
            Self::Temporary => "temporary",
            Self::Inherited(_) => "inherited",
            Self::Received => "received",
        }
    }
}

/// A value before formatting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Raw {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
}

/// A value and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fact {
    pub(super) raw: Raw,
    pub(super) source: Source,
}

impl Fact {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { raw: Raw::Text(text.into()), source: Source::None }
    }

    pub(super) fn number(number: u64) -> Self {
        Self { raw: Raw::Number(number), source: Source::None }
    }
}
