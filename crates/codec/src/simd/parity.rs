//! RAID-Z parity on x86-64: multiply by constants with byte shuffles (two 16-entry tables a constant) or with the GFNI
//! affine instruction (an 8 x 8 bit matrix a constant).

use std::arch::x86_64::*;

use crate::raidz::gf::{MATRICES, NIBBLE_PRODUCTS};
use crate::raidz::scalar::{Input, scalar};

/// Which instructions. Values come from [`Kernel::available`] alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernel(Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Ssse3,
    Avx2,
    Avx512bw,
    Avx2Gfni,
    Avx512Gfni,
}

impl Kernel {
    /// The kernels that the processor can run, slowest first.
    pub(crate) fn available() -> Vec<Self> {
        let avx2 = is_x86_feature_detected!("avx2");
        let avx512 = avx2 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        let gfni = is_x86_feature_detected!("gfni");
        [
            (Set::Ssse3, is_x86_feature_detected!("ssse3")),
            (Set::Avx2, avx2),
            (Set::Avx512bw, avx512),
            (Set::Avx2Gfni, avx2 && gfni),
            (Set::Avx512Gfni, avx512 && gfni),
        ]
        .into_iter()
        .filter_map(|(set, has)| has.then_some(Self(set)))
        .collect()
    }

    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            Set::Ssse3 => "ssse3",
            Set::Avx2 => "avx2",
            Set::Avx512bw => "avx512bw",
            Set::Avx2Gfni => "avx2-gfni",
            Set::Avx512Gfni => "avx512-gfni",
        }
    }

    /// See `raidz::Kernel::run`.
    pub(crate) fn run(self, inputs: &[Input<'_>], outputs: &mut [&mut [u8]], plain: bool) {
        match outputs {
            [] => {}
            [a] => self.dispatch::<1>(inputs, [a], plain),
            [a, b] => self.dispatch::<2>(inputs, [a, b], plain),
            [a, b, c] => self.dispatch::<3>(inputs, [a, b, c], plain),
            _ => unreachable!("a row has at most three outputs"),
        }
    }

    fn dispatch<const K: usize>(self, inputs: &[Input<'_>], mut outputs: [&mut [u8]; K], plain: bool) {
        let len = outputs.first().map_or(0, |output| output.len());
        assert!(outputs.iter().all(|output| output.len() == len));
        assert!(inputs.iter().all(|input| input.bytes.len() == len));
        // SAFETY: a `Kernel` of a set exists only if `available` saw its features.
        let done = unsafe {
            match (self.0, plain) {
                (Set::Ssse3, false) => ssse3::<K, false>(inputs, &mut outputs, len),
                (Set::Ssse3, true) => ssse3::<K, true>(inputs, &mut outputs, len),
                (Set::Avx2, false) => avx2::<K, false>(inputs, &mut outputs, len),
                (Set::Avx2, true) => avx2::<K, true>(inputs, &mut outputs, len),
                (Set::Avx512bw, false) => avx512bw::<K, false>(inputs, &mut outputs, len),
                (Set::Avx512bw, true) => avx512bw::<K, true>(inputs, &mut outputs, len),
                (Set::Avx2Gfni, false) => avx2_gfni::<K, false>(inputs, &mut outputs, len),
                (Set::Avx2Gfni, true) => avx2_gfni::<K, true>(inputs, &mut outputs, len),
                (Set::Avx512Gfni, false) => avx512_gfni::<K, false>(inputs, &mut outputs, len),
                (Set::Avx512Gfni, true) => avx512_gfni::<K, true>(inputs, &mut outputs, len),
            }
        };
        if done < len {
            scalar(inputs, &mut outputs, done);
        }
    }
}

/// Writes one kernel: `$step` vectors of `$size` bytes at a time stay in registers, for each of `K` outputs, while the
/// inputs pass. Returns how many bytes it did.
macro_rules! kernel {
    ($name:ident, $features:literal, $vector:ty, $size:literal x $step:literal,
     $zero:ident, $load:ident, $store:ident, $xor:ident,
     prepare |$coefficient:ident| $prepare:expr, multiply |$x:ident, $table:ident| $multiply:expr) => {
        /// # Safety
        ///
        /// The processor must have the features named. Every input and output must have `len` bytes.
        #[target_feature(enable = $features)]
        unsafe fn $name<const K: usize, const PLAIN: bool>(
            inputs: &[Input<'_>],
            outputs: &mut [&mut [u8]; K],
            len: usize,
        ) -> usize {
            const STEP: usize = $size * $step;
            let done = len - len % STEP;
            for at in (0..done).step_by(STEP) {
                let mut sums = [[$zero(); $step]; K];
                for input in inputs {
                    let source = input.bytes.as_ptr();
                    let mut data = [$zero(); $step];
                    for (v, data) in data.iter_mut().enumerate() {
                        // SAFETY: `at + STEP <= done <= len`, and the input has `len` bytes; the load needs no alignment.
                        *data = unsafe { $load(source.add(at + v * $size).cast()) };
                    }
                    for (row, sums) in sums.iter_mut().enumerate() {
                        if PLAIN && row == 0 {
                            for (sum, data) in sums.iter_mut().zip(data) {
                                *sum = $xor(*sum, data);
                            }
                        } else {
                            let $coefficient = usize::from(input.coefficients[row]);
                            let $table = $prepare;
                            for (sum, $x) in sums.iter_mut().zip(data) {
                                *sum = $xor(*sum, $multiply);
                            }
                        }
                    }
                }
                for (sums, output) in sums.into_iter().zip(outputs.iter_mut()) {
                    let target = output.as_mut_ptr();
                    for (v, sum) in sums.into_iter().enumerate() {
                        // SAFETY: as above, for the output; it is borrowed exclusively.
                        unsafe { $store(target.add(at + v * $size).cast(), sum) };
                    }
                }
            }
            done
        }
    };
}

kernel!(ssse3, "ssse3", __m128i, 16 x 2, _mm_setzero_si128, _mm_loadu_si128, _mm_storeu_si128, _mm_xor_si128,
prepare |c| nibble_tables(c),
multiply |x, tables| {
    let mask = _mm_set1_epi8(15);
    let low = _mm_shuffle_epi8(tables[0], _mm_and_si128(x, mask));
    let high = _mm_shuffle_epi8(tables[1], _mm_and_si128(_mm_srli_epi64::<4>(x), mask));
    _mm_xor_si128(low, high)
});

kernel!(avx2, "avx2", __m256i, 32 x 2, _mm256_setzero_si256, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_xor_si256,
prepare |c| nibble_tables(c).map(|table| _mm256_broadcastsi128_si256(table)),
multiply |x, tables| {
    let mask = _mm256_set1_epi8(15);
    let low = _mm256_shuffle_epi8(tables[0], _mm256_and_si256(x, mask));
    let high = _mm256_shuffle_epi8(tables[1], _mm256_and_si256(_mm256_srli_epi64::<4>(x), mask));
    _mm256_xor_si256(low, high)
});

kernel!(avx512bw, "avx512f,avx512bw", __m512i, 64 x 4, _mm512_setzero_si512, _mm512_loadu_si512, _mm512_storeu_si512,
_mm512_xor_si512,
prepare |c| nibble_tables(c).map(|table| _mm512_broadcast_i32x4(table)),
multiply |x, tables| {
    let mask = _mm512_set1_epi8(15);
    let low = _mm512_shuffle_epi8(tables[0], _mm512_and_si512(x, mask));
    let high = _mm512_shuffle_epi8(tables[1], _mm512_and_si512(_mm512_srli_epi64::<4>(x), mask));
    _mm512_xor_si512(low, high)
});

kernel!(avx2_gfni, "avx2,gfni", __m256i, 32 x 2, _mm256_setzero_si256, _mm256_loadu_si256, _mm256_storeu_si256,
    _mm256_xor_si256,
    prepare |c| _mm256_set1_epi64x(MATRICES[c].cast_signed()),
    multiply |x, matrix| _mm256_gf2p8affine_epi64_epi8::<0>(x, matrix));

kernel!(avx512_gfni, "avx512f,avx512bw,gfni", __m512i, 64 x 4, _mm512_setzero_si512, _mm512_loadu_si512,
    _mm512_storeu_si512, _mm512_xor_si512,
    prepare |c| _mm512_set1_epi64(MATRICES[c].cast_signed()),
    multiply |x, matrix| _mm512_gf2p8affine_epi64_epi8::<0>(x, matrix));

/// The two nibble tables of a coefficient.
#[inline]
#[target_feature(enable = "sse2")]
fn nibble_tables(coefficient: usize) -> [__m128i; 2] {
    // SAFETY: each table has 16 bytes, which is what an unaligned load of this kind reads.
    NIBBLE_PRODUCTS[coefficient].each_ref().map(|table| unsafe { _mm_loadu_si128(table.as_ptr().cast()) })
}
