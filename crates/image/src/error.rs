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

/// The reason that files could not be put into a pool or taken out of it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// Something went wrong in one part of a source, a pool or a target: a file, an archive's entry, a layer, a dataset.
    #[error("{place}")]
    In {
        /// The part.
        place: String,
        /// The error.
        source: Box<ImageError>,
    },
    /// The words of a command line mean nothing.
    #[error(transparent)]
    Use(#[from] WrongUse),
    /// A source is not what it should be, or is damaged.
    #[error("{0}")]
    Malformed(String),
    /// A source has something that cannot be stored yet.
    #[error("not supported yet: {0}")]
    Unsupported(String),
    /// A source is larger than a bound: of memory, of nesting, of what a file may have.
    #[error("{0}")]
    TooLarge(String),
    /// A name is taken, or cannot be one.
    #[error("{0}")]
    Name(String),
    /// No image of a layout, or more than one, is as asked for.
    #[error("{0}")]
    Choice(String),
    /// A file of this machine could not be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A document of an image layout is no such JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A task that read a part of it ended early.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// A file system of the pool.
    #[error(transparent)]
    Zpl(#[from] ZplError),
    /// An object of the pool.
    #[error(transparent)]
    Dmu(#[from] DmuError),
    /// A dataset of the pool.
    #[error(transparent)]
    Dsl(#[from] DslError),
    /// The pool.
    #[error(transparent)]
    Spa(Box<SpaError>),
}

impl ImageError {
    /// The error without the parts that it is in.
    pub fn root(&self) -> &Self {
        let mut at = self;
        while let Self::In { source, .. } = at {
            at = source;
        }
        at
    }

    /// Whether the pool is full. The cause alone is looked at: the error around it names a file, whose name may be anything.
    pub fn is_no_space(&self) -> bool {
        self.root().to_string().contains(NO_SPACE)
    }

    /// The error of this machine's files, where it is one.
    pub fn io(&self) -> Option<&io::Error> {
        if let Self::Io(error) = self.root() { Some(error) } else { None }
    }
}

/// With errors of this crate, unless another is said.
pub(crate) type Result<T, E = ImageError> = std::result::Result<T, E>;

/// A source gives other bytes than it should.
pub(crate) fn malformed(what: impl Into<String>) -> ImageError {
    ImageError::Malformed(what.into())
}

/// Something of a source cannot be stored yet.
pub(crate) fn unsupported(what: impl Into<String>) -> ImageError {
    ImageError::Unsupported(what.into())
}

/// A source is larger than a bound.
pub(crate) fn too_large(what: impl Into<String>) -> ImageError {
    ImageError::TooLarge(what.into())
}

/// A name is taken, or cannot be one.
pub(crate) fn bad_name(what: impl Into<String>) -> ImageError {
    ImageError::Name(what.into())
}

impl From<SpaError> for ImageError {
    fn from(error: SpaError) -> Self {
        Self::Spa(Box::new(error))
    }
}

/// Says where an error was. Where something is missing, it is the source that lacks it.
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
