//! `cenote_error_...`: an error's kind, message and place.

use std::ffi::{CString, c_char};

use crate::border::{Borrowed, In, Out, pointer};
use crate::fault::FaultHandle;

/// Stands for a number that is not known.
const UNKNOWN: u64 = u64::MAX;

/// The place of an error: `cenote_place`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CPlace {
    pub(crate) pool: *const c_char,
    pub(crate) dataset: *const c_char,
    pub(crate) path: *const c_char,
    pub(crate) device: *const c_char,
    pub(crate) offset: u64,
    pub(crate) objset: u64,
    pub(crate) object: u64,
    pub(crate) block: u64,
    pub(crate) level: u64,
}

pub(crate) fn kind(error: In<FaultHandle>) -> u32 {
    error.optional().map_or(0, |error| error.kind as u32)
}

pub(crate) fn message(error: In<FaultHandle>) -> Borrowed {
    Borrowed::of(error.optional().map(|error| error.message.as_c_str()))
}

pub(crate) fn place(error: In<FaultHandle>, place: Out<CPlace>) {
    let Ok(place) = place.get("place") else { return };
    let error = error.optional();
    let text = |of: fn(&FaultHandle) -> &Option<CString>| pointer(error.and_then(|error| of(error).as_deref()));
    let numbers = error.map(|error| error.place.clone()).unwrap_or_default();
    let (level, block) = numbers.block.unwrap_or((-1, UNKNOWN));
    place.put(CPlace {
        pool: text(|error| &error.pool),
        dataset: text(|error| &error.dataset),
        path: text(|error| &error.path),
        device: text(|error| &error.device),
        offset: numbers.offset_bytes.unwrap_or(UNKNOWN),
        objset: numbers.objset.unwrap_or(UNKNOWN),
        object: numbers.object.unwrap_or(UNKNOWN),
        block,
        level: u64::try_from(level).unwrap_or(UNKNOWN),
    });
}
