//! Files with the keys of encrypted datasets.

use std::io::{self, Read};

use crate::error::{Context as _, Result, refused};

/// The maximum size of a key file.
const KEY_MAX_BYTES: u64 = 64 << 10;

/// The permission bits of a key file, if others may read it.
pub(super) fn mode_for_others(file: &str) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(file.strip_prefix("file://").unwrap_or(file)).ok()?;
    let mode = meta.mode() & 0o777;
    // A pipe or a terminal does not store a key.
    (meta.is_file() && mode & 0o044 != 0).then_some(mode)
}

/// Reads the bytes of a key file; `-` is standard input.
pub(super) fn key_bytes(file: &str) -> Result<Vec<u8>> {
    let file = file.strip_prefix("file://").unwrap_or(file);
    let (name, from): (_, Box<dyn Read>) = match file {
        "-" => ("standard input", Box::new(io::stdin().lock())),
        _ => (file, Box::new(std::fs::File::open(file).with_context(|| file)?)),
    };
    let mut bytes = Vec::new();
    from.take(KEY_MAX_BYTES + 1).read_to_end(&mut bytes).with_context(|| name)?;
    if bytes.len() as u64 > KEY_MAX_BYTES {
        return Err(refused(format!("{name} is no key: it has more than {} KiB", KEY_MAX_BYTES >> 10)));
    }
    Ok(bytes)
}
