//! Why an object could not be read.

use cenote_format::FormatError;
use cenote_format::ids::{ObjectId, ObjsetId};
use cenote_zio::{ZioError, ZioErrorKind};
use thiserror::Error;

/// An object that could not be read: which, and why.
#[derive(Clone, Debug, Error)]
#[error("{}", placed(*objset, *object, kind))]
pub struct DmuError {
    /// The objset (0: the MOS).
    pub objset: ObjsetId,
    /// The object (0: the meta-dnode or the objset itself).
    pub object: ObjectId,
    /// The kind of the error.
    pub kind: DmuErrorKind,
}

/// The text of an error, with its place once: that of a block says of which object it is.
fn placed(objset: ObjsetId, object: ObjectId, kind: &DmuErrorKind) -> String {
    let (place, text) = (format!("objset {objset} object {object}"), kind.to_string());
    match text.strip_prefix(&place) {
        Some(rest) if rest.starts_with([' ', ':']) => text,
        _ => format!("{place}: {text}"),
    }
}

/// The kind of a DMU error.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum DmuErrorKind {
    /// A block could not be read.
    #[error("{0}")]
    Zio(#[from] ZioError),
    /// A structure in a block is not valid.
    #[error("{0}")]
    Format(#[from] FormatError),
    /// No object has this number.
    #[error("no such object")]
    NoSuchObject,
    /// A name is not in a ZAP object.
    #[error("no entry {0:?}")]
    NoSuchEntry(String),
    /// An object or entry has not the type that its user needs.
    #[error("{0}")]
    WrongType(String),
    /// The task that read it ended early: the program is shutting down, or a defect of ours made it panic.
    #[error("the read did not come to an end: {0}")]
    Interrupted(String),
    /// A single read of more than 1 GiB.
    #[error("{0} bytes are too many for one read; read it in pieces")]
    TooLarge(usize),
    /// Attributes that do not fit into their object.
    #[error("{0} bytes of attributes do not fit the object")]
    NoRoom(usize),
    /// An operation that this version does not support.
    #[error("not supported yet: {0}")]
    Unsupported(String),
    /// A ZAP could not be changed.
    #[error("{0}")]
    ZapEdit(#[from] cenote_format::zap::ZapEditError),
    /// A structure refers to something that contradicts it (a cycle, a wrong level, an entry out of range).
    #[error("{0}")]
    Corrupt(String),
}

impl DmuError {
    /// An error about `object` of `objset`.
    pub fn new(objset: ObjsetId, object: ObjectId, kind: impl Into<DmuErrorKind>) -> Self {
        Self { objset, object, kind: kind.into() }
    }

    /// Whether the error only says that something is absent.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self.kind, DmuErrorKind::NoSuchObject | DmuErrorKind::NoSuchEntry(_))
    }

    /// Whether the block was left out of the stream that brought the dataset.
    #[must_use]
    pub fn is_redacted(&self) -> bool {
        matches!(&self.kind, DmuErrorKind::Zio(error) if matches!(error.kind(), ZioErrorKind::Redacted))
    }

    /// Whether the only thing missing is the dataset's key.
    #[must_use]
    pub fn is_key_missing(&self) -> bool {
        matches!(&self.kind, DmuErrorKind::Zio(error) if error.is_key_missing())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_once_where_it_is() {
        let error =
            |text: &str| DmuError::new(ObjsetId(3), ObjectId(7), DmuErrorKind::Corrupt(text.into())).to_string();
        assert_eq!(error("a cycle"), "objset 3 object 7: a cycle");
        assert_eq!(error("objset 3 object 7 level 0: bad"), "objset 3 object 7 level 0: bad");
        assert_eq!(error("objset 3 object 71: bad"), "objset 3 object 7: objset 3 object 71: bad");
    }
}
