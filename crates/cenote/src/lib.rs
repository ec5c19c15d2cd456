//! x

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod create;
mod dataset;
mod error;
mod file;
mod filesystem;
mod metadata;
mod options;
mod pool;
mod raise;
mod readdir;
mod runtime;
mod snapshot;
mod status;
mod volume;

pub use create::CreateOptions;
pub use dataset::{DataError, Dataset, DatasetKind, DatasetSpace, Property, Source};
pub use error::{Error, ErrorKind, Place};
pub use file::{Bytes, File};
pub use filesystem::{FileSystem, Space};
pub use metadata::{FileKind, Metadata};
pub use options::{FoundPool, OpenOptions};
pub use pool::Pool;
pub use readdir::{DirEntry, ReadDir};
pub use runtime::{Runtime, SimulatedDisk, Task};
pub use snapshot::Snapshot;
pub use status::{Event, Health, Status, TxgSummary, Vdev, Watch};
pub use volume::Volume;
