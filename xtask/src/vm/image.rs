//! A pool that Cenote builds from a directory with all that a directory can hold: as the real OpenZFS mounts it, everything is what
//! it was in the directory, by a manifest that the same script makes of both.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::process;

/// A pool, what it is built with, and how many images it has.
struct Built {
    name: &'static str,
    vdevs: &'static [&'static str],
    images: usize,
    options: &'static [&'static str],
    /// The directory is put into a second file system too.
    has_child: bool,
}

const POOLS: [Built; 2] = [
    Built {
        name: "packed",
        vdevs: &["raidz1"],
        images: 3,
        options: &["-O", "compression=zstd", "-O", "xattr=sa", "-O", "acltype=posix"],
        has_child: true,
    },
    Built {
        name: "plain",
        vdevs: &["mirror"],
        images: 2,
        options: &[
            "-O",
            "compression=off",
            "-O",
            "xattr=dir",
            "-O",
            "acltype=posix",
            "-O",
            "recordsize=1M",
            "-O",
            "dnodesize=auto",
        ],
        has_child: false,
    },
];

/// Builds the pools below `share`, and has them compared.
pub(super) fn run(program: &Path, share: &Path) -> Result<()> {
    let source = share.join("source");
    std::fs::create_dir(&source)?;
    process::run(tool("tree").arg(&source))?;
    process::run(tool("manifest").arg(&source).stdout(File::create(share.join("manifest"))?))?;
    let cenote = || {
        let mut command = Command::new(program);
        command.env("CENOTE_CACHE", share.join("cache.json"));
        command
    };
    for pool in &POOLS {
        let folder = share.join(pool.name);
        std::fs::create_dir(&folder)?;
        let images = (0..pool.images).map(|index| folder.join(format!("{index}.img")));
        let mut build = cenote();
        build.args(["build", "--pool", pool.name, "--size", "160M"]).args(pool.options).arg("--from").arg(&source);
        process::run(build.args(pool.vdevs).args(images))?;
        if pool.has_child {
            let child = format!("{}/child", pool.name);
            // Elsewhere, since a directory to mount it on would be made in the root.
            process::run(cenote().args(["zfs", "-d"]).arg(&folder).args([
                "create",
                "-o",
                "mountpoint=/child",
                &child,
            ]))?;
            process::run(cenote().args(["put", "-d"]).arg(&folder).args([&child]).arg(&source))?;
        }
    }
    let names = POOLS.iter().map(|pool| pool.name);
    process::run(process::script("tools/openzfs-vm/image").arg(share).args(names))
}

/// A script beside the machine's.
fn tool(name: &str) -> Command {
    let mut command = Command::new("python3");
    command.arg(cenote_testkit::repository_root().join("tools/openzfs-vm").join(name));
    command
}
