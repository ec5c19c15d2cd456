//! The effect of setting a property in Cenote: it is obeyed, only stored, or refused.
//!
//! One row for each property that can be set in OpenZFS, so that none is forgotten. Setting a property that is only stored prints a
//! note that says so; one whose promise cannot be kept yet is refused. Tests go through these rows and prove each effect on disk.

use crate::Property;

/// The effect of a property's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It is obeyed: by what is written, by mounts, or by what is shown.
    Obeyed,
    /// It is stored, for OpenZFS; Cenote goes by the default.
    Stored,
    /// It is refused: its promise could not be kept.
    NotYet,
}

use Effect::{NotYet, Obeyed, Stored};

/// Of datasets, by name.
pub const OF_DATASETS: &[(&str, Effect)] = &[
    ("aclinherit", Stored),
    ("aclmode", Obeyed),
    ("acltype", Obeyed),
    ("atime", Obeyed),
    ("canmount", Obeyed),
    ("checksum", Obeyed),
    ("compression", Obeyed),
    ("context", NotYet),
    ("copies", Obeyed),
    ("dedup", NotYet),
    ("defcontext", NotYet),
    ("devices", Obeyed),
    ("direct", Stored),
    ("dnodesize", Obeyed),
    ("exec", Obeyed),
    ("filesystem_limit", Obeyed),
    ("fscontext", NotYet),
    ("iscsioptions", NotYet),
    ("keylocation", NotYet),
    ("logbias", Obeyed),
    ("longname", NotYet),
    ("mlslabel", NotYet),
    ("mountpoint", Obeyed),
    ("nbmand", NotYet),
    ("overlay", Obeyed),
    ("prefetch", Obeyed),
    ("primarycache", Obeyed),
    ("quota", Obeyed),
    ("readonly", Obeyed),
    ("recordsize", Obeyed),
    ("redundant_metadata", Obeyed),
    ("refquota", NotYet),
    ("refreservation", Obeyed),
    ("relatime", Obeyed),
    ("reservation", NotYet),
    ("rootcontext", NotYet),
    ("secondarycache", Obeyed),
    ("setuid", Obeyed),
    ("sharenfs", NotYet),
    ("sharesmb", NotYet),
    ("snapdev", Stored),
    ("snapdir", Obeyed),
    ("snapshot_limit", Obeyed),
    ("special_small_blocks", Obeyed),
    ("stmf_sbd_lu", NotYet),
    ("sync", Obeyed),
    ("version", NotYet),
    ("volmode", Stored),
    ("volsize", Obeyed),
    ("volthreading", Stored),
    ("vscan", NotYet),
    ("xattr", Obeyed),
    ("zoned", NotYet),
];

/// Of pools, by name; features apart, which are all obeyed.
pub const OF_POOLS: &[(&str, Effect)] = &[
    ("altroot", NotYet),
    ("ashift", Obeyed),
    ("autoexpand", Obeyed),
    ("autoreplace", Obeyed),
    ("autotrim", Obeyed),
    ("bootfs", Obeyed),
    ("cachefile", Obeyed),
    ("comment", Obeyed),
    ("compatibility", Obeyed),
    ("dedup_table_quota", NotYet),
    ("dedupditto", NotYet),
    ("delegation", Stored),
    ("failmode", Obeyed),
    ("listsnapshots", Obeyed),
    ("multihost", Obeyed),
    ("readonly", NotYet),
    ("version", NotYet),
];

fn find(rows: &[(&str, Effect)], property: &Property) -> Effect {
    rows.iter().find(|(name, _)| *name == property.name).map_or(NotYet, |(_, effect)| *effect)
}

/// The effect of a dataset's property; [`Effect::NotYet`] for one that cannot be set.
#[must_use]
pub fn of_dataset(property: &Property) -> Effect {
    find(OF_DATASETS, property)
}

/// The effect of a pool's property when it is set in a pool that exists; [`Effect::NotYet`] for one that cannot be set.
#[must_use]
pub fn of_pool(property: &Property) -> Effect {
    find(OF_POOLS, property)
}

/// Cenote does something else than this value says: the property is only stored, and the value is not its default.
#[must_use]
pub fn is_ignored(effect: Effect, property: &Property, number: u64) -> bool {
    effect == Stored && property.default_number() != Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dataset, pool};

    #[test]
    fn each_property_that_can_be_set_has_one_row_and_nothing_else_has() {
        for (table, rows) in [(dataset::PROPERTIES, OF_DATASETS), (pool::PROPERTIES, OF_POOLS)] {
            let settable: Vec<&str> =
                table.iter().filter(|property| !property.is_read_only()).map(|property| property.name).collect();
            for name in &settable {
                assert_eq!(rows.iter().filter(|(of, _)| of == name).count(), 1, "{name}: who obeys it?");
            }
            for (name, _) in rows {
                assert!(settable.contains(name), "{name} cannot be set");
            }
        }
    }

    #[test]
    fn what_is_only_kept_is_ignored_unless_it_is_the_default() {
        let direct = dataset::find("volthreading").unwrap();
        assert!(is_ignored(of_dataset(direct), direct, 0) && !is_ignored(of_dataset(direct), direct, 1));
        let atime = dataset::find("atime").unwrap();
        assert!(!is_ignored(of_dataset(atime), atime, 0));
    }
}
