//! Errors of the crates below as errors of this one: kinds and places by types.

use std::error::Error as StdError;
use std::io;

use cenote_admin::receive::{ReceiveError, ReceiveFailure};
use cenote_admin::send::SendError;
use cenote_admin::values::ValueError;
use cenote_admin::{AdminError, Reason};
use cenote_dmu::tx::TxError;
use cenote_dmu::{DmuError, DmuErrorKind};
use cenote_dsl::DslError;
use cenote_host::HostError;
use cenote_inuse::{OpenError, Why};
use cenote_send::SendError as StreamError;
use cenote_send::package::PackageError;
use cenote_send::receiver::ReceiverError;
use cenote_send::sender::SenderError;
use cenote_spa::{NamePool, PoolError, ReceiveRefusal, Refusal, SpaError};
use cenote_vdev::error::VdevError;
use cenote_vdev::fault::{Fault, FaultKind};
use cenote_zio::{ZioError, ZioErrorKind};
use cenote_zpl::ZplError;
use cenote_zvol::VolumeError;
use cenote_zvol::live::LiveVolumeError;

use crate::error::{Error, ErrorKind, Place};

/// An error of a crate below.
pub(crate) trait Lower: StdError + Send + Sync + Sized + 'static {
    /// The kind of the error; the known part of its place goes into `place`.
    fn kind(&self, place: &mut Place) -> ErrorKind;

    /// The same as an error of this crate.
    fn raise(self) -> Error {
        let mut place = Place::default();
        let kind = self.kind(&mut place);
        Error::new(kind, place, self)
    }
}

/// Results with errors of a crate below.
pub(crate) trait Raise<T> {
    /// With an error of this crate.
    fn raised(self) -> Result<T, Error>;
}

impl<T, E: Lower> Raise<T> for Result<T, E> {
    fn raised(self) -> Result<T, Error> {
        self.map_err(Lower::raise)
    }
}

/// An error of a look at the pool, or of a change: the engine makes some itself.
#[derive(Debug)]
pub(crate) struct Raised(pub(crate) Error);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl NamePool for Raised {
    fn spa(&mut self) -> Option<&mut SpaError> {
        self.0.below().downcast_mut()
    }

    fn named(mut self, name: &str) -> Self {
        if let Some(error) = self.spa() {
            error.name(name);
        }
        Self(self.0.of_pool(name))
    }
}

impl<E: Lower> From<E> for Raised {
    fn from(error: E) -> Self {
        Self(error.raise())
    }
}

impl Lower for io::Error {
    fn kind(&self, _: &mut Place) -> ErrorKind {
        match self.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::AlreadyExists => ErrorKind::Exists,
            io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            io::ErrorKind::ResourceBusy => ErrorKind::Busy,
            io::ErrorKind::StorageFull => ErrorKind::NoSpace,
            io::ErrorKind::QuotaExceeded => ErrorKind::Quota,
            io::ErrorKind::InvalidInput => ErrorKind::Misuse,
            io::ErrorKind::Unsupported => ErrorKind::NotSupported,
            _ => ErrorKind::Io,
        }
    }
}

impl Lower for VdevError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        let mut at = |faults: &[Fault]| {
            if let Some(fault) = faults.first() {
                (place.device, place.offset_bytes) = (Some(fault.path.to_string()), Some(fault.address_bytes));
            }
        };
        match self {
            Self::NoSuchVdev(_)
            | Self::BadRange { .. }
            | Self::Unmapped { .. }
            | Self::BadMapping { .. }
            | Self::BadConfig { .. } => ErrorKind::Corrupt,
            Self::Missing(_) | Self::Suspended(_) => ErrorKind::Unavailable,
            Self::Unreadable { faults, .. } => {
                at(faults);
                let is_absent = |fault: &Fault| matches!(fault.kind, FaultKind::Unavailable | FaultKind::Overdue);
                match self.is_checksum() {
                    true => ErrorKind::Corrupt,
                    false if faults.iter().all(is_absent) => ErrorKind::Unavailable,
                    false => ErrorKind::Io,
                }
            }
            Self::Unwritable { faults, .. } => {
                at(faults);
                ErrorKind::Io
            }
            Self::Unsupported(_) => ErrorKind::NotSupported,
        }
    }
}

impl Lower for ZioError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        let at = self.bookmark();
        (place.objset, place.object) = (Some(at.objset.0), Some(at.object.0));
        place.block = Some((at.level, at.block.0));
        match ZioError::kind(self) {
            ZioErrorKind::NoGoodCopy { last, .. } | ZioErrorKind::NoCopyWritten { last, .. } => last.kind(place),
            ZioErrorKind::NoSpace { .. } => ErrorKind::NoSpace,
            ZioErrorKind::Unwritable(_) => ErrorKind::Misuse,
            ZioErrorKind::UnknownAlgorithm { .. } | ZioErrorKind::Redacted => ErrorKind::NotSupported,
            ZioErrorKind::KeyNotLoaded => ErrorKind::Key,
            _ => ErrorKind::Corrupt,
        }
    }
}

impl Lower for DmuError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        (place.objset, place.object) = (Some(self.objset.0), Some(self.object.0));
        match &self.kind {
            DmuErrorKind::Zio(error) => Lower::kind(error, place),
            DmuErrorKind::NoSuchObject | DmuErrorKind::NoSuchEntry(_) => ErrorKind::NotFound,
            DmuErrorKind::Interrupted(_) => ErrorKind::Interrupted,
            DmuErrorKind::TooLarge(_) | DmuErrorKind::NoRoom(_) => ErrorKind::Misuse,
            DmuErrorKind::Unsupported(_) => ErrorKind::NotSupported,
            _ => ErrorKind::Corrupt,
        }
    }
}

impl Lower for DslError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        let mut of = |name: &String| place.dataset = Some(name.clone());
        match self {
            Self::Dmu(error) => error.kind(place),
            Self::NoSuchDataset(name) => {
                of(name);
                ErrorKind::NotFound
            }
            Self::Inconsistent(name) => {
                of(name);
                ErrorKind::Busy
            }
            Self::BadName { name, .. } | Self::NotEncrypted(name) => {
                of(name);
                ErrorKind::Misuse
            }
            Self::WrongKey(name) | Self::BadKeyForm { dataset: name, .. } | Self::KeyNotLoaded(name) => {
                of(name);
                ErrorKind::Key
            }
            Self::Unsupported(_) => ErrorKind::NotSupported,
            Self::Format { object, .. } | Self::Corrupt { object, .. } => {
                (place.objset, place.object) = (Some(0), Some(*object));
                ErrorKind::Corrupt
            }
            _ => ErrorKind::Corrupt,
        }
    }
}

impl Lower for TxError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        match self {
            Self::NoSpace => ErrorKind::NoSpace,
            Self::Quota(name) => {
                place.dataset = Some(name.clone());
                ErrorKind::Quota
            }
            Self::Closed => ErrorKind::Closed,
            Self::Suspended(_) => ErrorKind::Unavailable,
        }
    }
}

impl Lower for SpaError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        let (pool, kind) = match self {
            Self::NoSuchPool(pool) => (pool, ErrorKind::NotFound),
            Self::Ambiguous { name, .. } => (name, ErrorKind::Misuse),
            Self::OtherSystem { pool, .. }
            | Self::NotExported { pool, .. }
            | Self::InKernel { pool, .. }
            | Self::Active { pool, .. } => (pool, ErrorKind::Busy),
            Self::Failed(failed) => (&failed.name, ErrorKind::Closed),
            Self::NoHostId(pool) | Self::Destroyed(pool) | Self::Copies { pool, .. } => (pool, ErrorKind::Misuse),
            Self::NoCheckpoint(pool) => (pool, ErrorKind::NotFound),
            Self::UnsupportedFeatures { pool, .. } | Self::UnsupportedVersion { pool, .. } => {
                (pool, ErrorKind::NotSupported)
            }
            Self::Refused { why, .. } => return of_refusal(*why),
            Self::Device { pool, path, .. } => {
                place.device = Some(path.clone());
                (pool, ErrorKind::Busy)
            }
            Self::LogUnreadable { pool, dataset, .. } => {
                place.dataset = Some(dataset.clone());
                (pool, ErrorKind::Corrupt)
            }
            Self::MissingDevices { pool, missing } | Self::LeftAlone { pool, missing, .. } => {
                place.device = missing.first().cloned();
                (pool, ErrorKind::Unavailable)
            }
            Self::MissingLog { pool, device } => {
                place.device = Some(device.clone());
                (pool, ErrorKind::Unavailable)
            }
            Self::ViewGivenUp { pool, .. } => (pool, ErrorKind::Interrupted),
            Self::NoRoot { pool, .. } => (pool, ErrorKind::Corrupt),
            Self::Receive(refusal) => return of_receive(refusal),
            Self::Pool { pool, error } => {
                place.pool = pool.as_deref().map(str::to_owned);
                return error.kind(place);
            }
            _ => return ErrorKind::Io,
        };
        place.pool = Some(pool.clone());
        kind
    }
}

impl Lower for PoolError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        match self {
            Self::Dmu(error) => error.kind(place),
            Self::Dsl(error) => error.kind(place),
            Self::Vdev(error) => error.kind(place),
            Self::Zio(error) => Lower::kind(error, place),
            Self::Tx(error) => error.kind(place),
            Self::NoSpace(_) => ErrorKind::NoSpace,
            Self::Quota(_) => ErrorKind::Quota,
            Self::Devices(_) => ErrorKind::Unavailable,
            Self::Space(_) | Self::Format(_) | Self::Contradiction(_) => ErrorKind::Corrupt,
            Self::Unsupported(_) => ErrorKind::NotSupported,
            Self::Interrupted(_) => ErrorKind::Interrupted,
            _ => ErrorKind::Io,
        }
    }
}

const fn of_refusal(why: Refusal) -> ErrorKind {
    match why {
        Refusal::Exists => ErrorKind::Exists,
        Refusal::NotThere => ErrorKind::NotFound,
        Refusal::Busy => ErrorKind::Busy,
        Refusal::NoSpace => ErrorKind::NoSpace,
        Refusal::NotYet => ErrorKind::NotSupported,
        _ => ErrorKind::Misuse,
    }
}

fn of_receive(refusal: &ReceiveRefusal) -> ErrorKind {
    match refusal {
        ReceiveRefusal::NoSource(_) | ReceiveRefusal::Missing(_) | ReceiveRefusal::NoOrigin(_) => ErrorKind::NotFound,
        ReceiveRefusal::Exists(_) | ReceiveRefusal::Overwrites(_) | ReceiveRefusal::HasSnapshots(_) => {
            ErrorKind::Exists
        }
        ReceiveRefusal::Busy
        | ReceiveRefusal::InUse(_)
        | ReceiveRefusal::Modified(_)
        | ReceiveRefusal::HasPartial(_) => ErrorKind::Busy,
        ReceiveRefusal::NoSpace => ErrorKind::NoSpace,
        ReceiveRefusal::OverQuota(_) => ErrorKind::Quota,
        _ => ErrorKind::Misuse,
    }
}

impl Lower for ZplError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        match self {
            Self::Dmu(error) => error.kind(place),
            Self::NoEntry | Self::NoXattr | Self::Stale => ErrorKind::NotFound,
            Self::Exists | Self::NotEmpty => ErrorKind::Exists,
            Self::NoSpace => ErrorKind::NoSpace,
            Self::Quota(_) => ErrorKind::Quota,
            Self::ReadOnly => ErrorKind::ReadOnly,
            Self::NotPermitted(_) => ErrorKind::Denied,
            Self::Closed(_) => ErrorKind::Closed,
            Self::Format { object, .. } | Self::Corrupt { object, .. } => {
                place.object = Some(*object);
                ErrorKind::Corrupt
            }
            Self::Replay(_) => ErrorKind::Corrupt,
            Self::Unsupported(_) => ErrorKind::NotSupported,
            Self::NotDirectory
            | Self::IsDirectory
            | Self::NotSymlink
            | Self::LinkOutside(_)
            | Self::Loop
            | Self::NameTooLong
            | Self::CrossDevice
            | Self::Invalid(_)
            | Self::TooLarge => ErrorKind::Misuse,
        }
    }
}

impl Lower for VolumeError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        match self {
            Self::Dmu(error) => error.kind(place),
            Self::BeyondEnd { .. } | Self::BadSize { .. } | Self::BadBlockSize(_) => ErrorKind::Misuse,
        }
    }
}

impl Lower for LiveVolumeError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        match self {
            Self::Tx(error) => error.kind(place),
            Self::Volume(error) => error.kind(place),
            Self::Replay(_) => ErrorKind::Corrupt,
            Self::ReadOnly => ErrorKind::ReadOnly,
        }
    }
}

impl Lower for OpenError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        match self {
            Self::Dsl(error) => error.kind(place),
            Self::Spa(error) => error.kind(place),
            Self::Zpl(_, error) => error.kind(place),
            Self::Volume(_, error) => error.kind(place),
            Self::Refused(_, why) => match why {
                Why::KeyNotLoaded => ErrorKind::Key,
                Why::Inconsistent | Why::InUse(_) => ErrorKind::Busy,
                Why::ReadOnly => ErrorKind::ReadOnly,
                Why::Lost => ErrorKind::Closed,
                _ => ErrorKind::Misuse,
            },
            _ => ErrorKind::Io,
        }
    }
}

impl Lower for AdminError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        match self {
            Self::Refused { name, reason, .. } => {
                let kind = of_reason(reason, place);
                place.dataset = Some(name.clone());
                kind
            }
            Self::NotTogether => ErrorKind::NotSupported,
            Self::NoVolume(name) => {
                place.dataset = Some(name.clone());
                ErrorKind::Misuse
            }
            Self::Names { parent, .. } => {
                place.dataset = Some(parent.clone());
                ErrorKind::NotSupported
            }
            Self::Spa(error) => error.kind(place),
            Self::Dsl(error) => error.kind(place),
            Self::Dmu(error) => error.kind(place),
            Self::Zpl(error) => error.kind(place),
            Self::Volume(error) => error.kind(place),
            Self::Setting(error) => error.kind(place),
            Self::NotThere(_) => ErrorKind::NotFound,
            Self::NoSnapshots(error) | Self::Partly { source: error, .. } => error.kind(place),
            _ => ErrorKind::Misuse,
        }
    }

    fn raise(self) -> Error {
        let mut place = Place::default();
        let kind = self.kind(&mut place);
        match self {
            // It is one of ours.
            Self::Users(error) => error.downcast().map_or_else(|error| Error::new(kind, place, error), |error| *error),
            error => Error::new(kind, place, error),
        }
    }
}

fn of_reason(reason: &Reason, place: &mut Place) -> ErrorKind {
    match reason {
        Reason::OutOfSpace | Reason::NoRoom => ErrorKind::NoSpace,
        Reason::NotThere | Reason::NoSuchTag => ErrorKind::NotFound,
        Reason::Busy | Reason::Clones { .. } | Reason::Newer(_) | Reason::ClonesOfNewer(_) => ErrorKind::Busy,
        Reason::TagIsThere => ErrorKind::Exists,
        Reason::ReadOnly => ErrorKind::ReadOnly,
        Reason::NotYet(_) => ErrorKind::NotSupported,
        Reason::Value(error) => error.kind(place),
        Reason::Setting(error) => error.kind(place),
        Reason::Volume(error) => error.kind(place),
        _ => ErrorKind::Misuse,
    }
}

impl Lower for SenderError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        let mut of = |name: &String| place.dataset = Some(name.clone());
        match self {
            Self::Block { dataset, source } => {
                of(dataset);
                Lower::kind(source, place)
            }
            Self::Corrupt { dataset, object, .. } => {
                of(dataset);
                place.object = Some(object.0);
                ErrorKind::Corrupt
            }
            Self::KeyNotLoaded(dataset) => {
                of(dataset);
                ErrorKind::Key
            }
            Self::NoSuchObject { dataset, object } => {
                of(dataset);
                place.object = Some(object.0);
                ErrorKind::NotFound
            }
            Self::Unsupported { dataset, .. } => {
                of(dataset);
                ErrorKind::NotSupported
            }
            Self::Invalid { dataset, .. } | Self::NameTooLong(dataset) => {
                of(dataset);
                ErrorKind::Misuse
            }
            Self::Interrupted(dataset) => {
                of(dataset);
                ErrorKind::Interrupted
            }
            Self::Dmu(error) => error.kind(place),
            Self::Dsl(error) => error.kind(place),
            Self::Spa(error) => error.kind(place),
            Self::Output(error) => Lower::kind(error, place),
            _ => ErrorKind::Misuse,
        }
    }
}

impl Lower for SendError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        match self {
            Self::Refused { why, .. } => of_refusal(*why),
            Self::Stream { error, .. } => error.kind(place),
            Self::Package { error, .. } => match &**error {
                PackageError::Sender(error) => error.kind(place),
                PackageError::NoSnapshot { dataset, .. } => {
                    place.dataset = Some(dataset.clone());
                    ErrorKind::NotFound
                }
                _ => ErrorKind::Misuse,
            },
            Self::Output { source, .. } | Self::Io(source) => Lower::kind(source, place),
            Self::Dsl(error) => error.kind(place),
            _ => ErrorKind::Misuse,
        }
    }
}

impl Lower for ReceiverError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        match self {
            Self::Stream(StreamError::Io { source, .. }) => Lower::kind(source, place),
            Self::Dedup | Self::Unknown { .. } | Self::Unsupported(_) => ErrorKind::NotSupported,
            Self::OtherSnapshot | Self::Incompatible => ErrorKind::Misuse,
            Self::Block(error) => Lower::kind(error, place),
            Self::Dsl(error) => error.kind(place),
            Self::Spa(error) => error.kind(place),
            Self::Dmu(error) => error.kind(place),
            Self::Tx(error) => error.kind(place),
            _ => ErrorKind::Corrupt,
        }
    }
}

impl Lower for ReceiveError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        match &self.why {
            ReceiveFailure::NotAStream | ReceiveFailure::BadPackage(_) => ErrorKind::Corrupt,
            ReceiveFailure::NoTarget(_) | ReceiveFailure::NoOrigin(_) | ReceiveFailure::NothingToHeal => {
                ErrorKind::NotFound
            }
            ReceiveFailure::NotHealed => ErrorKind::Corrupt,
            ReceiveFailure::NotYet(_) => ErrorKind::NotSupported,
            ReceiveFailure::Stream(error) | ReceiveFailure::Records(error) => error.kind(place),
            ReceiveFailure::Refused(refusal) => of_receive(refusal),
            ReceiveFailure::Admin(error) => error.kind(place),
            _ => ErrorKind::Misuse,
        }
    }
}

impl Lower for ValueError {
    fn kind(&self, _: &mut Place) -> ErrorKind {
        match self {
            Self::Unknown(_) => ErrorKind::NotFound,
            Self::NotYet(_) => ErrorKind::NotSupported,
            _ => ErrorKind::Misuse,
        }
    }
}

impl Lower for HostError {
    fn kind(&self, place: &mut Place) -> ErrorKind {
        match self {
            Self::Io { path, error } | Self::Cannot { path, error, .. } => {
                place.path = Some(path.clone());
                Lower::kind(error, place)
            }
            Self::Content { path, .. } => {
                place.path = Some(path.clone());
                ErrorKind::Corrupt
            }
            Self::Untrusted { path, .. } => {
                place.path = Some(path.clone());
                ErrorKind::Denied
            }
            Self::InUse(_) | Self::Overridable(_) => ErrorKind::Busy,
            Self::NoSuchPool(name) => {
                place.pool = Some(name.clone());
                ErrorKind::NotFound
            }
            Self::NoSuchPath(path) | Self::NoSuchDevice(path) => {
                place.path = Some(path.clone());
                ErrorKind::NotFound
            }
            Self::Spa(error) => error.kind(place),
            _ => ErrorKind::Misuse,
        }
    }
}
