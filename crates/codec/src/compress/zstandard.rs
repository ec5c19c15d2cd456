//! zstd: ZFS's header, then one frame without its magic number, content size and checksum.
//!
//! ```text
//! +0  u32 BE   bytes of the frame (what follows it is padding)
//! +4  u8       level, as [`CompressLevel`] numbers them
//! +5  u24 BE   version of the library that wrote it: 10405 is 1.4.5
//! ```
//!
//! Early writers laid a C bit field over the last four bytes, so on big-endian machines they came out the other way
//! round: version first, level last. Since the version's top byte is 0 in every release and the level never is, the
//! place of the zero byte tells which layout it is.

use zstd::zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat, ResetDirective};

use super::{CompressError, CompressLevel};

const NAME: &str = "zstd";

/// Bytes of [`ZstdHeader`].
pub(crate) const ZSTD_HEADER_BYTES: usize = 8;

/// The header in front of a zstd frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZstdHeader {
    /// Bytes of the frame.
    pub frame_bytes: u32,
    /// The level it was written with.
    pub level: CompressLevel,
    /// The zstd library's version number (major * 10000 + minor * 100 + patch).
    pub version: u32,
}

impl ZstdHeader {
    /// Reads either layout. `None` if there are too few bytes; a level that does not exist is left to the caller.
    #[must_use]
    pub fn parse(source: &[u8]) -> Option<Self> {
        let [l0, l1, l2, l3, b4, b5, b6, b7] = *source.first_chunk::<ZSTD_HEADER_BYTES>()?;
        let word = [b4, b5, b6, b7];
        // OpenZFS looks for the zero from the low end; all four places are defined though two are ever written.
        let (level, version) = match word.iter().rposition(|byte| *byte == 0) {
            Some(1) => (b4, [b5, b6, b7]),
            Some(0) => (b7, [b4, b5, b6]),
            Some(3) => (b4, [b7, b6, b5]),
            Some(2) => (b7, [b6, b5, b4]),
            _ => (0, [0; 3]),
        };
        Some(Self {
            frame_bytes: u32::from_be_bytes([l0, l1, l2, l3]),
            level: CompressLevel(level),
            version: u32::from_be_bytes([0, version[0], version[1], version[2]]),
        })
    }

    /// The bytes, in the one layout that is written today.
    #[must_use]
    fn emit(&self) -> [u8; ZSTD_HEADER_BYTES] {
        let [l0, l1, l2, l3] = self.frame_bytes.to_be_bytes();
        let [_, v1, v2, v3] = self.version.to_be_bytes();
        [l0, l1, l2, l3, self.level.0, v1, v2, v3]
    }
}

/// The library's contexts.
#[derive(Default)]
pub(super) struct Scratch {
    decoder: Option<DCtx<'static>>,
    encoder: Option<CCtx<'static>>,
}

impl Scratch {
    /// Frees the encoder if larger than this: at level 19 and 16 MiB blocks it takes about 80 MiB.
    pub(super) fn trim(&mut self, max_bytes: usize) {
        self.encoder.take_if(|encoder| encoder.sizeof() > max_bytes);
    }

    /// Fills `target`.
    pub(super) fn decompress(&mut self, source: &[u8], target: &mut [u8]) -> Result<(), CompressError> {
        let header = ZstdHeader::parse(source).ok_or(CompressError::Truncated { algorithm: NAME })?;
        // OpenZFS takes a level that does not exist as a sign of corruption, and so do we.
        if header.level.zstd_level_named().is_none() {
            return Err(CompressError::Corrupt { algorithm: NAME, rule: "the header's level does not exist" });
        }
        let frame = usize::try_from(header.frame_bytes)
            .ok()
            .and_then(|len| source[ZSTD_HEADER_BYTES..].get(..len))
            .ok_or(CompressError::Corrupt { algorithm: NAME, rule: "the length in the header exceeds the data" })?;
        let decoder = decoder(&mut self.decoder)?;
        // In one call the target serves as the window, so a frame that claims a huge one costs nothing.
        let found = decoder
            .decompress(target, frame)
            .map_err(|_| CompressError::Corrupt { algorithm: NAME, rule: "not a valid frame of this size" })?;
        if found != target.len() {
            return Err(CompressError::WrongSize {
                algorithm: NAME,
                found_bytes: found as u64,
                expected_bytes: target.len() as u64,
            });
        }
        Ok(())
    }

    /// Encodes `source` in at most `target_max` bytes.
    pub(super) fn compress(&mut self, level: CompressLevel, source: &[u8], target_max: usize) -> Option<Vec<u8>> {
        let level = level.resolved();
        let zstd_level = level.zstd_level()?;
        let room = target_max.checked_sub(ZSTD_HEADER_BYTES)?;
        if self.encoder.is_none() {
            self.encoder = CCtx::try_create();
        }
        let encoder = self.encoder.as_mut()?;
        encoder.reset(ResetDirective::SessionAndParameters).ok()?;
        for parameter in [
            CParameter::CompressionLevel(zstd_level),
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ChecksumFlag(false),
            CParameter::ContentSizeFlag(false),
        ] {
            encoder.set_parameter(parameter).ok()?;
        }
        let mut out = vec![0; ZSTD_HEADER_BYTES + room];
        let len = encoder.compress2(&mut out[ZSTD_HEADER_BYTES..], source).ok()?;
        let frame_bytes = u32::try_from(len).ok()?;
        let header = ZstdHeader { frame_bytes, level, version: zstd::zstd_safe::version_number() };
        out[..ZSTD_HEADER_BYTES].copy_from_slice(&header.emit());
        out.truncate(ZSTD_HEADER_BYTES + len);
        Some(out)
    }
}

/// The decoder in `place`, made if there is none.
fn decoder<'a>(place: &'a mut Option<DCtx<'static>>) -> Result<&'a mut DCtx<'static>, CompressError> {
    const NO_MEMORY: CompressError = CompressError::NoMemory { algorithm: NAME };
    if place.is_none() {
        let mut made = DCtx::try_create().ok_or(NO_MEMORY)?;
        made.set_parameter(DParameter::Format(FrameFormat::Magicless)).map_err(|_| NO_MEMORY)?;
        *place = Some(made);
    }
    place.as_mut().ok_or(NO_MEMORY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layouts_of_the_header_parse() {
        // The example of OpenZFS's header file: zstd 1.4.5 at level 3.
        for word in [[0x03, 0x00, 0x28, 0xa5], [0x00, 0x28, 0xa5, 0x03]] {
            let mut bytes = vec![0, 0, 0x12, 0x34];
            bytes.extend(word);
            let header = ZstdHeader::parse(&bytes).unwrap();
            assert_eq!(header, ZstdHeader { frame_bytes: 0x1234, level: CompressLevel(3), version: 10405 });
            assert_eq!(header.emit()[4..], [0x03, 0x00, 0x28, 0xa5]);
        }
        assert_eq!(ZstdHeader::parse(&[0; 7]), None);
    }

    #[test]
    fn frames_have_neither_magic_number_nor_content_size() {
        let packed = Scratch::default().compress(CompressLevel::DEFAULT, &[7; 4096], 4000).unwrap();
        assert_eq!(usize::try_from(ZstdHeader::parse(&packed).unwrap().frame_bytes).unwrap(), packed.len() - 8);
        assert_eq!(packed[4], 3);
        // Frame header descriptor: no content size, no checksum, no dictionary.
        assert_eq!(packed[8] & 0b1110_0111, 0);
    }

    #[test]
    fn a_large_encoder_is_freed_and_a_usual_one_kept() {
        let mut scratch = Scratch::default();
        let level = CompressLevel::zstd(19).unwrap();
        for (block_bytes, kept) in [(128 << 10, true), (4 << 20, false)] {
            assert!(scratch.compress(level, &vec![7; block_bytes], 4000).is_some());
            scratch.trim(crate::compress::TRIM_BYTES);
            assert_eq!(scratch.encoder.is_some(), kept, "{block_bytes}");
        }
    }

    #[test]
    fn a_level_that_does_not_exist_is_corruption() {
        let mut scratch = Scratch::default();
        let mut packed = scratch.compress(CompressLevel::DEFAULT, &[7; 4096], 4000).unwrap();
        let mut target = [0; 4096];
        scratch.decompress(&packed, &mut target).unwrap();
        packed[4] = 20;
        assert!(matches!(scratch.decompress(&packed, &mut target), Err(CompressError::Corrupt { .. })));
    }

    #[test]
    fn a_frame_that_claims_a_huge_window_needs_no_memory_for_it() {
        // No single segment; window descriptor for 2^41 bytes; one last RLE block of 16 bytes.
        let frame = [0x00, 31 << 3, 0x83, 0x00, 0x00, b'z'];
        let mut source = ZstdHeader { frame_bytes: 6, level: CompressLevel(1), version: 10507 }.emit().to_vec();
        source.extend(frame);
        let mut target = [0; 16];
        // The library may refuse the window or use the target for it; either way it must return.
        if Scratch::default().decompress(&source, &mut target).is_ok() {
            assert_eq!(target, [b'z'; 16]);
        }
    }
}
