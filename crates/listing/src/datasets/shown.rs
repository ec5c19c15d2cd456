//! Values as OpenZFS writes them.

use cenote_props::{Kind, Property};

use super::values::{Fact, Raw, Source};
use crate::output::{nicebytes, nicenum, ratio};
use crate::time;

/// A value ready to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    /// The text.
    pub(crate) text: String,
    /// Where it comes from.
    pub(crate) source: Source,
    /// The received value, where there is one and it was asked for.
    pub(crate) received: Option<String>,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>, source: Source) -> Self {
        Self { text: text.into(), source, received: None }
    }
}

/// A property's value as text; `None` where it is a number that means nothing.
pub(crate) fn text(property: &Property, fact: &Fact, is_exact: bool) -> Option<String> {
    let number = match &fact.raw {
        Raw::Text(text) => return Some(text.clone()),
        Raw::Number(number) => *number,
    };
    let bytes = |number: u64| if is_exact { number.to_string() } else { nicebytes(number) };
    let text = match property.name {
        "creation" if is_exact => number.to_string(),
        "creation" => time::long(number),
        "snapshots_changed" if number == 0 => return None,
        "snapshots_changed" if is_exact => number.to_string(),
        "snapshots_changed" => time::format(number, "%a %b %e %k:%M:%S %Y"),
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
