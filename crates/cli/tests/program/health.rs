//! Goal: a pool whose devices have missed something is shown as what it is, by every command that is asked, before anyone relies on
//! it; and nothing is written while the one device is away that has what another missed. Method: the review's scenario, with files
//! that are hidden and put back.

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
    assert!(text.contains("action: Leave all devices attached.") && text.contains("kernel module"), "{text}");
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
