//! Goal: pools with vdevs of every class, spares and cache devices are made, and extended, in OpenZFS's grammar; features are
//! enabled; what is wrong is refused in its words and changes nothing. Method: pools made here and pools of OpenZFS, looked at
//! by the program and, where it is installed, by OpenZFS's `zdb`.

use crate::common;

use std::path::{Path, PathBuf};

use common::images::Images;

/// Pools are small, so that most of what `zdb` does is starting.
const SIZE: &str = "96M";

fn file(images: &Images, name: &str) -> String {
    images.dir.join(name).display().to_string()
}

/// `zpool create` with these words, in which `@x` is a file of the folder.
fn made(line: &str) -> Images {
    let mut images = Images::none();
    let words = words(&images, line);
    let mut command = images.bare();
    command.args(["zpool", "create", "--size", SIZE]).args(&words);
    common::good(&mut command);
    images.note_files();
    images
}

fn words(images: &Images, line: &str) -> Vec<String> {
    let word = |word: &str| word.strip_prefix('@').map_or_else(|| word.to_owned(), |name| file(images, name));
    line.split_whitespace().map(word).collect()
}

fn status(images: &Images) -> String {
    images.run("zpool", &["status", "-P", &images.pool]).replace(&format!("{}/", images.dir.display()), "@")
}

fn add(images: &mut Images, options: &str, line: &str) {
    let words = words(images, line);
    let options: Vec<&str> = options.split_whitespace().collect();
    let pool = images.pool.clone();
    let mut rest = vec!["add", "--size", SIZE];
    rest.extend(options);
    rest.push(&pool);
    rest.extend(words.iter().map(String::as_str));
    images.run("zpool", &rest);
    images.note_files();
}

/// The names under `config:`, with their indentation.
fn tree(images: &Images) -> Vec<String> {
    let status = status(images);
    let lines = status.lines().skip_while(|line| !line.contains("NAME")).skip(1).take_while(|line| !line.is_empty());
    lines
        .map(|line| line.split("  ONLINE").next().unwrap().split("  AVAIL").next().unwrap().trim_end().to_owned())
        .collect()
}

#[test]
fn a_pool_of_all_kinds_of_vdevs_is_made_and_found_whole() {
    let images = made(
        "-O special_small_blocks=8K mine mirror @a @b special mirror @c @d dedup mirror @e @f log mirror @g @h cache @i spare @j",
    );
    let wanted = [
        "\tmine",
        "\t  mirror-0",
        "\t    @a",
        "\t    @b",
        "\tdedup",
        "\t  mirror-2",
        "\t    @e",
        "\t    @f",
        "\tspecial",
        "\t  mirror-1",
        "\t    @c",
        "\t    @d",
        "\tlogs",
        "\t  mirror-3",
        "\t    @g",
        "\t    @h",
        "\tcache",
        "\t  @i",
        "\tspares",
        "\t  @j",
    ];
    assert_eq!(tree(&images), wanted);
    assert_eq!(images.get("special_small_blocks", "mine"), "8K\tlocal");
    let got = images.run("zpool", &["get", "-H", "-o", "value", "feature@allocation_classes", "mine"]);
    assert_eq!(got.trim(), "active");
    images.assert_whole();
    // The disks that nothing is stored on may be away.
    for name in ["i", "j"] {
        std::fs::remove_file(file(&images, name)).unwrap();
    }
    images.run("zfs", &["create", "mine/a"]);
    let text = status(&images);
    assert!(text.contains("UNAVAIL"), "{text}");
}

#[test]
fn a_draid_has_its_spares() {
    let mut images = made("mine draid1:2d:1s:5c @0 @1 @2 @3 @4");
    assert_eq!(tree(&images)[1], "\t  draid1:2d:5c:1s-0");
    assert_eq!(tree(&images).last().unwrap(), "\t  draid1-0-0");
    images.run("zfs", &["create", "mine/a"]);
    images.assert_whole();
    add(&mut images, "", "draid1:1d:2s:5c @5 @6 @7 @8 @9 spare @x");
    let spares: Vec<_> = tree(&images).into_iter().skip_while(|line| line != "\tspares").skip(1).collect();
    assert_eq!(spares, ["\t  draid1-0-0", "\t  @x", "\t  draid1-1-0", "\t  draid1-1-1"]);
    images.assert_whole();
}

#[test]
fn a_pool_gets_vdevs_of_every_kind() {
    let mut images = made("mine mirror @a @b");
    add(&mut images, "", "mirror @c @d");
    add(&mut images, "", "special mirror @e @f");
    add(&mut images, "", "log @g cache @h spare @i");
    add(&mut images, "", "cache @j spare @k");
    let wanted = [
        "\tmine",
        "\t  mirror-0",
        "\t    @a",
        "\t    @b",
        "\t  mirror-1",
        "\t    @c",
        "\t    @d",
        "\tspecial",
        "\t  mirror-2",
        "\t    @e",
        "\t    @f",
        "\tlogs",
        "\t  @g",
        "\tcache",
        "\t  @h",
        "\t  @j",
        "\tspares",
        "\t  @i",
        "\t  @k",
    ];
    assert_eq!(tree(&images), wanted);
    images.run("zfs", &["create", "mine/a"]);
    images.assert_whole();
    let history = images.run("zpool", &["history", "mine"]);
    assert!(history.contains("zpool add mine cache"), "{history}");
}

#[test]
fn a_pool_of_openzfs_gets_vdevs() {
    for name in ["basic", "log_spacemap", "raidz1", "mirror3"] {
        let mut images = Images::of_theme(name);
        let files = |images: &Images| -> Vec<PathBuf> { images.files.clone() };
        let before = files(&images);
        add(&mut images, "-f", "mirror @new1 @new2 special mirror @new3 @new4 spare @new5");
        assert_eq!(files(&images).len(), before.len() + 5);
        images.assert_whole();
        images.run("zfs", &["create", &format!("{}/newchild", images.pool)]);
        images.assert_whole();
    }
}

/// Log devices, spares and caches go by any of their names, and `zdb` agrees with what is left.
#[test]
fn log_devices_spares_and_caches_are_removed() {
    let mut images = made("mine mirror @a @b log mirror @g @h cache @i spare @j");
    let file = |images: &Images, name: &str| images.files.iter().find(|file| file.ends_with(name)).unwrap().clone();
    let said = images.refused("zpool", &["remove", "mine", "mirror-0"]);
    assert!(said.contains("cannot remove mirror-0: invalid config"), "{said}");
    let said = images.refused("zpool", &["remove", "mine", "nothing"]);
    assert!(said.contains("cannot remove nothing: no such device in pool"), "{said}");
    let said = images.refused("zpool", &["remove", "mine", "g"]);
    assert!(said.contains("name the whole vdev"), "{said}");
    assert_eq!(images.run("zpool", &["remove", "-n", "-p", "mine", "mirror-1"]), "mirror-1 0\n");
    let cache = file(&images, "i").to_string_lossy().into_owned();
    images.run("zpool", &["remove", "mine", "mirror-1", &cache, "j"]);
    let status = images.run("zpool", &["status", "-P", "mine"]);
    assert!(["logs", "cache", "spares"].iter().all(|class| !status.contains(class)), "{status}");
    let history = images.run("zpool", &["history", "-i", "mine"]);
    for part in ["zpool remove mine mirror-1", "vdev (log)", "vdev (l2cache)", "vdev (spare)"] {
        assert!(history.contains(part), "{part}: {history}");
    }
    // Its disks are free: they are taken again without being forced, and go again.
    let log = file(&images, "g").to_string_lossy().into_owned();
    images.run("zpool", &["add", "mine", "log", &log]);
    images.assert_whole();
    images.run("zpool", &["remove", "mine", &log]);
    for gone in ["g", "h", "i", "j"] {
        std::fs::remove_file(file(&images, gone)).unwrap();
    }
    images.note_files();
    images.assert_whole();
}

/// Disks and mirrors with data go, the special one too, and the pool is used like any other afterwards.
#[test]
fn vdevs_with_data_are_evacuated() {
    let mut images = made("mine mirror @a @b mirror @c @d mirror @e @f special mirror @g @h");
    let put = |images: &Images| drop(images.run("put", &["mine", concat!(env!("CARGO_MANIFEST_DIR"), "/src")]));
    put(&images);
    images.run("zfs", &["snapshot", "mine@one"]);
    let said = images.refused("zpool", &["remove", "-s", "mine"]);
    assert!(said.contains("cannot cancel removal: there are no removals in progress"), "{said}");
    let memory = images.run("zpool", &["remove", "-n", "-p", "mine", "mirror-0"]);
    assert!(memory.starts_with("mirror-0 ") && memory != "mirror-0 0\n", "{memory}");
    for name in ["mirror-0", "mirror-3"] {
        images.run("zpool", &["remove", "-w", "mine", name]);
        let status = status(&images);
        let vdev = name.strip_prefix("mirror-").unwrap();
        assert!(status.contains(&format!("remove: Removal of vdev {vdev} copied ")), "{status}");
        assert!(status.contains(" memory used for removed device mappings"), "{status}");
    }
    assert_eq!(
        tree(&images),
        ["\tmine", "\t  mirror-1", "\t    @c", "\t    @d", "\t  mirror-2", "\t    @e", "\t    @f"]
    );
    let status = images.run("zpool", &["status", "-j", "mine"]);
    assert!(status.contains("\"removal_stats\":{\"name\":\"indirect\""), "{status}");
    for gone in ["a", "b", "g", "h"] {
        std::fs::remove_file(file(&images, gone)).unwrap();
    }
    images.note_files();
    images.assert_whole();
    images.run("zfs", &["create", "mine/a"]);
    images.run("zfs", &["snapshot", "mine@two"]);
    images.run("zfs", &["destroy", "mine@one"]);
    images.assert_whole();
}

/// Those of a pool that OpenZFS made go too.
#[test]
fn a_disk_of_a_pool_of_openzfs_is_evacuated() {
    for name in ["basic", "snapshots", "log_spacemap"] {
        let mut images = Images::of_theme(name);
        let pool = images.pool.clone();
        let shown = images.run("zpool", &["status", "-P", &pool]);
        let first = shown.lines().skip_while(|line| !line.contains("NAME")).nth(2).unwrap();
        let first = Path::new(first.split_whitespace().next().unwrap()).file_name().unwrap().to_owned();
        add(&mut images, "-f", "@new1 @new2 @new3 @new4");
        images.run("zpool", &["remove", &pool, &first.to_string_lossy()]);
        let gone = images.files.iter().find(|file| file.file_name() == Some(&first)).unwrap();
        std::fs::remove_file(gone).unwrap();
        images.note_files();
        images.assert_whole();
        images.run("zfs", &["create", &format!("{pool}/newchild")]);
        images.run("zfs", &["snapshot", &format!("{pool}@new")]);
        images.assert_whole();
    }
}

#[test]
fn what_cannot_be_added_is_refused_and_nothing_changes() {
    let mut images = made("mine mirror @a @b spare @s");
    let other = made("other @o");
    let used = file(&other, "o");
    for (line, why) in [
        ("mine @c", "pool uses mirror and new vdev is file"),
        ("mine mirror @c @d @e", "pool uses 2-way mirror and new vdev uses 3-way mirror"),
        ("mine special @c", "mismatched replication level"),
        ("mine mirror @a @c", "is part of this pool"),
        ("-f mine spare @s", "is part of this pool"),
        ("mine mirror @c @none", "no such device"),
        ("-o ashift=12 mine mirror @c @d", "mismatched ashift"),
        ("-o ashift=40 mine mirror @c @d", "only values between 9 and 16"),
        ("-o comment=x mine mirror @c @d", "cannot be set while vdevs are added"),
        ("mine log raidz @c @d", "unsupported 'log' device: raidz"),
        ("mine log", "log requires at least 1 device"),
        ("nothing mirror @c @d", "no such pool"),
    ] {
        for name in ["c", "d", "e"] {
            let file = std::fs::File::create(file(&images, name)).unwrap();
            file.set_len(96 << 20).unwrap();
        }
        let bytes = || -> Vec<Vec<u8>> { images.files.iter().map(|file| std::fs::read(file).unwrap()).collect() };
        let before = bytes();
        let words = words(&images, line);
        let mut rest = vec!["add"];
        rest.extend(words.iter().map(String::as_str));
        let said = images.refused("zpool", &rest);
        assert!(said.contains(why), "{line}: {said}");
        assert!(bytes() == before, "{line} changed something");
    }
    let said = images.refused("zpool", &["add", "mine", "log", &used]);
    assert!(said.contains("is part of exported pool 'other'"), "{said}");
    let words = words(&images, "add -n mine mirror @c @d log @e");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let shown = images.run("zpool", &words);
    assert!(shown.contains("would update 'mine'") && shown.contains("\tlogs\n"), "{shown}");
    add(&mut images, "--allow-replication-mismatch", "@c");
    images.assert_whole();
}

#[test]
fn what_cannot_be_made_is_refused() {
    for (line, why) in [
        ("mine special @a", "takes everything"),
        ("mine log @a", "takes everything"),
        ("mine cache @a", "takes everything"),
        (
            "-o feature@allocation_classes=disabled mine @a special @b",
            "feature@allocation_classes, which is not enabled",
        ),
        ("-o feature@draid=disabled mine draid1:1d @a @b @c", "feature@draid, which is not enabled"),
        ("mine mirror @a @b special @c", "mismatched replication level: both mirror and file vdevs are present"),
        ("mine draid1:2d:2s:4c @a @b @c @d", "too high"),
        ("-O special_small_blocks=3K mine @a", "power of 2"),
        ("-O special_small_blocks=32M mine @a", "power of 2"),
        ("-o feature@spacemap_histogram=disabled mine @a", "spacemap_histogram"),
        ("-o feature@nothing=enabled mine @a", "not a valid feature"),
        ("-o foo=bar mine @a", "property 'foo' is not a valid pool or vdev property"),
        ("-n -o foo=bar mine @a", "property 'foo' is not a valid pool or vdev property"),
        ("-n -O foo=bar mine @a", "invalid property 'foo'"),
        ("-n 9mine @a", "cannot create '9mine': name must begin with a letter"),
        ("-n mine mirror @a @b special @c", "mismatched replication level: both mirror and file vdevs are present"),
        ("-o compatibility=nothing mine @a", "compatibility"),
        ("-m here mine @a", "invalid mountpoint"),
        ("-R here mine @a", "bad alternate root"),
    ] {
        let images = Images::none();
        let words = words(&images, line);
        let mut command = images.bare();
        command.args(["zpool", "create", "--size", SIZE]).args(&words);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {}", common::said(&output));
        assert!(common::said(&output).contains(why), "{line}: {}", common::said(&output));
        assert_eq!(std::fs::read_dir(&images.dir).unwrap().count(), 0, "{line} has left something");
    }
}

/// The sector size of vdevs that come later, and the features that `zpool upgrade` may enable, are properties of a pool that exists.
#[test]
fn the_sector_size_and_the_features_to_have_are_properties() {
    let images = made("-o ashift=12 mine @a");
    let get = |property: &str| images.run("zpool", &["get", "-Ho", "value,source", property, "mine"]);
    assert_eq!(get("ashift"), "12\tlocal\n");
    images.run("zpool", &["set", "ashift=14", "mine"]);
    for wrong in ["ashift=8", "ashift=17", "ashift=x", "compatibility=nothing"] {
        assert!(images.refused("zpool", &["set", wrong, "mine"]).contains(&wrong[..6]), "{wrong}");
    }
    assert_eq!(get("ashift"), "14\tlocal\n");
    // The new device would have larger sectors than the mirror that it comes to.
    let other = images.dir.join("b");
    std::fs::File::create(&other).unwrap().set_len(128 << 20).unwrap();
    let other = other.to_str().unwrap();
    let first = images.dir.join("a");
    let refused = images.refused("zpool", &["attach", "mine", first.to_str().unwrap(), other]);
    assert!(refused.contains("optimal sector size"), "{refused}");
    images.run("zpool", &["attach", "-o", "ashift=12", "mine", first.to_str().unwrap(), other]);
    let list = images.dir.join("list");
    std::fs::write(&list, "lz4_compress\n").unwrap();
    let value = list.display().to_string();
    images.run("zpool", &["set", &format!("compatibility={value}"), "mine"]);
    assert_eq!(get("compatibility"), format!("{value}\tlocal\n"));
    images.run("zpool", &["set", "compatibility=off", "mine"]);
    assert!(get("compatibility").starts_with("off\t"), "{}", get("compatibility"));
    std::fs::remove_file(&list).unwrap();
}

/// Method: what `zfs set` takes of an existing root, at its creation; `verify` and `zdb` count what is reserved.
#[test]
fn a_pools_root_gets_limits_and_reservations_when_it_is_made() {
    let images = made(
        "-O quota=50M -O refreservation=8M -O filesystem_limit=1 -O snapshot_limit=none -O compression=zstd mine @a",
    );
    images.assert_whole();
    for (property, value) in [
        ("quota", "50M\tlocal"),
        ("refreservation", "8M\tlocal"),
        ("filesystem_limit", "1\tlocal"),
        ("filesystem_count", "0\tlocal"),
        ("snapshot_limit", "none\tlocal"),
        ("usedbyrefreservation", "7.98M\t-"),
        ("compression", "zstd\tlocal"),
    ] {
        assert_eq!(images.get(property, "mine"), value, "{property}");
    }
    images.run("zfs", &["create", "mine/a"]);
    images.assert_whole();
    for (line, why) in [
        ("-O quota=1K mine @a", "a quota of 1024 bytes is exceeded"),
        ("-O refreservation=1T mine @a", "size is greater than available space"),
        ("-d -O filesystem_limit=1 mine @a", "must be upgraded to set this property"),
    ] {
        let images = Images::none();
        let mut command = images.bare();
        command.args(["zpool", "create", "--size", SIZE]).args(words(&images, line));
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {}", common::said(&output));
        assert!(common::said(&output).contains(why), "{line}: {}", common::said(&output));
        assert_eq!(std::fs::read_dir(&images.dir).unwrap().count(), 0, "{line} has left something");
    }
}

/// Metadata is compressed by lzjb, and space maps have no histograms, until the features are there.
#[test]
fn a_pool_without_features_is_written_and_gets_them_later() {
    // A log device of a new pool needs none either.
    let with_log = made("-d mine @a log @b");
    with_log.assert_whole();
    let images = made("-d mine @a");
    images.assert_whole();
    let state = |name: &str| {
        images.run("zpool", &["get", "-H", "-o", "value", &format!("feature@{name}"), "mine"]).trim().to_owned()
    };
    for feature in ["lz4_compress", "spacemap_histogram", "async_destroy", "empty_bpobj", "enabled_txg"] {
        assert_eq!(state(feature), "disabled", "{feature}");
    }
    for line in [
        "create mine/a",
        "create -V 8M mine/v",
        "snapshot -r mine@s",
        "clone mine/a@s mine/c",
        "set compression=on mine/a",
    ] {
        images.run("zfs", &line.split(' ').collect::<Vec<_>>());
    }
    images.assert_whole();
    assert!(images.refused("zfs", &["set", "compression=lz4", "mine/a"]).contains("feature@lz4_compress"));
    for line in ["destroy mine/c", "destroy -r mine@s", "destroy mine/v"] {
        images.run("zfs", &line.split(' ').collect::<Vec<_>>());
    }
    images.assert_whole();
    for feature in ["lz4_compress", "spacemap_histogram"] {
        images.run("zpool", &["set", &format!("feature@{feature}=enabled"), "mine"]);
    }
    images.run("zfs", &["create", "-o", "compression=lz4", "mine/b"]);
    images.assert_whole();
    assert_eq!((state("lz4_compress"), state("async_destroy")), ("active".into(), "disabled".into()));
    images.run("zpool", &["upgrade", "mine"]);
    images.run("zfs", &["destroy", "-r", "mine/a"]);
    images.assert_whole();
}

#[test]
fn features_are_enabled_later() {
    let images = made("-d -o feature@lz4_compress=enabled -o feature@spacemap_histogram=enabled mine @a");
    images.assert_whole();
    images.run("zfs", &["create", "mine/a"]);
    images.assert_whole();
    let state = |name: &str| {
        images.run("zpool", &["get", "-H", "-o", "value", &format!("feature@{name}"), "mine"]).trim().to_owned()
    };
    assert_eq!((state("encryption"), state("extensible_dataset")), ("disabled".into(), "disabled".into()));
    images.run("zpool", &["set", "feature@encryption=enabled", "mine"]);
    assert_eq!(
        (state("encryption"), state("bookmark_v2"), state("zstd_compress")),
        ("enabled".into(), "enabled".into(), "disabled".into())
    );
    images.assert_whole();
    assert!(images.refused("zpool", &["set", "feature@nothing=enabled", "mine"]).contains("not known"));
    assert!(
        images
            .refused("zpool", &["set", "feature@encryption=disabled", "mine"])
            .contains("can only be set to 'enabled'")
    );
    // It is to have none, it says.
    let said = images.run("zpool", &["upgrade", "mine"]);
    assert!(said.contains("already has all supported and requested features"), "{said}");
    let images = made(
        "-o feature@zstd_compress=disabled -o feature@hole_birth=disabled -o feature@spacemap_v2=disabled -o feature@log_spacemap=disabled -o feature@head_errlog=disabled mine @a",
    );
    images.assert_whole();
    let listed = images.run("zpool", &["upgrade"]);
    for part in ["mine\n", "      zstd_compress\n", "      hole_birth\n"] {
        assert!(listed.contains(part), "{listed}");
    }
    assert!(images.refused("zfs", &["create", "-o", "compression=zstd", "mine/z"]).contains("zstd_compress"));
    let said = images.run("zpool", &["upgrade", "-a"]);
    assert!(said.contains("Enabled the following features on 'mine':\n  hole_birth\n"), "{said}");
    images.assert_whole();
    images.run("zfs", &["create", "-o", "compression=zstd", "mine/z"]);
    images.assert_whole();
    let listed = images.run("zpool", &["upgrade"]);
    assert!(listed.contains("Every feature flags pool has all"), "{listed}");
    assert!(images.run("zpool", &["upgrade", "-v"]).contains("allocation_classes"));
    images.run("zpool", &["sync", "mine"]);
    assert!(images.refused("zpool", &["sync", "nothing"]).contains("no such pool"));
}
