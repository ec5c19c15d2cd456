//! Features that are in use and not counted: what a writer leaves that forgets them. Goal: `verify` says which feature, of which dataset,
//! and how the count differs. Method: golden pools of OpenZFS in simulation, whose notes and counts are changed behind their checksums.

use crate::common;

use std::cell::Cell;
use std::rc::Rc;

use cenote_scan::{VerifyOptions, VerifyReport};
use cenote_spa::features::by_name;
use cenote_zio::mutation::{Filter, set_filter};

/// An entry of a micro ZAP: its value, and where its name begins.
const ENTRY_BYTES: usize = 64;
const NAME_OFFSET: usize = 14;

/// Changes the entry of a feature: in the pool's table of counts, or in the tables of datasets.
fn changed(theme: &str, feature: &str, in_counts: bool, change: fn(&mut [u8])) -> VerifyReport {
    let guid = by_name(feature).unwrap().guid.as_bytes().to_vec();
    // The table of counts has this feature too, datasets never.
    let of_pools = by_name("hole_birth").unwrap().guid.as_bytes();
    let count = Rc::new(Cell::new(0));
    let seen = count.clone();
    let filter: Filter = Box::new(move |_, bookmark, bytes| {
        let is_of_mos = bookmark.objset.0 == 0 && bookmark.object.0 != 0 && bookmark.level == 0;
        let has = |entry: &[u8], name: &[u8]| {
            entry.get(NAME_OFFSET..).is_some_and(|rest| rest.starts_with(name) && rest.get(name.len()) == Some(&0))
        };
        let is_counts = bytes.chunks(ENTRY_BYTES).any(|entry| has(entry, of_pools));
        if !is_of_mos || is_counts != in_counts || !bytes.chunks(ENTRY_BYTES).any(|entry| has(entry, &guid)) {
            return None;
        }
        let mut bytes = bytes.to_vec();
        for entry in bytes.chunks_mut(ENTRY_BYTES) {
            // Descriptions and txgs of enabling have the name too; a count is small.
            if has(entry, &guid) && entry[2..8].iter().all(|byte| *byte == 0) {
                change(entry);
                seen.set(seen.get() + 1);
            }
        }
        Some(bytes)
    });
    let images = common::theme(theme);
    let (runtime, _disks, paths) = common::runtime(&images);
    let handle = runtime.handle();
    // From the import on, which keeps the counts in its cache.
    set_filter(Some(filter));
    let report = runtime.try_block_on(async {
        let pool = common::open(&handle, &paths).await;
        common::report(&handle, &pool, VerifyOptions::default()).await
    });
    set_filter(None);
    let report = report.unwrap_or_else(|deadlock| panic!("the walk does not end: {deadlock}"));
    assert!(count.get() > 0, "{theme}: nothing says {feature}");
    report
}

#[test]
fn verify_names_the_dataset_that_uses_a_feature_and_does_not_say_so() {
    for (theme, feature) in [("recordsizes", "large_blocks"), ("checksums", "blake3"), ("compression", "zstd_compress")]
    {
        let report = changed(theme, feature, false, |entry| entry[NAME_OFFSET] = b'#');
        let needed = format!("what needs feature@{feature} and does not say so");
        assert!(report.problems.iter().any(|problem| problem.contains(&needed)), "{theme}: {report}");
        let counted = format!("feature@{feature}: the pool counts ");
        assert!(report.problems.iter().any(|problem| problem.contains(&counted)), "{theme}: {report}");
    }
}

#[test]
fn verify_tells_of_a_count_that_is_wrong() {
    for feature in ["large_blocks", "extensible_dataset"] {
        let report = changed("recordsizes", feature, true, |entry| entry[0] = entry[0].wrapping_add(1));
        let [problem] = &report.problems[..] else { panic!("{report}") };
        assert!(problem.starts_with(&format!("feature@{feature}: the pool counts ")), "{problem}");
    }
}
