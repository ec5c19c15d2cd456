//! Compiles the driver of OpenZFS's queue where there is a C compiler and libzpool; or says why there is none.

use std::path::PathBuf;
use std::process::Command;

/// The library of OpenZFS 2.3; its queue's functions have been the same for long, but are no stable interface.
const LIBRARY: &str = "-l:libzpool.so.6";

fn main() {
    println!("cargo::rerun-if-changed=src/openzfs.c");
    let folder = std::env::var_os("OUT_DIR").map_or_else(PathBuf::new, PathBuf::from);
    let program = folder.join("openzfs");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let made = Command::new(&compiler)
        .args(["-std=gnu11", "-O2", "-Wall", "-o"])
        .arg(&program)
        .args(["src/openzfs.c", LIBRARY, "-lpthread"])
        .output();
    match made {
        Ok(output) if output.status.success() => println!("cargo::rustc-env=OPENZFS={}", program.display()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            let why = if text.contains("libzpool") {
                "libzpool.so.6 is not installed (Debian package libzpool6linux)"
            } else {
                "its driver does not compile"
            };
            println!("cargo::rustc-env=WITHOUT_OPENZFS={why}");
            println!("cargo::warning=without OpenZFS's queue: {why}");
        }
        Err(error) => {
            println!("cargo::rustc-env=WITHOUT_OPENZFS=no C compiler: {compiler}: {error}");
            println!("cargo::warning=without OpenZFS's queue: {compiler}: {error}");
        }
    }
}
