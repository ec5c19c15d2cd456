//! Goal: a property's value takes effect on what is written, and not only on what `zfs get` shows. Method: pools made here, written to
//! by the program, and what is on disk looked at by the program and, where it is installed, by OpenZFS's `zdb`.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cenote_format::enums::ObjsetType;
use cenote_props::effect::{self, Effect};
use cenote_props::{Kind, Property, Types, dataset, pool};
use cenote_spa::{Clock, Host, ImportOptions, Pool, PropertyValue, WriteOptions, find, open};
use cenote_taskq::{Handle, Runtime, RuntimeOptions};
use cenote_testkit::zdb::Devices;
use cenote_zpl::XattrMode;
use cenote_zpl::bulk::{BulkWriter, MODE_DIR, MODE_FILE, NewEntry, NodeSpec};
use common::images::Images;
use common::{good, said};

/// A folder with one file, of which every algorithm makes less: letters and zeros in turns.
fn compressible(at: &Path) -> String {
    std::fs::create_dir(at).unwrap();
    let content: Vec<u8> = (0..1 << 20).map(|at| if at % 4096 < 512 { b'a' } else { 0 }).collect();
    std::fs::write(at.join("file"), content).unwrap();
    at.to_str().unwrap().to_owned()
}

#[test]
fn compression_compresses_whether_its_level_is_named_or_not() {
    let images = Images::made(&[], 1, &["-O", "compression=zstd"]);
    let source = compressible(&images.cache.path().join("source"));
    let referenced = |name: &str| -> u64 {
        images.run("zfs", &["get", "-Hpo", "value", "referenced", name]).trim().parse().unwrap()
    };
    good(images.command("put", &["mine"]).arg(&source));
    assert!(referenced("mine") < 300 << 10, "zstd of the pool's root: {}", referenced("mine"));
    for (word, is_less) in [
        ("on", true),
        ("gzip", true),
        ("zstd", true),
        ("zstd-fast", true),
        ("zstd-3", true),
        ("lz4", true),
        ("off", false),
    ] {
        let name = format!("mine/{word}");
        images.run("zfs", &["create", "-o", &format!("compression={word}"), &name]);
        good(images.command("put", &[&name]).arg(&source));
        let bytes = referenced(&name);
        assert_eq!(bytes < 300 << 10, is_less, "{word}: {bytes}");
    }
    images.assert_whole();
}

/// Bytes of a file that takes one block, of whatever size blocks are.
const FILE_BYTES: u64 = 40 << 10;
/// How the names of the file in each dataset end.
const FILE: &str = "file";
/// How many it has.
const LINKS: u64 = 40;
/// Files' blocks of this size or less go to special vdevs where `special_small_blocks` is as much.
const SMALL_BYTES: u64 = 64 << 10;
/// The top-level vdev that is special: the second.
const SPECIAL: &str = "<1:";

/// How the effect of a property that is obeyed is seen.
enum How {
    /// On what is written with these values: their words, and the numbers that are kept.
    Written(Vec<(String, u64)>),
    /// Not in blocks: by another test, or not on disk at all.
    Elsewhere(&'static str),
}

/// The values of an index, by all its words.
fn words(property: &Property) -> Vec<(String, u64)> {
    let Kind::Index(words, _) = property.kind else { panic!("{} is no index", property.name) };
    words.iter().map(|(word, number)| ((*word).to_owned(), *number)).collect()
}

fn sizes(sizes: &[u64]) -> How {
    How::Written(sizes.iter().map(|size| (size.to_string(), *size)).collect())
}

/// A row for each property that is obeyed.
fn how(property: &Property) -> How {
    const MOUNTS: &str = "what a mount for writing does: mount_rw.rs";
    match property.name {
        "checksum" | "compression" | "copies" | "dnodesize" | "redundant_metadata" | "xattr" => {
            How::Written(words(property))
        }
        "recordsize" => sizes(&[512, 4 << 10, 128 << 10, 1 << 20, 16 << 20]),
        "special_small_blocks" => sizes(&[0, 512, SMALL_BYTES, 1 << 20]),
        "acltype" | "aclmode" | "atime" | "relatime" | "readonly" | "sync" => How::Elsewhere(MOUNTS),
        "canmount" | "mountpoint" | "overlay" | "snapdir" => {
            How::Elsewhere("where and how a mount shows it: crates/fuse")
        }
        "devices" | "exec" | "setuid" => How::Elsewhere("options of the mount: everyday.rs"),
        "prefetch" | "primarycache" => How::Elsewhere("what the cache has to load: crates/dmu/tests/all/cached.rs"),
        "secondarycache" => How::Elsewhere("what a cache device gets: caches.rs"),
        "quota" => How::Elsewhere("how much can be written: mount_rw.rs and change.rs"),
        "filesystem_limit" | "snapshot_limit" => {
            How::Elsewhere("how many datasets and snapshots there can be: crates/dsl/tests/all/limits.rs")
        }
        "refreservation" | "volsize" => How::Elsewhere("the accounts, and the volume: volumes.rs"),
        "logbias" => {
            How::Elsewhere("what the log points to: crates/zil/tests/all/indirect.rs and tools/openzfs-vm/frozen")
        }
        name => panic!("how is the effect of '{name}' seen? it needs a row here"),
    }
}

/// A block as zdb shows it.
#[derive(Debug)]
struct Shown {
    object: u64,
    level: i64,
    kind: String,
    checksum: String,
    compress: String,
    copies: usize,
    logical_bytes: u64,
    place: String,
}

/// The blocks of each objset, from `zdb -bbbbb`.
fn shown(text: &str) -> BTreeMap<u64, Vec<Shown>> {
    let mut blocks = BTreeMap::<u64, Vec<Shown>>::new();
    for line in text.lines().filter(|line| line.starts_with("objset ") && line.contains("DVA[0]=")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let word = |after: &str| words[words.iter().position(|word| *word == after).unwrap() + 1];
        // The places have brackets too, but no blank after them.
        let (before, rest) = line.split_once("] ").unwrap();
        let (places, kind) = before.rsplit_once('[').unwrap();
        let algorithms: Vec<&str> = rest.split_whitespace().collect();
        let size = algorithms.iter().find_map(|word| word.strip_prefix("size=")).unwrap();
        let (logical, _) = size.split_once('L').unwrap();
        blocks.entry(word("objset").parse().unwrap()).or_default().push(Shown {
            object: word("object").parse().unwrap(),
            level: word("level").parse().unwrap(),
            kind: kind.split_once(' ').map_or(kind, |(_, kind)| kind).to_owned(),
            checksum: algorithms[0].to_owned(),
            compress: algorithms[1].to_owned(),
            copies: places.matches("DVA[").count(),
            logical_bytes: u64::from_str_radix(logical, 16).unwrap(),
            place: places.split("DVA[0]=").nth(1).unwrap().to_owned(),
        });
    }
    blocks
}

/// A dataset, with what was set.
struct Case {
    name: String,
    property: &'static Property,
    word: String,
    number: u64,
}

impl Case {
    /// The file's size: two records where they are large, so that there is one of full size.
    fn file_bytes(&self) -> u64 {
        if self.property.name == "recordsize" { self.number.max(FILE_BYTES) } else { FILE_BYTES }
    }

    /// The dataset's blocks, as zdb shows them, are as the value demands.
    fn check(&self, file: u64, dnode_bytes: u64, blocks: &[Shown]) {
        let Self { name, property, word, number } = self;
        // A file's spill block stands at level 0 too.
        let is_data = |block: &&Shown| block.object == file && block.level == 0 && block.kind == "ZFS plain file";
        let data: Vec<&Shown> = blocks.iter().filter(is_data).collect();
        assert!(!data.is_empty(), "{name}: no data");
        let of = |kind: &str, level: i64| {
            let found = blocks.iter().find(|block| block.kind == kind && block.level == level);
            found.unwrap_or_else(|| panic!("{name}: no {kind} of level {level} in {blocks:?}")).copies
        };
        match property.name {
            "checksum" => {
                let expected = if word == "on" { "fletcher4" } else { word };
                assert!(data.iter().all(|block| block.checksum == expected), "{name}: {data:?}");
            }
            "compression" => {
                let expected = match word.as_str() {
                    "on" => "lz4",
                    "off" => "uncompressed",
                    "gzip" => "gzip-6",
                    word if word.starts_with("zstd") => "zstd",
                    word => word,
                };
                assert!(data.iter().all(|block| block.compress == expected), "{name}: {data:?}");
            }
            "copies" => {
                assert!(data.iter().all(|block| block.copies as u64 == *number), "{name}: {data:?}");
                assert_eq!(of("DMU dnode", 0) as u64, (number + 1).min(3), "{name}");
            }
            "recordsize" => {
                let expected = (*number).min(self.file_bytes());
                assert!(data.iter().all(|block| block.logical_bytes == expected), "{name}: {data:?}");
            }
            "dnodesize" => {
                let expected = match word.as_str() {
                    "legacy" => 512,
                    "auto" => 1024,
                    _ => *number,
                };
                assert_eq!(dnode_bytes, expected, "{name}");
            }
            "redundant_metadata" => {
                let found = [of("DMU objset", -1), of("DMU dnode", 1), of("DMU dnode", 0), of("ZFS directory", 0)];
                let expected = match word.as_str() {
                    "all" | "most" => [2, 2, 2, 2],
                    "some" => [2, 2, 1, 1],
                    _ => [1, 1, 1, 1],
                };
                assert_eq!(found, expected, "{name}");
            }
            "special_small_blocks" => {
                let is_small = FILE_BYTES <= *number;
                assert!(data.iter().all(|block| block.place.starts_with(SPECIAL) == is_small), "{name}: {data:?}");
            }
            "xattr" => {
                // The attribute is a file of its own, or stands with its owner.
                let files: BTreeSet<u64> =
                    blocks.iter().filter(|block| block.kind == "ZFS plain file").map(|block| block.object).collect();
                assert_eq!(files.len(), if word == "dir" { 2 } else { 1 }, "{name}: {blocks:?}");
            }
            property => panic!("how is the effect of '{property}' seen in blocks?"),
        }
    }
}

#[test]
fn every_value_that_can_be_set_is_seen_on_disk() {
    if cenote_testkit::zdb::program("zdb").is_none() {
        assert!(std::env::var_os("CI").is_none(), "zdb is not installed");
        eprintln!("left out: zdb is not installed");
        return;
    }
    let mut images = Images::none();
    let files: Vec<PathBuf> = ["normal", "special"].map(|name| images.dir.join(name)).into();
    let mut create = images.bare();
    create.args(["zpool", "create", "--size", "128M", "-f", "mine"]).arg(&files[0]).arg("special").arg(&files[1]);
    good(&mut create);
    images.note_files();

    let mut cases = Vec::new();
    for (name, effect) in effect::OF_DATASETS.iter().filter(|(_, effect)| *effect == Effect::Obeyed) {
        let property = dataset::find(name).unwrap();
        match how(property) {
            How::Written(values) => cases.extend(values.into_iter().map(|(word, number)| Case {
                name: format!("mine/{name}-{word}"),
                property,
                word,
                number,
            })),
            How::Elsewhere(reason) => assert!(!reason.is_empty(), "{name}: {effect:?}"),
        }
    }
    assert!(cases.len() > 80, "{} values", cases.len());

    let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
    let handle = runtime.handle();
    let seen = runtime.block_on(async {
        // As `zfs create -o` does, and, once it is on disk, as `put` does.
        let pool = opened(&handle, &files).await;
        for case in &cases {
            let head = pool.create_dataset(&case.name, ObjsetType::Zfs).await.unwrap();
            let root = NodeSpec { mode: MODE_DIR | 0o755, ..NodeSpec::default() };
            BulkWriter::create(&head.objset, pool.txg(), &root).await.unwrap();
        }
        pool.sync().await.unwrap();
        for case in &cases {
            let value = PropertyValue::Number(case.number);
            pool.change_property(&case.name, case.property.name, Some(&value)).await.unwrap();
        }
        pool.export().await.unwrap();
        let pool = opened(&handle, &files).await;
        let mut seen = Vec::new();
        for case in &cases {
            seen.push(write_file(&pool, case).await);
        }
        pool.export().await.unwrap();
        seen
    });
    images.assert_whole();
    let devices = Devices::of(&images.files).unwrap();
    let blocks = shown(&cenote_testkit::zdb::run(&devices, &["-bbbbb"], "mine").unwrap().text);
    for (case, (objset, file, dnode_bytes)) in cases.iter().zip(&seen) {
        case.check(*file, *dnode_bytes, blocks.get(objset).unwrap_or_else(|| panic!("{}: no blocks", case.name)));
    }
    // Every feature that these need is counted as often as there are datasets that need it; so zdb says.
    let told = cenote_testkit::zdb::run(&devices, &["-d"], "mine").unwrap();
    assert!(!told.text.contains("mismatch"), "{}", told.text);
    for (feature, count) in [("large_blocks", 2), ("large_dnode", 6), ("sha512", 1), ("blake3", 1), ("longname", 0)] {
        let line = format!("Verified {feature} feature refcount of {count} is correct");
        assert!(told.text.contains(&line), "{line}: {}", told.text);
    }
}

/// The pool, to be written.
async fn opened(handle: &Handle, files: &[PathBuf]) -> Pool {
    let (mut pools, skipped) = find(handle, files).await;
    assert_eq!(pools.len(), 1, "{skipped:?}");
    let how = ImportOptions { cache_bytes: 64 << 20, force: true, ..ImportOptions::default() };
    let host = Host { id: 0, name: "here".into() };
    open(handle, pools.remove(0), &how, WriteOptions { clock: Clock::Now, host, check: true }).await.unwrap()
}

/// Adds a file with an extended attribute as the properties say; the objset's number, the file's, and its dnode's bytes.
async fn write_file(pool: &Pool, case: &Case) -> (u64, u64, u64) {
    let head = pool.open_head(&case.name).await.unwrap();
    let view = pool.dsl().unwrap();
    let dir = view.dir(&case.name).await.unwrap();
    let found = view.property(&dir, case.property.name, true).await.unwrap().unwrap();
    assert_eq!(found.value.number(), Some(case.number), "{}", case.name);
    let mut fs = BulkWriter::open(&head.objset).await.unwrap();
    let sizes = pool.look(move |syncer| Box::pin(async move { syncer.file_sizes(&view, &dir).await })).await.unwrap();
    (fs.record_bytes, fs.dnode_slots) = (sizes.record_bytes, sizes.dnode_slots);
    if case.property.name == "xattr" && case.number == 1 {
        fs.xattrs = XattrMode::Dir;
    }
    let (txg, mode, size_bytes) = (pool.txg(), MODE_FILE | 0o644, case.file_bytes());
    // Every algorithm makes less of it, and none so little that it stands in its pointer.
    let noise = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    let content: Vec<u8> = (0..size_bytes).map(|at| if at % 4096 < 512 { noise(at) } else { 0 }).collect();
    let file = fs.new_node(txg, mode, size_bytes).unwrap();
    file.write(txg, 0, &content).await.unwrap();
    let xattrs = vec![(b"user.note".to_vec(), (0..2000).map(noise).collect())];
    let node = NodeSpec { mode, size_bytes, links: LINKS, parent: fs.root(), xattrs, ..NodeSpec::default() };
    fs.set_attributes(txg, &file, &node).await.unwrap();
    let root = fs.objset().object(fs.root()).await.unwrap();
    // So many names that the directory has a block and does not stand in its pointer.
    let entry = |at: u64| NewEntry { name: format!("{at:x}-{FILE}").into_bytes(), object: file.id(), mode };
    let entries: Vec<NewEntry> = (0..LINKS).map(|at| entry(at.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    fs.add_entries(txg, &root, &entries, [pool.time_s(), 0]).await.unwrap();
    (head.dataset.0, file.id().0, file.phys().slots() as u64 * 512)
}

#[test]
fn what_is_kept_and_not_obeyed_says_so_and_is_kept() {
    let images = Images::made(&[], 1, &[]);
    let other = |property: &Property| -> Option<(&'static str, u64)> {
        let Kind::Index(words, default) = property.kind else { return None };
        words.iter().find(|(_, number)| *number != default).copied()
    };
    let stored = |rows: &'static [(&'static str, Effect)]| {
        rows.iter().filter(|(_, effect)| *effect == Effect::Stored).map(|(name, _)| *name).collect::<Vec<_>>()
    };
    let of_file_systems: Vec<&Property> = stored(effect::OF_DATASETS)
        .into_iter()
        .map(|name| dataset::find(name).unwrap())
        .filter(|property| property.types.contains(Types::FILESYSTEM))
        .collect();
    let settings: Vec<String> =
        of_file_systems.iter().map(|property| format!("{}={}", property.name, other(property).unwrap().0)).collect();
    let mut words: Vec<&str> = vec!["set"];
    words.extend(settings.iter().map(String::as_str));
    let output = images.command("zfs", &[&words[..], &["mine"]].concat()).output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{}", said(&output));
    for property in &of_file_systems {
        let note = format!("note: '{}' is stored; Cenote does not obey it yet", property.name);
        assert!(said(&output).contains(&note), "{note}: {}", said(&output));
        assert_eq!(images.get(property.name, "mine"), format!("{}\tlocal", other(property).unwrap().0));
    }
    for name in stored(effect::OF_POOLS) {
        let (word, _) = other(pool::find(name).unwrap()).unwrap();
        let output = images.command("zpool", &["set", &format!("{name}={word}"), "mine"]).output().unwrap();
        assert!(output.status.success() && output.stdout.is_empty(), "{}", said(&output));
        assert!(said(&output).contains(&format!("note: '{name}' is stored")), "{name}: {}", said(&output));
        let got = images.run("zpool", &["get", "-H", "-o", "value,source", name, "mine"]);
        assert_eq!(got, format!("{word}\tlocal\n"), "{name}");
    }
    // A value that stands for what Cenote does anyway is not noted.
    let output = images.command("zpool", &["set", "autotrim=off", "mine"]).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", said(&output));
    images.assert_whole();
}

/// Goal: no command gives a name or a value that is longer or deeper than OpenZFS's, be it by a change of another name. Method: each limit
/// from both sides.
#[test]
fn names_and_values_past_openzfs_limits_are_refused_wherever_they_come_from() {
    let images = Images::made(&[], 1, &[]);
    let run = |words: &[&str]| images.run("zfs", words);
    let refused = |words: &[&str], why: &str| {
        let said = images.refused("zfs", words);
        assert!(said.contains(why), "{words:?}: {said}");
    };
    let long = |len: usize| "n".repeat(len);
    // User properties of pools, as those of datasets.
    for tool in ["zpool", "zfs"] {
        let set = |name: usize, value: usize| format!("x:{}={}", long(name - 2), long(value));
        images.run(tool, &["set", &set(255, 8191), "mine"]);
        for (name, value) in [(256, 1), (300, 1), (3, 8192), (3, 8193)] {
            images.refused(tool, &["set", &set(name, value), "mine"]);
        }
    }
    // Levels: of what is moved, all below counts.
    let deep = |top: &str, levels: usize| format!("mine/{top}{}", format!("/{top}").repeat(levels - 2));
    run(&["create", "-p", &deep("a", 31)]);
    run(&["create", "-p", &deep("b", 21)]);
    refused(&["rename", "mine/a", &format!("{}/a", deep("b", 21))], "maximum name nesting depth exceeded");
    run(&["rename", "mine/a", &format!("{}/a", deep("b", 20))]);
    run(&["rename", &format!("{}/a", deep("b", 20)), "mine/a"]);
    // Lengths: snapshots and bookmarks count with their dataset.
    run(&["create", "mine/s"]);
    run(&["snapshot", &format!("mine/s@{}", long(240))]);
    refused(&["rename", "mine/s", &format!("mine/{}", long(10))], "name is too long");
    run(&["clone", &format!("mine/s@{}", long(240)), &format!("mine/{}", long(10))]);
    refused(&["promote", &format!("mine/{}", long(10))], "name is too long");
    run(&["create", "mine/m"]);
    run(&["snapshot", "mine/m@1"]);
    run(&["bookmark", "mine/m@1", &format!("mine/m#{}", long(240))]);
    refused(&["rename", "mine/m", &format!("mine/{}", long(11))], "name is too long");
    // Tags: those of temporary holds alone have a prefix that takes of their length.
    run(&["hold", &long(255), "mine/m@1"]);
    refused(&["hold", &long(256), "mine/m@1"], "tag too long");
    run(&["release", &long(255), "mine/m@1"]);
    images.assert_whole();
}
