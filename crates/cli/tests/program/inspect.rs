//! `inspect` against `zdb`'s accounts of the same pools, recorded and live, and on damaged copies of them.

use crate::common;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Output;

use cenote_testkit::zdb::{self, BlockStatistics};
use common::{Pool, program, theme};
use serde_json::Value;

/// Themes of every shape of vdev that the repository has.
const THEMES: [&str; 5] = ["basic", "mirror3", "raidz1", "log_spacemap", "snapshots"];
/// A label's size, and where its configuration begins.
const LABEL_BYTES: u64 = 256 << 10;
const CONFIG_OFFSET: u64 = 16 << 10;
/// Where a label's ring of uberblocks begins, and its size.
const RING_OFFSET: u64 = 128 << 10;
const RING_BYTES: usize = 128 << 10;

fn parsed(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// A report on a sound pool: there must be no problems.
fn report(pool: &Pool, what: &str, rest: &[&str]) -> Value {
    let output = pool.command(&["inspect", what, "--json"], rest).output().unwrap();
    let value = parsed(&output);
    assert_eq!(value["problems"], serde_json::json!([]), "{what} {rest:?}");
    assert!(output.status.success(), "{what} {rest:?}");
    value
}

/// A report on whatever, with whether it found no problem.
fn report_on(args: &[&str]) -> (Value, bool) {
    let output = program().args(["inspect"]).args(args).arg("--json").output().unwrap();
    (parsed(&output), output.status.success())
}

fn rows<'a>(report: &'a Value, name: &str) -> &'a Vec<Value> {
    report[name].as_array().unwrap_or_else(|| panic!("no {name} in {report}"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// The part of zdb's recorded account that one of its runs gave.
fn recorded(theme_name: &str, options: &str) -> String {
    let text = theme(theme_name).zdb_text().unwrap();
    let start = text.find(&format!("### zdb {options}")).unwrap_or_else(|| panic!("no {options}"));
    let rest = &text[start..];
    rest[..rest[3..].find("\n### ").map_or(rest.len(), |end| end + 3)].to_owned()
}

/// The value after `name` and whatever separates the two.
fn after(text: &str, name: &str) -> u64 {
    let start = text.find(name).unwrap_or_else(|| panic!("no {name}")) + name.len();
    let digits = text[start..].trim_start_matches([' ', '=', ':']);
    digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())].parse().unwrap()
}

/// The zdb of this system on a golden pool.
fn zdb_text(theme_name: &str, options: &[&str], of: &str) -> Option<String> {
    if zdb::program("zdb").is_none() {
        eprintln!("left out: zdb is not installed");
        return None;
    }
    let devices = zdb::Devices::of(&theme(theme_name).unpacked().unwrap().images).unwrap();
    Some(zdb::run(&devices, options, of).unwrap().text)
}

#[test]
fn every_golden_image_has_four_labels_that_agree() {
    for name in THEMES {
        let pool = Pool::of(name);
        for image in theme(name).unpacked().unwrap().images {
            let file = image.file_name().unwrap().to_str().unwrap();
            let (shown, is_good) = report_on(&["labels", image.to_str().unwrap()]);
            assert!(is_good, "{name} {file}: {}", shown["problems"]);
            let device = &rows(&shown, "devices")[0];
            let text = recorded(name, &format!("-l {file}"));
            assert_eq!(number(&device["pool_guid"]), after(&text, "pool_guid:"), "{name} {file}");
            assert_eq!(device["good_label_count"], 4, "{name} {file}");
            assert_eq!(device["labels_agree"], true, "{name} {file}");
            let config = &rows(device, "configurations")[0]["config"];
            assert_eq!(number(&config["txg"]), after(&text, "txg:"), "{name} {file}");
            assert_eq!(number(&config["top_guid"]), after(&text, "top_guid:"), "{name} {file}");
            assert_eq!(number(&config["vdev_tree"]["asize"]), after(&text, "asize:"), "{name} {file}");
        }
        // By the pool's name all its devices are found.
        let by_name = report(&pool, "labels", &[&pool.name]);
        assert_eq!(rows(&by_name, "devices").len(), theme(name).unpacked().unwrap().images.len(), "{name}");
    }
}

#[test]
fn the_newest_uberblock_is_zdbs() {
    for name in THEMES {
        let pool = Pool::of(name);
        let shown = report(&pool, "uberblocks", &["--check", "-v", &pool.name]);
        let newest = &rows(&shown, "uberblocks")[0];
        let text = recorded(name, "-e -u");
        assert_eq!(number(&newest["txg"]), after(&text, "txg ="), "{name}");
        assert_eq!(number(&newest["guid_sum"]), after(&text, "guid_sum ="), "{name}");
        assert_eq!(number(&newest["timestamp_s"]), after(&text, "timestamp ="), "{name}");
        let bp = text.lines().find_map(|line| line.trim().strip_prefix("bp = ")).unwrap();
        assert_eq!(newest["rootbp"], bp, "{name}");
        assert_eq!(newest["root"], "readable", "{name}");
        let txgs: Vec<u64> = rows(&shown, "uberblocks").iter().map(|row| number(&row["txg"])).collect();
        assert!(txgs.is_sorted_by(|a, b| a >= b), "{name}: {txgs:?}");
    }
}

#[test]
fn the_configuration_is_that_of_the_mos() {
    for name in THEMES {
        let pool = Pool::of(name);
        let shown = report(&pool, "config", &[&pool.name]);
        let text = recorded(name, "-e -C");
        assert_eq!(shown["config"]["name"], pool.name.as_str());
        assert_eq!(number(&shown["config"]["pool_guid"]), after(&text, "pool_guid:"), "{name}");
        assert_eq!(number(&shown["config"]["vdev_children"]), after(&text, "vdev_children:"), "{name}");
        assert!(shown["source"].as_str().unwrap().starts_with("MOS"), "{name}: {}", shown["source"]);
    }
}

/// The lines of `zdb -ddP` about objects: number, levels, block sizes, space, size, fill.
fn zdb_objects(text: &str) -> BTreeMap<i64, Vec<String>> {
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let heading = text.lines().position(|line| line.trim_start().starts_with("Object  lvl")).expect("a heading");
    let lines = text.lines().skip(heading + 1).map(cells);
    let objects = lines.take_while(|cells| cells.len() >= 9).map(|cells| (cells[0].parse().unwrap(), cells));
    objects.collect()
}

#[test]
fn every_object_has_the_sizes_that_zdb_shows() {
    for (name, is_mos) in [("basic", true), ("basic", false), ("snapshots", false), ("raidz1", true)] {
        let pool = Pool::of(name);
        let of = if is_mos { pool.name.clone() } else { format!("{}/", pool.name) };
        let Some(text) = zdb_text(name, &["-ddP"], &of) else { return };
        let theirs = zdb_objects(&text);
        assert!(theirs.len() > 10, "{name}: {text}");
        let dataset = if is_mos { format!("{}/$MOS", pool.name) } else { pool.name.clone() };
        let shown = report(&pool, "object", &["--limit", "100000", &dataset]);
        let ours: BTreeMap<i64, &Value> =
            rows(&shown, "objects").iter().map(|row| (row["object"].as_i64().unwrap(), row)).collect();
        assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{name}");
        for (object, cells) in &theirs {
            let row = ours[object];
            let fields =
                ["levels", "indirect_block_bytes", "data_block_bytes", "used_bytes", "dnode_bytes", "lsize_bytes"];
            // zdb rounds the space used to sectors.
            let rounded = |field: &str| {
                let value = number(&row[field]);
                if field == "used_bytes" { (value + 256) / 512 * 512 } else { value }
            };
            let got: Vec<String> = fields.iter().map(|field| rounded(field).to_string()).collect();
            assert_eq!(got, cells[1..7], "{name} object {object}");
            let full: f64 = cells[7].parse().unwrap();
            assert!((row["full_percent"].as_f64().unwrap() - full).abs() < 0.02, "{name} object {object}: {row}");
        }
    }
}

#[test]
fn a_file_is_found_by_its_path_and_shown_with_attributes_and_pointers() {
    let pool = Pool::of("basic");
    let entries = pool.entries(&pool.name);
    let large = entries.iter().filter(|entry| entry["type"] == "f").max_by_key(|entry| entry["size"].as_u64()).unwrap();
    let path = format!("/{}", large["path"].as_str().unwrap());
    let shown = report(&pool, "object", &["-v", &pool.name, &path]);
    let object = &rows(&shown, "objects")[0];
    assert_eq!(object["object"], large["ino"]);
    assert_eq!(object["bonus"]["size_bytes"], large["size"]);
    assert_eq!(object["bonus"]["links"], large["nlink"]);
    assert!(object["path"].as_str().unwrap().starts_with('/'));
    let mode = u64::from_str_radix(object["bonus"]["mode"].as_str().unwrap(), 8).unwrap();
    assert_eq!(mode & 0o7777, u64::from_str_radix(large["mode"].as_str().unwrap(), 8).unwrap());
    let pointers = rows(object, "pointers");
    assert!(!pointers.is_empty());
    // Each of its blocks can be read by what it belongs to, in every copy.
    for row in pointers.iter().filter(|row| !row["pointer"].as_str().unwrap().contains("HOLE")).take(3) {
        let tuple = format!("{}:{}:{}:{}", shown["objset"], object["object"], row["level"], row["block"]);
        let block = report(&pool, "bp", &[&pool.name, &tuple]);
        assert_eq!(block["pointer_text"], row["pointer"], "{tuple}");
    }
}

#[test]
fn a_directory_shows_its_entries_and_a_list_that_is_cut_says_so() {
    let pool = Pool::of("basic");
    let shown = report(&pool, "object", &[&pool.name, "/"]);
    let names: Vec<&str> =
        rows(&shown["objects"][0], "entries").iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    for entry in
        pool.entries(&pool.name).iter().filter(|entry| entry["path"].as_str().is_some_and(|p| !p.contains('/')))
    {
        let path = entry["path"].as_str().unwrap();
        assert!(path.is_empty() || path == "." || names.contains(&path), "{path} is not in {names:?}");
    }
    let cut = report(&pool, "object", &["--limit", "2", &pool.name, "/"]);
    assert_eq!(rows(&cut["objects"][0], "entries").len(), 2);
    assert_eq!(cut["objects"][0]["entries_left_out"], names.len() - 2);
}

#[test]
fn the_same_block_is_read_by_its_place_and_by_what_it_belongs_to() {
    for name in ["basic", "raidz1", "mirror3"] {
        let pool = Pool::of(name);
        let block = report(&pool, "bp", &[&pool.name, "0:0:-1:0"]);
        let dva = &block["pointer"]["dvas"][0];
        let size = number(&block["pointer"]["psize_bytes"]);
        let place = format!("{}:{:x}:{size:x}", dva["vdev"], number(&dva["offset_bytes"]));
        let by_place = report(&pool, "bp", &[&pool.name, &place]);
        let checksum = block["pointer"]["checksum"].as_str().unwrap();
        assert_eq!(by_place["checksums"][checksum], block["pointer"]["checksum_words"], "{name}");
        let raw = pool.run(&["inspect", "bp", "--raw"], &[&pool.name, &place]);
        let physical = pool.run(&["inspect", "bp", "--raw", "--physical"], &[&pool.name, "0:0:-1:0"]);
        assert!(raw == physical && raw.len() as u64 == size, "{name}");
    }
}

#[test]
fn births_and_places_of_any_size_end_in_an_error_not_a_panic() {
    let pool = Pool::of("raidz1");
    for (birth, place) in [
        (u64::MAX, "0:0:200"),
        (u64::MAX, "0:ffffffffffffffff:200"),
        (0, "0:fffffffffffff000:2000000"),
        (u64::MAX - 1, "16777215:0:200"),
        (1, "0:1:1"),
    ] {
        let birth = birth.to_string();
        let output = pool.command(&["inspect", "bp", "--birth", &birth], &[&pool.name, place]).output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 1)), "{birth} {place}: {output:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{birth} {place}");
    }
    for (tuple, is_there) in
        [("0:1:0:0", true), ("0:1:11:0", false), ("0:18446744073709551615:0:18446744073709551615", false)]
    {
        let output = pool.command(&["inspect", "bp"], &[&pool.name, tuple]).output().unwrap();
        assert_eq!(output.status.success(), is_there, "{tuple}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{tuple}");
    }
}

#[test]
fn space_maps_are_those_of_zdb() {
    for name in ["basic", "log_spacemap", "raidz1"] {
        let pool = Pool::of(name);
        let shown = report(&pool, "spacemaps", &["-v", &pool.name]);
        let statistics = BlockStatistics::parse(&theme(name).zdb_text().unwrap()).unwrap();
        assert_eq!(number(&shown["allocated_bytes"]), statistics.bp_allocated_bytes, "{name}");
        let Some(text) = zdb_text(name, &["-mP"], &pool.name) else { continue };
        let theirs: Vec<Vec<String>> = text
            .lines()
            .filter(|line| line.trim_start().starts_with("metaslab ") && line.contains("offset"))
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect();
        let ours: Vec<&Value> = rows(&shown, "vdevs").iter().flat_map(|vdev| rows(vdev, "metaslabs")).collect();
        assert_eq!(ours.len(), theirs.len(), "{name}: {text}");
        for (row, cells) in ours.iter().zip(&theirs) {
            // metaslab N offset HEX spacemap N free N
            assert_eq!(row["metaslab"].to_string(), cells[1], "{name}");
            assert_eq!(format!("{:x}", number(&row["offset_bytes"])), cells[3], "{name}");
            assert_eq!(row["object"].to_string(), cells[5], "{name}");
            let own_free =
                number(&row["allocated_bytes"]) + number(&row["free_bytes"]) - number(&row["map_allocated_bytes"]);
            assert_eq!(own_free.to_string(), cells[7], "{name} {row}");
        }
    }
}

#[test]
fn a_pool_with_logs_of_space_maps_shows_them() {
    let pool = Pool::of("log_spacemap");
    let shown = report(&pool, "spacemaps", &[&pool.name]);
    assert!(!rows(&shown, "logs").is_empty());
    let entries = report(&pool, "spacemaps", &["--entries", "0:0", &pool.name]);
    assert!(rows(&entries, "entries").iter().any(|row| row["record"] == "alloc"), "{entries}");
}

#[test]
fn blocks_are_counted_as_zdb_counts_them() {
    for name in THEMES {
        let pool = Pool::of(name);
        let shown = report(&pool, "blocks", &["-v", &pool.name]);
        let theirs = BlockStatistics::parse(&theme(name).zdb_text().unwrap()).unwrap();
        assert_eq!(number(&shown["bp_count"]), theirs.bp_count, "{name}");
        assert_eq!(number(&shown["bp_logical_bytes"]), theirs.bp_logical_bytes, "{name}");
        assert_eq!(number(&shown["bp_physical_bytes"]), theirs.bp_physical_bytes, "{name}");
        assert_eq!(number(&shown["bp_allocated_bytes"]), theirs.bp_allocated_bytes, "{name}");
        assert_eq!(number(&shown["leaked_bytes"]), 0, "{name}");
        let total = rows(&shown, "types").iter().find(|row| row["type"] == "total").unwrap();
        assert_eq!(total["blocks"], shown["bp_count"], "{name}");
    }
}

#[test]
fn datasets_features_history_and_lists_are_those_of_the_account() {
    let pool = Pool::of("snapshots");
    let shown = report(&pool, "datasets", &[&pool.name]);
    let names: Vec<&str> = rows(&shown, "datasets").iter().filter_map(|row| row["name"].as_str()).collect();
    let text = recorded("snapshots", "-e -d");
    for line in text.lines().filter_map(|line| line.strip_prefix("Dataset ")) {
        let Some((name, rest)) = line.split_once(" [") else { continue };
        let row = rows(&shown, "datasets").iter().find(|row| row["name"] == name);
        match row {
            None => assert_eq!(name, "mos"),
            Some(row) => {
                assert_eq!(number(&row["object"]), after(rest, "ID"), "{name}");
                assert_eq!(number(&row["creation_txg"]), after(rest, "cr_txg"), "{name}");
                let objects: u64 = rest.rsplit(", ").next().unwrap().split(' ').next().unwrap().parse().unwrap();
                assert_eq!(number(&row["objects"]), objects, "{name}");
            }
        }
    }
    assert!(names.iter().filter(|name| name.contains('@')).count() >= 5, "{names:?}");
    let lists = report(&pool, "deadlists", &["-v", &pool.name]);
    assert!(rows(&lists, "deadlists").len() >= names.len() / 2);
    report(&pool, "bpobj", &[&pool.name]);
    let features = report(&pool, "features", &[&pool.name]);
    assert!(rows(&features, "features").iter().all(|row| row["known"] == true), "{features}");
    let history = report(&pool, "history", &[&pool.name]);
    for what in ["zfs create duncorel0/kelvenur1", "[create] duncorel0/kelvenur1 ("] {
        let found = rows(&history, "records").iter().any(|row| row["what"].as_str().unwrap().starts_with(what));
        assert!(found, "{what}: {history}");
    }
    let last = report(&pool, "history", &["--limit", "1", &pool.name]);
    assert_eq!(rows(&last, "records")[0], *rows(&history, "records").last().unwrap());
    report(&pool, "dedup", &["-v", &pool.name]);
    report(&pool, "mos", &[&pool.name]);
}

#[test]
fn intent_logs_show_their_records() {
    let pool = Pool::of("zil");
    let shown = report(&pool, "zil", &["-v", &pool.name]);
    let records: Vec<&Value> =
        rows(&shown, "logs").iter().filter_map(|log| log["records"].as_array()).flatten().collect();
    assert!(records.iter().any(|record| record["operation"] == "write"), "{shown}");
    let text = recorded("zil", "-e -i");
    for log in rows(&shown, "logs") {
        let name = log["dataset"].as_str().unwrap();
        assert!(text.contains(&format!("Dataset {name} [")), "{name}");
    }
}

#[test]
fn an_encrypted_dataset_is_shown_without_its_key_as_far_as_that_goes() {
    let pool = Pool::of("encryption_small");
    let dataset = theme("encryption_small").manifest().unwrap().keys.keys().next().unwrap().clone();
    let args = ["inspect", "object", "--json", "-d", pool.dir.to_str().unwrap(), &dataset];
    let output = program().args(args).output().unwrap();
    let shown = parsed(&output);
    assert!(output.status.success(), "{}", shown["problems"]);
    assert!(shown["key"].as_str().unwrap().contains("not loaded"), "{shown}");
    assert!(rows(&shown, "objects").iter().any(|row| row["type"] == "ZFS plain file"), "{shown}");
    // With the key there are attributes.
    let with_key = report(&pool, "object", &[&dataset, "/"]);
    assert!(with_key["objects"][0]["bonus"]["mode"].is_string(), "{with_key}");
}

fn overwrite(image: &Path, offset: u64, bytes: &[u8]) {
    let mut permissions = fs::metadata(image).unwrap().permissions();
    #[expect(clippy::permissions_set_readonly_false, reason = "a scratch copy")]
    permissions.set_readonly(false);
    fs::set_permissions(image, permissions).unwrap();
    OpenOptions::new().write(true).open(image).unwrap().write_all_at(bytes, offset).unwrap();
}

#[test]
fn a_broken_label_is_named_and_the_others_are_shown() {
    let scratch = theme("basic").scratch().unwrap();
    let image = &scratch.images[0];
    for label in 0..2 {
        overwrite(image, label * LABEL_BYTES + CONFIG_OFFSET + 100, &[0x5a; 64]);
    }
    let (shown, is_good) = report_on(&["labels", image.to_str().unwrap()]);
    assert!(!is_good);
    let device = &rows(&shown, "devices")[0];
    assert_eq!(device["good_label_count"], 2);
    let states: Vec<&str> = rows(device, "labels").iter().map(|row| row["config"].as_str().unwrap()).collect();
    assert_eq!(states, ["checksum error", "checksum error", "good", "good"]);
    let problems = shown["problems"].to_string();
    assert!(problems.contains("label 0: checksum error") && problems.contains("label 1: checksum error"), "{problems}");
}

#[test]
fn one_disk_of_many_is_enough_for_what_it_holds() {
    // A mirror's leaf holds everything.
    let mirror = theme("mirror3").scratch().unwrap();
    let leaf = mirror.images[1].to_str().unwrap();
    let (shown, _) = report_on(&["mos", leaf]);
    assert!(rows(&shown, "objects").len() > 10, "{shown}");
    let (shown, _) = report_on(&["object", leaf, "1"]);
    assert!(!rows(&shown["objects"][0], "entries").is_empty(), "{shown}");
    // A raidz leaf alone has labels and uberblocks (and, of blocks as small as a sector, some in whole), and says why
    // there is no more.
    let raidz = theme("raidz1").scratch().unwrap();
    let leaf = raidz.images[0].to_str().unwrap();
    let (labels, is_good) = report_on(&["labels", leaf]);
    assert!(is_good && labels["devices"][0]["good_label_count"] == 4, "{labels}");
    let (uberblocks, _) = report_on(&["uberblocks", "--check", leaf]);
    assert!(rows(&uberblocks, "uberblocks").iter().all(|row| row["root"].is_string()), "{uberblocks}");
    let (config, is_good) = report_on(&["config", leaf]);
    assert!(!is_good && config["problems"].to_string().contains("missing"), "{config}");
    // Without any root there is what the labels say.
    for row in rows(&labels["devices"][0], "labels") {
        overwrite(&raidz.images[0], number(&row["offset_bytes"]) + RING_OFFSET, &vec![0; RING_BYTES]);
    }
    let (config, is_good) = report_on(&["config", leaf]);
    assert!(!is_good && config["source"].as_str().unwrap().starts_with("label"), "{config}");
    let output = program().args(["inspect", "mos", leaf]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be opened"), "{output:?}");
    // A block that is given by its place needs no root; as much of the stripe as is on this leaf can be had.
    let output = program().args(["inspect", "bp", leaf, "0:0:1000"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("by the labels alone") || said.contains("unavailable"), "{said}");
}

#[test]
fn a_walk_goes_on_behind_blocks_that_are_gone() {
    let scratch = theme("basic").scratch().unwrap();
    let (image, dir) = (&scratch.images[0], scratch.dir().to_str().unwrap());
    let pool = theme("basic").manifest().unwrap().pools[0].clone();
    // Every copy of the second block of dnodes of the root dataset.
    let args = ["bp", "-d", dir, &pool];
    let (root, _) = report_on(&["object", "-d", dir, &pool, "0", "-v"]);
    let objset = root["objset"].to_string();
    let (before, _) = report_on(&["object", "-d", dir, &pool]);
    let (block, is_good) = report_on(&[&args[..], &[&format!("{objset}:0:0:1")]].concat());
    assert!(is_good);
    for dva in block["pointer"]["dvas"].as_array().unwrap() {
        // Offsets of DVAs count from behind the labels and the boot area.
        overwrite(image, number(&dva["offset_bytes"]) + (4 << 20), &[0xa5; 4096]);
    }
    let (after, is_good) = report_on(&["object", "-d", dir, &pool]);
    assert!(!is_good);
    let (had, has) = (number(&before["object_count"]), number(&after["object_count"]));
    assert!(has < had && has > 0, "{has} of {had}");
    assert!(after["problems"].to_string().contains("checksum"), "{}", after["problems"]);
    let (block, is_good) = report_on(&[&args[..], &[&format!("{objset}:0:0:1")]].concat());
    assert!(!is_good && block["unverified_data"].as_str().unwrap().contains("a5a5a5a5"), "{block}");
    // The pointers can still be listed: the tree above is whole.
    let (tree, _) = report_on(&["object", "-d", dir, &pool, "0", "-v"]);
    assert_eq!(tree["objects"][0]["pointers"], root["objects"][0]["pointers"]);
}

#[test]
fn a_directory_lists_what_it_has_beside_a_leaf_that_is_gone() {
    // The repository's own selection has no directory of many leaves.
    let Some(theme) = cenote_testkit::theme_if_present("bigdirs") else { return };
    let scratch = theme.scratch().unwrap();
    let (image, dir) = (&scratch.images[0], scratch.dir().to_str().unwrap());
    let pool = theme.manifest().unwrap().pools[0].clone();
    let (all, _) = report_on(&["object", "-d", dir, "--limit", "1000000", &pool]);
    let directory = rows(&all, "objects")
        .iter()
        .find(|row| {
            row["type"] == "ZFS directory" && number(&row["lsize_bytes"]) > 8 * number(&row["data_block_bytes"])
        })
        .expect("a directory of many blocks");
    let object = directory["object"].to_string();
    let args = ["object", "-d", dir, "--limit", "1000000", &pool, &object];
    let (before, is_good) = report_on(&args);
    assert!(is_good);
    let (leaf, _) = report_on(&["bp", "-d", dir, &pool, &format!("{}:{object}:0:5", all["objset"])]);
    for dva in leaf["pointer"]["dvas"].as_array().unwrap() {
        overwrite(image, number(&dva["offset_bytes"]) + (4 << 20), &[0xee; 512]);
    }
    let (after, is_good) = report_on(&args);
    let count = |report: &Value| rows(&report["objects"][0], "entries").len();
    assert!(!is_good && after["problems"].as_array().unwrap().len() == 1, "{}", after["problems"]);
    assert!(
        count(&after) < count(&before) && count(&after) > count(&before) / 2,
        "{} of {}",
        count(&after),
        count(&before)
    );
}

#[test]
fn a_compressed_place_is_decompressed_as_zdb_does() {
    let pool = Pool::of("basic");
    let objset = report(&pool, "object", &["-v", &pool.name, "0"]);
    // A block of dnodes: metadata is always compressed where that helps.
    let tuple = format!("{}:0:0:1", objset["objset"]);
    let block = report(&pool, "bp", &[&pool.name, &tuple]);
    let (pointer, dva) = (&block["pointer"], &block["pointer"]["dvas"][0]);
    assert_eq!(pointer["compression"], "lz4");
    let [lsize, psize] = ["lsize_bytes", "psize_bytes"].map(|name| number(&pointer[name]));
    let place = format!("{}:{:x}:{lsize:x}/{psize:x}", dva["vdev"], number(&dva["offset_bytes"]));
    let logical = pool.run(&["inspect", "bp", "--raw"], &[&pool.name, &tuple]);
    assert_eq!(logical.len() as u64, lsize);
    let by_place = pool.run(&["inspect", "bp", "--raw", "--decompress"], &[&pool.name, &place]);
    assert!(by_place == logical);
    let dir = pool.dir.to_str().unwrap();
    let grammar = program().args(["zdb", "-e", "-p", dir, "-R", &pool.name, &format!("{place}:dr")]).output().unwrap();
    assert!(grammar.stdout == logical);
    let Some(mut zdb) = zdb::command() else { return };
    let theirs = zdb.args(["-e", "-p", dir, "-R", &pool.name, &format!("{place}:dr")]).output().unwrap();
    assert!(theirs.stdout == logical);
}

#[test]
fn a_pool_whose_newest_root_is_gone_is_opened_at_an_older_one() {
    let scratch = theme("basic").scratch().unwrap();
    let (image, dir) = (&scratch.images[0], scratch.dir().to_str().unwrap());
    let pool = theme("basic").manifest().unwrap().pools[0].clone();
    let (block, _) = report_on(&["bp", "-d", dir, &pool, "0:0:-1:0"]);
    for dva in block["pointer"]["dvas"].as_array().unwrap() {
        overwrite(image, number(&dva["offset_bytes"]) + (4 << 20), &[0; 4096]);
    }
    let (shown, is_good) = report_on(&["config", "-d", dir, &pool]);
    assert!(!is_good);
    assert!(shown["problems"].to_string().contains("trying older ones"), "{}", shown["problems"]);
    let (roots, _) = report_on(&["uberblocks", "--check", "-d", dir, &pool]);
    assert_ne!(roots["uberblocks"][0]["root"], "readable");
}

#[test]
fn zdbs_grammar_leads_to_the_same_reports() {
    let pool = Pool::of("basic");
    let dir = pool.dir.to_str().unwrap();
    let name = pool.name.as_str();
    let image = theme("basic").unpacked().unwrap().images[0].clone();
    let root = format!("{name}/");
    let forms: [(&[&str], &str); 11] = [
        (&["-l", image.to_str().unwrap()], "good_label_count"),
        (&["-lu", image.to_str().unwrap()], "LABEL_AND_SLOT"),
        (&["-e", "-p", dir, "-u", name], "ROOTBP"),
        (&["-e", "-p", dir, "-C", name], "pool_guid"),
        (&["-e", "-p", dir, "-d", name], "CREATION_TXG"),
        (&["-e", "-p", dir, "-dd", name], "object directory"),
        (&["-e", "-p", dir, "-dddd", &root, "1"], "ZFS master node"),
        (&["-e", "-p", dir, "-ddddd", name, "1"], "DVA[0]"),
        (&["-e", "-p", dir, "-mm", name, "0", "0"], "HISTOGRAM"),
        (&["-e", "-p", dir, "-R", name, "0:0:200"], "checksums"),
        (&["-e", "-p", dir, "-iDh", name], "zfs create"),
    ];
    for (args, expected) in forms {
        let output = program().arg("zdb").args(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains(expected), "{args:?}: {text}");
    }
    let verified = program().args(["zdb", "-e", "-p", dir, "-bcc", name]).output().unwrap();
    assert!(String::from_utf8_lossy(&verified.stdout).contains("all is well"), "{verified:?}");
    assert_eq!(program().args(["zdb", "-Z", name]).output().unwrap().status.code(), Some(2));
}
