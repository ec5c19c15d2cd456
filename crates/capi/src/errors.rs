//! `cenote_error_...`: an error's kind, message and place.

use std::ffi::{CString, c_char};
use std::ptr;

use crate::border::{Borrowed, In, Out, pointer};
use crate::fault::FaultHandle;

/// Stands for a number that is not known.
const UNKNOWN: u64 = u64::MAX;

/// The place of an error: `cenote_place`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CPlace {
    pool: *const c_char,
    dataset: *const c_char,
    path: *const c_char,
    device: *const c_char,
    offset: u64,
    objset: u64,
    object: u64,
    block: u64,
    level: u64,
}

pub(crate) fn kind(error: In<FaultHandle>) -> u32 {
    error.optional().map_or(0, |error| error.kind as u32)
}

pub(crate) fn message(error: In<FaultHandle>) -> Borrowed {
    Borrowed::of(error.optional().map(|error| error.message.as_c_str()))
}

pub(crate) fn place(error: In<FaultHandle>, place: Out<CPlace>) {
    let Ok(place) = place.get("place") else { return };
    let Some(error) = error.optional() else {
        let none = ptr::null();
        place.put(CPlace {
            pool: none,
            dataset: none,
            path: none,
            device: none,
            offset: UNKNOWN,
            objset: UNKNOWN,
            object: UNKNOWN,
            block: UNKNOWN,
            level: UNKNOWN,
        });
        return;
    };
    let text = |text: &Option<CString>| pointer(text.as_deref());
    let numbers = &error.place;
    let (level, block) = numbers.block.unwrap_or((-1, UNKNOWN));
    place.put(CPlace {
        pool: text(&error.pool),
        dataset: text(&error.dataset),
        path: text(&error.path),
        device: text(&error.device),
        offset: numbers.offset_bytes.unwrap_or(UNKNOWN),
        objset: numbers.objset.unwrap_or(UNKNOWN),
        object: numbers.object.unwrap_or(UNKNOWN),
        block,
        level: u64::try_from(level).unwrap_or(UNKNOWN),
    });
}

#[cfg(test)]
pub(crate) fn layout() -> String {
    use crate::border::spelling::{layout, numbers};
    use crate::fault::Kind;
    let kinds = [
        ("INTERNAL", Kind::Internal),
        ("CORRUPT", Kind::Corrupt),
        ("IO", Kind::Io),
        ("UNAVAILABLE", Kind::Unavailable),
        ("NOT_FOUND", Kind::NotFound),
        ("EXISTS", Kind::Exists),
        ("BUSY", Kind::Busy),
        ("NO_SPACE", Kind::NoSpace),
        ("READ_ONLY", Kind::ReadOnly),
        ("DENIED", Kind::Denied),
        ("KEY", Kind::Key),
        ("NOT_SUPPORTED", Kind::NotSupported),
        ("MISUSE", Kind::Misuse),
        ("CLOSED", Kind::Closed),
        ("QUOTA", Kind::Quota),
        ("INTERRUPTED", Kind::Interrupted),
        ("STALE", Kind::Stale),
    ];
    numbers(&kinds.map(|(name, kind)| (name, kind as u32)))
        + &layout!(CPlace as "cenote_place": pool dataset path device offset objset object block level)
}

#[cfg(test)]
mod names {
    use super::*;
    use crate::border::spelling::{Named, Spelt};

    impl Named for FaultHandle {
        const NAME: &'static str = "cenote_error";
    }

    impl Spelt for Out<CPlace> {
        fn spelt() -> String {
            "cenote_place *".to_owned()
        }
    }
}
