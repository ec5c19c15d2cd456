//! How a command ended.

use std::fmt;
use std::io;
use std::process::ExitCode;

use cenote_admin::AdminError;
use cenote_admin::values::ValueError;
pub(crate) use cenote_admin::values::WrongUse;
use cenote_image::ImageError;
use cenote_listing::ListError;
use cenote_server::{Owned, ServerError, add_cause};

/// How a command that ran to its end ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Status 0.
    Good,
    /// Status 1; what was wrong has been written to stderr or is the command's finding.
    Failed,
}

impl Outcome {
    /// `Good` if nothing failed.
    pub(crate) fn unless(failed: bool) -> Self {
        if failed { Self::Failed } else { Self::Good }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Good => ExitCode::SUCCESS,
            Outcome::Failed => ExitCode::from(FAILED),
        }
    }
}

/// Exit status of a command that failed.
pub(crate) const FAILED: u8 = 1;
/// Exit status of a command that was called wrongly.
pub(crate) const USAGE: u8 = 2;
/// Exit status where a stream could not be resumed.
const NOT_RESUMED: u8 = 255;
/// Exit status where the reader of our output has gone: that of a process ended by SIGPIPE, as a shell shows it.
pub(crate) const PIPE: u8 = 128 + 13;

/// An error with an exit status of its own.
#[derive(Debug)]
struct StatusError {
    status: u8,
    error: anyhow::Error,
}

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for StatusError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// The error with this exit status.
pub(crate) fn with_status(status: u8, error: anyhow::Error) -> anyhow::Error {
    StatusError { status, error }.into()
}

/// A stream could not go on where it stopped: status 255, which OpenZFS's -1 becomes.
#[derive(Debug)]
pub(crate) struct ResumeError(pub(crate) String);

impl fmt::Display for ResumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The process that has a pool, where an error says that it is to be asked.
pub(crate) fn owned(error: &anyhow::Error) -> Option<&Owned> {
    match error.downcast_ref() {
        Some(ServerError::Owned(owned)) => Some(owned),
        _ => None,
    }
}

/// Whether an error says that no pool has the name that was given.
pub(crate) fn is_no_such_pool(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ServerError::NoSuchPool(_)))
}

/// Whether an error says that the command was called wrongly.
pub(crate) fn is_wrong_use(error: &anyhow::Error) -> bool {
    let is_of_server = match error.downcast_ref() {
        Some(ServerError::Admin(error)) => matches!(**error, AdminError::Setting(ValueError::Syntax(_))),
        Some(error) => matches!(error, ServerError::Use(_)),
        None => false,
    };
    error.is::<WrongUse>()
        || is_of_server
        || matches!(error.downcast_ref(), Some(ImageError::Use(_)))
        || matches!(error.downcast_ref(), Some(ListError::Property(_)))
        || matches!(error.downcast_ref(), Some(ValueError::Syntax(_)))
        || error.chain().any(|cause| cause.is::<WrongUse>())
}

/// The number of an error with which OpenZFS's command ends.
fn errno_of(error: &anyhow::Error) -> Option<u8> {
    match error.downcast_ref()? {
        ServerError::Admin(error) => match &**error {
            AdminError::Errno { errno, .. } => Some(*errno),
            _ => None,
        },
        _ => None,
    }
}

/// The exit status of a command that ended with this error.
pub(crate) fn status_of(error: &anyhow::Error) -> u8 {
    match error {
        error if is_wrong_use(error) => USAGE,
        error if error.is::<ResumeError>() => NOT_RESUMED,
        error => {
            let own = error.downcast_ref::<StatusError>().map(|error| error.status);
            own.or_else(|| errno_of(error)).unwrap_or(FAILED)
        }
    }
}

/// An error for [`WrongUse`].
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    WrongUse(text.into()).into()
}

/// Whether an error says that nobody reads our output any more.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let of_system = |cause: &(dyn std::error::Error + 'static)| {
        let own = cause.downcast_ref::<io::Error>();
        let own = own.or_else(|| cause.downcast_ref::<ServerError>()?.io());
        let error = own.or_else(|| cause.downcast_ref::<ImageError>()?.io());
        error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    error.chain().any(of_system)
}

/// An error in one text: each cause that says something new.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else {
            add_cause(&mut text, &cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_has_gone_is_found_below_an_archive() {
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&gone().into()));
        assert!(is_broken_pipe(&anyhow::Error::from(ImageError::from(gone())).context("an archive")));
        assert!(is_broken_pipe(&ServerError::from(gone()).into()));
        assert!(!is_broken_pipe(&ImageError::Malformed("an archive".into()).into()));
    }
}
