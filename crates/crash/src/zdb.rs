//! OpenZFS's `zdb` as a judge beside Cenote's own `verify`: a misreading of the format that reader and writer share passes the one
//! and not the other.

use anyhow::Result;
use cenote_taskq::sim::disk::Image;
use cenote_testkit::zdb::program;

use crate::DISK_BYTES;

/// The pool's name.
const POOL: &str = "written";

/// Whether there is a `zdb`.
#[must_use]
pub fn is_there() -> bool {
    program("zdb").is_some()
}

/// Has `zdb -bcc` read every block of the pool on these devices and compare the space maps with them.
///
/// # Errors
/// It cannot be run, or it finds fault.
pub fn judge(images: &[Image]) -> Result<()> {
    cenote_sim::zdb(POOL, images, DISK_BYTES)
}
