//! Names that are like one that does not exist.

/// Names that are proposed at most.
const NAMES_MAX: usize = 3;
/// The least length of a part of a name that says something.
const PART_MIN: usize = 4;

/// Those of `names` that are like `wanted`: few letters differ, or it is a part of them. The most similar come first.
#[must_use]
pub(crate) fn near(wanted: &str, names: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    let wanted = wanted.to_ascii_lowercase();
    // A wrong letter in each six.
    let differing_max = 1 + wanted.len() / 6;
    let rank = |name: &'static str| {
        let differing = distance(&wanted, name);
        let is_part = wanted.len() >= PART_MIN && name.contains(&wanted);
        (differing <= differing_max || is_part).then_some((differing, name))
    };
    let mut found: Vec<(usize, &'static str)> = names.filter_map(rank).collect();
    found.sort_unstable();
    found.into_iter().take(NAMES_MAX).map(|(_, name)| name).collect()
}

/// Letters to insert, remove or replace to get from one to the other (Levenshtein's distance).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (line, left) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], line + 1);
        for (column, right) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(left != right);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_letters() {
        for (a, b, count) in [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("zfs_a", "zfs_a", 0)] {
            assert_eq!((distance(a, b), distance(b, a)), (count, count), "{a} {b}");
        }
    }

    #[test]
    fn slips_and_parts_find_the_name_and_other_words_do_not() {
        let names = ["zfs_txg_timeout", "zfs_dirty_data_max", "zfs_dirty_data_sync_percent", "metaslab_aliquot"];
        let near = |wanted| near(wanted, names.into_iter());
        assert_eq!(near("zfs_txg_timeot"), ["zfs_txg_timeout"]);
        assert_eq!(near("ZFS_TXG_TIMEOUT"), ["zfs_txg_timeout"]);
        assert_eq!(near("dirty_data"), ["zfs_dirty_data_max", "zfs_dirty_data_sync_percent"]);
        assert_eq!(near("recordsize"), [""; 0]);
        assert_eq!(near("x"), [""; 0]);
    }
}
