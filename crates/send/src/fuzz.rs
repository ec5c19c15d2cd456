//! Bodies of the fuzz targets: each takes arbitrary bytes and must return.

use crate::{Checks, DumpOptions, StreamReader, dump};

/// A stream, with all checks and with none, and its dump.
pub fn stream(input: &[u8]) {
    for checks in [Checks::ALL, Checks { record_checksums: false, structure: false }] {
        if let Ok(account) = StreamReader::new(input, checks).drain() {
            assert!(account.stream_bytes <= input.len() as u64);
        }
    }
    let options = DumpOptions { contents: true, ignore_checksums: true, ..DumpOptions::default() };
    let _ = dump(input, &options, std::io::sink());
    let _ = dump(input, &DumpOptions { verbose: true, ..DumpOptions::default() }, std::io::sink());
}
