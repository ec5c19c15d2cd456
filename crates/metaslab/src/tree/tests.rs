//! Against a plain bitmap.

use proptest::prelude::*;

use super::*;

const SHIFT: u32 = 9;
const START: u64 = 1 << 30;
const UNITS: u64 = 4 * CHUNK_UNITS as u64 + 77;

fn tree() -> RangeTree {
    RangeTree::new(START, UNITS << SHIFT, SHIFT)
}

fn bytes(range: Range<u64>) -> Range<u64> {
    START + (range.start << SHIFT)..START + (range.end << SHIFT)
}

fn runs(bits: &[bool]) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < bits.len() {
        if bits[at] {
            let end = bits[at..].iter().position(|bit| !bit).map_or(bits.len(), |len| at + len);
            runs.push(bytes(at as u64..end as u64));
            at = end;
        } else {
            at += 1;
        }
    }
    runs
}

/// Everything that a tree says about itself, against the bitmap.
fn agree(tree: &mut RangeTree, bits: &[bool]) {
    let expected = runs(bits);
    assert_eq!(tree.iter().collect::<Vec<_>>(), expected);
    assert_eq!(tree.segments(), expected.len() as u64);
    assert_eq!(tree.total(), expected.iter().map(|run| run.end - run.start).sum::<u64>());
    let mut histogram = [0; TREE_HISTOGRAM_BUCKETS];
    expected.iter().for_each(|run| histogram[(run.end - run.start).ilog2() as usize] += 1);
    assert_eq!(tree.histogram(), histogram);
    let longest = expected.iter().map(|run| run.end - run.start).max();
    assert_eq!(tree.largest().map(|run| run.end - run.start), longest);
    for size in [1, 2, 3, 7, 64, 1000, 40_000, 100_000].map(|units: u64| units << SHIFT) {
        let found = tree.good_fit(size);
        let fitting = || expected.iter().filter(|run| run.end - run.start >= size);
        assert_eq!(found.is_some(), fitting().count() > 0, "size {size}");
        if let Some(found) = found {
            assert!(expected.contains(&found), "{found:?} is a whole run");
            assert!(found.end - found.start >= size);
        }
        for cursor in [0, START, START + (UNITS << SHIFT) / 3] {
            let first = expected.iter().find(|run| run.end > cursor && run.end - run.start >= size).cloned();
            assert_eq!(tree.first_fit(cursor, size, u64::MAX, 0), first, "size {size} from {cursor}");
        }
    }
    let chunks = UNITS.div_ceil(u64::from(CHUNK_UNITS)) as usize;
    assert!(tree.memory_bytes() <= size_of::<RangeTree>() + (chunks + chunks / 8 + 5) * 200 + chunks * 4096);
}

#[derive(Clone, Debug)]
enum Step {
    /// Add or remove, legal or not.
    Change {
        add: bool,
        start: u64,
        len: u64,
    },
    /// Every `stride`-th unit of a stretch: what makes bitmaps.
    Comb {
        add: bool,
        start: u64,
        stride: u64,
        count: u64,
    },
    Clear {
        start: u64,
        len: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![4 => 1_u64..20, 2 => 1_u64..3000, 1 => 1_u64..UNITS];
    // Near the borders between chunks as often as elsewhere.
    let start = prop_oneof![
        1 => 0_u64..UNITS,
        1 => (1_u64..5, 0_u64..40).prop_map(|(chunk, off)| (chunk * u64::from(CHUNK_UNITS) + off).saturating_sub(20)),
    ];
    let step = prop_oneof![
        6 => (any::<bool>(), start.clone(), len.clone()).prop_map(|(add, start, len)| Step::Change { add, start, len }),
        1 => (any::<bool>(), start.clone(), 2_u64..6, 1_u64..9000)
            .prop_map(|(add, start, stride, count)| Step::Comb { add, start, stride, count }),
        1 => (start, len).prop_map(|(start, len)| Step::Clear { start, len }),
    ];
    proptest::collection::vec(step, 1..40)
}

fn change(tree: &mut RangeTree, bits: &mut [bool], add: bool, range: Range<u64>) {
    let span = range.start as usize..range.end as usize;
    let done = if add { tree.add(bytes(range)) } else { tree.remove(bytes(range)) };
    if let Some(at) = bits[span.clone()].iter().position(|bit| *bit == add) {
        let at = START + ((span.start + at) as u64) * (1 << SHIFT);
        match done {
            Err(RangeError::Overlap { at: found, .. }) if add => assert_eq!(found, at),
            Err(RangeError::Absent { at: found, .. }) if !add => assert_eq!(found, at),
            other => panic!("{other:?}, expected a contradiction at {at:#x}"),
        }
    } else {
        done.unwrap();
        bits[span].fill(add);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn it_agrees_with_a_bitmap(steps in steps(), probes in proptest::collection::vec((0_u64..UNITS, 1_u64..5000), 8)) {
        let mut tree = tree();
        let mut bits = vec![false; UNITS as usize];
        for step in steps {
            match step {
                Step::Change { add, start, len } => {
                    let start = start.min(UNITS - 1);
                    change(&mut tree, &mut bits, add, start..(start + len).min(UNITS));
                }
                Step::Comb { add, start, stride, count } => {
                    for at in (0..count).map(|i| start + i * stride).filter(|at| *at < UNITS) {
                        change(&mut tree, &mut bits, add, at..at + 1);
                    }
                }
                Step::Clear { start, len } => {
                    let start = start.min(UNITS - 1);
                    let end = (start + len).min(UNITS);
                    tree.clear(bytes(start..end));
                    bits[start as usize..end as usize].fill(false);
                }
            }
        }
        agree(&mut tree, &bits);
        for (start, len) in probes {
            let range = start..(start + len).min(UNITS);
            let part = &bits[range.start as usize..range.end as usize];
            prop_assert_eq!(tree.contains(bytes(range.clone())), part.iter().all(|bit| *bit));
            let overlap = part.iter().position(|bit| *bit).map(|at| {
                let len = part[at..].iter().position(|bit| !bit).unwrap_or(part.len() - at);
                bytes(range.start + at as u64..range.start + (at + len) as u64)
            });
            prop_assert_eq!(tree.overlap(bytes(range)), overlap);
        }
        // Splitting and merging back: out of one tree into another and nothing is lost.
        let mut undone = self::tree();
        let mut done = self::tree();
        let taken = tree.take();
        prop_assert!(tree.is_empty());
        for (number, range) in taken.iter().enumerate() {
            if number % 3 == 0 {
                undone.add(range.start..range.start + (1 << SHIFT)).unwrap();
            }
        }
        let shared = undone.total();
        taken.cancel_or_add(&mut undone, &mut done).unwrap();
        prop_assert!(undone.is_empty());
        prop_assert_eq!(done.total() + shared, taken.total());
    }
}

#[test]
fn what_lies_outside_or_between_units_is_refused() {
    let mut tree = tree();
    for range in [0..512, START - 512..START + 512, START + 1..START + 513, START..START + (UNITS << SHIFT) + 512] {
        assert!(matches!(tree.add(range), Err(RangeError::Misplaced { .. })));
    }
    assert!(matches!(tree.remove(START..START + 5), Err(RangeError::Misplaced { .. })));
    assert!(tree.is_empty());
}

/// The worst case for memory: every second unit, all bitmaps. And back to nothing.
#[test]
fn memory_is_bounded_at_any_fragmentation() {
    let chunks = 64_u64;
    let units = chunks * u64::from(CHUNK_UNITS);
    let mut tree = RangeTree::new(0, units << 12, 12);
    tree.add(0..units << 12).unwrap();
    assert!(tree.memory_bytes() < 32 * 1024, "whole space takes {}", tree.memory_bytes());
    for unit in (0..units).step_by(2) {
        tree.remove(unit << 12..(unit + 1) << 12).unwrap();
    }
    assert_eq!(tree.segments(), units / 2);
    // 32 MiB per TB of 10^12 bytes is one byte for each 29 802 bytes: 4503 bytes for a chunk of 128 MiB.
    let limit = u128::from(units << 12) * (32 << 20) / 1_000_000_000_000;
    assert!(tree.memory_bytes() as u128 <= limit, "{} of {limit}", tree.memory_bytes());
    for unit in (1..units).step_by(2) {
        tree.remove(unit << 12..(unit + 1) << 12).unwrap();
    }
    assert!(tree.is_empty());
    assert!(tree.memory_bytes() < 16 * 1024);
}

#[test]
fn a_fit_is_as_close_as_its_power_of_two() {
    let mut tree = RangeTree::new(0, 1 << 30, 12);
    tree.add(0..5 << 12).unwrap();
    tree.add(6 << 12..13 << 12).unwrap();
    tree.add(1 << 27..(1 << 27) + (600 << 12)).unwrap();
    assert_eq!(tree.good_fit(4 << 12), Some(0..5 << 12));
    assert_eq!(tree.good_fit(6 << 12), Some(6 << 12..13 << 12));
    assert_eq!(tree.good_fit(8 << 12), Some(1 << 27..(1 << 27) + (600 << 12)));
    assert_eq!(tree.good_fit(601 << 12), None);
    tree.add((1 << 27) + (600 << 12)..(1 << 27) + (601 << 12)).unwrap();
    assert!(tree.good_fit(601 << 12).is_some(), "what did not fit before may fit now");
}
