//! ZLE, zero-length encoding: runs of zeros shrink, all else stays.
//!
//! ```text
//! length byte B:  B <  64   B + 1 literal bytes follow
//!                 B >= 64   B - 63 zeros (1..=192)
//! ```

use super::CompressError;

const NAME: &str = "zle";
/// Longest literal run. A parameter of the algorithm in OpenZFS, 64 in every pool.
const LITERALS_MAX: usize = 64;
const ZEROS_MAX: usize = 256 - LITERALS_MAX;

/// Fills `target`.
pub(super) fn decompress(source: &[u8], target: &mut [u8]) -> Result<(), CompressError> {
    let mut source = source;
    let mut target = target;
    while !target.is_empty() {
        let (&control, rest) = source.split_first().ok_or(CompressError::Truncated { algorithm: NAME })?;
        let control = usize::from(control);
        let is_literal = control < LITERALS_MAX;
        let run = if is_literal { control + 1 } else { control + 1 - LITERALS_MAX };
        let (head, tail) = target
            .split_at_mut_checked(run)
            .ok_or(CompressError::Corrupt { algorithm: NAME, rule: "run past the end of the block" })?;
        if is_literal {
            let (literals, rest) = rest.split_at_checked(run).ok_or(CompressError::Truncated { algorithm: NAME })?;
            head.copy_from_slice(literals);
            source = rest;
        } else {
            head.fill(0);
            source = rest;
        }
        target = tail;
    }
    Ok(())
}

/// Encodes `source` in at most `target_max` bytes.
pub(super) fn compress(source: &[u8], target_max: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(target_max);
    let mut rest = source;
    while !rest.is_empty() {
        let zeros = rest.iter().take(ZEROS_MAX).take_while(|byte| **byte == 0).count();
        let run = if zeros > 0 {
            out.push((zeros - 1 + LITERALS_MAX) as u8);
            zeros
        } else {
            // A lone zero costs less inside the literals than as a run of its own; two end them.
            let limit = rest.len().min(LITERALS_MAX);
            let run = rest[..limit].windows(2).position(|pair| pair == [0, 0]).unwrap_or(limit);
            out.push((run - 1) as u8);
            out.extend_from_slice(&rest[..run]);
            run
        };
        if out.len() > target_max {
            return None;
        }
        rest = &rest[run..];
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_made_streams_decode_as_the_format_says() {
        let mut target = [9; 6];
        decompress(&[1, b'a', b'b', 64 + 2, 0, b'c', 99], &mut target).unwrap();
        assert_eq!(&target, b"ab\0\0\0c");
        assert!(matches!(decompress(&[70], &mut target), Err(CompressError::Corrupt { .. })));
        assert!(matches!(decompress(&[5, 1, 2], &mut target), Err(CompressError::Truncated { .. })));
        assert!(matches!(decompress(&[0, 1], &mut target), Err(CompressError::Truncated { .. })));
    }

    #[test]
    fn the_longest_runs_use_the_whole_length_byte() {
        let mut source = vec![0; 192];
        source.extend([7; 64]);
        let packed = compress(&source, 256).unwrap();
        assert_eq!(packed.len(), 1 + 1 + 64);
        assert_eq!(&packed[..3], &[255, 63, 7]);
    }
}
