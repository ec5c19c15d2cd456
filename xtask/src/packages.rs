//! Programs that the tests need and that Cargo cannot bring: found, installed where we may, else named.
//!
//! OpenZFS's own tools come from Debian's backports (section contrib); `tools/packages` adds that source next to the
//! machine's own. The kernel with OpenZFS's module, which the virtual machine boots, takes minutes to build; it is prepared
//! in the background while the other steps run (see [`crate::vm`]).

use anyhow::Result;
use cenote_testkit::zdb::program;

use crate::steps::{Context, Outcome, Tally};
use crate::{process, vm};

/// A program, the Debian package that has it, and what cannot be tested without it.
const PROGRAMS: &[(&str, &str, &str)] = &[
    ("cc", "gcc", "building"),
    ("zstd", "zstd", "unpacking by hand"),
    ("zdb", "zfsutils-linux", "verify against zdb; streams against zstream"),
    ("fusermount3", "fuse3", "mounting"),
    ("nbdinfo", "libnbd-bin", "exports of volumes"),
    ("nbdsh", "python3-libnbd", "exports of volumes"),
    ("qemu-img", "qemu-utils", "exports of volumes"),
    ("fio", "fio", "benchmarks"),
    ("python3", "python3", "kills under SQLite; the Python package"),
    ("pip3", "python3-pip", "installing the wheel"),
    ("syncoid", "sanoid", "replication by backup tools"),
];

/// Names of the packages whose programs are missing.
fn missing() -> Vec<&'static (&'static str, &'static str, &'static str)> {
    PROGRAMS.iter().filter(|(name, _, _)| program(name).is_none()).collect()
}

/// The step.
pub(crate) fn step(context: &Context) -> Result<Outcome> {
    if !missing().is_empty() && process::may_install() {
        let names: Vec<&str> = missing().iter().map(|(_, package, _)| *package).collect();
        println!("installing {}", names.join(" "));
        process::run(process::script("tools/packages").args(names))?;
    }
    let missing = missing();
    for (name, package, without) in &missing {
        println!("missing: {name} (Debian package {package}); without it not tested: {without}");
    }
    vm::prepare_in_background(context);
    if missing.is_empty() {
        return Ok(Outcome::Done(Tally { passed: PROGRAMS.len() as u64, failed: 0 }));
    }
    let names: Vec<&str> = missing.iter().map(|(_, package, _)| *package).collect();
    Ok(Outcome::LeftOut(format!("not installed, and not root on a Debian: {}", names.join(" "))))
}
