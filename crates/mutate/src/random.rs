//! Numbers from a seed, and the numbers that break programs.

/// SplitMix64: small, and a stream of its own for every seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream that `seed` stands for.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.word()) * bound as u128) >> 64) as usize
    }

    /// True once in `count` times.
    pub fn once_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// One of a list that is not empty.
    pub fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    /// A hostile number to put in place of `old`.
    pub fn hostile(&mut self, old: u64) -> u64 {
        match self.below(10) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.below(64),
            3 => (1_u64 << self.below(64)).wrapping_sub(1),
            4 => (1_u64 << self.below(64)).wrapping_add(1),
            5 => old.wrapping_add(1),
            6 => old.wrapping_sub(1),
            7 => old ^ (1 << self.below(64)),
            // Object numbers, block numbers, lengths are small.
            8 => self.below(512) as u64,
            _ => self.word() >> self.below(64),
        }
    }
}

/// Changes bytes in place, mostly where they are not zero: what is zero is mostly not used.
pub fn spoil(bytes: &mut [u8], random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    let at = used_place(bytes, random);
    let len = bytes.len();
    match random.below(12) {
        0..=1 => bytes[at] ^= 1 << random.below(8),
        2 => bytes[at] = random.hostile(u64::from(bytes[at])) as u8,
        3..=7 => {
            let width = *random.of(&[2_usize, 4, 8, 8]);
            let at = at - at % width;
            let Some(field) = bytes.get_mut(at..at + width) else { return };
            let mut word = [0; 8];
            word[..width].copy_from_slice(field);
            let little = random.hostile(u64::from_le_bytes(word)).to_le_bytes();
            field.copy_from_slice(&little[..width]);
        }
        8 => {
            // A word of this block in another place.
            let (from, to) = (used_place(bytes, random) & !7, at & !7);
            if from + 8 <= len && to + 8 <= len {
                bytes.copy_within(from..from + 8, to);
            }
        }
        9 => {
            let count = (1 + random.below(64)).min(len - at);
            let fill = *random.of(&[0, 0xff, 0x55, 1]);
            bytes[at..at + count].fill(fill);
        }
        10 => {
            let count = 1 << random.below(10);
            let (from, to) = (random.below(len), at);
            let count = count.min(len - from).min(len - to);
            bytes.copy_within(from..from + count, to);
        }
        _ => {
            let count = (1 + random.below(32)).min(len - at);
            for byte in &mut bytes[at..at + count] {
                *byte = random.word() as u8;
            }
        }
    }
}

fn used_place(bytes: &[u8], random: &mut Random) -> usize {
    let mut at = random.below(bytes.len());
    for _ in 0..16 {
        if bytes[at] != 0 {
            break;
        }
        at = random.below(bytes.len());
    }
    at
}
