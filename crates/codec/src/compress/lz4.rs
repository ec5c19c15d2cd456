//! LZ4: a big-endian length, then one LZ4 block.

use lz4_flex::block::{self, CompressTable};

use super::CompressError;

const NAME: &str = "lz4";
const HEADER_BYTES: usize = 4;

/// Fills `target`.
pub(super) fn decompress(source: &[u8], target: &mut [u8]) -> Result<(), CompressError> {
    let (header, rest) =
        source.split_first_chunk::<HEADER_BYTES>().ok_or(CompressError::Truncated { algorithm: NAME })?;
    let block = usize::try_from(u32::from_be_bytes(*header))
        .ok()
        .and_then(|len| rest.get(..len))
        .ok_or(CompressError::Corrupt { algorithm: NAME, rule: "the length in front exceeds the data" })?;
    let found = block::decompress_into(block, target)
        .map_err(|_| CompressError::Corrupt { algorithm: NAME, rule: "not a valid LZ4 block of this size" })?;
    if found != target.len() {
        return Err(CompressError::WrongSize {
            algorithm: NAME,
            found_bytes: found as u64,
            expected_bytes: target.len() as u64,
        });
    }
    Ok(())
}

/// The encoder's tables and its output, which must have room for the worst case.
#[derive(Default)]
pub(super) struct Scratch {
    small: Option<CompressTable>,
    large: Option<CompressTable>,
    output: Vec<u8>,
}

impl Scratch {
    /// Frees the output buffer if larger than this.
    pub(super) fn trim(&mut self, max_bytes: usize) {
        if self.output.capacity() > max_bytes {
            self.output = Vec::new();
        }
    }

    /// Encodes `source` in at most `target_max` bytes.
    pub(super) fn compress(&mut self, source: &[u8], target_max: usize) -> Option<Vec<u8>> {
        // The large table serves every size but costs more to clear.
        let table = if source.len() < usize::from(u16::MAX) {
            self.small.get_or_insert_with(CompressTable::small)
        } else {
            self.large.get_or_insert_with(CompressTable::large)
        };
        let worst = block::get_maximum_output_size(source.len());
        if self.output.len() < worst {
            self.output.resize(worst, 0);
        }
        let len = block::compress_into_with_table(source, &mut self.output, table).ok()?;
        if HEADER_BYTES + len > target_max {
            return None;
        }
        let mut out = Vec::with_capacity(HEADER_BYTES + len);
        out.extend_from_slice(&u32::try_from(len).ok()?.to_be_bytes());
        out.extend_from_slice(&self.output[..len]);
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_made_blocks_decode_as_the_format_says() {
        // Token: 1 literal, match of 4 + 5; offset 1; then the last literals, 5 of them.
        let source = [0, 0, 0, 10, 0x15, b'a', 1, 0, 0x50, b'1', b'2', b'3', b'4', b'5', 0, 0];
        let mut target = [0; 15];
        decompress(&source, &mut target).unwrap();
        assert_eq!(&target, b"aaaaaaaaaa12345");
        assert!(matches!(decompress(&source, &mut [0; 16]), Err(CompressError::WrongSize { .. })));
        assert!(matches!(decompress(&source, &mut [0; 14]), Err(CompressError::Corrupt { .. })));
        assert!(matches!(decompress(&source[..13], &mut target), Err(CompressError::Corrupt { .. })));
        assert!(matches!(decompress(&source[..3], &mut target), Err(CompressError::Truncated { .. })));
    }
}
