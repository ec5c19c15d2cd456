//! Values in OpenZFS's notation.

use cenote_props::number::{nicebytes, nicenum, ratio};
use cenote_props::{Kind, Property};

use super::fact::{Fact, Raw, Source};
use crate::TimeText;

/// A value as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The text.
    pub text: String,
    /// Its source.
    pub source: Source,
    /// The received value, if there is one and it was requested.
    pub received: Option<String>,
}

impl Cell {
    /// A cell with this text, without a received value.
    pub fn new(text: impl Into<String>, source: Source) -> Self {
        Self { text: text.into(), source, received: None }
    }
}

/// A property's value as text; `None` for a number without a meaning.
pub(super) fn text(property: &Property, fact: &Fact, is_exact: bool, time: TimeText) -> Option<String> {
    let number = match &fact.raw {
        Raw::Text(text) => return Some(text.clone()),
        Raw::Number(number) => *number,
    };
    let bytes = |number: u64| if is_exact { number.to_string() } else { nicebytes(number) };
    let text = match property.name {
        "creation" if is_exact => number.to_string(),
        "creation" => time(number, "%a %b %e %k:%M %Y"),
        "snapshots_changed" if number == 0 => return None,
        "snapshots_changed" if is_exact => number.to_string(),
        "snapshots_changed" => time(number, "%a %b %e %k:%M:%S %Y"),
        "quota" | "refquota" | "reservation" | "refreservation" if number == 0 && !is_exact => "none".into(),
        "quota"
        | "refquota"
        | "reservation"
        | "refreservation"
        | "referenced"
        | "available"
        | "used"
        | "usedbysnapshots"
        | "usedbydataset"
        | "usedbyrefreservation"
        | "usedbychildren" => bytes(number),
        "filesystem_limit" | "snapshot_limit" | "filesystem_count" | "snapshot_count" if number == u64::MAX => {
            "none".into()
        }
        "compressratio" | "refcompressratio" => ratio(number, is_exact),
        "mounted" => if number == 0 { "no" } else { "yes" }.into(),
        "guid" | "keyguid" | "ivsetguid" | "createtxg" | "objsetid" | "pbkdf2iters" => number.to_string(),
        _ => match property.kind {
            Kind::Index(..) => property.word(number)?.to_owned(),
            _ if is_exact => number.to_string(),
            _ => nicenum(number),
        },
    };
    Some(text)
}
