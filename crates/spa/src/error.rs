//! Why a pool could not be found, opened or read, and what a person can do.

use std::sync::Arc;

use cenote_dmu::DmuError;
use cenote_dmu::tx::TxError;
use cenote_dsl::DslError;
use cenote_format::FormatError;
use cenote_format::ids::{Guid, Txg};
use cenote_vdev::error::VdevError;
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
    /// A pool could not be written.
    #[error("pool '{pool}': {what}")]
    Write {
        /// The pool.
        pool: String,
        /// The cause.
        what: String,
    },
    /// A change was refused its txg, or a txg is not waited for: no space, or the pool is closed or suspended.
    #[error("pool '{pool}': {error}")]
    Tx {
        /// The pool.
        pool: String,
        /// Why.
        error: TxError,
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
    /// The pool has something that cannot be written yet; nothing of it was changed.
    #[error("cannot write to pool '{pool}': not supported yet: {what}")]
    Unwritable {
        /// The pool.
        pool: String,
        /// The feature or operation that is not supported yet.
        what: String,
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
    /// Part of the MOS is missing or contradicts itself.
    #[error("pool '{pool}': {what}")]
    Corrupt {
        /// The pool.
        pool: String,
        /// The damage that was found.
        what: String,
    },
    /// The DMU reports an error.
    #[error("pool '{pool}': {error}")]
    Dmu {
        /// The pool.
        pool: String,
        /// Its error.
        error: DmuError,
    },
    /// The DSL reports an error.
    #[error("pool '{pool}': {error}")]
    Dsl {
        /// The pool.
        pool: String,
        /// Its error.
        error: DslError,
    },
    /// The vdevs report an error.
    #[error("pool '{pool}': {error}")]
    Vdev {
        /// The pool.
        pool: String,
        /// Their error.
        error: VdevError,
    },
    /// A structure of the pool is not valid.
    #[error("pool '{pool}': {error}")]
    Format {
        /// The pool.
        pool: String,
        /// The error in the structure.
        error: FormatError,
    },
}

impl SpaError {
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
