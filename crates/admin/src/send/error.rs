//! Why nothing, or not all, is sent.

use std::io;

use cenote_dsl::DslError;
use cenote_props::WrongUse;
use cenote_send::package::PackageError;
use cenote_send::sender::SenderError;
use cenote_spa::Refusal;

/// The words of a package for a key that is missing.
pub(super) const SOURCE_KEY: &str = "source key must be loaded";

/// Why snapshots are not sent, in OpenZFS's words.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// Options that mean nothing together, or too few words.
    #[error("{0}")]
    Use(#[source] WrongUse),
    /// Refused before anything was sent.
    #[error("{what}")]
    Refused {
        /// The kind of reason.
        why: Refusal,
        /// The whole message.
        what: String,
    },
    /// Of one stream.
    #[error("warning: cannot send '{snapshot}': {}", stream_words(error, key_words))]
    Stream {
        /// The snapshot.
        snapshot: String,
        /// The words for a key that is missing.
        key_words: &'static str,
        /// The reason.
        error: Box<SenderError>,
    },
    /// Of a package as a whole.
    #[error("{}", package_words(name, error))]
    Package {
        /// The name of what was to be sent.
        name: String,
        /// The reason.
        error: Box<PackageError>,
    },
    /// The reader of a stream has gone, or the disk is full: what the system says.
    #[error("warning: cannot send '{snapshot}'")]
    Output {
        /// The snapshot.
        snapshot: String,
        /// The system's error.
        source: io::Error,
    },
    /// The output takes no more.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A dataset is not there, or cannot be read.
    #[error(transparent)]
    Dsl(#[from] DslError),
}

impl SendError {
    pub(super) fn wrong(text: impl Into<String>) -> Self {
        Self::Use(WrongUse::new(text))
    }

    pub(super) fn refused(why: Refusal, what: impl Into<String>) -> Self {
        Self::Refused { why, what: what.into() }
    }

    pub(super) fn stream(snapshot: &str, key_words: &'static str, error: SenderError) -> Self {
        let snapshot = snapshot.to_owned();
        match error {
            SenderError::Output(source) => Self::Output { snapshot, source },
            error => Self::Stream { snapshot, key_words, error: Box::new(error) },
        }
    }

    pub(super) fn package(name: &str, error: PackageError) -> Self {
        match error {
            PackageError::Sender(error) => Self::stream(name, SOURCE_KEY, error),
            error => Self::Package { name: name.to_owned(), error: Box::new(error) },
        }
    }
}

fn stream_words(error: &SenderError, key_words: &str) -> String {
    match error {
        SenderError::KeyNotLoaded(_) => key_words.to_owned(),
        error if error.is_unreadable() => format!("Input/output error\n    {error}"),
        error => error.to_string(),
    }
}

fn package_words(name: &str, error: &PackageError) -> String {
    match error {
        PackageError::TooLarge => format!("warning: cannot send '{name}': {error}"),
        error => format!("{error}\nwarning: cannot send '{name}': backup failed"),
    }
}
