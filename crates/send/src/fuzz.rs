//! Bodies of the fuzz targets: each takes arbitrary bytes and must return.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use cenote_codec::compress::CompressLevel;
use cenote_format::enums::Compress;

use crate::rewrite::{Target, decompress, drop_records, in_turn, recompress, redup, redup::ReadAt};
use crate::{Checks, DumpOptions, StreamReader, dump};

/// The input again, for `redup`.
struct Again<'a>(&'a [u8]);

impl ReadAt for Again<'_> {
    fn read_at(&self, target: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        let from = usize::try_from(offset_bytes).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let end = from.checked_add(target.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        target.copy_from_slice(self.0.get(from..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Reads a stream with all checks and with none, dumps it, and rewrites it.
pub fn stream(input: &[u8]) {
    for checks in [Checks::ALL, Checks { record_checksums: false, structure: false }] {
        if let Ok(account) = StreamReader::new(input, checks).drain() {
            assert!(account.stream_bytes <= input.len() as u64);
        }
    }
    let options = DumpOptions { contents: true, ignore_checksums: true, ..DumpOptions::default() };
    let _ = dump(input, &options, std::io::sink());
    let _ = dump(input, &DumpOptions { verbose: true, ..DumpOptions::default() }, std::io::sink());
    let blocks = [(1, 0), (2, 0), (8, 512)];
    let _ = decompress(
        input,
        io::sink(),
        &blocks.map(|place| (place, Compress::Lz4)).into_iter().collect::<BTreeMap<_, _>>(),
        |_, _| {},
    );
    let _ = drop_records(input, io::sink(), &blocks.into_iter().collect::<BTreeSet<_>>(), |_, _| {});
    for kind in [Compress::Lz4, Compress::Off] {
        let target = Target { kind, level: CompressLevel::DEFAULT };
        let _ = recompress(input, io::sink(), &target, &in_turn);
    }
    let _ = redup(input, &Again(input), io::sink());
}
