//! Why a verb was refused.

use std::error::Error as StdError;
use std::{fmt, io};

use cenote_dmu::DmuError;
use cenote_dsl::DslError;
use cenote_dsl::name::NameError;
use cenote_props::WrongUse;
use cenote_spa::{NamePool, SpaError};
use cenote_zpl::ZplError;
use cenote_zvol::VolumeError;
use thiserror::Error;

use crate::values::ValueError;

/// A list of features cannot be used.
#[derive(Debug, Error)]
#[error("property 'compatibility': cannot use '{name}'")]
pub struct CompatibilityError {
    /// Its name.
    pub(crate) name: String,
    #[source]
    pub(crate) why: ListError,
}

/// The reason why a list cannot be used.
#[derive(Debug, Error)]
pub(crate) enum ListError {
    #[error("'{0}' is no feature that this version knows")]
    Unknown(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A verb, in the words that OpenZFS's messages begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `cannot open`
    Open,
    /// `cannot create`
    Create,
    /// `cannot verify`: it is only asked if it can be created
    Verify,
    /// `cannot destroy`
    Destroy,
    /// `cannot set property for`
    SetProperty,
    /// `cannot create snapshots`
    Snapshot,
    /// `cannot rollback to`
    Rollback,
    /// `cannot hold snapshot`
    Hold,
    /// `cannot release hold from snapshot`
    Release,
    /// `cannot rename to`
    Rename,
}

impl fmt::Display for Verb {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Open => "open",
            Self::Create => "create",
            Self::Verify => "verify",
            Self::Destroy => "destroy",
            Self::SetProperty => "set property for",
            Self::Snapshot => "create snapshot",
            Self::Rollback => "rollback to",
            Self::Hold => "hold snapshot",
            Self::Release => "release hold from snapshot",
            Self::Rename => "rename to",
        })
    }
}

/// Why a verb is refused, in OpenZFS's words where it has them.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Reason {
    /// Less is available than is to be reserved.
    #[error("out of space")]
    OutOfSpace,
    /// Less is available than is to be reserved, of a dataset that is there.
    #[error("size is greater than available space")]
    NoRoom,
    /// There is none of this name.
    #[error("dataset does not exist")]
    NotThere,
    /// It is open to be changed.
    #[error("dataset is busy")]
    Busy,
    /// Clones depend on its snapshots.
    #[error("{kind} has dependent clones\nuse '-R' to destroy the following datasets:\n{}", clones.join("\n"))]
    Clones {
        /// The dataset that was to be destroyed.
        kind: &'static str,
        /// Their names.
        clones: Vec<String>,
    },
    /// A snapshot is wanted.
    #[error("it is no snapshot")]
    NoSnapshot,
    /// Snapshots that are newer stand in the way.
    #[error("more recent snapshots or bookmarks exist\nuse '-r' to force deletion of the following snapshots and bookmarks:\n{}", .0.iter().rev().map(String::as_str).collect::<Vec<_>>().join("\n"))]
    Newer(Vec<String>),
    /// Clones of snapshots that are newer stand in the way.
    #[error("clones of previous snapshots exist\nuse '-R' to force deletion of the following clones and dependents:\n{}", .0.join("\n"))]
    ClonesOfNewer(Vec<String>),
    /// The dataset is a snapshot, and the property none of a user.
    #[error("this property can not be modified for snapshots")]
    NotOfSnapshots,
    /// A range of snapshots with several ends.
    #[error("a range has one '%'")]
    Range,
    /// A tag of no letters, or of too many.
    #[error("tag too long")]
    TagTooLong,
    /// The snapshot has a hold of this tag.
    #[error("tag already exists on this dataset")]
    TagIsThere,
    /// The snapshot has no hold of this tag.
    #[error("no such tag on this dataset")]
    NoSuchTag,
    /// A volume's blocks cannot have this size.
    #[error("'volblocksize' must be power of 2 from 512B to 16M")]
    BadBlockSize,
    /// A volume of no bytes, or of more than can be counted in whole blocks.
    #[error("volume size cannot be zero")]
    ZeroSize,
    /// A volume's size is not in whole blocks.
    #[error("'volsize' must be a multiple of volume block size ({0})")]
    NotWholeBlocks(u64),
    /// The volume's property `readonly` is on.
    #[error("the volume is read-only ('readonly=on')")]
    ReadOnly,
    /// Cenote cannot do it yet.
    #[error("not supported yet: {0}")]
    NotYet(&'static str),
    /// The property is one of another kind of dataset.
    #[error("'{0}' does not apply to datasets of this type")]
    DoesNotApply(String),
    /// `auto` was given of a file system.
    #[error("'{0}=auto' only allowed on volumes")]
    AutoOfVolumesOnly(String),
    /// Other words.
    #[error("{0}")]
    Said(String),
    /// The name is not valid.
    #[error(transparent)]
    Name(NameError),
    /// A setting is not valid.
    #[error(transparent)]
    Setting(ValueError),
    /// A value that the property cannot have in this pool.
    #[error(transparent)]
    Value(SpaError),
    /// A size that a volume cannot have.
    #[error(transparent)]
    Volume(VolumeError),
}

/// Why a verb failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdminError {
    /// It is refused, and nothing was changed.
    #[error("cannot {verb} '{name}': {reason}")]
    Refused {
        /// The verb.
        verb: Verb,
        /// The dataset.
        name: String,
        /// Why not.
        reason: Box<Reason>,
    },
    /// These settings are made one at a time.
    #[error("not supported yet: 'volsize' or 'refreservation' and other settings in one command")]
    NotTogether,
    /// A volume was named, and this dataset is none.
    #[error("'{0}' is no volume")]
    NoVolume(String),
    /// The parent has a property about names that new file systems do not obey yet.
    #[error("not supported yet: file systems below one with the property '{property}' ('{parent}')")]
    Names {
        /// The property.
        property: &'static str,
        /// The dataset above.
        parent: String,
    },
    /// Of the pool.
    #[error(transparent)]
    Spa(Box<SpaError>),
    /// Of its datasets.
    #[error(transparent)]
    Dsl(#[from] DslError),
    /// Of an object.
    #[error(transparent)]
    Dmu(#[from] DmuError),
    /// Of a file system.
    #[error(transparent)]
    Zpl(#[from] ZplError),
    /// Of a volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A value that a property cannot have, of a pool that is made.
    #[error(transparent)]
    Setting(#[from] ValueError),
    /// A list of features.
    #[error(transparent)]
    Compatibility(#[from] CompatibilityError),
    /// OpenZFS's command ends with Linux's number of this error.
    #[error("{source}")]
    Errno {
        /// The number.
        errno: u8,
        /// The error.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The words of the request are wrong, whatever the pool.
    #[error(transparent)]
    Use(#[from] WrongUse),
    /// A refusal, in words of its own.
    #[error("{0}")]
    Said(String),
    /// There is nothing of the name, in words of its own.
    #[error("{0}")]
    NotThere(String),
    /// No snapshot of those that were asked for was taken.
    #[error("{0}\nno snapshots were created")]
    NoSnapshots(Box<AdminError>),
    /// Some snapshots are destroyed, and one could not be.
    #[error("{done} of {count} snapshots are destroyed")]
    Partly {
        /// Snapshots that are destroyed.
        done: usize,
        /// Snapshots that were to be destroyed.
        count: usize,
        /// Why not all.
        source: Box<AdminError>,
    },
    /// The caller could not be told what is done.
    #[error(transparent)]
    Told(#[from] io::Error),
    /// An error of the users of a dataset, from the one who has them.
    #[error(transparent)]
    Users(Box<dyn StdError + Send + Sync>),
}

impl From<SpaError> for AdminError {
    fn from(error: SpaError) -> Self {
        Self::Spa(Box::new(error))
    }
}

impl NamePool for AdminError {
    fn spa(&mut self) -> Option<&mut SpaError> {
        match self {
            Self::Spa(error) => Some(error),
            Self::Refused { reason, .. } => match &mut **reason {
                Reason::Value(error) => Some(error),
                _ => None,
            },
            Self::NoSnapshots(error) | Self::Partly { source: error, .. } => error.spa(),
            _ => None,
        }
    }
}

impl AdminError {
    /// An error of the users of datasets.
    pub fn of_users(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Users(error.into())
    }

    /// The name of a snapshot is wanted, and this is none.
    pub(crate) fn no_snapshot_name(name: &str) -> Self {
        Self::refused(Verb::Open, name, Reason::Said("missing '@' delimiter in snapshot name".to_owned()))
    }

    pub(crate) fn refused(verb: Verb, name: &str, reason: Reason) -> Self {
        Self::Refused { verb, name: name.to_owned(), reason: Box::new(reason) }
    }
}
