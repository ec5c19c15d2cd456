//! Why streams are not received.

use std::fmt;

use cenote_dsl::DslError;
use cenote_send::SendError;
use cenote_send::receiver::ReceiverError;
use cenote_spa::{ReceiveRefusal, SpaError};
use thiserror::Error;

use crate::AdminError;

/// The action that failed, in the words that OpenZFS's messages begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiveAction {
    /// Nothing more is known of the stream: `cannot receive`.
    Any,
    /// A stream of a new dataset.
    New,
    /// A stream that builds on a snapshot.
    Incremental,
    /// A stream that resumes an interrupted receive.
    Resumed,
    /// A stream of the snapshot with this name, which exists.
    Restore(String),
}

impl fmt::Display for ReceiveAction {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Any => "cannot receive",
            Self::New => "cannot receive new filesystem stream",
            Self::Incremental => "cannot receive incremental stream",
            Self::Resumed => "cannot receive resume stream",
            Self::Restore(name) => return write!(out, "cannot restore to {name}"),
        })
    }
}

/// The kind of reason for which a stream is not received.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReceiveFailure {
    /// The input does not begin as a stream does.
    #[error("invalid stream (bad magic number)")]
    NotAStream,
    /// A package breaks the format.
    #[error("{0}")]
    BadPackage(&'static str),
    /// The request does not fit the stream, such as a property of volumes for a file system.
    #[error("{0}")]
    Use(String),
    /// The dataset that was named does not exist.
    #[error("specified fs ({0}) does not exist")]
    NoTarget(String),
    /// The snapshot that was named as the origin does not exist.
    #[error("specified origin fs ({0}) does not exist")]
    NoOrigin(String),
    /// A snapshot that was named to be healed does not exist.
    #[error("corrective recv must specify an existing snapshot to heal")]
    NothingToHeal,
    /// The stream did not heal all damaged blocks.
    #[error("corrective receive was not able to reconstruct the data needed for healing.")]
    NotHealed,
    /// Cenote cannot do it yet.
    #[error("not supported yet: {0}")]
    NotYet(&'static str),
    /// The beginning of a stream, or a stream that is passed over, is damaged, or nothing that can be received.
    #[error(transparent)]
    Stream(Box<ReceiverError>),
    /// The records of a stream are damaged, end too soon or cannot be applied.
    #[error("{}", record_words(.0))]
    Records(Box<ReceiverError>),
    /// The pool refuses the stream, before any of it is applied.
    #[error(transparent)]
    Refused(#[from] ReceiveRefusal),
    /// An error of the pool.
    #[error(transparent)]
    Admin(Box<AdminError>),
}

/// Why streams are not received, in OpenZFS's words.
#[derive(Debug)]
pub struct ReceiveError {
    /// The action that failed.
    pub action: ReceiveAction,
    /// The reason.
    pub why: ReceiveFailure,
    /// The token from which the sender can resume, if something was received and kept.
    pub token: Option<String>,
}

impl ReceiveError {
    pub(super) fn new(action: ReceiveAction, why: impl Into<ReceiveFailure>) -> Self {
        Self { action, why: why.into(), token: None }
    }
}

impl<F: Into<ReceiveFailure>> From<F> for ReceiveError {
    fn from(why: F) -> Self {
        Self::new(ReceiveAction::Any, why)
    }
}

impl std::error::Error for ReceiveError {}

impl fmt::Display for ReceiveError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, why, token } = self;
        let Some(token) = token else { return write!(out, "{action}: {why}") };
        match why {
            ReceiveFailure::Records(error) if breaks_off(error) => {
                write!(out, "{action}: checksum mismatch or incomplete stream")?;
            }
            why => write!(out, "{action}: {why}")?,
        }
        write!(
            out,
            ".\nPartially received snapshot is saved.\nA resuming stream can be generated on the sending system by \
             running:\n    zfs send -t {token}"
        )
    }
}

fn breaks_off(error: &ReceiverError) -> bool {
    matches!(error, ReceiverError::Stream(SendError::Truncated { .. } | SendError::Checksum { .. }))
}

/// OpenZFS has short words for streams that break off, where it has begun to receive them.
fn record_words(error: &ReceiverError) -> String {
    match error {
        ReceiverError::Stream(SendError::Truncated { .. }) => "incomplete stream".to_owned(),
        ReceiverError::Stream(SendError::Checksum { .. }) => format!("checksum mismatch ({error})"),
        error => error.to_string(),
    }
}

impl From<ReceiverError> for ReceiveFailure {
    fn from(error: ReceiverError) -> Self {
        Self::Stream(Box::new(error))
    }
}

impl From<SendError> for ReceiveFailure {
    fn from(error: SendError) -> Self {
        ReceiverError::from(error).into()
    }
}

impl From<AdminError> for ReceiveFailure {
    fn from(error: AdminError) -> Self {
        Self::Admin(Box::new(error))
    }
}

impl From<SpaError> for ReceiveFailure {
    fn from(error: SpaError) -> Self {
        AdminError::from(error).into()
    }
}

impl From<DslError> for ReceiveFailure {
    fn from(error: DslError) -> Self {
        AdminError::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(why: fn(Box<ReceiverError>) -> ReceiveFailure, token: Option<&str>) -> String {
        let error = SendError::Truncated { offset_bytes: 312, expected: "within a record" };
        let why = why(Box::new(error.into()));
        ReceiveError { action: ReceiveAction::Incremental, why, token: token.map(str::to_owned) }.to_string()
    }

    #[test]
    fn a_stream_that_breaks_off_is_told_in_openzfs_words() {
        let where_it_began = "cannot receive incremental stream: the stream ends at offset 312, within a record";
        assert_eq!(cut(ReceiveFailure::Stream, None), where_it_began);
        assert_eq!(cut(ReceiveFailure::Records, None), "cannot receive incremental stream: incomplete stream");
        let kept = cut(ReceiveFailure::Records, Some("1-2-3-4"));
        let first = "cannot receive incremental stream: checksum mismatch or incomplete stream.";
        assert_eq!(kept.lines().next(), Some(first));
        assert_eq!(kept.lines().last(), Some("    zfs send -t 1-2-3-4"));
        assert_eq!(kept.lines().count(), 4);
    }

    #[test]
    fn a_snapshot_that_exists_is_told_by_its_name() {
        let why = SpaError::from(ReceiveRefusal::Exists("b/x@s".to_owned()));
        let error = ReceiveError::new(ReceiveAction::Restore("b/x@s".to_owned()), why);
        assert_eq!(error.to_string(), "cannot restore to b/x@s: destination already exists");
    }
}
