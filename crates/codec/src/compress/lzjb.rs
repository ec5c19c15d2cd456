//! LZJB, ZFS's first compressor.
//!
//! ```text
//! control byte, lowest bit first, one bit an item of the next eight:
//!   0  one literal byte
//!   1  a match of two bytes:  LLLLLLOO OOOOOOOO   length L + 3 (3..=66), distance O (1..=1023)
//! ```

use super::CompressError;

const NAME: &str = "lzjb";
const LENGTH_MIN: usize = 3;
const LENGTH_MAX: usize = 66;
const DISTANCE_MAX: usize = 1023;
/// Entries of the encoder's table of recent positions; chosen to fit in the first-level cache.
const TABLE_BITS: u32 = 11;

/// Fills `target`.
pub(super) fn decompress(source: &[u8], target: &mut [u8]) -> Result<(), CompressError> {
    const TRUNCATED: CompressError = CompressError::Truncated { algorithm: NAME };
    let mut rest = source.iter();
    let mut at = 0;
    while at < target.len() {
        let control = *rest.next().ok_or(TRUNCATED)?;
        for bit in 0..8 {
            if at == target.len() {
                break;
            }
            let first = *rest.next().ok_or(TRUNCATED)?;
            if control & (1 << bit) == 0 {
                target[at] = first;
                at += 1;
                continue;
            }
            let second = *rest.next().ok_or(TRUNCATED)?;
            let distance = usize::from(first & 3) << 8 | usize::from(second);
            if distance == 0 || distance > at {
                return Err(CompressError::Corrupt { algorithm: NAME, rule: "match before the start of the block" });
            }
            // A match may run past the block's end; OpenZFS cuts it there and so do we.
            let end = (at + usize::from(first >> 2) + LENGTH_MIN).min(target.len());
            if distance >= end - at {
                target.copy_within(at - distance..end - distance, at);
            } else {
                // The match overlaps what it produces and repeats it.
                for to in at..end {
                    target[to] = target[to - distance];
                }
            }
            at = end;
        }
    }
    Ok(())
}

/// Encodes `source` in at most `target_max` bytes.
pub(super) fn compress(source: &[u8], target_max: usize) -> Option<Vec<u8>> {
    let mut recent = vec![0_u32; 1 << TABLE_BITS];
    let mut out = Vec::with_capacity(target_max);
    let mut at = 0;
    while at < source.len() {
        let control_at = out.len();
        let mut control = 0;
        out.push(0);
        for bit in 0..8 {
            let Some(rest) = source.get(at..).filter(|rest| !rest.is_empty()) else { break };
            let found = find_match(source, at, &mut recent);
            if let Some((distance, length)) = found {
                control |= 1 << bit;
                out.push(((length - LENGTH_MIN) << 2 | distance >> 8) as u8);
                out.push(distance as u8);
                at += length;
            } else {
                out.push(rest[0]);
                at += 1;
            }
        }
        out[control_at] = control;
        if out.len() > target_max {
            return None;
        }
    }
    Some(out)
}

/// The last place where the three bytes at `at` occurred, if near enough: (distance, length). Records `at`.
fn find_match(source: &[u8], at: usize, recent: &mut [u32]) -> Option<(usize, usize)> {
    let head = source.get(at..at + LENGTH_MIN)?;
    let key = u32::from(head[0]) << 16 | u32::from(head[1]) << 8 | u32::from(head[2]);
    // Fibonacci hashing: the multiplier is 2^32 over the golden ratio.
    let entry = &mut recent[(key.wrapping_mul(0x9e37_79b1) >> (32 - TABLE_BITS)) as usize];
    // Entries are positions plus one, 0 for none. Blocks are at most 16 MiB, so a position fits.
    let before = std::mem::replace(entry, at as u32 + 1).checked_sub(1)? as usize;
    let distance = at - before;
    if distance > DISTANCE_MAX || &source[before..before + LENGTH_MIN] != head {
        return None;
    }
    let more = source[at + LENGTH_MIN..].iter().zip(&source[before + LENGTH_MIN..]);
    let length = LENGTH_MIN + more.take(LENGTH_MAX - LENGTH_MIN).take_while(|(here, there)| here == there).count();
    Some((distance, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_made_streams_decode_as_the_format_says() {
        let mut target = [0; 10];
        // Literals a, b, c; then a match at distance 3 of length 7 that overlaps itself.
        decompress(&[0b1000, b'a', b'b', b'c', (7 - 3) << 2, 3], &mut target).unwrap();
        assert_eq!(&target, b"abcabcabca");
        // A match that runs past the end is cut.
        decompress(&[0b10, b'x', 63 << 2, 1], &mut target).unwrap();
        assert_eq!(&target, b"xxxxxxxxxx");
    }

    #[test]
    fn bad_distances_and_short_streams_are_errors() {
        let mut target = [0; 10];
        assert!(matches!(decompress(&[1, 0, 1], &mut target), Err(CompressError::Corrupt { .. })));
        assert!(matches!(decompress(&[2, b'a', 0, 0], &mut target), Err(CompressError::Corrupt { .. })));
        assert!(matches!(decompress(&[2, b'a', 0, 2], &mut target), Err(CompressError::Corrupt { .. })));
        for short in [&[][..], &[0], &[0, b'a'], &[2, b'a', 63 << 2]] {
            assert!(matches!(decompress(short, &mut target), Err(CompressError::Truncated { .. })));
        }
    }
}
