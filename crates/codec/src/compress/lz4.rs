//! LZ4: a big-endian length, then one LZ4 block.

use lz4_flex::block::{self, CompressTable};

use super::CompressError;

const NAME: &str = "lz4";
const HEADER_BYTES: usize = 4;

/// Bytes that are copied at once where there is room behind them, whatever is needed: a copy of a fixed size is two instructions.
const WILD_BYTES: usize = 16;
/// The shortest match, which a token's 0 stands for.
const MATCH_MIN: usize = 4;
/// A token's half that says that more bytes of the length follow.
const MORE: usize = 15;

const fn corrupt(rule: &'static str) -> CompressError {
    CompressError::Corrupt { algorithm: NAME, rule }
}

/// Fills `target`.
pub(super) fn decompress(source: &[u8], target: &mut [u8]) -> Result<(), CompressError> {
    let (header, rest) =
        source.split_first_chunk::<HEADER_BYTES>().ok_or(CompressError::Truncated { algorithm: NAME })?;
    let block = usize::try_from(u32::from_be_bytes(*header))
        .ok()
        .and_then(|len| rest.get(..len))
        .ok_or(corrupt("the length in front exceeds the data"))?;
    let found = decompress_block(block, target)?;
    if found != target.len() {
        return Err(CompressError::WrongSize {
            algorithm: NAME,
            found_bytes: found as u64,
            expected_bytes: target.len() as u64,
        });
    }
    Ok(())
}

/// Decodes one LZ4 block: sequences of a token, literals, and a match, of which the last has no match. The number of bytes that it has.
///
/// A match that overlaps itself is a period that is repeated: zeros, and tables of alike entries, of which metadata has many. It is copied
/// in steps that double, not byte by byte.
fn decompress_block(block: &[u8], target: &mut [u8]) -> Result<usize, CompressError> {
    const ENDS: CompressError = corrupt("the block ends within a sequence");
    const EXCEEDS: CompressError = corrupt("the block has more than its size");
    let (mut at, mut done) = (0, 0);
    loop {
        let token = usize::from(*block.get(at).ok_or(ENDS)?);
        at += 1;
        let mut literals = token >> 4;
        if literals == MORE {
            literals = length(literals, block, &mut at).ok_or(ENDS)?;
        }
        if literals <= WILD_BYTES
            && let (Some(from), Some(to)) = (wild(block, at), wild_mut(target, done))
        {
            *to = *from;
        } else {
            let from = block.get(at..).and_then(|rest| rest.get(..literals)).ok_or(ENDS)?;
            target.get_mut(done..).and_then(|rest| rest.get_mut(..literals)).ok_or(EXCEEDS)?.copy_from_slice(from);
        }
        (at, done) = (at + literals, done + literals);
        if at == block.len() {
            return Ok(done);
        }
        let back = block.get(at..).and_then(|rest| rest.first_chunk()).ok_or(ENDS)?;
        let back = usize::from(u16::from_le_bytes(*back));
        at += 2;
        let mut matched = token & MORE;
        if matched == MORE {
            matched = length(matched, block, &mut at).ok_or(ENDS)?;
        }
        matched += MATCH_MIN;
        let start = done.checked_sub(back).filter(|_| back > 0).ok_or(corrupt("a match begins before the block"))?;
        if matched > target.len() - done {
            return Err(EXCEEDS);
        }
        if matched <= WILD_BYTES && back >= WILD_BYTES && done + WILD_BYTES <= target.len() {
            target.copy_within(start..start + WILD_BYTES, done);
            done += matched;
            continue;
        }
        let end = done + matched;
        while done < end {
            // All from the start on is the period, so often as it is there by now.
            let step = (done - start).min(end - done);
            target.copy_within(start..start + step, done);
            done += step;
        }
    }
}

fn wild(bytes: &[u8], at: usize) -> Option<&[u8; WILD_BYTES]> {
    bytes.get(at..)?.first_chunk()
}

fn wild_mut(bytes: &mut [u8], at: usize) -> Option<&mut [u8; WILD_BYTES]> {
    bytes.get_mut(at..)?.first_chunk_mut()
}

/// The rest of a length: bytes are added up to the first that is not 255. `None` where the block ends before.
fn length(first: usize, block: &[u8], at: &mut usize) -> Option<usize> {
    let mut length = first;
    loop {
        let byte = *block.get(*at)?;
        *at += 1;
        // No sum of the bytes of a block is too large: it has fewer than 2^32 of them.
        length += usize::from(byte);
        if byte != u8::MAX {
            return Some(length);
        }
    }
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

    /// Content with periods of all lengths, literals of all lengths, and noise.
    fn content(seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(2).wrapping_add(1);
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut bytes = Vec::new();
        for _ in 0..draw(40) {
            let below = [2, 20, 300][draw(3) as usize];
            let period = draw(below) as usize;
            let literals: Vec<u8> = (0..=period).map(|_| draw(256) as u8).collect();
            let below = [2, 30, 1000][draw(3) as usize];
            let times = 1 + draw(below) as usize;
            bytes.extend(literals.iter().cycle().take((literals.len() * times).min(20_000)));
        }
        bytes
    }

    #[test]
    fn what_the_encoder_makes_is_decoded_and_no_other_size_fits() {
        for seed in 0..400 {
            let bytes = content(seed);
            let packed = Scratch::default().compress(&bytes, usize::MAX).unwrap();
            let mut target = vec![0xee; bytes.len()];
            decompress(&packed, &mut target).unwrap();
            assert_eq!(target, bytes, "seed {seed}");
            let longer = decompress(&packed, &mut vec![0; bytes.len() + 1]);
            assert!(matches!(longer, Err(CompressError::WrongSize { .. })), "seed {seed}: {longer:?}");
            if !bytes.is_empty() {
                assert!(decompress(&packed, &mut vec![0; bytes.len() - 1]).is_err(), "seed {seed}");
            }
        }
    }

    /// Hostile blocks: the answer is the one of another decoder, where that has one.
    #[test]
    fn damaged_blocks_are_decoded_as_another_decoder_does() {
        let (mut taken, mut refused) = (0, 0);
        for seed in 0..4000_u64 {
            let bytes = content(seed % 400);
            let mut packed = Scratch::default().compress(&bytes, usize::MAX).unwrap();
            let at = HEADER_BYTES
                + (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) as usize % (packed.len() - HEADER_BYTES);
            packed[at] ^= 1 << (seed % 8);
            let (mut ours, mut theirs) = (vec![0; bytes.len()], vec![0; bytes.len()]);
            let found = decompress_block(&packed[HEADER_BYTES..], &mut ours);
            let expected = block::decompress_into(&packed[HEADER_BYTES..], &mut theirs);
            match (found, expected) {
                (Ok(found), Ok(expected)) => {
                    taken += 1;
                    assert_eq!(found, expected, "seed {seed}");
                    assert_eq!(ours[..found], theirs[..found], "seed {seed}");
                }
                (Err(_), Err(_)) => refused += 1,
                (ours, theirs) => panic!("seed {seed}: {ours:?}, and another decoder {theirs:?}"),
            }
        }
        assert!(taken > 500 && refused > 500, "{taken} taken, {refused} refused");
    }
}
