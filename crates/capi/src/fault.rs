//! Errors in the form in which C gets them.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;

use cenote::{Error, ErrorKind, Place};

/// The kind of an error: `enum cenote_error_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    Internal = 1,
    Corrupt,
    Io,
    Unavailable,
    NotFound,
    Exists,
    Busy,
    NoSpace,
    ReadOnly,
    Denied,
    Key,
    NotSupported,
    Misuse,
    Closed,
    Quota,
    Interrupted,
    Stale,
}

impl From<ErrorKind> for Kind {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Corrupt => Self::Corrupt,
            ErrorKind::Io => Self::Io,
            ErrorKind::Unavailable => Self::Unavailable,
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::Exists => Self::Exists,
            ErrorKind::Busy => Self::Busy,
            ErrorKind::NoSpace => Self::NoSpace,
            ErrorKind::ReadOnly => Self::ReadOnly,
            ErrorKind::Denied => Self::Denied,
            ErrorKind::Key => Self::Key,
            ErrorKind::NotSupported => Self::NotSupported,
            ErrorKind::Misuse => Self::Misuse,
            ErrorKind::Closed => Self::Closed,
            ErrorKind::Quota => Self::Quota,
            ErrorKind::Interrupted => Self::Interrupted,
            ErrorKind::Stale => Self::Stale,
            // A kind that the library has got and this crate does not know is a bug here.
            _ => Self::Internal,
        }
    }
}

/// An error.
#[derive(Debug)]
pub(crate) struct Fault(pub(crate) Box<FaultHandle>);

/// An error as C has it: `cenote_error`.
#[derive(Debug)]
pub(crate) struct FaultHandle {
    pub(crate) kind: Kind,
    pub(crate) message: CString,
    pub(crate) pool: Option<CString>,
    pub(crate) dataset: Option<CString>,
    pub(crate) path: Option<CString>,
    pub(crate) device: Option<CString>,
    /// Its numbers, and those of the texts again.
    pub(crate) place: Place,
}

/// Text for C. Zero bytes, at which it would end, become question marks.
pub(crate) fn c_text(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes: Vec<u8> = text.into();
    bytes.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'?');
    CString::new(bytes).unwrap_or_default()
}

impl Fault {
    fn new(kind: Kind, message: impl Into<Vec<u8>>) -> Self {
        let message = c_text(message);
        let place = Place::default();
        Self(Box::new(FaultHandle { kind, message, pool: None, dataset: None, path: None, device: None, place }))
    }

    /// The request makes no sense.
    pub(crate) fn misuse(message: impl Into<Vec<u8>>) -> Self {
        Self::new(Kind::Misuse, message)
    }

    /// An argument is `NULL` that must not be.
    pub(crate) fn null(name: &str) -> Self {
        Self::misuse(format!("`{name}` is NULL"))
    }

    /// There is no such thing.
    pub(crate) fn not_found(message: impl Into<Vec<u8>>) -> Self {
        Self::new(Kind::NotFound, message)
    }

    /// The pool has something that C cannot be given.
    pub(crate) fn corrupt(message: &str) -> Self {
        Self::new(Kind::Corrupt, message)
    }

    /// A bug of ours.
    pub(crate) fn internal(message: impl Into<Vec<u8>>) -> Self {
        Self::new(Kind::Internal, message)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let place = error.place();
        let text = |text: &Option<String>| text.clone().map(c_text);
        Self(Box::new(FaultHandle {
            kind: error.kind().into(),
            message: c_text(error.to_string()),
            pool: text(&place.pool),
            dataset: text(&place.dataset),
            path: place.path.as_ref().map(|path| c_text(path.as_os_str().as_bytes())),
            device: text(&place.device),
            place: place.clone(),
        }))
    }
}
