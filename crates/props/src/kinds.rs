//! Kinds by short names, for the tables.

use crate::Kind;

pub(crate) const fn number(default: u64) -> Kind {
    Kind::Number(default)
}

pub(crate) const fn index(words: &'static [(&'static str, u64)], default: u64) -> Kind {
    Kind::Index(words, default)
}

pub(crate) const fn text(default: Option<&'static str>) -> Kind {
    Kind::Text(default)
}
