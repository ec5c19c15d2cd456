//! Errors of putting files into a pool and taking them out of it.

use std::fmt::Display;
use std::io;

use cenote_dmu::DmuError;
use cenote_dsl::DslError;
use cenote_props::WrongUse;
use cenote_spa::SpaError;
use cenote_taskq::JoinError;
use cenote_zpl::ZplError;
use thiserror::Error;

/// The words of an error for a full pool.
const NO_SPACE: &str = "no space for";

/// The reason why files could not be put into a pool or taken out of it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// An error in one part of a source, a pool or a target: a file, an archive's entry, a layer, a dataset.
    #[error("{place}")]
    In {
        /// The part.
        place: String,
        /// The error.
        source: Box<ImageError>,
    },
    /// The command line is not valid.
    #[error(transparent)]
    Use(#[from] WrongUse),
    /// A source is damaged, or not of its kind.
    #[error("{0}")]
    Malformed(String),
    /// A source contains something that cannot be stored yet.
    #[error("not supported yet: {0}")]
    Unsupported(String),
    /// A source exceeds a bound: of memory, of nesting, of a file's attributes.
    #[error("{0}")]
    TooLarge(String),
    /// A name is taken or not valid.
    #[error("{0}")]
    Name(String),
    /// No image of a layout matches the request, or more than one does.
    #[error("{0}")]
    Choice(String),
    /// A file of this machine could not be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A document of an image layout is not valid JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A task that read a part of a source ended early.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// An error of a file system of the pool.
    #[error(transparent)]
    Zpl(#[from] ZplError),
    /// An error of an object of the pool.
    #[error(transparent)]
    Dmu(#[from] DmuError),
    /// An error of a dataset of the pool.
    #[error(transparent)]
    Dsl(#[from] DslError),
    /// An error of the pool.
    #[error(transparent)]
    Spa(Box<SpaError>),
}

impl ImageError {
    /// The error without its places.
    pub(crate) fn root(&self) -> &Self {
        let mut at = self;
        while let Self::In { source, .. } = at {
            at = source;
        }
        at
    }

    /// True if the pool is full. Only the root cause is examined: the error around it names a file, whose name may be anything.
    pub fn is_no_space(&self) -> bool {
        self.root().to_string().contains(NO_SPACE)
    }

    /// The error of a file of this machine, if it is one.
    pub fn io(&self) -> Option<&io::Error> {
        if let Self::Io(error) = self.root() { Some(error) } else { None }
    }
}

/// A result with this crate's errors by default.
pub(crate) type Result<T, E = ImageError> = std::result::Result<T, E>;

/// A source has invalid bytes.
pub(crate) fn malformed(what: impl Into<String>) -> ImageError {
    ImageError::Malformed(what.into())
}

/// A part of a source cannot be stored yet.
pub(crate) fn unsupported(what: impl Into<String>) -> ImageError {
    ImageError::Unsupported(what.into())
}

/// A source exceeds a bound.
pub(crate) fn too_large(what: impl Into<String>) -> ImageError {
    ImageError::TooLarge(what.into())
}

/// A name is taken or not valid.
pub(crate) fn bad_name(what: impl Into<String>) -> ImageError {
    ImageError::Name(what.into())
}

impl From<SpaError> for ImageError {
    fn from(error: SpaError) -> Self {
        Self::Spa(Box::new(error))
    }
}

/// Adds a place to an error. For a missing value, the source lacks it.
pub(crate) trait Context<T> {
    fn context(self, place: impl Display) -> Result<T, ImageError>;

    fn with_context<P: Display>(self, place: impl FnOnce() -> P) -> Result<T, ImageError>;
}

impl<T, E: Into<ImageError>> Context<T> for Result<T, E> {
    fn context(self, place: impl Display) -> Result<T, ImageError> {
        self.with_context(|| place)
    }

    fn with_context<P: Display>(self, place: impl FnOnce() -> P) -> Result<T, ImageError> {
        self.map_err(|error| ImageError::In { place: place().to_string(), source: Box::new(error.into()) })
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, what: impl Display) -> Result<T, ImageError> {
        self.with_context(|| what)
    }

    fn with_context<P: Display>(self, what: impl FnOnce() -> P) -> Result<T, ImageError> {
        self.ok_or_else(|| malformed(what().to_string()))
    }
}
