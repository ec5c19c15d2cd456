//! Fletcher-4 in lanes: words are dealt to lanes, summed apart, and the lanes' sums are combined.

use super::words::Words;

/// `n(n+1)/2` modulo 2^64.
pub(super) const fn triangle(n: u64) -> u64 {
    // The even factor is halved, so that nothing is lost when the product overflows.
    if n.is_multiple_of(2) { (n / 2).wrapping_mul(n.wrapping_add(1)) } else { n.wrapping_mul(n / 2 + 1) }
}

/// `n(n+1)(n+2)/6` modulo 2^64.
pub(super) const fn tetrahedron(n: u64) -> u64 {
    // Dividing by 3 is multiplying by its inverse, which exists since 3 is odd.
    const THIRD: u64 = 0xaaaa_aaaa_aaaa_aaab;
    triangle(n).wrapping_mul(n.wrapping_add(2)).wrapping_mul(THIRD)
}

/// For each of the four sums, its value in each lane.
pub(crate) type LaneSums<const LANES: usize> = [[u64; LANES]; 4];

/// The sums over all words, from those over every `2 LANES`-th word: `even[_][q]` has summed the words numbered `2q`
/// modulo `2 LANES`, `odd[_][q]` the next ones. All lanes have summed equally many.
///
/// With `L = 2 LANES`, a word of lane `j` that is `y`-th from the end of its lane is `L y - j`-th from the end of all.
/// Its weights there, polynomials of degree at most 3 in `y`, are written as sums of its weights in the lane.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) fn combine_lanes<const LANES: usize>(even: &LaneSums<LANES>, odd: &LaneSums<LANES>) -> Words {
    let mut total = [0_u64; 4];
    for (sums, weights) in [(even, &Weights::<LANES>::EVEN), (odd, &Weights::<LANES>::ODD)] {
        let lanes = 2 * LANES as u64;
        let [a, b, c, d] = sums;
        for q in 0..LANES {
            let weighed = |sum: &[u64; LANES], weight: usize| sum[q].wrapping_mul(weights[weight][q]);
            total[0] = total[0].wrapping_add(a[q]);
            total[1] = total[1].wrapping_add(b[q].wrapping_mul(lanes)).wrapping_add(weighed(a, 0));
            total[2] = total[2]
                .wrapping_add(c[q].wrapping_mul(lanes * lanes))
                .wrapping_add(weighed(b, 1))
                .wrapping_add(weighed(a, 2));
            total[3] = total[3]
                .wrapping_add(d[q].wrapping_mul(lanes * lanes * lanes))
                .wrapping_add(weighed(c, 3))
                .wrapping_add(weighed(b, 4))
                .wrapping_add(weighed(a, 5));
        }
    }
    total
}

/// The constants of [`combine_lanes`], for the lanes `j` of even and of odd words:
/// `[a in B, b in C, a in C, c in D, b in D, a in D]`.
pub(crate) struct Weights<const LANES: usize>;

impl<const LANES: usize> Weights<LANES> {
    pub(crate) const EVEN: [[u64; LANES]; 6] = Self::of(0);
    pub(crate) const ODD: [[u64; LANES]; 6] = Self::of(1);

    const fn of(parity: u64) -> [[u64; LANES]; 6] {
        let mut weights = [[0; LANES]; 6];
        let lanes = 2 * LANES as u64;
        let mut q = 0;
        while q < LANES {
            let j = 2 * q as u64 + parity;
            // L y - j = L [y] - j
            weights[0][q] = j.wrapping_neg();
            // T2(L y - j) = L^2 [T2(y)] + c1 [y] + c0: y = 0 gives c0, then y = 1 gives c1. T2(-j) = T2(j - 1), and 0 for j = 0.
            let c0 = triangle(j.saturating_sub(1));
            weights[2][q] = c0;
            weights[1][q] = triangle(lanes - j).wrapping_sub(lanes * lanes).wrapping_sub(c0);
            // T3(L y - j) = L^3 [T3(y)] + d2 [T2(y)] + d1 [y] + d0, at y = 0, 1, 2. T3(-j) = -T3(j - 2), and 0 for j < 2.
            let d0 = tetrahedron(j.saturating_sub(2)).wrapping_neg();
            let cube = lanes * lanes * lanes;
            let one = tetrahedron(lanes - j).wrapping_sub(d0);
            let two = tetrahedron(2 * lanes - j).wrapping_sub(d0);
            // one = L^3 + d2 + d1, two = 4 L^3 + 3 d2 + 2 d1
            let d2 = two.wrapping_sub(one.wrapping_mul(2)).wrapping_sub(cube * 2);
            weights[5][q] = d0;
            weights[3][q] = d2;
            weights[4][q] = one.wrapping_sub(cube).wrapping_sub(d2);
            q += 1;
        }
        weights
    }
}
