//! Goal: a pool whose devices have missed something is shown as what it is, by every command that is asked, before anyone relies on
//! it; and nothing is written while the one device is away that has what another missed. Method: the review's scenario, with files
//! that are hidden and put back.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use common::images::Images;
use serde_json::Value;

/// A mirror of two files, of which the second was away while a directory was put into the pool.
fn returned() -> Images {
    let mut images = Images::none();
    let file = |name: &str| images.dir.join(name).display().to_string();
    let mut command = images.bare();
    command.args(["zpool", "create", "--size", "96M", "-o", "ashift=12", "mine", "mirror", &file("a"), &file("b")]);
    common::good(&mut command);
    images.note_files();
    let hidden = images.dir.join("hidden");
    std::fs::create_dir(&hidden).unwrap();
    std::fs::rename(images.dir.join("b"), hidden.join("b")).unwrap();
    let source = tempfile::tempdir().unwrap();
    std::fs::write(source.path().join("file"), vec![7; 3 << 20]).unwrap();
    images.run("put", &["mine", source.path().to_str().unwrap()]);
    std::fs::rename(hidden.join("b"), images.dir.join("b")).unwrap();
    std::fs::remove_dir(hidden).unwrap();
    images
}

fn line<'a>(text: &'a str, name: &str) -> &'a str {
    let is_of = |line: &&str| line.split_whitespace().next().is_some_and(|word| word.rsplit('/').next() == Some(name));
    text.lines().find(is_of).unwrap_or_else(|| panic!("{name}: {text}"))
}

#[test]
fn a_device_that_came_back_is_nowhere_shown_as_healthy() {
    let images = returned();
    // Opened for writing and closed again, which changes nothing about it. A program that reads what is said is told nothing of it: all that
    // was asked for is done.
    let mut set = images.command("zpool", &["set", "comment=written", "mine"]);
    let output = set.output().unwrap();
    assert!(output.status.success(), "{}", common::said(&output));
    assert!(output.stderr.is_empty(), "{}", common::said(&output));

    let text = images.run("zpool", &["status", "mine"]);
    assert!(text.contains(" state: DEGRADED\nstatus: One or more devices has missed transactions"), "{text}");
    assert!(text.contains("action: Leave all devices attached, and run 'zpool resilver'"), "{text}");
    for name in ["mine", "mirror-0", "b"] {
        assert_eq!(line(&text, name).split_whitespace().nth(1), Some("DEGRADED"), "{text}");
    }
    assert!(line(&text, "b").contains("  missed txgs ") && line(&text, "a").contains("ONLINE"), "{text}");
    // Only what is unhealthy, and whether anything is.
    let unhealthy = images.run("zpool", &["status", "-x"]);
    assert!(unhealthy.contains("state: DEGRADED") && !unhealthy.contains("healthy"), "{unhealthy}");
    assert!(line(&images.run("zpool", &["status", "-e", "mine"]), "b").contains("missed txgs"));

    let document: Value = serde_json::from_str(&images.run("zpool", &["status", "-j", "mine"])).unwrap();
    let pool = &document["pools"]["mine"];
    let leaf = &pool["vdevs"]["mine"]["vdevs"]["mirror-0"]["vdevs"][images.dir.join("b").to_str().unwrap()];
    assert_eq!((pool["state"].as_str(), leaf["state"].as_str()), (Some("DEGRADED"), Some("DEGRADED")), "{document}");
    let missed = leaf["missed_txgs"].as_str().unwrap().to_owned();
    assert!(line(&text, "b").ends_with(&format!("missed txgs {missed}")), "{text}: {missed}");

    let list = images.run("zpool", &["list", "-v", "mine"]);
    assert!(line(&list, "mine").contains("DEGRADED"), "{list}");
    assert!(line(&list, "b").contains("DEGRADED") && line(&list, "b").ends_with(&missed), "{list}");
    let scripted = images.run("zpool", &["list", "-Hv", "mine"]);
    assert!(!scripted.contains("missed"), "{scripted}");
    assert!(images.run("zpool", &["list", "-jv", "mine"]).contains("\"missed_txgs\""));
    assert_eq!(images.run("zpool", &["get", "-Hp", "-o", "value", "health", "mine"]).trim(), "DEGRADED");

    // As one who has not imported it sees it.
    let mut import = images.command("zpool", &["import"]);
    import.env("CENOTE_CACHE", images.cache.path().join("another.json"));
    let listed = String::from_utf8(common::good(&mut import)).unwrap();
    assert!(listed.contains("state: DEGRADED") && listed.contains("need to be resilvered"), "{listed}");
    assert!(line(&listed, "b").contains("missed txgs"), "{listed}");

    // `verify` and `status` agree.
    let output = images.command("verify", &["mine"]).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("devices that have missed txgs and need to be resilvered: 1\n"), "{told}");
    assert!(told.contains(&format!("/b: missed txgs {missed}")), "{told}");
}

#[test]
fn without_the_device_that_has_what_another_missed_nothing_is_written() {
    let images = returned();
    // The leg that came back is written again, so that it knows of the pool as it is.
    images.run("zpool", &["set", "comment=written", "mine"]);
    let text = images.run("zpool", &["status", "mine"]);
    assert!(line(&text, "b").contains("missed txgs"), "{text}");
    std::fs::remove_file(images.dir.join("a")).unwrap();
    let output = images.command("zpool", &["set", "comment=again", "mine"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("/a") && said.contains("missing"), "{said}");
}

/// A client got EIO, and `zpool status` said that no data error was known, nor was it written down: by path in the same process, and after
/// it, for OpenZFS too, and until the block is well again.
#[test]
fn a_block_that_cannot_be_read_is_named_by_status_until_it_is_well() {
    use std::os::unix::fs::FileExt;
    if !common::mounted::can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-o", "compression=off", "mine/fs"]);
    let source = tempfile::tempdir().unwrap();
    std::fs::create_dir(source.path().join("sub")).unwrap();
    let marked: Vec<u8> = (0..20_000_u32).flat_map(|at| (at ^ 0x5ca1_ab1e).to_le_bytes()).collect();
    std::fs::write(source.path().join("sub/bad"), &marked).unwrap();
    std::fs::write(source.path().join("good"), "good").unwrap();
    images.run("put", &["mine/fs", source.path().to_str().unwrap()]);
    images.run("zfs", &["snapshot", "mine/fs@before"]);
    assert!(images.run("zpool", &["status", "mine"]).contains("errors: No known data errors"));

    let image = std::fs::File::options().read(true).write(true).open(&images.files[0]).unwrap();
    let whole = std::fs::read(&images.files[0]).unwrap();
    let places: Vec<usize> =
        (0..whole.len() - 64).step_by(512).filter(|at| whole[*at..*at + 64] == marked[..64]).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| image.write_all_at(&[0xaa; 64], *at as u64).unwrap());

    let mut mounted = common::mounted::Mounted::new(&images, "mine/fs");
    let bad = mounted.at().join(source.path().file_name().unwrap()).join("sub/bad");
    let bad = if bad.exists() { bad } else { mounted.path("sub/bad") };
    let below = bad.strip_prefix(mounted.at()).unwrap().display().to_string();
    for _ in 0..2 {
        std::fs::read(&bad).unwrap_err();
    }
    // A file of a dataset that is mounted is named by its path there.
    let (here, named) = (bad.display().to_string(), format!("mine/fs:/{below}"));
    let before = format!("mine/fs@before:/{below}");
    let is_told = |text: &str, name: &String| {
        for name in [name, &before] {
            assert_eq!(text.lines().filter(|line| line.trim() == name).count(), 1, "{name}: {text}");
        }
        assert!(text.contains("ZFS-8000-8A") && text.contains("Applications may be affected"), "{text}");
        assert!(text.contains("errors: Permanent errors have been detected"), "{text}");
    };
    is_told(&images.run("zpool", &["status", "-v", "mine"]), &here);
    let short = images.run("zpool", &["status", "mine"]);
    assert!(short.contains("errors: 1 data errors, use '-v' for a list"), "{short}");
    common::good(std::process::Command::new("fusermount3").arg("-u").arg(mounted.at()));
    // It has told of the block that could not be read.
    assert!(mounted.wait_whatever_it_says().success());

    // By a later process, and for OpenZFS.
    is_told(&images.run("zpool", &["status", "-v", "mine"]), &named);
    let document: Value = serde_json::from_str(&images.run("zpool", &["status", "-jv", "mine"])).unwrap();
    assert_eq!(document["pools"]["mine"]["errlist"].as_array().unwrap().len(), 2, "{document}");
    if cenote_testkit::zdb::program("zdb").is_some() {
        let devices = cenote_testkit::zdb::Devices::of(&images.files).unwrap();
        let told = cenote_testkit::zdb::run(&devices, &["-dddd"], "mine").unwrap().text;
        let head: u64 = {
            let line = told.lines().find(|line| line.starts_with("Dataset mine/fs [")).unwrap();
            line.split("ID ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap()
        };
        let (of_head, of_block) = (format!("\t\t{head:x} = "), ":0:0:");
        assert!(told.contains("errlog_last = ") && told.contains(&of_head) && told.contains(of_block), "{told}");
    }
    // Blocks that cannot be read stay named, and those that can be are not named any more.
    images.run("zpool", &["clear", "mine"]);
    is_told(&images.run("zpool", &["status", "-v", "mine"]), &named);
    let verified = images.command("verify", &["mine"]).output().unwrap();
    let verified = String::from_utf8(verified.stdout).unwrap();
    assert!(verified.contains(&format!(":/{below}: block 0: no good copy")), "{verified}");
    let document = images.command("verify", &["-j", "mine"]).output().unwrap();
    let document: Value = serde_json::from_slice(&document.stdout).unwrap();
    let error = &document["errors"][0];
    assert_eq!((error["level"].as_i64(), error["block"].as_u64()), (Some(0), Some(0)), "{document}");
    assert!(error["place"].as_str().is_some_and(|place| place.ends_with(&below)), "{document}");

    places.iter().for_each(|at| image.write_all_at(&whole[*at..*at + 64], *at as u64).unwrap());
    images.run("zpool", &["clear", "mine"]);
    let text = images.run("zpool", &["status", "-v", "mine"]);
    assert!(text.contains("errors: No known data errors") && !text.contains("8000-8A"), "{text}");
    images.assert_whole();
}

/// `zpool remove` of a log device was refused for as long as somebody fsynced, since the command's own look at the pool counted as a
/// reader of an earlier txg.
#[test]
fn a_log_device_is_removed_while_a_client_fsyncs() {
    use std::sync::atomic::{AtomicBool, Ordering};
    if !common::mounted::can_mount() {
        return;
    }
    let mut images = Images::none();
    let [disk, device] = ["disk", "log"].map(|name| images.dir.join(name).display().to_string());
    let mut command = images.bare();
    command.args(["zpool", "create", "--size", "96M", "mine", &disk, "log", &device]);
    common::good(&mut command);
    images.note_files();
    let mounted = common::mounted::Mounted::new(&images, "mine");
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut synced = 0;
            while !ends.load(Ordering::Relaxed) {
                let path = mounted.path(&format!("f{}", synced % 20));
                let file = std::fs::File::create(path).unwrap();
                std::io::Write::write_all(&mut &file, &[1; 500]).unwrap();
                file.sync_all().unwrap();
                synced += 1;
            }
            synced
        });
        while std::fs::metadata(mounted.path("f3")).is_err() {
            std::thread::yield_now();
        }
        images.run("zpool", &["remove", "mine", &device]);
        ends.store(true, Ordering::Relaxed);
        assert!(client.join().unwrap() > 3);
    });
    mounted.end(common::mounted::End::Unmount);
    images.files.retain(|path| path.ends_with("disk"));
    images.assert_whole();
}

/// A raidz that lacked devices was called a pool with corrupted metadata, its vdevs were drawn as a list of files, and it came last.
#[test]
fn what_is_missing_is_nowhere_called_damaged() {
    let images = Images::made(&["raidz2"], 4, &[]);
    let bare = |words: &[&str]| images.bare().args(words).output().unwrap();
    let file = |name: &str| images.cache.path().join(name).display().to_string();
    for words in [&["other", &file("other")][..], &["logged", &file("disk"), "log", &file("log")]] {
        common::good(images.bare().args(["zpool", "create", "--size", "80M"]).args(words));
    }
    images.files[..3].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    std::fs::remove_file(file("log")).unwrap();

    // As one who has not imported it sees it.
    let mut import = images.command("zpool", &["import"]);
    import.env("CENOTE_CACHE", images.cache.path().join("another.json"));
    let listed = String::from_utf8(common::good(&mut import)).unwrap();
    for words in [" state: UNAVAIL\nstatus: One or more devices are missing", "Attach the missing", "ZFS-8000-3C"] {
        assert!(listed.contains(words), "{words}: {listed}");
    }
    assert!(line(&listed, "raidz2-0").ends_with("UNAVAIL  insufficient replicas"), "{listed}");
    assert!(line(&listed, "2.img").ends_with("UNAVAIL  cannot open") && !listed.contains("corrupted"), "{listed}");

    let output = bare(&["zpool", "status"]);
    let (text, told) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let pools: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("  pool: ")).collect();
    assert_eq!(pools, ["logged", "mine", "other"], "{text}");
    assert!(!text.contains("corrupted") && told.contains("raidz2-0 (missing: "), "{text}{told}");
    assert!(line(&text, "raidz2-0").contains("UNAVAIL      0     0     0  insufficient replicas"), "{text}");
    for path in &images.files[..3] {
        assert!(text.lines().any(|line| line.ends_with(&format!("  was {}", path.display()))), "{text}");
    }
    assert!(text.contains("A log device is missing") && text.contains("'zpool import -m logged'"), "{text}");
    let document: Value = serde_json::from_slice(&bare(&["zpool", "status", "-j"]).stdout).unwrap();
    let raidz = &document["pools"]["mine"]["vdevs"]["mine"]["vdevs"]["raidz2-0"];
    assert_eq!((&raidz["state"], &raidz["aux"]), (&"CANT_OPEN".into(), &"NO_REPLICAS".into()), "{document}");

    let list = String::from_utf8(bare(&["zpool", "list", "-H", "-o", "name,health"]).stdout).unwrap();
    assert_eq!(list, "logged\tUNAVAIL\nmine\tUNAVAIL\nother\tONLINE\n");
}
