//! Goal: a property's value takes effect on what is written, and not only on what `zfs get` shows. Method: pools made here, written to
//! by the program, and what is on disk looked at by the program and, where it is installed, by OpenZFS's `zdb`.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::path::Path;

use common::good;
use common::images::Images;

/// A folder with one file, of which every algorithm makes less: letters and zeros in turns.
fn compressible(at: &Path) -> String {
    std::fs::create_dir(at).unwrap();
    let content: Vec<u8> = (0..1 << 20).map(|at| if at % 4096 < 512 { b'a' } else { 0 }).collect();
    std::fs::write(at.join("file"), content).unwrap();
    at.to_str().unwrap().to_owned()
}

#[test]
fn compression_compresses_whether_its_level_is_named_or_not() {
    let images = Images::made(&[], 1, &["-O", "compression=zstd"]);
    let source = compressible(&images.cache.path().join("source"));
    let referenced = |name: &str| -> u64 {
        images.run("zfs", &["get", "-Hpo", "value", "referenced", name]).trim().parse().unwrap()
    };
    good(images.command("put", &["mine"]).arg(&source));
    assert!(referenced("mine") < 300 << 10, "zstd of the pool's root: {}", referenced("mine"));
    for (word, is_less) in [
        ("on", true),
        ("gzip", true),
        ("zstd", true),
        ("zstd-fast", true),
        ("zstd-3", true),
        ("lz4", true),
        ("off", false),
    ] {
        let name = format!("mine/{word}");
        images.run("zfs", &["create", "-o", &format!("compression={word}"), &name]);
        good(images.command("put", &[&name]).arg(&source));
        let bytes = referenced(&name);
        assert_eq!(bytes < 300 << 10, is_less, "{word}: {bytes}");
    }
    images.assert_whole();
}
