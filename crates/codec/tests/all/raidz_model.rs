//! RAID-Z against a model that follows the definition one byte at a time.

use cenote_codec::raidz::{Column, Kernel, RaidzError, generate_with, reconstruct, reconstruct_with};
use proptest::prelude::*;

/// `a b` in GF(2^8) over 0x11d, schoolbook: multiply as polynomials, then divide.
fn product(a: u8, b: u8) -> u8 {
    let mut wide = (0..8).filter(|bit| b >> bit & 1 == 1).fold(0_u16, |sum, bit| sum ^ u16::from(a) << bit);
    for bit in (8..15).rev() {
        if wide >> bit & 1 == 1 {
            wide ^= 0x11d << (bit - 8);
        }
    }
    wide as u8
}

/// Parity row `row` (generator `2^row`) by Horner's scheme, short columns counting as zeros at their end.
fn model_parity(row: usize, data: &[Vec<u8>], len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| {
            data.iter().fold(0, |sum, column| product(sum, 1 << row) ^ column.get(at).copied().unwrap_or_default())
        })
        .collect()
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// A row: parity columns then data columns.
fn row(parity_count: usize, lens: &[usize], seed: u64) -> Vec<Vec<u8>> {
    let data: Vec<_> = lens.iter().enumerate().map(|(i, len)| noise(*len, seed ^ i as u64)).collect();
    let len = lens.iter().copied().max().unwrap_or(0);
    (0..parity_count).map(|r| model_parity(r, &data, len)).chain(data.iter().cloned()).collect()
}

/// Rebuilds the columns of `missing` in place of garbage and compares with the row.
fn check(kernel: Kernel, parity_count: usize, row: &[Vec<u8>], missing: &[usize]) {
    let mut spoiled = row.to_vec();
    for index in missing {
        spoiled[*index].fill(0xee);
    }
    let mut columns: Vec<_> = spoiled
        .iter_mut()
        .enumerate()
        .map(|(i, bytes)| if missing.contains(&i) { Column::Missing(bytes) } else { Column::Known(bytes) })
        .collect();
    reconstruct_with(kernel, parity_count, &mut columns).unwrap();
    assert!(spoiled == row, "{} wrong: {parity_count} parity, missing {missing:?}", kernel.name());
}

/// Every set of at most `most` of `0..count`.
fn subsets(count: usize, most: usize) -> Vec<Vec<usize>> {
    (0_u32..1 << count)
        .filter(|set| set.count_ones() as usize <= most)
        .map(|set| (0..count).filter(|i| set >> i & 1 == 1).collect())
        .collect()
}

#[test]
fn every_loss_that_parity_covers_is_rebuilt_by_every_kernel() {
    for parity_count in 1..=3 {
        for data_count in [1, 2, 3, 5, 8] {
            // As ZFS lays rows out: the first columns one sector longer.
            let lens: Vec<_> = (0..data_count).map(|i| if i <= data_count / 2 { 1024 } else { 512 }).collect();
            let row = row(parity_count, &lens, 1);
            for missing in subsets(parity_count + data_count, parity_count) {
                for kernel in Kernel::available() {
                    check(kernel, parity_count, &row, &missing);
                }
            }
        }
    }
}

#[test]
fn wide_rows_up_to_the_limit_are_rebuilt() {
    for data_count in [20, 100, 255] {
        let row = row(3, &vec![256; data_count], 2);
        for missing in [vec![3, 4, 5], vec![0, 3, data_count + 2], vec![1, 10, data_count], vec![0, 1, 2]] {
            check(Kernel::best(), 3, &row, &missing);
        }
    }
}

#[test]
fn unread_parity_is_not_needed_when_enough_is_left() {
    let row = row(3, &[512, 512, 512, 0], 3);
    let (mut lost, known) = (vec![0; 512], &row);
    let mut columns = [
        Column::Unread,
        Column::Unread,
        Column::Known(&known[2]),
        Column::Missing(&mut lost),
        Column::Known(&known[4]),
        Column::Known(&known[5]),
        Column::Known(&known[6]),
    ];
    reconstruct(3, &mut columns).unwrap();
    assert_eq!(lost, row[3]);
    // Two lost, one of them not wanted.
    let mut columns = [
        Column::Unread,
        Column::Known(&known[1]),
        Column::Known(&known[2]),
        Column::Missing(&mut lost),
        Column::Unread,
        Column::Known(&known[5]),
        Column::Known(&known[6]),
    ];
    reconstruct(3, &mut columns).unwrap();
    assert_eq!(lost, row[3]);
}

#[test]
fn impossible_rows_are_errors() {
    let (a, mut b, mut c) = ([1_u8; 512], [2_u8; 512], [3_u8; 512]);
    assert_eq!(
        reconstruct(1, &mut [Column::Known(&a), Column::Missing(&mut b), Column::Missing(&mut c)]),
        Err(RaidzError::TooManyMissing { unknown: 2, parity: 1 })
    );
    assert!(matches!(reconstruct(0, &mut [Column::Known(&a)]), Err(RaidzError::Shape(_))));
    assert!(matches!(reconstruct(4, &mut []), Err(RaidzError::Shape(_))));
    assert!(matches!(reconstruct(2, &mut [Column::Known(&a)]), Err(RaidzError::Shape(_))));
    assert!(matches!(reconstruct(1, &mut [Column::Known(&a)]), Err(RaidzError::Shape(_))));
    assert!(matches!(reconstruct(1, &mut [Column::Known(&a[..256]), Column::Known(&a)]), Err(RaidzError::Shape(_))));
    assert!(matches!(
        reconstruct(2, &mut [Column::Known(&a), Column::Missing(&mut b[..256]), Column::Known(&a)]),
        Err(RaidzError::Shape(_))
    ));
    assert_eq!(
        reconstruct(1, &mut [Column::Unread, Column::Missing(&mut b)]),
        Err(RaidzError::TooManyMissing { unknown: 1, parity: 0 })
    );
    let mut many: Vec<_> = (0..300).map(|_| Column::Known(&a)).collect();
    assert!(matches!(reconstruct(1, &mut many), Err(RaidzError::Shape(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any lengths (whole sectors or not), any alignment, any loss.
    #[test]
    fn kernels_agree_with_the_model_on_any_shape(
        parity_count in 1_usize..=3,
        lens in prop::collection::vec(0_usize..900, 1..10),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 3),
        skew in 0_usize..64,
        seed in any::<u64>(),
    ) {
        let row = row(parity_count, &lens, seed);
        let mut missing: Vec<_> = picks.iter().take(parity_count).map(|pick| pick.index(row.len())).collect();
        missing.sort_unstable();
        missing.dedup();
        for kernel in Kernel::available() {
            check(kernel, parity_count, &row, &missing);
            // Generation into and from places of another alignment.
            let shifted: Vec<Vec<u8>> = row.iter().map(|bytes| [&vec![0; skew], &bytes[..]].concat()).collect();
            let data: Vec<&[u8]> = shifted[parity_count..].iter().map(|bytes| &bytes[skew..]).collect();
            let mut made: Vec<Vec<u8>> = row[..parity_count].iter().map(|bytes| vec![0xaa; bytes.len() + skew]).collect();
            let mut parity: Vec<&mut [u8]> = made.iter_mut().map(|bytes| &mut bytes[skew..]).collect();
            generate_with(kernel, &data, &mut parity).unwrap();
            for (made, expected) in made.iter().zip(&row) {
                prop_assert!(made[skew..] == expected[..], "{} generates wrongly", kernel.name());
            }
        }
    }
}
