//! Why a pool could not be found, opened or read, and what a person can do.

use std::fmt::Display;
use std::sync::Arc;

use cenote_dmu::DmuError;
use cenote_dmu::tx::TxError;
use cenote_dsl::DslError;
use cenote_format::FormatError;
use cenote_format::ids::{Guid, Txg};
use cenote_metaslab::{AllocError, ObjectError, SpaceError};
use cenote_taskq::JoinError;
use cenote_vdev::commit::InitializeError;
use cenote_vdev::error::VdevError;
use cenote_zio::ZioError;
use thiserror::Error;

/// A pool of which a txg could not be written. On disk it is whole, as of the last txg that was. Nothing can be changed or read
/// through its handle any more: it can be reported on, and let go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedPool {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: Guid,
    /// The last txg on disk.
    pub synced: Txg,
    /// Why.
    pub why: Arc<str>,
}

/// The kind of reason for which a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// A name, a value or a combination that cannot be.
    Invalid,
    /// There is something of this name.
    Exists,
    /// There is nothing of this name.
    NotThere,
    /// It is in use, or something depends on it.
    Busy,
    /// There is no room, or a limit is reached.
    NoSpace,
    /// It needs a feature that the pool has not enabled.
    NeedsFeature,
    /// Cenote cannot do it yet.
    NotYet,
}

/// Why something about a pool failed. Each message names the pool and ends with what can be done, where there is
/// something.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SpaError {
    /// No device or file given holds a pool of this name.
    #[error("cannot import '{0}': no such pool available")]
    NoSuchPool(String),
    /// Several pools have the name; the guid must be given.
    #[error("cannot import '{name}': more than one matching pool; import by numeric ID instead ({})", list(guids))]
    Ambiguous {
        /// The name.
        name: String,
        /// Their guids.
        guids: Vec<u64>,
    },
    /// The pool is, or may be, in use by another system.
    #[error(
        "cannot import '{pool}': pool was previously in use from another system.\nLast accessed by {hostname} (hostid={hostid:x}) at {when}\nThe pool can be imported, use 'zpool import -f' to import the pool."
    )]
    OtherSystem {
        /// The pool.
        pool: String,
        /// The host that had it.
        hostname: String,
        /// Its id.
        hostid: u64,
        /// When, as text.
        when: String,
    },
    /// The pool is, or may be, in use by this system, or by another that has no host id either.
    #[error(
        "cannot open '{pool}' for writing: pool was not exported and may still be in use.\nLast written by {hostname} (hostid={hostid:x}) at {when}\nIf nothing has it any more, use '-f' to open it all the same."
    )]
    NotExported {
        /// The pool.
        pool: String,
        /// The host that had it.
        hostname: String,
        /// Its id; 0 if it has none.
        hostid: u64,
        /// When, as text.
        when: String,
    },
    /// The kernel's module of this machine has the pool.
    #[error(
        "cannot open '{pool}' for writing: the ZFS module of this system's kernel has it imported as '{name}' ({state}).\nChange it with that system's own 'zfs' and 'zpool', or run its 'zpool export {name}' first."
    )]
    InKernel {
        /// The pool.
        pool: String,
        /// Its name there.
        name: String,
        /// Its state there.
        state: String,
    },
    /// A txg could not be written, so nothing of the pool can be changed any more; on disk it is whole, as of the txg before.
    #[error("{}", .0.why)]
    Failed(FailedPool),
    /// The pool was seen being written while it was watched.
    #[error(
        "cannot import '{pool}': pool is imported on {}\nExport the pool on the other system, then run 'zpool import'.",
        if *is_forced { format!("host '{hostname}' (hostid={hostid:x}).") } else { format!("{hostname} (hostid: {hostid:#x})") }
    )]
    Active {
        /// The pool.
        pool: String,
        /// The host that has it.
        hostname: String,
        /// Its id.
        hostid: u64,
        /// It was asked for with `-f`: OpenZFS says it in other words then.
        is_forced: bool,
    },
    /// A pool with `multihost=on` is not written by a host that others cannot tell from themselves.
    #[error(
        "Cannot import '{0}': pool has the multihost property on and the\nsystem's hostid is not set. Set a unique hostid with the zgenhostid(8) command."
    )]
    NoHostId(String),
    /// A feature in use is not known.
    #[error("cannot import '{pool}': unsupported feature(s) in use: {}", features.join(", "))]
    UnsupportedFeatures {
        /// The pool.
        pool: String,
        /// The features' guids, with their descriptions where the pool has them.
        features: Vec<String>,
    },
    /// The request is refused; nothing was changed.
    #[error("{what}")]
    Refused {
        /// The kind of reason.
        why: Refusal,
        /// The whole message.
        what: String,
    },
    /// An intent log cannot be read as far as it may reach.
    #[error(
        "cannot write to pool '{pool}': the intent log of '{dataset}' cannot be read: {what}; bring its devices back, or go on without what \
         clients were promised in the last seconds (-m)"
    )]
    LogUnreadable {
        /// The pool.
        pool: String,
        /// The dataset whose intent log cannot be read.
        dataset: String,
        /// Why.
        what: String,
    },
    /// A device cannot be written to.
    #[error("cannot write to pool '{pool}': cannot open '{path}' for writing: {reason}")]
    Device {
        /// The pool.
        pool: String,
        /// The device.
        path: String,
        /// Why.
        reason: String,
    },
    /// A version that is not known.
    #[error("cannot import '{pool}': pool is formatted using an unsupported ZFS version ({version})")]
    UnsupportedVersion {
        /// The pool.
        pool: String,
        /// Its version.
        version: u64,
    },
    /// Devices are missing that the pool cannot do without.
    #[error("cannot import '{pool}': one or more devices is currently unavailable: {}", missing.join(", "))]
    MissingDevices {
        /// The pool.
        pool: String,
        /// The devices, as the configuration names them.
        missing: Vec<String>,
    },
    /// A device is missing that alone has what was written in some txgs; the pool can be read as far as that goes.
    #[error(
        "cannot write to pool '{pool}': what was written in txgs {txgs} may be on {} alone, which is missing: the others have missed it.\nAttach it. Reading works without it as far as the others go; '--allow-missing' writes without it.",
        missing.join(", ")
    )]
    LeftAlone {
        /// The pool.
        pool: String,
        /// The devices, as the configuration names them.
        missing: Vec<String>,
        /// The txgs.
        txgs: String,
    },
    /// A pool in use was read as of a txg, and so much of that was freed meanwhile that it could not be kept.
    #[error(
        "pool '{pool}' is changing too fast to be read as of txg {txg}: a quarter of its free space held what was freed since.\nWhat was read until then is good. Try again when less is being overwritten, or make room."
    )]
    ViewGivenUp {
        /// The pool.
        pool: String,
        /// The txg.
        txg: Txg,
    },
    /// Of two equal copies of a device one would be written, and nothing says which.
    #[error(
        "cannot write to pool '{pool}': '{used}' and '{other}' are equal copies of one device, and its label names neither of them alone.\nSay with -d which is to be written."
    )]
    Copies {
        /// The pool.
        pool: String,
        /// One.
        used: String,
        /// The other.
        other: String,
    },
    /// A log device is missing; the pool can be opened without it.
    #[error(
        "cannot import '{pool}': the log device {device} is missing.\nImport with 'zpool import -m' to go on without it; what it holds is then lost."
    )]
    MissingLog {
        /// The pool.
        pool: String,
        /// The device.
        device: String,
    },
    /// No uberblock leads to a MOS that can be read.
    #[error("cannot import '{pool}': I/O error: {}", no_root(*tried, *limit, last))]
    NoRoot {
        /// The pool.
        pool: String,
        /// Uberblocks tried.
        tried: usize,
        /// The txg asked for, if any.
        limit: Option<u64>,
        /// The last failure.
        last: String,
    },
    /// The pool was destroyed.
    #[error("cannot import '{0}': pool was destroyed; use '-D' to import it")]
    Destroyed(String),
    /// The pool has no checkpoint.
    #[error("cannot import '{0}': checkpoint does not exist")]
    NoCheckpoint(String),
    /// A stream is not received.
    #[error(transparent)]
    Receive(#[from] crate::ReceiveRefusal),
    /// An error inside the pool.
    #[error("{}", in_pool(pool.as_deref(), error))]
    Pool {
        /// The pool's name. It is added where the error leaves the pool ([`NamePool`]).
        pool: Option<Box<str>>,
        /// The error.
        error: PoolError,
    },
}

/// An error inside a pool, without its name.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The DMU reports an error.
    #[error("{0}")]
    Dmu(#[from] DmuError),
    /// The DSL reports an error.
    #[error("{0}")]
    Dsl(#[from] DslError),
    /// The vdevs report an error.
    #[error("{0}")]
    Vdev(#[from] VdevError),
    /// A block could not be read or written.
    #[error("{0}")]
    Zio(#[from] ZioError),
    /// Space maps report an error.
    #[error("{0}")]
    Space(#[from] SpaceError),
    /// There is no space for a block.
    #[error("{0}")]
    NoSpace(String),
    /// A structure of the pool is not valid.
    #[error("{0}")]
    Format(#[from] FormatError),
    /// A task ended early: the program is shutting down, or a defect of ours made it panic.
    #[error("{0}")]
    Interrupted(#[from] JoinError),
    /// A change was refused its txg, or a txg is not waited for: no space, or the pool is closed or suspended.
    #[error("{0}")]
    Tx(#[from] TxError),
    /// The devices do not take what has to be written.
    #[error("{0}")]
    Devices(String),
    /// A quota, which is checked before a txg is written.
    #[error("a quota of {0} bytes is exceeded")]
    Quota(u64),
    /// Part of the pool is missing or contradicts another: on disk, or what is about to be written.
    #[error("{0}")]
    Contradiction(String),
    /// The pool has something that cannot be written yet; nothing of it was changed.
    #[error("not supported yet: {0}")]
    Unsupported(String),
}

/// The text of an error of a pool, which names the pool once its name is known.
fn in_pool(pool: Option<&str>, error: &PoolError) -> String {
    match (pool, error) {
        (None, error) => error.to_string(),
        (Some(pool), PoolError::Unsupported(_)) => format!("cannot write to pool '{pool}': {error}"),
        (Some(pool), error) => format!("pool '{pool}': {error}"),
    }
}

/// An error with an error of a pool in it.
///
/// Functions inside a pool do not name it: their errors come to be by `?` from those of the layers below. The pool's name is added once, where
/// an error leaves the pool: at [`Pool::change`](crate::Pool::change), [`Pool::look`](crate::Pool::look) and the like.
pub trait NamePool: From<SpaError> {
    /// The pool's error in it, if there is one.
    fn spa(&mut self) -> Option<&mut SpaError>;

    /// Adds the pool's name where it is not there yet.
    #[must_use]
    fn named(mut self, name: &str) -> Self {
        if let Some(error) = self.spa() {
            error.name(name);
        }
        self
    }
}

impl NamePool for SpaError {
    fn spa(&mut self) -> Option<&mut SpaError> {
        Some(self)
    }
}

impl From<AllocError> for PoolError {
    fn from(error: AllocError) -> Self {
        match error {
            AllocError::NoSpace { .. } => Self::NoSpace(error.to_string()),
            AllocError::Space(error) => Self::Space(error),
            error => Self::Contradiction(error.to_string()),
        }
    }
}

impl From<ObjectError> for PoolError {
    fn from(error: ObjectError) -> Self {
        error
            .downcast_ref::<DmuError>()
            .map_or_else(|| Self::Contradiction(error.to_string()), |error| Self::Dmu(error.clone()))
    }
}

/// A disk that cannot be labelled.
#[derive(Debug, Error)]
#[error("{path}: {error}")]
pub(crate) struct LabelError {
    /// The disk.
    path: String,
    /// Why.
    #[source]
    error: InitializeError,
}

impl LabelError {
    pub(crate) fn new(path: impl ToString, error: impl Into<InitializeError>) -> Self {
        Self { path: path.to_string(), error: error.into() }
    }
}

impl From<LabelError> for PoolError {
    fn from(error: LabelError) -> Self {
        Self::Devices(error.to_string())
    }
}

impl From<PoolError> for SpaError {
    fn from(error: PoolError) -> Self {
        Self::Pool { pool: None, error }
    }
}

macro_rules! of_a_pool {
    ($($of:ty),*) => {$(
        impl From<$of> for SpaError {
            fn from(error: $of) -> Self {
                PoolError::from(error).into()
            }
        }
    )*};
}

of_a_pool!(
    DmuError,
    DslError,
    VdevError,
    ZioError,
    SpaceError,
    AllocError,
    ObjectError,
    FormatError,
    TxError,
    JoinError,
    LabelError
);

impl SpaError {
    /// Adds the pool's name where it is not there yet.
    pub fn name(&mut self, name: &str) {
        if let Self::Pool { pool: pool @ None, .. } = self {
            *pool = Some(name.into());
        }
    }

    /// The pool has something that cannot be written yet.
    #[must_use]
    pub const fn is_unsupported(&self) -> bool {
        matches!(self, Self::Pool { error: PoolError::Unsupported(_), .. })
    }

    pub(crate) fn contradiction(what: impl Display) -> Self {
        PoolError::Contradiction(what.to_string()).into()
    }

    pub(crate) fn devices(what: impl Display) -> Self {
        PoolError::Devices(what.to_string()).into()
    }

    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        PoolError::Unsupported(what.into()).into()
    }

    /// As a result: a refusal.
    pub(crate) fn unwritable<T>(what: impl Into<String>) -> Result<T, Self> {
        Err(Self::unsupported(what))
    }

    pub(crate) fn refused(why: Refusal, what: impl Into<String>) -> Self {
        Self::Refused { why, what: what.into() }
    }
}

/// Recovery is advised only where there is something to go back to.
fn no_root(tried: usize, limit: Option<u64>, last: &str) -> String {
    let limit = limit.map_or(String::new(), |limit| format!(" up to txg {limit}"));
    match tried {
        0 => format!(
            "{last}{limit}\nNothing leads to its data: '-F' has nothing to go back to. Attach further devices of the pool if there are any; \
             'cenote inspect labels DEVICE' shows what is left of the labels."
        ),
        _ => format!(
            "no readable root among {tried} uberblocks{limit}; the last failed: {last}\nRecovery to an earlier txg may work: 'zpool import \
             -F', then '-FX'."
        ),
    }
}

fn list(guids: &[u64]) -> String {
    guids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}
