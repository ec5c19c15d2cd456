//! The host that writes pools, as labels name it: host id and name; and its clock.
//!
//! The host id is the number by which a pool's labels say whose it is.
//!
//! OpenZFS has one on both sides, and both are to agree. The kernel module takes its parameter `spl_hostid`, and where that is 0
//! the first four bytes of `/etc/hostid` in the machine's byte order; it shows the result in `/proc/sys/kernel/spl/hostid`. Its
//! programs read that file, and `/etc/hostid` themselves where the module is not loaded. Neither asks `gethostid(3)`, which makes
//! a number up from the network's address where there is no file. So a system without `/etc/hostid` has the id 0, as most have:
//! labels then have no host id at all, and `multihost=on` is refused, since two systems without one could not be told apart.
//!
//! The variable `ZFS_HOSTID` overrides all of it, for tests, as it does in OpenZFS's programs.

use std::path::Path;

use cenote_spa::{Clock, Host};

use crate::HostError;

/// Where the kernel module shows the host id that it uses.
const OF_MODULE: &str = "/proc/sys/kernel/spl/hostid";
/// The file that `zgenhostid` writes.
const FILE: &str = "/etc/hostid";

/// The host id; 0 if this system has none.
#[must_use]
pub fn host_id() -> u64 {
    find(std::env::var("ZFS_HOSTID").ok().as_deref(), Path::new(OF_MODULE), Path::new(FILE))
}

/// The clock that `SOURCE_DATE_EPOCH` asks for.
pub fn clock() -> Result<Clock, HostError> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => match text.parse() {
            Ok(time) => Ok(Clock::Fixed(time)),
            Err(_) => Err(HostError::Variable(format!("SOURCE_DATE_EPOCH is no number of seconds: '{text}'"))),
        },
        Err(_) => Ok(Clock::Now),
    }
}

/// The host that writes pools; one without a name of its own where the pool is to be made again elsewhere.
#[must_use]
pub fn host(is_repeatable: bool) -> Host {
    if is_repeatable {
        return Host { id: 0, name: "localhost".to_owned() };
    }
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Host { id: host_id(), name }
}

fn find(variable: Option<&str>, of_module: &Path, file: &Path) -> u64 {
    if let Some(text) = variable {
        return number(text.trim()) & u64::from(u32::MAX);
    }
    let shown = std::fs::read_to_string(of_module).unwrap_or_default();
    match u64::from_str_radix(shown.trim().trim_start_matches("0x"), 16).unwrap_or(0) & u64::from(u32::MAX) {
        0 => {}
        id => return id,
    }
    let bytes = std::fs::read(file).unwrap_or_default();
    let word = if cfg!(target_endian = "big") { u32::from_be_bytes } else { u32::from_le_bytes };
    bytes.first_chunk::<4>().map_or(0, |bytes| u64::from(word(*bytes)))
}

/// A number as C's `strtoull` reads it with base 0; 0 for what is none.
fn number(text: &str) -> u64 {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(text, 8),
        None => text.parse(),
    };
    parsed.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_comes_before_the_file_and_the_variable_before_both() {
        let dir = tempfile::tempdir().unwrap();
        let (module, file) = (dir.path().join("module"), dir.path().join("hostid"));
        assert_eq!(find(None, &module, &file), 0, "a system without either has none");
        std::fs::write(&file, [0x6d, 0x76, 0x7a]).unwrap();
        assert_eq!(find(None, &module, &file), 0, "three bytes are no host id");
        std::fs::write(&file, if cfg!(target_endian = "big") { *b"ozvm" } else { *b"mvzo" }).unwrap();
        assert_eq!(find(None, &module, &file), 0x6f7a_766d);
        std::fs::write(&module, "0\n").unwrap();
        assert_eq!(find(None, &module, &file), 0x6f7a_766d, "a module without one says 0");
        std::fs::write(&module, "00bab10c\n").unwrap();
        assert_eq!(find(None, &module, &file), 0x00ba_b10c);
        for (text, id) in
            [("0x10", 16), ("010", 8), ("10", 10), ("0", 0), ("nonsense", 0), ("0x1ffffffff", 0xffff_ffff)]
        {
            assert_eq!(find(Some(text), &module, &file), id, "{text}");
        }
    }
}
