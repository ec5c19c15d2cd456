//! Made-up inputs from a seed.
//!
//! Formats of disks are made of big and little integers in fixed places, counts and lengths among them. So besides flipping
//! bits the mutations write integers that sit on edges, copy ranges over others, and cut.

use std::ops::RangeInclusive;

/// Longest input made from nothing.
pub const LEN_MAX: usize = 64 << 10;

/// Integers on edges: of widths, of block sizes, of signedness.
const EDGES: &[u64] = &[
    0,
    1,
    7,
    0x7f,
    0x80,
    0xff,
    0x1ff,
    0x200,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x2_0000,
    0x100_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_fff8,
    0xffff_ffff_ffff_ffff,
];

/// A source of numbers that follow from a seed (xorshift64*, after Vigna; quality is not the point, repetition is).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Random {
        // Zero is the one state that never leaves itself.
        Random(seed ^ 0x9e37_79b9_7f4a_7c15 | 1)
    }

    /// The next number.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.word() % end as u64) as usize
    }

    fn within(&mut self, range: RangeInclusive<usize>) -> usize {
        range.start() + self.below(range.end() - range.start() + 1)
    }
}

/// Bytes from nothing: random, or sparse with edges here and there.
pub fn invent(random: &mut Random) -> Vec<u8> {
    let len = match random.below(4) {
        0 => random.below(64),
        1 => random.below(512),
        2 => 1 << random.within(4..=16),
        _ => random.below(LEN_MAX),
    };
    let mut bytes = vec![0; len];
    if random.below(2) == 0 {
        for byte in &mut bytes {
            *byte = random.word() as u8;
        }
    } else {
        for _ in 0..1 + len / 64 {
            edge(&mut bytes, random);
        }
    }
    bytes
}

/// Changes bytes in one to eight ways.
pub fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..random.within(1..=8) {
        if bytes.is_empty() {
            bytes.push(random.word() as u8);
            continue;
        }
        let at = random.below(bytes.len());
        match random.below(8) {
            0 | 1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at] = random.word() as u8,
            3 | 4 => edge(bytes, random),
            5 => {
                let len = random.below(bytes.len() - at + 1).min(256);
                let from = random.below(bytes.len() - len + 1);
                bytes.copy_within(from..from + len, at);
            }
            6 => bytes.truncate(at),
            _ => {
                let len = random.below(bytes.len() - at + 1).min(64);
                bytes.drain(at..at + len);
            }
        }
    }
}

/// Writes an edge, or one away from it, of some width and order, mostly aligned to its width.
fn edge(bytes: &mut [u8], random: &mut Random) {
    let width = 1 << random.below(4);
    if bytes.len() < width {
        return;
    }
    let mut at = random.below(bytes.len() - width + 1);
    if random.below(4) != 0 {
        at -= at % width;
    }
    let value = EDGES[random.below(EDGES.len())].wrapping_add(random.below(3) as u64).wrapping_sub(1);
    let target = &mut bytes[at..at + width];
    if random.below(2) == 0 {
        target.copy_from_slice(&value.to_le_bytes()[..width]);
    } else {
        target.copy_from_slice(&value.to_be_bytes()[8 - width..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_inputs() {
        let run = || {
            let mut random = Random::new(7);
            let mut bytes = invent(&mut random);
            for _ in 0..1000 {
                mutate(&mut bytes, &mut random);
            }
            (bytes, random.word())
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn inputs_stay_within_their_bound() {
        let mut random = Random::new(1);
        for _ in 0..2000 {
            assert!(invent(&mut random).len() <= LEN_MAX);
        }
    }
}
