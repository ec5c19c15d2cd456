//! Every algorithm: what goes in comes out, and no input makes a decoder misbehave.

use cenote_codec::compress::{CompressError, CompressLevel, Scratch, compress, decompress, is_all_zero};
use cenote_format::enums::Compress;
use proptest::prelude::*;

/// The algorithms that transform data, with the levels worth trying.
fn algorithms() -> Vec<(Compress, CompressLevel)> {
    let mut all: Vec<_> = Compress::ALL
        .iter()
        .filter(|kind| !matches!(kind, Compress::Inherit | Compress::On | Compress::Off | Compress::Empty))
        .map(|kind| (*kind, CompressLevel::DEFAULT))
        .collect();
    all.extend([1, 9, 19, -1, -10, -100, -1000].map(|level| (Compress::Zstd, CompressLevel::zstd(level).unwrap())));
    all
}

/// Text-like data: runs, zeros, repeats and a little noise.
fn compressible(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let mut out: Vec<u8> = Vec::with_capacity(len + 300);
    while out.len() < len {
        let run = next() % 200 + 1;
        match next() % 4 {
            0 => out.extend(std::iter::repeat_n(0, run)),
            1 => out.extend(std::iter::repeat_n(next() as u8, run)),
            2 if out.len() > 10 => {
                let distance = next() % out.len().min(3000) + 1;
                for _ in 0..run {
                    out.push(out[out.len() - distance]);
                }
            }
            _ => out.extend((0..run / 8 + 1).map(|_| next() as u8)),
        }
    }
    out.truncate(len);
    out
}

#[test]
fn every_algorithm_round_trips_every_block_size() {
    for (kind, level) in algorithms() {
        for shift in 9..=20 {
            // The fastest level of zstd steps over everything but the longest repeats.
            let source = match level.zstd_level() {
                Some(-1000) if shift < 12 => continue,
                Some(-1000) => vec![shift as u8; 1 << shift],
                _ => compressible(1 << shift, 7 + shift),
            };
            let packed = compress(kind, level, &source, source.len() - source.len() / 8)
                .unwrap_or_else(|| panic!("{kind} {level:?} does not compress {} bytes", source.len()));
            // As on disk: padded with zeros to a whole sector.
            let mut padded = packed.clone();
            padded.resize(packed.len().next_multiple_of(4096), 0);
            let mut target = vec![0xaa; source.len()];
            decompress(kind, &padded, &mut target).unwrap_or_else(|error| panic!("{kind} {level:?}: {error}"));
            assert!(target == source, "{kind} {level:?}");
        }
    }
}

#[test]
fn noise_is_not_worth_compressing() {
    let mut state = 1_u64;
    let noise: Vec<u8> = (0..1 << 18)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    for (kind, level) in algorithms() {
        assert_eq!(compress(kind, level, &noise, noise.len() * 7 / 8), None, "{kind}");
        assert_eq!(compress(kind, level, &noise, noise.len()), None, "{kind}");
        assert_eq!(compress(kind, level, &[], 100), None, "{kind}");
    }
}

#[test]
fn the_result_never_exceeds_the_limit() {
    let source = compressible(20_000, 99);
    for (kind, level) in algorithms() {
        let full = compress(kind, level, &source, source.len()).unwrap();
        // zstd wants a little room beyond what it fills in the end, as it does in OpenZFS.
        let room = if kind == Compress::Zstd { 64 } else { 0 };
        assert!(compress(kind, level, &source, full.len() + room).as_ref() == Some(&full), "{kind}");
        assert_eq!(compress(kind, level, &source, full.len() - 1), None, "{kind}");
        for tiny in 0..12 {
            assert_eq!(compress(kind, level, &source, tiny), None, "{kind}");
        }
    }
}

#[test]
fn what_a_context_did_before_does_not_change_its_output() {
    let (one, two) = (compressible(50_000, 1), compressible(70_000, 2));
    for (kind, level) in algorithms() {
        let fresh = Scratch::new().compress(kind, level, &two, two.len());
        let mut used = Scratch::new();
        assert!(used.compress(kind, level, &one, one.len()).is_some(), "{kind} {level:?}");
        assert!(used.compress(kind, level, &one, 20).is_none());
        assert!(used.decompress(kind, &[1, 2, 3, 4, 5, 6, 7, 8, 9], &mut [0; 100]).is_err());
        assert_eq!(used.compress(kind, level, &two, two.len()), fresh, "{kind}");
        let mut target = vec![0; two.len()];
        used.decompress(kind, &fresh.unwrap(), &mut target).unwrap();
        assert!(target == two, "{kind}");
    }
}

#[test]
fn a_block_of_another_size_is_refused() {
    let source = compressible(8192, 5);
    for (kind, level) in algorithms() {
        let packed = compress(kind, level, &source, source.len()).unwrap();
        assert!(decompress(kind, &packed, &mut vec![0; 8193]).is_err(), "{kind}");
        // lzjb and zle streams have no end mark: a shorter block may take a prefix of one.
        if !matches!(kind, Compress::Lzjb | Compress::Zle) {
            assert!(decompress(kind, &packed, &mut vec![0; 8191]).is_err(), "{kind}");
        }
        assert!(decompress(kind, &packed[..packed.len() - 1], &mut vec![0; 8192]).is_err(), "{kind}");
        assert!(decompress(kind, &[], &mut [0; 512]).is_err(), "{kind}");
    }
}

#[test]
fn numbers_that_are_not_algorithms_are_refused() {
    for kind in [Compress::Inherit, Compress::On, Compress::Empty] {
        assert_eq!(decompress(kind, &[0; 512], &mut [0; 512]), Err(CompressError::NotAnAlgorithm(kind)));
        assert_eq!(compress(kind, CompressLevel::DEFAULT, &[0; 512], 512), None);
    }
    let mut target = [0; 3];
    decompress(Compress::Off, b"abcd", &mut target).unwrap();
    assert_eq!(&target, b"abc");
    assert!(decompress(Compress::Off, b"ab", &mut target).is_err());
}

#[test]
fn zeros_are_seen_at_every_length() {
    for len in 0..200 {
        let mut block = vec![0; len];
        assert!(is_all_zero(&block));
        for at in 0..len {
            block[at] = 0x80;
            assert!(!is_all_zero(&block));
            block[at] = 0;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_blocks_survive_the_way_there_and_back(
        source in prop::collection::vec(prop_oneof![Just(0_u8), Just(1), any::<u8>()], 1..3000),
    ) {
        for (kind, level) in algorithms() {
            if let Some(packed) = compress(kind, level, &source, source.len()) {
                prop_assert!(packed.len() < source.len());
                let mut target = vec![0; source.len()];
                decompress(kind, &packed, &mut target).unwrap();
                prop_assert_eq!(&target, &source);
            }
        }
    }

    #[test]
    fn random_bytes_never_upset_a_decoder(
        source in prop::collection::vec(any::<u8>(), 0..600),
        len in 0_usize..5000,
    ) {
        for kind in Compress::ALL {
            let _ = decompress(*kind, &source, &mut vec![0; len]);
        }
    }

    #[test]
    fn mutated_streams_never_upset_a_decoder(
        seed in any::<u64>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 1..8),
    ) {
        let source = compressible(6000, seed);
        for (kind, level) in algorithms() {
            let Some(mut packed) = compress(kind, level, &source, source.len()) else { continue };
            for (index, bits) in &flips {
                let len = packed.len();
                packed[index.index(len)] ^= bits;
            }
            let _ = decompress(kind, &packed, &mut vec![0; source.len()]);
        }
    }
}
