//! Tests.

use std::sync::Arc;

use crate::{Body, Counters, Group, Histogram, Registry, Settings, Stat, TunableError};

crate::tunables! {
    /// Tunables of an example.
    #[derive(Copy)]
    struct Example {
        /// Seconds
        /// of something.
        zfs_txg_timeout: u32 = 5, "s", Number(1, 3600), AtOpen;
        /// Bytes.
        zfs_dirty_data_max: u64 = 4 << 30, "bytes", Number(1 << 20, 1 << 40), AtOpen, computed "a tenth of memory";
        /// Whether.
        zfs_is: bool = true, "", Switch, Live;
    }
}

const TABLES: &[&[crate::Tunable]] = &[Example::TABLE];

fn refused(text: &str) -> String {
    let mut settings = Settings::of(TABLES);
    let error = settings.set_from(text).unwrap_err();
    assert_eq!(settings, Settings::of(TABLES), "a refused value changes nothing");
    if let Ok((name, value)) = crate::split(text) {
        assert_eq!(Example::default().set(name, value).unwrap_err(), error);
    }
    error.to_string()
}

#[test]
fn a_declaration_gives_records_and_fields() {
    let [timeout, dirty, is] = Example::TABLE else { panic!() };
    assert_eq!((timeout.name, timeout.default, timeout.effect), ("zfs_txg_timeout", 5, "Seconds of something."));
    assert_eq!((timeout.computed, dirty.computed, dirty.default), (None, Some("a tenth of memory"), 4 << 30));
    assert_eq!((is.shown(1).as_str(), is.to_string().as_str()), ("1", "0 or 1"));
    assert_eq!(Example::default().numbers(), Example::TABLE.iter().map(|it| (it.name, it.default)).collect::<Vec<_>>());
}

#[test]
fn given_values_win_and_units_are_understood() {
    let mut settings = Settings::of(TABLES);
    for (text, number) in [("zfs_txg_timeout=7", 7), ("zfs_txg_timeout=8s", 8), ("zfs_txg_timeout=9 s", 9)] {
        settings.set_from(text).unwrap();
        assert_eq!(Example::default().with(&settings).zfs_txg_timeout, number);
    }
    for (value, bytes) in
        [("2097152", 2 << 20), ("2M", 2 << 20), ("3GiB", 3 << 30), ("1048576B", 1 << 20), ("1T", 1 << 40)]
    {
        settings.set("zfs_dirty_data_max", value).unwrap();
        let computed = Example { zfs_dirty_data_max: 1, ..Example::default() };
        assert_eq!(computed.with(&settings).zfs_dirty_data_max, bytes);
    }
    settings.set("zfs_is", "0").unwrap();
    let example = Example::default().with(&settings);
    assert!(!example.zfs_is);
    assert_eq!(example.numbers()[2], ("zfs_is", 0));
    assert!(Settings::of(TABLES).is_empty() && !settings.is_empty());
    assert_eq!(settings.to_string(), "zfs_txg_timeout=9, zfs_dirty_data_max=1099511627776, zfs_is=0");
}

#[test]
fn refusals_say_name_range_and_unit() {
    assert_eq!(
        refused("zfs_txg_timeot=1"),
        "no tunable is called 'zfs_txg_timeot'; did you mean zfs_txg_timeout? 'cenote tunables' lists them"
    );
    assert_eq!(refused("recordsize=1"), "no tunable is called 'recordsize'; 'cenote tunables' lists them");
    assert_eq!(refused("zfs_txg_timeout=0"), "zfs_txg_timeout cannot be '0': it must be a number from 1 to 3600 (s)");
    assert_eq!(refused("zfs_txg_timeout=5ms"), "zfs_txg_timeout cannot be '5ms': its unit is s, and no other is taken");
    assert_eq!(refused("zfs_is=2"), "zfs_is cannot be '2': it must be 0 or 1");
    assert!(refused("zfs_dirty_data_max=5s").contains("K, M, G or T"));
    assert!(refused("zfs_txg_timeout=").contains("from 1 to 3600"));
    assert!(refused("zfs_txg_timeout=-1").contains("from 1 to 3600"));
    assert!(refused("zfs_dirty_data_max=99999999999T").contains("a number from"));
    assert!(refused("zfs_txg_timeout=99999999999999999999").contains("from 1 to 3600"));
    assert_eq!(refused("zfs_txg_timeout"), "'zfs_txg_timeout' is not of the form NAME=VALUE");
    assert!(matches!(crate::find(TABLES, ""), Err(TunableError::Unknown { .. })));
}

#[test]
fn counters_of_many_threads_add_up() {
    let (counters, histogram) = (Counters::<3>::default(), Histogram::<5>::default());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for value in 0..100 {
                    counters.add([(0, 1), (2, value)]);
                    histogram.add(value);
                }
            });
        }
    });
    assert_eq!(counters.sums(), [400, 0, 4 * 4950]);
    assert_eq!(histogram.buckets(), [2 * 4, 2 * 4, 4 * 4, 8 * 4, 84 * 4]);
}

#[test]
fn a_registry_reads_what_is_there() {
    let registry = Registry::default();
    let (first, second) = (Arc::new(Counters::<2>::default()), Arc::new(7_u64));
    registry.add(&first, |counters, snapshot| {
        let [hits, misses] = counters.sums();
        let sheet = snapshot.group("b");
        sheet.count("hits", hits);
        sheet.level("misses", misses);
    });
    registry.add(&second, |number, all| all.group("a").table(&["n"], vec![vec![Stat::Count(*number)]]));
    first.add([(0, 2), (1, 5)]);
    let named = Body::Named(vec![("hits", Stat::Count(2)), ("misses", Stat::Level(5))]);
    let table = Body::Rows(vec!["n"], vec![vec![Stat::Count(7)]]);
    let all = [Group { name: "a".into(), body: table }, Group { name: "b".into(), body: named }];
    assert_eq!(registry.snapshot(), all);
    drop(second);
    assert_eq!(registry.snapshot(), all[1..]);
    assert_eq!(format!("{registry:?}"), "Registry of 1 sources");
    // Several sources may give one group.
    registry.add(&first, |_, snapshot| snapshot.group("b").count("hits", 40));
    let Body::Named(named) = &registry.snapshot()[0].body else { panic!() };
    assert_eq!(named[0], ("hits", Stat::Count(42)));
}
