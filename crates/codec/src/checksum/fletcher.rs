//! Fletcher-2 and Fletcher-4: running sums of running sums.
//!
//! ```text
//! fletcher4, over 32-bit words w:          fletcher2, over pairs of 64-bit words (w0, w1):
//!     a += w                                   a0 += w0     a1 += w1
//!     b += a                                   b0 += a0     b1 += a1
//!     c += b                               words: a0 a1 b0 b1
//!     d += c
//! words: a b c d                           all sums modulo 2^64
//! ```
//!
//! Bytes past the last whole word (pair) are not summed; blocks are multiples of 512 bytes, so there are none on disk.
//!
//! Unrolled, fletcher4's sums weigh the word that is `x`-th from the end (the last has `x` = 1) with 1, `x`,
//! `x(x+1)/2` and `x(x+1)(x+2)/6`. From this follow the two facts that the fast paths rest on: sums over two adjacent
//! pieces combine into the sum over both ([`Fletcher4::append`]), and words can be dealt to lanes, summed apart and
//! recombined ([`combine_lanes`](super::lanes::combine_lanes)).

use cenote_format::Endian;

use super::lanes::{tetrahedron, triangle};
use super::words::Words;
use crate::kernel::kernels;
use crate::simd;

/// Pieces shorter than this are summed by the portable kernel: recombining lanes costs more than it saves. Measured by
/// eye on a Xeon of 2023.
const VECTOR_SIZE_MIN: usize = 256;

/// Fletcher-4 in progress. Pieces may be of any length that is a multiple of 4, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fletcher4 {
    sums: Words,
}

/// Fletcher-2 in progress. Pieces may be of any length that is a multiple of 16, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fletcher2 {
    sums: Words,
}

/// Fletcher-4 of a whole block.
#[must_use]
pub fn fletcher4(data: &[u8], order: Endian) -> Words {
    let mut state = Fletcher4::default();
    state.update(data, order);
    state.finish()
}

/// Fletcher-2 of a whole block.
#[must_use]
pub(crate) fn fletcher2(data: &[u8], order: Endian) -> Words {
    let mut state = Fletcher2::default();
    state.update(data, order);
    state.finish()
}

impl Fletcher4 {
    /// Sums of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The sums of a piece that are known already.
    #[must_use]
    pub fn of(sums: Words) -> Self {
        Self { sums }
    }

    /// Sums another piece. A tail of fewer than 4 bytes is ignored, so only the last piece may have one.
    pub fn update(&mut self, data: &[u8], order: Endian) {
        self.update_with(Kernel::best(), data, None, order);
    }

    /// [`Self::update`] by a chosen kernel. With a target, which must be as long, it also copies the piece there, reading memory once.
    pub(crate) fn update_with(&mut self, kernel: Kernel, data: &[u8], mut target: Option<&mut [u8]>, order: Endian) {
        let mut done = 0;
        if let Choice::Simd(kernel) = kernel.0
            && data.len() >= VECTOR_SIZE_MIN
        {
            let (sums, summed) = kernel.run(data, target.as_deref_mut(), order);
            self.append(&Self { sums }, summed as u64 / 4);
            done = summed;
        }
        let rest = &data[done..];
        scalar4(&mut self.sums, rest, order);
        if let Some(target) = target {
            target[done..].copy_from_slice(rest);
        }
    }

    /// Appends the sums of a piece of `word_count` words that was summed apart.
    pub fn append(&mut self, piece: &Self, word_count: u64) {
        if self.sums == [0; 4] {
            self.sums = piece.sums;
            return;
        }
        let [a, b, c, d] = self.sums;
        let n = word_count;
        let (t2, t3) = (triangle(n), tetrahedron(n));
        let weighed = |x: u64, by: u64| x.wrapping_mul(by);
        self.sums = [
            a.wrapping_add(piece.sums[0]),
            b.wrapping_add(weighed(a, n)).wrapping_add(piece.sums[1]),
            c.wrapping_add(weighed(b, n)).wrapping_add(weighed(a, t2)).wrapping_add(piece.sums[2]),
            d.wrapping_add(weighed(c, n))
                .wrapping_add(weighed(b, t2))
                .wrapping_add(weighed(a, t3))
                .wrapping_add(piece.sums[3]),
        ];
    }

    /// The four words.
    #[must_use]
    pub fn finish(self) -> Words {
        self.sums
    }
}

impl Fletcher2 {
    /// Sums of nothing.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Sums another piece. A tail of fewer than 16 bytes is ignored, so only the last piece may have one.
    pub(crate) fn update(&mut self, data: &[u8], order: Endian) {
        let [mut a0, mut a1, mut b0, mut b1] = self.sums;
        let (pairs, _) = data.as_chunks::<16>();
        for pair in pairs {
            let (words, _) = pair.as_chunks::<8>();
            a0 = a0.wrapping_add(order.u64(words[0]));
            a1 = a1.wrapping_add(order.u64(words[1]));
            b0 = b0.wrapping_add(a0);
            b1 = b1.wrapping_add(a1);
        }
        self.sums = [a0, a1, b0, b1];
    }

    /// The four words.
    #[must_use]
    pub(crate) fn finish(self) -> Words {
        self.sums
    }
}

/// The definition, as code: the twin that every kernel is tested against.
pub(crate) fn scalar4(sums: &mut Words, data: &[u8], order: Endian) {
    let [mut a, mut b, mut c, mut d] = *sums;
    let (words, _) = data.as_chunks::<4>();
    for word in words {
        a = a.wrapping_add(u64::from(order.u32(*word)));
        b = b.wrapping_add(a);
        c = c.wrapping_add(b);
        d = d.wrapping_add(c);
    }
    *sums = [a, b, c, d];
}

kernels! {
    /// A way to compute Fletcher-4 that this processor has.
    simd::fletcher::Kernel
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect()
    }

    #[test]
    fn fletcher4_weighs_words_as_the_closed_form_says() {
        let data = bytes(4 * 37);
        let n = 37_u64;
        let mut expected = [0_u64; 4];
        for (i, word) in data.as_chunks::<4>().0.iter().enumerate() {
            let x = n - i as u64;
            let w = u64::from(u32::from_le_bytes(*word));
            for (sum, weight) in expected.iter_mut().zip([1, x, triangle(x), tetrahedron(x)]) {
                *sum = sum.wrapping_add(w.wrapping_mul(weight));
            }
        }
        assert_eq!(fletcher4(&data, Endian::Little), expected);
    }

    #[test]
    fn sums_of_swapped_data_in_the_swapped_order_are_equal() {
        let data = bytes(4096);
        let mut swapped4 = data.clone();
        swapped4.chunks_mut(4).for_each(<[u8]>::reverse);
        assert_eq!(fletcher4(&data, Endian::Little), fletcher4(&swapped4, Endian::Big));
        let mut swapped8 = data.clone();
        swapped8.chunks_mut(8).for_each(<[u8]>::reverse);
        assert_eq!(fletcher2(&data, Endian::Little), fletcher2(&swapped8, Endian::Big));
        assert_ne!(fletcher4(&data, Endian::Little), fletcher4(&data, Endian::Big));
        assert_ne!(fletcher2(&data, Endian::Little), fletcher2(&data, Endian::Big));
    }

    #[test]
    fn pieces_sum_to_the_whole_whether_fed_or_appended() {
        let data = bytes(8192);
        for order in [Endian::Little, Endian::Big] {
            let whole = fletcher4(&data, order);
            for cut in [0, 4, 64, 1000, 4096, 8188, 8192] {
                let (head, tail) = data.split_at(cut);
                let mut fed = Fletcher4::new();
                fed.update(head, order);
                let mut appended = fed;
                fed.update(tail, order);
                assert_eq!(fed.finish(), whole);
                let mut piece = Fletcher4::new();
                piece.update(tail, order);
                appended.append(&piece, (tail.len() / 4) as u64);
                assert_eq!(appended.finish(), whole);
            }
            let mut two = Fletcher2::new();
            two.update(&data[..1024], order);
            two.update(&data[1024..], order);
            assert_eq!(two.finish(), fletcher2(&data, order));
        }
    }

    #[test]
    fn a_tail_short_of_a_word_is_not_summed() {
        let data = bytes(43);
        assert_eq!(fletcher4(&data, Endian::Little), fletcher4(&data[..40], Endian::Little));
        assert_eq!(fletcher2(&data, Endian::Little), fletcher2(&data[..32], Endian::Little));
    }

    #[test]
    fn triangles_and_tetrahedra_are_exact_where_nothing_overflows() {
        for n in [0, 1, 2, 3, 100, 65_536, 2_097_151, 1 << 40] {
            let wide = u128::from(n);
            assert_eq!(triangle(n), (wide * (wide + 1) / 2) as u64);
            assert_eq!(tetrahedron(n), (wide * (wide + 1) * (wide + 2) / 6) as u64);
        }
    }

    #[test]
    fn every_kernel_agrees_with_the_scalar_one_on_every_length_and_alignment() {
        let data = bytes(2048 + 64);
        for order in [Endian::Little, Endian::Big] {
            for len in (0..1100).chain([2044, 2045, 2048]) {
                for skew in [0, 1, 4, 31] {
                    let piece = &data[skew..skew + len];
                    let mut expected = [3, 5, 7, 11];
                    let start = Fletcher4 { sums: expected };
                    scalar4(&mut expected, piece, order);
                    for kernel in Kernel::available() {
                        let mut state = start;
                        state.update_with(kernel, piece, None, order);
                        assert_eq!(state.finish(), expected, "{} {len} {skew}", kernel.name());
                    }
                }
            }
        }
    }

    #[test]
    fn extreme_words_overflow_alike_in_every_kernel() {
        // All ones for long enough that the third and fourth sums wrap many times.
        let data = vec![0xff; 4 << 20];
        for order in [Endian::Little, Endian::Big] {
            let mut expected = [0; 4];
            scalar4(&mut expected, &data, order);
            for kernel in Kernel::available() {
                let mut state = Fletcher4::new();
                state.update_with(kernel, &data, None, order);
                assert_eq!(state.finish(), expected, "{}", kernel.name());
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn copying_kernels_copy_everything_and_sum_the_same(
            data in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..3000),
            skew in 0_usize..64,
            swapped in proptest::prelude::any::<bool>(),
        ) {
            let order = if swapped { Endian::Big } else { Endian::Little };
            let mut expected = [0; 4];
            scalar4(&mut expected, &data, order);
            for kernel in Kernel::available() {
                let mut target = vec![0x5a; data.len() + skew + 1];
                let mut state = Fletcher4::new();
                state.update_with(kernel, &data, Some(&mut target[skew..skew + data.len()]), order);
                proptest::prop_assert_eq!(state.finish(), expected);
                proptest::prop_assert!(target[skew..skew + data.len()] == data[..]);
                proptest::prop_assert!(target[..skew].iter().all(|byte| *byte == 0x5a));
                proptest::prop_assert_eq!(target[skew + data.len()], 0x5a);
            }
        }
    }
}
