//! Packages: several streams after one list, for a tree of datasets, many snapshots, properties or holds.
//!
//! # Need
//!
//! One stream carries one snapshot. To replicate a tree with its history, properties and clones, a receiver must know in advance which datasets
//! and snapshots will follow, and the parent and origin of each.
//!
//! # Structures
//!
//! ```text
//!   PackageRequest ─ gather ─► List ─────────────► BEGIN (compound), END
//!                              datasets, guids,
//!                              properties, holds
//!                              └─ plan ─► Plan: streams in the order in which they are sent ─► BEGIN … END each
//!                                                                                              END of zeros
//! ```
//! [`mod@gather`] walks the tree of datasets in the order of their ZAPs, as OpenZFS does, and makes the list. [`mod@plan`] determines which
//! snapshots are sent, and the incremental source of each: no dataset before its parent, no clone before its origin.
//!
//! # Invariants
//!
//! 1. A plan's streams can be received in their order.
//! 2. The list grows with the number of datasets and snapshots. A list longer than receivers accept is refused.
//!
//! # Rejected
//!
//! Planning while sending: estimates need the plan before the first byte is written.

mod gather;
mod plan;

use std::io::{self, Write};

use cenote_codec::checksum::fletcher::Fletcher4;
use cenote_dsl::Dataset;
use cenote_format::Endian;
use cenote_format::ids::Guid;
use cenote_format::nvlist::NvList;
use cenote_format::stream::{BEGIN_PAYLOAD_BYTES_MAX, Begin, BeginFlags, Body, End, Features, HeaderKind, Record};
use cenote_spa::View;

use crate::sender::SenderError;

pub use self::gather::{List, gather};
pub use self::plan::{Plan, Planned, plan};

/// The contents requested for a package.
#[derive(Clone, Debug, Default)]
pub struct PackageRequest {
    /// The file system or volume at the top.
    pub dataset: String,
    /// The last snapshot to send of it and of those below: the name without the dataset's.
    pub to: String,
    /// The incremental source.
    pub from: Option<String>,
    /// The first stream of a clone is incremental from its origin.
    pub from_origin: bool,
    /// All datasets below, with properties (`-R`).
    pub replicate: bool,
    /// All snapshots in between (`-I`).
    pub do_all: bool,
    /// Properties (`-p`).
    pub props: bool,
    /// Holds (`-h`).
    pub holds: bool,
    /// Received properties in place of those in force (`-b`).
    pub backup: bool,
    /// Datasets that lack the snapshot are left out (`-s`).
    pub skip_missing: bool,
    /// Encrypted datasets may be sent decrypted (`-U`).
    pub without_encryption: bool,
    /// Encrypted datasets are sent raw.
    pub raw: bool,
    /// Datasets that are left out, with all below them (`-X`).
    pub excludes: Vec<String>,
    /// Snapshots that are skipped are reported.
    pub is_verbose: bool,
}

impl PackageRequest {
    /// True if the package begins with a list.
    #[must_use]
    pub const fn has_list(&self) -> bool {
        self.replicate || self.props || self.holds
    }

    fn excludes(&self, name: &str) -> bool {
        self.excludes.iter().any(|excluded| {
            name.strip_prefix(excluded.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || rest.starts_with('@'))
        })
    }
}

/// The reason why there is no package. The texts are OpenZFS's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackageError {
    /// A dataset lacks the snapshot.
    #[error("cannot send {top}@{snapshot}{how}: snapshot {dataset}@{snapshot} does not exist")]
    NoSnapshot {
        /// The dataset at the top.
        top: String,
        /// The snapshot.
        snapshot: String,
        /// ` recursively`, or nothing.
        how: &'static str,
        /// The dataset that lacks it.
        dataset: String,
    },
    /// A dataset is encrypted, and the request allows neither raw nor decrypted streams.
    #[error(
        "cannot send {top}@{snapshot}: encrypted dataset {dataset} may not be sent with properties without the raw flag or \
         no-preserve-encryption flag"
    )]
    Encrypted {
        /// The dataset at the top.
        top: String,
        /// The snapshot.
        snapshot: String,
        /// The encrypted dataset.
        dataset: String,
    },
    /// The list is longer than receivers accept.
    #[error(
        "the size of the list of snapshots and properties is too large to be received successfully.\n\
         Select a smaller number of snapshots to send."
    )]
    TooLarge,
    /// Something could not be read.
    #[error("{0}")]
    Sender(#[from] SenderError),
}

impl From<cenote_dsl::DslError> for PackageError {
    fn from(error: cenote_dsl::DslError) -> Self {
        SenderError::from(error).into()
    }
}

impl From<cenote_dmu::DmuError> for PackageError {
    fn from(error: cenote_dmu::DmuError) -> Self {
        SenderError::from(error).into()
    }
}

/// Writes BEGIN of a package, with the list if it has one, and that BEGIN's END. Returns their bytes.
///
/// # Errors
/// The list is too long, or `out` fails.
pub fn begin(request: &PackageRequest, list: Option<&List>, out: &mut dyn Write) -> Result<u64, PackageError> {
    let payload = match list {
        Some(list) => head(request, list).emit_xdr(),
        None => Vec::new(),
    };
    if payload.len() as u64 > BEGIN_PAYLOAD_BYTES_MAX {
        return Err(PackageError::TooLarge);
    }
    let name = format!("{}@{}", request.dataset, request.to);
    if name.len() > Begin::NAME_BYTES_MAX {
        return Err(SenderError::NameTooLong(name).into());
    }
    let begin = Begin {
        header: HeaderKind::Compound,
        features: if request.holds { Features::HOLDS } else { Features::empty() },
        reserved: 0,
        creation_time: 0,
        objset_type: 0,
        flags: BeginFlags::empty(),
        to_guid: Guid(0),
        from_guid: Guid(0),
        to_name: name.into_bytes(),
    };
    let payload_length = u32::try_from(payload.len()).map_err(|_| PackageError::TooLarge)?;
    let head = Record { payload_length, body: Body::Begin(begin), checksum: [0; 4] }.emit(ENDIAN);
    let mut sum = Fletcher4::new();
    sum.update(&head, ENDIAN);
    sum.update(&payload, ENDIAN);
    let write = |out: &mut dyn Write| -> io::Result<()> {
        out.write_all(&head)?;
        out.write_all(&payload)?;
        out.write_all(&conclusion(sum.finish()))
    };
    write(out).map_err(SenderError::Output)?;
    Ok((2 * Record::SIZE + payload.len()) as u64)
}

/// Writes the end of a package.
///
/// # Errors
/// `out` fails.
pub fn end(out: &mut dyn Write) -> io::Result<()> {
    out.write_all(&conclusion([0; 4]))
}

/// The byte order of packages: that of the sending machine.
const ENDIAN: Endian = cenote_dmu::ORDER;

/// An END of the package itself, not of a stream.
fn conclusion(stream_checksum: [u64; 4]) -> [u8; Record::SIZE] {
    let body = Body::End(End { stream_checksum, to_guid: Guid(0) });
    Record { payload_length: 0, body, checksum: [0; 4] }.emit(ENDIAN)
}

fn head(request: &PackageRequest, list: &List) -> NvList {
    use cenote_format::nvlist::NvValue;
    let mut head = NvList::new();
    if let Some(from) = &request.from {
        head.push("fromsnap", from.as_str());
    }
    head.push("tosnap", request.to.as_str());
    if !request.replicate {
        head.push("not_recursive", NvValue::Boolean);
    }
    if request.raw {
        head.push("raw", NvValue::Boolean);
    }
    head.push("fss", list.packed());
    head
}

/// The snapshots of a head from `min_txg` to `max_txg` (0: no limit), in that order.
async fn snapshots(pool: &View, head: &Dataset, min_txg: u64, max_txg: u64) -> Result<Vec<Dataset>, PackageError> {
    let mut found = pool.dsl().snapshots(head).await?;
    found.retain(|snapshot| {
        let txg = snapshot.phys.creation_txg.0;
        txg >= min_txg && (max_txg == 0 || txg <= max_txg)
    });
    Ok(found)
}
