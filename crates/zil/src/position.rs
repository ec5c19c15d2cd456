//! The replay position of a claimed log, and how it is updated with the effect of each record.

use cenote_format::ids::Txg;
use cenote_format::zil::{LogRecord, Tx, XvattrFlags, ZilHeader};

/// How far a log was replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    replayed: u64,
    claim_txg: Txg,
}

impl Position {
    /// As a header says.
    #[must_use]
    pub const fn of(header: &ZilHeader) -> Self {
        Self { replayed: header.replay_seq, claim_txg: header.claim_txg }
    }

    /// Whether a record is to be replayed: it has not been replayed yet, and its txg was not on disk at the crash.
    #[must_use]
    pub fn is_left(&self, record: &LogRecord<'_>) -> bool {
        record.sequence > self.replayed && record.txg >= self.claim_txg
    }
}

/// The moment at which a record's position is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marking {
    /// In the one txg of its effect, because replaying it twice would give another result.
    Within,
    /// In a later txg; replaying it twice is harmless.
    After,
}

impl Marking {
    /// That of a record.
    #[must_use]
    pub const fn of(tx: &Tx<'_>) -> Self {
        match tx {
            Tx::Create(_) | Tx::Remove { .. } | Tx::Rmdir { .. } | Tx::Link { .. } | Tx::Rename(_) => Self::Within,
            _ => Self::After,
        }
    }
}

/// Attributes of the DOS-like kind that a replay sets.
const XVATTRS: XvattrFlags = XvattrFlags::ARCHIVE
    .union(XvattrFlags::SYSTEM)
    .union(XvattrFlags::READONLY)
    .union(XvattrFlags::HIDDEN)
    .union(XvattrFlags::NOUNLINK)
    .union(XvattrFlags::IMMUTABLE)
    .union(XvattrFlags::APPENDONLY)
    .union(XvattrFlags::NODUMP)
    .union(XvattrFlags::REPARSE)
    .union(XvattrFlags::OFFLINE)
    .union(XvattrFlags::SPARSE)
    .union(XvattrFlags::PROJINHERIT)
    .union(XvattrFlags::PROJID);

/// The part of a record that cannot be replayed yet.
#[must_use]
pub fn unsupported(record: &LogRecord<'_>) -> Option<&'static str> {
    if record.ignore_case {
        return Some("names that are looked up ignoring case");
    }
    match &record.tx {
        Tx::Create(create) if create.acl.is_some() => Some("new files with an access control list"),
        Tx::Create(create) if create.xvattr.is_some() => Some("new files with DOS-like attributes"),
        Tx::Create(create) if !create.domains.0.is_empty() => Some("owners of other domains"),
        Tx::SetAttr(set) if !set.domains.0.is_empty() => Some("owners of other domains"),
        Tx::SetAttr(set) => {
            let others = |xvattr: &cenote_format::zil::Xvattr| !XVATTRS.contains(xvattr.requested());
            set.xvattr.as_ref().is_some_and(others).then_some("an attribute of a virus scanner, or a creation time")
        }
        Tx::Acl(_) | Tx::AclV0 { .. } => Some("NFSv4 access control lists"),
        _ => None,
    }
}
