//! gzip-1 to gzip-9: zlib streams (RFC 1950; no gzip header).

use flate2::{Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::CompressError;

const NAME: &str = "gzip";

/// The decoder and the latest encoder with its level.
#[derive(Default)]
pub(super) struct Scratch {
    decoder: Option<Decompress>,
    encoder: Option<(u32, flate2::Compress)>,
}

impl Scratch {
    /// Fills `target`.
    pub(super) fn decompress(&mut self, source: &[u8], target: &mut [u8]) -> Result<(), CompressError> {
        let decoder = self.decoder.get_or_insert_with(|| Decompress::new(true));
        decoder.reset(true);
        let status = decoder
            .decompress(source, target, FlushDecompress::Finish)
            .map_err(|_| CompressError::Corrupt { algorithm: NAME, rule: "not a valid zlib stream" })?;
        let found_bytes = decoder.total_out();
        let expected_bytes = target.len() as u64;
        match status {
            Status::StreamEnd if found_bytes == expected_bytes => Ok(()),
            Status::StreamEnd => Err(CompressError::WrongSize { algorithm: NAME, found_bytes, expected_bytes }),
            _ if found_bytes < expected_bytes => Err(CompressError::Truncated { algorithm: NAME }),
            _ => Err(CompressError::Corrupt { algorithm: NAME, rule: "the stream does not end with the block" }),
        }
    }

    /// Encodes `source` in at most `target_max` bytes.
    ///
    /// An encoder that has not come to the end of its stream is given up: of level 1 `reset` leaves a block open (zlib-rs 0.6.8),
    /// and the next stream would lack its beginning.
    pub(super) fn compress(&mut self, level: u32, source: &[u8], target_max: usize) -> Option<Vec<u8>> {
        if self.encoder.as_ref().is_none_or(|(has_level, _)| *has_level != level) {
            self.encoder = Some((level, flate2::Compress::new(Compression::new(level), true)));
        }
        let (_, encoder) = self.encoder.as_mut()?;
        encoder.reset();
        let mut out = vec![0; target_max];
        match encoder.compress(source, &mut out, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => {
                out.truncate(usize::try_from(encoder.total_out()).ok()?);
                Some(out)
            }
            _ => {
                self.encoder = None;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_zlib_stream_decodes_with_padding_after_it() {
        // Header, one stored block of 3 bytes, Adler-32 of "abc", padding.
        let source = [0x78, 0x01, 1, 3, 0, 0xfc, 0xff, b'a', b'b', b'c', 0x02, 0x4d, 0x01, 0x27, 0, 0, 0];
        let mut target = [0; 3];
        let mut scratch = Scratch::default();
        scratch.decompress(&source, &mut target).unwrap();
        assert_eq!(&target, b"abc");
        assert!(matches!(scratch.decompress(&source, &mut [0; 4]), Err(CompressError::WrongSize { .. })));
        assert!(scratch.decompress(&source, &mut [0; 2]).is_err());
        assert!(matches!(scratch.decompress(&source[..8], &mut target), Err(CompressError::Truncated { .. })));
        assert!(scratch.decompress(&source[..12], &mut target).is_err());
    }
    #[test]
    fn a_block_that_does_not_become_smaller_leaves_no_trace_in_the_next() {
        // More than the encoder keeps before it hands anything out.
        let mut state = 1_u64;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        });
        let noise: Vec<u8> = noise.take(128 << 10).collect();
        let text = b"words, and the same words again; words, and the same words again".repeat(40);
        for level in 1..=9 {
            let expected = Scratch::default().compress(level, &text, text.len()).unwrap();
            let mut scratch = Scratch::default();
            for target_max in [0, 1, 63, 4096, 112 << 10] {
                assert_eq!(scratch.compress(level, &noise, target_max), None);
                let packed = scratch.compress(level, &text, text.len()).unwrap();
                assert!(packed == expected, "gzip-{level} after {target_max} bytes");
                let mut target = vec![0; text.len()];
                scratch.decompress(&packed, &mut target).unwrap();
                assert!(target == text, "gzip-{level} after {target_max} bytes");
            }
        }
    }
}
