//! Goal: the fuzz targets hold on stable, in every test run. Method: valid inputs, then mutations of them and random bytes
//! from a fixed seed: bits flipped, fields set to extremes, pieces copied, ends cut. Faults caught: a panic, a hang,
//! or a value that does not survive being emitted, found only by a fuzzer that nobody runs.
//! `fuzz/` runs the same bodies for longer, from inputs that were once of interest.

use cenote_format::fuzz::{TARGETS, Target};

/// xorshift64*: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Values that sit at the edges of fields.
const EXTREMES: [u64; 9] =
    [0, 1, 2, 0x7f, 0xff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, 0xffff_ffff_ffff_ffff];

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => {
                let width = [1, 2, 4, 8][random.below(4)];
                let value = EXTREMES[random.below(EXTREMES.len())];
                let mut field = if random.below(2) == 0 { value.to_le_bytes() } else { value.to_be_bytes() };
                if random.below(2) == 0 {
                    field.rotate_right(8 - width);
                }
                let at = at / width * width;
                let end = (at + width).min(bytes.len());
                bytes[at..end].copy_from_slice(&field[..end - at]);
            }
            3 => {
                let from = random.below(bytes.len());
                let len = random.below((bytes.len() - from.max(at)).min(64));
                bytes.copy_within(from..from + len, at);
            }
            4 => bytes.truncate(at),
            _ => bytes.extend((0..random.below(64)).map(|_| random.next() as u8)),
        }
    }
}

fn targets() -> impl Iterator<Item = &'static Target> {
    TARGETS.iter().copied().flatten()
}

#[test]
fn targets_hold_on_their_seeds_and_mutations_of_them() {
    for target in targets() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        let bytes: usize = seeds.iter().map(Vec::len).sum::<usize>() / seeds.len();
        // The same effort for each target, whatever its input's size.
        let rounds = (4_000_000 / bytes.max(100)).min(20_000) / seeds.len();
        for seed in &seeds {
            (target.run)(seed);
            for _ in 0..rounds {
                let mut input = seed.clone();
                mutate(&mut input, &mut random);
                (target.run)(&input);
            }
            for cut in 0..seed.len().min(1024) {
                (target.run)(&seed[..cut]);
            }
        }
        for _ in 0..500 {
            let input: Vec<u8> = (0..random.below(1200)).map(|_| random.next() as u8).collect();
            (target.run)(&input);
        }
    }
}
