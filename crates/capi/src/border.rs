//! The border: pointers that C gives, and those that it gets.
//!
//! Each type here is one pointer, as C passes it. Its field is private and nothing here makes one of those that come in, so a value of
//! such a type was made by a C caller, and `cenote.h` says what that caller promises:
//!
//! 1. A handle is `NULL`, or was given by this library and not freed since; nobody frees it during the call.
//! 2. A string is `NULL`, or ends with a zero byte and is not written during the call.
//! 3. A buffer is `NULL` or has as many bytes as the call says; nobody else uses it during the call.
//! 4. A place for an answer is `NULL`, or may be written with a value of its type.
//! 5. A descriptor is negative, or no other thread closes it during the call.
//!
//! The arguments for the unsafe blocks below name these promises by their numbers. All else is checked: `NULL`, alignment, lengths, text
//! that is no UTF-8. A borrowed value lives as long as the argument that it came with, which is the call.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;

use crate::fault::{Fault, FaultHandle};

/// Words of a list at most: what is longer has no end.
const WORDS_MAX: usize = 4096;

/// A handle that is used.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> In<T> {
    /// The handle.
    pub(crate) fn get(&self, name: &str) -> Result<&T, Fault> {
        self.optional().ok_or_else(|| Fault::null(name))
    }

    /// The handle, unless it is `NULL`.
    pub(crate) fn optional(&self) -> Option<&T> {
        // SAFETY: promise 1. Handles are used through shared references alone, by any number of threads: `Give` asks for `Sync`.
        unsafe { self.0.as_ref() }
    }
}

/// A handle that is given back.
#[repr(transparent)]
pub(crate) struct Taken<T>(*mut T);

impl<T> Taken<T> {
    /// Frees it. `NULL` is nothing to free.
    pub(crate) fn free(self) {
        if !self.0.is_null() {
            // SAFETY: promise 1, and `Give::put` made it of a box; the caller does not use it again.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}

/// A place for a handle.
#[repr(transparent)]
pub(crate) struct Give<T>(*mut *mut T);

impl<T: Send + Sync + 'static> Give<T> {
    /// The place, which holds `NULL` until something is put there.
    pub(crate) fn get(&self, name: &str) -> Result<Place<'_, *mut T>, Fault> {
        let place = Place::of(self.0, name)?;
        place.write(ptr::null_mut());
        Ok(place)
    }
}

impl<T: Send + Sync + 'static> Give<T> {
    /// The place, unless it is `NULL`: the caller does not want the handle.
    pub(crate) fn optional(&self, name: &str) -> Result<Option<Place<'_, *mut T>>, Fault> {
        if self.0.is_null() { Ok(None) } else { self.get(name).map(Some) }
    }
}

impl<T> Place<'_, *mut T> {
    /// Puts a handle there.
    pub(crate) fn give(self, value: T) {
        self.write(Box::into_raw(Box::new(value)));
    }
}

/// A place for a value.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// The place.
    pub(crate) fn get(&self, name: &str) -> Result<Place<'_, T>, Fault> {
        Place::of(self.0, name)
    }
}

impl<T: Copy> Place<'_, T> {
    /// Puts the value there.
    pub(crate) fn put(self, value: T) {
        self.write(value);
    }
}

/// A place that may be written.
pub(crate) struct Place<'a, T>(*mut T, PhantomData<&'a ()>);

impl<T> Place<'_, T> {
    fn of(place: *mut T, name: &str) -> Result<Self, Fault> {
        match (place.is_null(), place.is_aligned()) {
            (true, _) => Err(Fault::null(name)),
            (false, false) => Err(Fault::misuse(format!("`{name}` is not aligned"))),
            (false, true) => Ok(Self(place, PhantomData)),
        }
    }

    fn write(&self, value: T) {
        // SAFETY: promise 4; `of` has checked that it is neither NULL nor unaligned. The old value is not dropped: there may be none yet.
        unsafe { self.0.write(value) }
    }
}

/// A place for a string.
#[repr(transparent)]
pub(crate) struct GiveText(*mut *mut c_char);

impl GiveText {
    /// The place, which holds `NULL` until a string is put there.
    pub(crate) fn get(&self, name: &str) -> Result<Place<'_, *mut c_char>, Fault> {
        let place = Place::of(self.0, name)?;
        place.write(ptr::null_mut());
        Ok(place)
    }
}

impl Place<'_, *mut c_char> {
    /// Puts a string there, of which C gets a copy that it frees with `cenote_string_free`.
    pub(crate) fn text(self, text: &[u8]) -> Result<(), Fault> {
        let text = CString::new(text).map_err(|_| Fault::corrupt("a zero byte in a name"))?;
        self.write(text.into_raw());
        Ok(())
    }
}

/// A string that is given back.
#[repr(transparent)]
pub(crate) struct TakenText(*mut c_char);

impl TakenText {
    /// Frees it. `NULL` is nothing to free.
    pub(crate) fn free(self) {
        if !self.0.is_null() {
            // SAFETY: it is one that `Place::text` gave, by the header; the caller does not use it again, nor has changed its length.
            drop(unsafe { CString::from_raw(self.0) });
        }
    }
}

/// A string that is read.
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    fn bytes(&self) -> Option<&[u8]> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: it is not NULL, and promise 2.
        Some(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// The string, which has to be UTF-8.
    pub(crate) fn get(&self, name: &str) -> Result<&str, Fault> {
        utf8(self.bytes().ok_or_else(|| Fault::null(name))?, name)
    }

    /// The string as a path, whose names have any bytes.
    pub(crate) fn path(&self, name: &str) -> Result<&Path, Fault> {
        self.bytes().map(|bytes| Path::new(OsStr::from_bytes(bytes))).ok_or_else(|| Fault::null(name))
    }
}

fn utf8<'a>(bytes: &'a [u8], name: &str) -> Result<&'a str, Fault> {
    std::str::from_utf8(bytes).map_err(|_| Fault::misuse(format!("`{name}` is not UTF-8")))
}

/// An array of strings that ends with `NULL`; or `NULL`, for none.
#[repr(transparent)]
pub(crate) struct Words(*const *const c_char);

impl Words {
    /// The strings.
    pub(crate) fn get(&self, name: &str) -> Result<Vec<&str>, Fault> {
        let mut words = Vec::new();
        if self.0.is_null() {
            return Ok(words);
        }
        if !self.0.is_aligned() {
            return Err(Fault::misuse(format!("`{name}` is not aligned")));
        }
        loop {
            // SAFETY: promise 2, for the array: each place up to the NULL may be read, and none before this one was NULL.
            let word = unsafe { *self.0.add(words.len()) };
            if word.is_null() {
                return Ok(words);
            }
            if words.len() == WORDS_MAX {
                return Err(Fault::misuse(format!("`{name}` has more than {WORDS_MAX} words: does it end with NULL?")));
            }
            // SAFETY: it is not NULL, and promise 2.
            words.push(utf8(unsafe { CStr::from_ptr(word) }.to_bytes(), name)?);
        }
    }
}

fn check_length(len: usize, name: &str) -> Result<(), Fault> {
    match isize::try_from(len) {
        Ok(_) => Ok(()),
        Err(_) => Err(Fault::misuse(format!("`{name}` of {len} bytes: no memory is so large"))),
    }
}

/// Bytes that are read.
#[repr(transparent)]
pub(crate) struct Data(*const c_void);

impl Data {
    /// So many bytes. None may be at `NULL`.
    pub(crate) fn get(&self, len: usize, name: &str) -> Result<&[u8], Fault> {
        check_length(len, name)?;
        match (len, self.0.is_null()) {
            (0, _) => Ok(&[]),
            (_, true) => Err(Fault::null(name)),
            // SAFETY: promise 3; it is not NULL, bytes have no alignment, and the length fits an allocation.
            (_, false) => Ok(unsafe { std::slice::from_raw_parts(self.0.cast::<u8>(), len) }),
        }
    }
}

/// A buffer that is filled.
#[repr(transparent)]
pub(crate) struct Buffer(*mut c_void);

impl Buffer {
    /// Room for so many bytes. None may be at `NULL`.
    pub(crate) fn get(&self, len: usize, name: &str) -> Result<Room<'_>, Fault> {
        check_length(len, name)?;
        match len > 0 && self.0.is_null() {
            true => Err(Fault::null(name)),
            false => Ok(Room { next: self.0.cast(), left: len, life: PhantomData }),
        }
    }
}

/// The rest of a buffer. It may hold nothing yet, so it is no slice.
pub(crate) struct Room<'a> {
    next: *mut u8,
    left: usize,
    life: PhantomData<&'a ()>,
}

impl Room<'_> {
    /// Bytes that it still takes.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Puts bytes behind those that were put before, as many as it takes.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(self.left);
        if count > 0 {
            // SAFETY: promise 3: from `next` on `left` bytes may be written, nobody else uses them, and the source is memory of ours.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.next, count) };
            // SAFETY: `count` is at most `left`, so this is within the buffer or at its end.
            self.next = unsafe { self.next.add(count) };
            self.left -= count;
        }
    }
}

/// A descriptor of a file, pipe or socket.
#[repr(transparent)]
pub(crate) struct Descriptor(c_int);

impl Descriptor {
    /// The file, by a descriptor of its own.
    pub(crate) fn get(&self, name: &str) -> Result<File, Fault> {
        if self.0 < 0 {
            return Err(Fault::misuse(format!("`{name}` is {}, which is no descriptor", self.0)));
        }
        // SAFETY: it is not -1, and promise 5. One that is not open makes the next call fail, and is used by no other.
        let own = unsafe { BorrowedFd::borrow_raw(self.0) }.try_clone_to_owned();
        own.map(File::from)
            .map_err(|error| Fault::misuse(format!("`{name}` is {}, which cannot be used: {error}", self.0)))
    }
}

/// A string of a handle, which C reads while it has the handle; or `NULL`.
#[repr(transparent)]
pub(crate) struct Borrowed(*const c_char);

impl Borrowed {
    /// A string of a handle, which must not change.
    pub(crate) fn of(text: Option<&CStr>) -> Self {
        Self(pointer(text))
    }
}

/// The string that C gets of a handle that may be missing.
pub(crate) fn pointer(text: Option<&CStr>) -> *const c_char {
    text.map_or(ptr::null(), CStr::as_ptr)
}

/// The end of a call that may fail: `NULL`, or an error that C frees.
#[repr(transparent)]
pub(crate) struct Status(*mut FaultHandle);

impl From<Result<(), Fault>> for Status {
    fn from(result: Result<(), Fault>) -> Self {
        Self(match result {
            Ok(()) => ptr::null_mut(),
            Err(Fault(handle)) => Box::into_raw(handle),
        })
    }
}

#[cfg(test)]
impl Status {
    /// The error.
    pub(crate) fn fault(self) -> Option<Box<FaultHandle>> {
        // SAFETY: it is NULL, or a box that `from` made and nobody else has.
        (!self.0.is_null()).then(|| unsafe { Box::from_raw(self.0) })
    }
}
