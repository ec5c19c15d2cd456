//! The simulation's random numbers: small, fast, the same on every machine. Not for keys.

/// A xoshiro256++ generator (public domain, Blackman and Vigna).
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator that `seed` stands for.
    pub fn new(seed: u64) -> Rng {
        // SplitMix64 spreads the seed over the state, as the generator's authors advise.
        let mut mix = seed;
        let mut next = || {
            mix = mix.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut word = mix;
            word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            word ^ (word >> 31)
        };
        Rng { state: [next(), next(), next(), next()] }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let mut state = [a, b, c ^ a, d ^ b];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= b << 17;
        state[3] = state[3].rotate_left(45);
        self.state = state;
        result
    }

    /// A number below `bound`, or 0 when that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of a product is even enough for schedules.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True `numerator` times in `denominator`.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}
