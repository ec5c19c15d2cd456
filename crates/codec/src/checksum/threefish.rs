//! Threefish-512, the tweakable block cipher inside Skein.
//!
//! 72 rounds over eight words; before every fourth round, and at the end, a subkey is added. A round mixes four pairs of
//! words; which words pair up follows a permutation that comes back to itself after four rounds, so that four rounds
//! with fixed pairs make one step and no word ever moves.
//!
//! Source: "The Skein Hash Function Family", version 1.3, section 3.3. (The crate of that name is the twin in the tests;
//! it writes out all subkeys of each key first, at half the speed when a key is used once.)

/// Rounds between two subkeys.
const STEP_ROUNDS: usize = 4;
/// Subkeys added: one before each step and one after the last.
const SUBKEY_COUNT: usize = 72 / STEP_ROUNDS + 1;
/// The parity constant that completes the key schedule.
const KEY_PARITY: u64 = 0x1bd1_1bda_a9fc_1a22;

/// The pairs of words mixed in each round of a step.
const PAIRS: [[(usize, usize); 4]; STEP_ROUNDS] = [
    [(0, 1), (2, 3), (4, 5), (6, 7)],
    [(2, 1), (4, 7), (6, 5), (0, 3)],
    [(4, 1), (6, 3), (0, 5), (2, 7)],
    [(6, 1), (0, 7), (2, 5), (4, 3)],
];

/// How far each pair is rotated in each round, for even and odd steps.
const ROTATIONS: [[[u32; 4]; STEP_ROUNDS]; 2] = [
    [[46, 36, 19, 37], [33, 27, 14, 42], [17, 49, 36, 39], [44, 9, 54, 56]],
    [[39, 30, 34, 24], [13, 50, 10, 17], [25, 29, 39, 43], [8, 35, 56, 22]],
];

/// Encrypts `block` under `key` and `tweak`.
#[inline]
pub(super) fn encrypt(key: &[u64; 8], tweak: [u64; 2], block: &[u64; 8]) -> [u64; 8] {
    // The schedule walks round the nine key words and the three tweak words; written out often enough, it is a window.
    let key_words: [u64; 9] =
        std::array::from_fn(|i| key.get(i).copied().unwrap_or_else(|| key.iter().fold(KEY_PARITY, |a, b| a ^ b)));
    let keys: [u64; SUBKEY_COUNT + 7] = std::array::from_fn(|i| key_words[i % 9]);
    let tweak_words = [tweak[0], tweak[1], tweak[0] ^ tweak[1]];
    let tweaks: [u64; SUBKEY_COUNT + 1] = std::array::from_fn(|i| tweak_words[i % 3]);
    let mut words = *block;
    let add_subkey = |words: &mut [u64; 8], index: usize| {
        for i in 0..8 {
            words[i] = words[i].wrapping_add(keys[index + i]);
        }
        words[5] = words[5].wrapping_add(tweaks[index]);
        words[6] = words[6].wrapping_add(tweaks[index + 1]);
        words[7] = words[7].wrapping_add(index as u64);
    };
    for step in (0..SUBKEY_COUNT - 1).step_by(2) {
        add_subkey(&mut words, step);
        mix(&mut words, &ROTATIONS[0]);
        add_subkey(&mut words, step + 1);
        mix(&mut words, &ROTATIONS[1]);
    }
    add_subkey(&mut words, SUBKEY_COUNT - 1);
    words
}

/// Four rounds.
#[inline(always)]
fn mix(words: &mut [u64; 8], rotations: &[[u32; 4]; STEP_ROUNDS]) {
    for (pairs, rotations) in PAIRS.iter().zip(rotations) {
        for (&(a, b), rotation) in pairs.iter().zip(rotations) {
            words[a] = words[a].wrapping_add(words[b]);
            words[b] = words[b].rotate_left(*rotation) ^ words[a];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_threefish_crate() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state ^ state >> 29
        };
        for _ in 0..200 {
            let key = std::array::from_fn(|_| next());
            let tweak = [next(), next()];
            let block = std::array::from_fn(|_| next());
            let mut expected = block;
            threefish::Threefish512::new_with_tweak_u64(&key, &tweak).encrypt_block_u64(&mut expected);
            assert_eq!(encrypt(&key, tweak, &block), expected);
        }
    }
}
