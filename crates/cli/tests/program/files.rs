//! `ls`, `cat`, `cp` and `tar` against what OpenZFS showed of the same pools.

use crate::common;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use cenote_testkit::manifest::hex;
use cenote_testkit::walk;
use cenote_testkit::zdb::program as system_program;
use common::{Pool, assert_same, good, is_root, said};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// Themes whose files have all that files can have.
const THEMES: [&str; 4] = ["basic", "acl", "xattrs", "snapshots"];
/// Fields that no copy can have: object numbers, space, time of the copy itself, and those that no call sets.
const OF_THE_POOL: [&str; 5] = ["ino", "blocks", "ctime", "projid", "flags"];

/// Fields that this user cannot set.
fn unsettable() -> Vec<&'static str> {
    let mut left_out = OF_THE_POOL.to_vec();
    if !is_root() {
        eprintln!("left out: owners and devices, which only root can set and make");
        left_out.extend(["uid", "gid"]);
    }
    left_out
}

/// The entries in the account of a tree that this user could have made in a file system of this machine. Many such file
/// systems keep no more than a block of extended attributes for a file.
fn makeable(entries: Vec<Value>) -> Vec<Value> {
    const XATTRS_MAX_CHARS: usize = 3000;
    let mut entries = entries;
    entries.retain(|entry| is_root() || (entry["type"] != "c" && entry["type"] != "b"));
    for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
        if entry.get("xattrs").is_some_and(|xattrs| xattrs.to_string().len() > XATTRS_MAX_CHARS) {
            entry.remove("xattrs");
        }
    }
    entries
}

/// Takes from `got` the extended attributes of files for which `want` does not mention any more.
fn without_large_xattrs(want: &[Value], mut got: Vec<Value>) -> Vec<Value> {
    let kept: BTreeMap<String, bool> =
        want.iter().map(|entry| (entry["path"].to_string(), entry.get("xattrs").is_some())).collect();
    for entry in &mut got {
        if !kept.get(&entry["path"].to_string()).is_some_and(|kept| *kept) {
            entry.as_object_mut().unwrap().remove("xattrs");
        }
    }
    got
}

#[test]
fn a_listing_shows_what_openzfs_showed() {
    for theme in THEMES {
        let pool = Pool::of(theme);
        for dataset in pool.filesystems() {
            let got = pool.run(&["ls"], &["-aR", "--json", &dataset]);
            let got: Vec<Value> = serde_json::from_slice(&got).unwrap();
            let root = pool.run(&["ls"], &["--directory", "--json", &dataset]);
            let root: Vec<Value> = serde_json::from_slice(&root).unwrap();
            let got: Vec<Value> = root.into_iter().chain(got).collect();
            // Not of a listing: contents; and what a mount adds to a root.
            let left_out = ["sha256", "data", "xattrs", "projid", "flags", "atime", "crtime"];
            let mut want = pool.entries(&dataset);
            want[0]["ino"] = got[0]["ino"].clone();
            assert_same(&dataset, &want, &got, &left_out);
        }
    }
}

#[test]
fn a_plain_listing_has_names_in_order_and_a_long_one_says_what_they_are() {
    let pool = Pool::of("basic");
    let names: Vec<String> = pool
        .entries(&pool.name)
        .iter()
        .filter_map(|entry| Some(entry["path"].as_str()?.to_owned()))
        .filter(|path| !path.contains('/') && !path.starts_with('.'))
        .collect();
    let text = pool.text(&["ls"], &[&pool.name]);
    assert_eq!(text.lines().collect::<Vec<_>>(), names);
    let long = pool.text(&["ls"], &["-l", &pool.name]);
    assert_eq!(long.lines().count(), names.len());
    for (line, name) in long.lines().zip(&names) {
        let entry = pool.entries(&pool.name).into_iter().find(|entry| entry["path"] == *name).unwrap();
        let kind = if entry["type"] == "f" { "-" } else { entry["type"].as_str().unwrap() };
        assert!(line.starts_with(kind), "{line}");
        assert!(line.contains(name.as_str()), "{line}");
        if entry["type"] == "f" {
            assert!(line.contains(&format!(" {} ", entry["size"])), "{line}");
        }
    }
}

#[test]
fn cat_gives_the_bytes_of_files_and_volumes() {
    let pool = Pool::of("basic");
    let entries = pool.entries(&pool.name);
    let small = |entry: &&Value| {
        entry["sha256"].is_string() && entry["path"].is_string() && entry["size"].as_u64() < Some(4 << 20)
    };
    let files: Vec<&Value> = entries.iter().filter(small).take(12).collect();
    assert!(files.len() > 5);
    for entry in files {
        let bytes = pool.run(&["cat"], &[&pool.name, entry["path"].as_str().unwrap()]);
        assert_eq!(json!(hex(&Sha256::digest(&bytes))), entry["sha256"], "{entry}");
    }
    let (name, volume) = pool.datasets.iter().find(|(_, dataset)| dataset.kind == "volume").unwrap();
    let bytes = pool.run(&["cat"], &[name]);
    assert_eq!(Some(hex(&Sha256::digest(&bytes))), volume.sha256);
}

#[test]
fn what_is_not_there_is_said_by_name_with_status_1() {
    let pool = Pool::of("basic");
    for words in [&["ls", "none/such"][..], &["cat", "none"], &["cp", "none", "."]] {
        let (verb, rest) = words.split_first().unwrap();
        let rest: Vec<&str> = [&pool.name[..]].into_iter().chain(rest.iter().copied()).collect();
        let output = pool.command(&[verb], &rest).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("none") && said(&output).contains("no such file"), "{}", said(&output));
    }
}

#[test]
fn a_copy_is_what_openzfs_showed() {
    for theme in THEMES {
        let pool = Pool::of(theme);
        for dataset in pool.filesystems() {
            let target = tempfile::tempdir().unwrap();
            let target = target.path().join("copy");
            let output = pool
                .command(&["cp"], &["-a", "--privileged", &dataset, "/", target.to_str().unwrap()])
                .output()
                .unwrap();
            assert!(output.status.success() || !is_root(), "{dataset}: {}", said(&output));
            let want = makeable(pool.entries(&dataset));
            let got = walk::entries(&target).unwrap().as_array().unwrap().clone();
            assert_same(&dataset, &want, &without_large_xattrs(&want, makeable(got)), &unsettable());
        }
    }
}

#[test]
fn an_encrypted_file_system_is_copied_with_its_key_and_names_it_without() {
    let pool = Pool::of("encryption_small");
    let dataset = pool.filesystems().into_iter().last().unwrap();
    let target = tempfile::tempdir().unwrap();
    let target = target.path().join("copy");
    pool.run(&["cp"], &["-a", "--privileged", "-t", target.to_str().unwrap(), &dataset]);
    let want = makeable(pool.entries(&dataset));
    let got = walk::entries(&target).unwrap().as_array().unwrap().clone();
    assert_same(&dataset, &want, &without_large_xattrs(&want, makeable(got)), &unsettable());

    let mut command = common::program();
    let output = command.arg("ls").arg("-d").arg(&pool.dir).args(["-f", &dataset]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("key is not loaded") && said(&output).contains("--key"), "{}", said(&output));
}

/// A directory of `basic` with plain files and its path.
fn some_directory(pool: &Pool) -> String {
    let entries = pool.entries(&pool.name);
    let is_parent = |path: &str| {
        entries.iter().any(|entry| {
            entry["type"] == "f"
                && entry["size"].as_u64() < Some(1 << 20)
                && entry["path"].as_str().and_then(|of| of.rsplit_once('/')).is_some_and(|(parent, _)| parent == path)
        })
    };
    let mut directories =
        entries.iter().filter(|entry| entry["type"] == "d").filter_map(|entry| entry["path"].as_str());
    directories.find(|path| is_parent(path)).unwrap().to_owned()
}

#[test]
fn a_resumed_copy_leaves_whole_files_alone_and_does_the_others_again() {
    let pool = Pool::of("basic");
    let directory = some_directory(&pool);
    let target = tempfile::tempdir().unwrap();
    let target = target.path().to_str().unwrap();
    pool.run(&["cp"], &["-a", &pool.name, &directory, target]);
    let root = Path::new(target).join(directory.rsplit('/').next().unwrap());
    let mut files: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    // A new file may get the number of one that was removed, but not its time.
    let identity = |path: &Path| fs::metadata(path).map(|meta| (meta.ino(), meta.ctime(), meta.ctime_nsec())).unwrap();
    let before: BTreeMap<_, _> = files.iter().map(|path| (path.clone(), identity(path))).collect();
    let spoiled = files.iter().find(|path| fs::metadata(path).unwrap().nlink() == 1).unwrap();
    let good_bytes = fs::read(spoiled).unwrap();
    fs::set_permissions(spoiled, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(spoiled, b"half").unwrap();
    pool.run(&["cp"], &["-a", "--resume", &pool.name, &directory, target]);
    assert_eq!(fs::read(spoiled).unwrap(), good_bytes);
    for (path, before) in before {
        assert_eq!(identity(&path) == before, path != *spoiled, "{}", path.display());
    }
}

/// Goal: nothing outside of the target is written. Method: the target holds symbolic links to a directory outside, under
/// the names of a directory and of a file of the pool. Would go wrong if a link were followed on the way.
#[test]
fn links_in_the_target_lead_nowhere() {
    let pool = Pool::of("basic");
    let directory = some_directory(&pool);
    let name = directory.rsplit('/').next().unwrap();
    let outside = tempfile::tempdir().unwrap();
    let target = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), target.path().join(name)).unwrap();
    let output = pool.command(&["cp"], &[&pool.name, &directory, target.path().to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);

    let file = pool
        .entries(&pool.name)
        .into_iter()
        .find(|entry| entry["type"] == "f" && entry["path"].as_str().is_some_and(|path| !path.contains('/')));
    let file = file.unwrap()["path"].as_str().unwrap().to_owned();
    let victim = outside.path().join("victim");
    fs::write(&victim, b"mine").unwrap();
    std::os::unix::fs::symlink(&victim, target.path().join(&file)).unwrap();
    pool.run(&["cp"], &[&pool.name, &file, target.path().to_str().unwrap()]);
    assert_eq!(fs::read(&victim).unwrap(), b"mine");
    assert!(!fs::symlink_metadata(target.path().join(&file)).unwrap().is_symlink());
}

/// An image with one pool, `made`, of what `source` holds.
fn image_of(source: &Path, image: &Path) {
    let mut command = common::program();
    command.args(["build", "--no-verify", "--pool", "made", "--size", "80M", "--from"]).arg(source).arg(image);
    good(&mut command);
}

fn copied_from(image: &Path, rest: &[&str]) -> std::process::Output {
    common::program().args(["cp", "-a", "-d"]).arg(image).arg("-f").args(rest).output().unwrap()
}

/// Goal: `cp POOL /` with the target forgotten unpacks nothing. Would go wrong if the last word were always the target.
#[test]
fn a_copy_without_a_target_is_a_usage_error_and_makes_nothing() {
    let pool = Pool::of("basic");
    let target = tempfile::tempdir().unwrap();
    let output = pool.command(&["cp"], &["-a", &pool.name, target.path().to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("-t DIRECTORY"), "{}", said(&output));
    assert_eq!(fs::read_dir(target.path()).unwrap().count(), 0);
    assert_eq!(pool.command(&["cp"], &["-a", &pool.name]).output().unwrap().status.code(), Some(2));
}

#[test]
fn a_target_that_was_there_keeps_its_own_owner_and_mode() {
    let dir = tempfile::tempdir().unwrap();
    let (source, image, target) = (dir.path().join("source"), dir.path().join("image"), dir.path().join("target"));
    fs::create_dir_all(source.join("sub")).unwrap();
    fs::set_permissions(&source, fs::Permissions::from_mode(0o700)).unwrap();
    if is_root() {
        std::os::unix::fs::chown(&source, Some(1234), Some(1234)).unwrap();
    }
    image_of(&source, &image);
    fs::create_dir_all(target.join("sub")).unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o711)).unwrap();
    if is_root() {
        std::os::unix::fs::chown(target.join("sub"), Some(4321), Some(4321)).unwrap();
    }
    let before = fs::metadata(&target).unwrap();
    let output = copied_from(&image, &["made", "/", target.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    let after = fs::metadata(&target).unwrap();
    assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
    if is_root() {
        assert_eq!(fs::metadata(target.join("sub")).unwrap().uid(), 4321);
        assert!(said(&output).contains("belongs to somebody else"), "{}", said(&output));
    }
    // One that is made takes those of what it is a copy of.
    let fresh = dir.path().join("fresh");
    assert!(copied_from(&image, &["-t", fresh.to_str().unwrap(), "made"]).status.success());
    let made = fs::metadata(&fresh).unwrap();
    assert_eq!(made.mode() & 0o7777, 0o700);
    assert!(!is_root() || made.uid() == 1234);
}

#[test]
fn what_gives_rights_comes_out_only_where_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (source, image) = (dir.path().join("source"), dir.path().join("image"));
    fs::create_dir(&source).unwrap();
    let program = source.join("program");
    fs::write(&program, b"#!/bin/sh").unwrap();
    let owner = if is_root() { 1000 } else { fs::metadata(&program).unwrap().uid() };
    if is_root() {
        use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};
        std::os::unix::fs::chown(&program, Some(owner), Some(owner)).unwrap();
        mknodat(CWD, source.join("disk"), FileType::BlockDevice, Mode::from_raw_mode(0o666), makedev(253, 0)).unwrap();
        setxattr(&program, "trusted.t", b"x", XattrFlags::empty()).unwrap();
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).unwrap();
    image_of(&source, &image);
    let copy = |rest: &[&str], name: &str| {
        let target = dir.path().join(name);
        let output = copied_from(&image, &[rest, &["-t", target.to_str().unwrap(), "made"]].concat());
        assert!(output.status.success(), "{}", said(&output));
        let program = target.join("program");
        let meta = fs::metadata(&program).unwrap();
        let has_xattr = rustix::fs::getxattr(&program, "trusted.t", &mut [0_u8; 8][..]).is_ok();
        (meta.mode() & 0o7777, meta.uid(), target.join("disk").exists(), has_xattr, said(&output))
    };
    let (mode, uid, has_disk, has_xattr, text) = copy(&[], "plain");
    assert_eq!((mode, uid, has_disk, has_xattr), (0o755, owner, false, false));
    assert!(text.contains("set-id bits of 1"), "{text}");
    assert!(!is_root() || text.contains("devices: 1, trusted.* and security.* attributes of 1"), "{text}");
    let (mode, uid, has_disk, has_xattr, _) = copy(&["--no-owner"], "nobodys");
    assert_eq!((mode, has_disk, has_xattr), (0o755, false, false));
    assert_eq!(uid, rustix::process::geteuid().as_raw());
    if is_root() {
        let (mode, uid, has_disk, has_xattr, text) = copy(&["--privileged"], "all");
        assert_eq!((mode, uid, has_disk, has_xattr), (0o6755, owner, true, true));
        assert!(!text.contains("left out"), "{text}");
        let (mode, _, has_disk, has_xattr, text) = copy(&["--privileged=devices"], "some");
        assert_eq!((mode, has_disk, has_xattr), (0o755, true, false), "{text}");
    }
    let both = copied_from(&image, &["--privileged", "--no-owner", "made", "/", "/nowhere"]);
    assert_eq!(both.status.code(), Some(2), "{}", said(&both));
}

#[test]
fn an_archive_is_named_with_f_and_is_its_owners_alone() {
    let pool = Pool::of("basic");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.tar");
    pool.run(&["tar"], &["-f", file.to_str().unwrap(), &pool.name]);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(fs::read(&file).unwrap(), pool.run(&["tar"], &["-f", "-", &pool.name]));
    let output = pool.command(&["tar"], &["-f", &pool.name]).current_dir(dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("names the archive"), "{}", said(&output));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn an_archive_read_by_another_library_is_what_openzfs_showed() {
    for theme in THEMES {
        let pool = Pool::of(theme);
        for dataset in pool.filesystems() {
            let mut child = pool.command(&["tar"], &[&dataset]);
            let output = child.output().unwrap();
            assert!(output.status.success(), "{dataset}: {}", said(&output));
            assert_eq!(output.stdout.len() % 10240, 0);
            let got = archived(&output.stdout);
            let want: Vec<Value> = pool
                .entries(&dataset)
                .into_iter()
                .filter(|entry| entry["type"] != "s")
                .map(|entry| as_archived(&entry))
                .collect();
            assert_same(&dataset, &want, &got, &["ino", "blocks", "ctime", "projid", "flags", "nlink"]);
        }
    }
}

/// The part of an entry that compares with an archive's: without access control lists, which an archive has as text, and
/// large sparse files, which the library does not put together, by their size alone.
fn as_archived(entry: &Value) -> Value {
    let mut entry = entry.clone();
    let map = entry.as_object_mut().unwrap();
    if map.remove("data").is_some() {
        map.remove("sha256");
    }
    if let Some(xattrs) = map.get_mut("xattrs").and_then(Value::as_object_mut) {
        for list in ["system.posix_acl_access", "system.posix_acl_default"] {
            xattrs.remove(list);
        }
        if xattrs.is_empty() {
            map.remove("xattrs");
        }
    }
    entry
}

fn archived(bytes: &[u8]) -> Vec<Value> {
    let mut found: Vec<Value> = Vec::new();
    let mut archive = tar::Archive::new(bytes);
    let mut records: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    // Raw, because the library takes records apart at line feeds, which values may hold.
    for entry in archive.entries().unwrap().raw(true) {
        let mut entry = entry.unwrap();
        let header = entry.header().clone();
        if header.entry_type() == tar::EntryType::XHeader {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            records = records_of(&bytes);
            continue;
        }
        let records = std::mem::take(&mut records);
        let text = |key: &str| records.get(key).map(|value| String::from_utf8(value.clone()).unwrap());
        let path = records.get("GNU.sparse.name").or(records.get("path")).cloned();
        let path = path.unwrap_or_else(|| entry.path_bytes().into_owned());
        let path = path.strip_suffix(b"/").unwrap_or(&path).to_vec();
        let mut map = Map::new();
        map.insert("path".into(), name(&path));
        if header.entry_type() == tar::EntryType::Link {
            let first =
                records.get("linkpath").cloned().unwrap_or_else(|| entry.link_name_bytes().unwrap().into_owned());
            let first = name(&first);
            let mut same =
                found.iter().find(|entry| entry["path"] == first).expect("a link of what came before").clone();
            same["path"] = name(&path);
            found.push(same);
            continue;
        }
        let kind = match header.entry_type() {
            tar::EntryType::Regular => "f",
            tar::EntryType::Directory => "d",
            tar::EntryType::Symlink => "l",
            tar::EntryType::Fifo => "p",
            tar::EntryType::Char => "c",
            tar::EntryType::Block => "b",
            other => panic!("{other:?}"),
        };
        map.insert("type".into(), json!(kind));
        map.insert("mode".into(), json!(format!("{:04o}", header.mode().unwrap())));
        map.insert("uid".into(), json!(entry.header().uid().unwrap()));
        map.insert("gid".into(), json!(entry.header().gid().unwrap()));
        for id in ["uid", "gid"] {
            if let Some(text) = text(id) {
                map.insert(id.into(), json!(text.parse::<u64>().unwrap()));
            }
        }
        let mtime = text("mtime").unwrap_or_else(|| header.mtime().unwrap().to_string());
        map.insert("mtime".into(), json!(manifest_time(&mtime)));
        match kind {
            "c" | "b" => {
                let device = (header.device_major().unwrap().unwrap(), header.device_minor().unwrap().unwrap());
                map.insert("rdev".into(), json!([device.0, device.1]));
                map.insert("size".into(), json!(0));
            }
            "l" => {
                let target = records.get("linkpath").cloned();
                let target = target.unwrap_or_else(|| entry.link_name_bytes().unwrap().into_owned());
                map.insert("size".into(), json!(target.len()));
                map.insert("target".into(), name(&target));
            }
            "f" => match text("GNU.sparse.realsize") {
                Some(size) => {
                    let size: u64 = size.parse().unwrap();
                    map.insert("size".into(), json!(size));
                    let mut stored = Vec::new();
                    entry.read_to_end(&mut stored).unwrap();
                    if size <= 64 << 20 {
                        map.insert("sha256".into(), json!(hex(&Sha256::digest(whole(&stored, size)))));
                    }
                }
                None => {
                    let mut stored = Vec::new();
                    entry.read_to_end(&mut stored).unwrap();
                    map.insert("size".into(), json!(stored.len()));
                    map.insert("sha256".into(), json!(hex(&Sha256::digest(&stored))));
                }
            },
            _ => drop(map.insert("size".into(), json!(0))),
        }
        let xattrs: Map<String, Value> = records
            .iter()
            .filter_map(|(key, value)| {
                let key = key.strip_prefix("SCHILY.xattr.")?.replace("%3D", "=").replace("%25", "%");
                Some((key, json!(hex(value))))
            })
            .collect();
        if !xattrs.is_empty() {
            map.insert("xattrs".into(), Value::Object(xattrs));
        }
        found.push(Value::Object(map));
    }
    found
}

/// Records of a pax header: a length, a keyword and a value each.
fn records_of(mut bytes: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut records = BTreeMap::new();
    while !bytes.is_empty() {
        let digits = bytes.iter().position(|byte| *byte == b' ').unwrap();
        let len: usize = std::str::from_utf8(&bytes[..digits]).unwrap().parse().unwrap();
        let (record, rest) = bytes.split_at(len);
        let record = record[digits + 1..].strip_suffix(b"\n").unwrap();
        let equals = record.iter().position(|byte| *byte == b'=').unwrap();
        records.insert(String::from_utf8(record[..equals].to_vec()).unwrap(), record[equals + 1..].to_vec());
        bytes = rest;
    }
    records
}

/// A sparse file of format 1.0 as the file that it stands for.
fn whole(stored: &[u8], size: u64) -> Vec<u8> {
    let mut lines = stored.split(|byte| *byte == b'\n');
    let mut number = || std::str::from_utf8(lines.next().unwrap()).unwrap().parse::<usize>().unwrap();
    let count = number();
    let segments: Vec<(usize, usize)> = (0..count).map(|_| (number(), number())).collect();
    let digits = |number: usize| number.to_string().len() + 1;
    let map: usize = segments.iter().map(|(offset, len)| digits(*offset) + digits(*len)).sum();
    let mut at = (digits(count) + map).next_multiple_of(512);
    let mut file = vec![0; size as usize];
    for (offset, len) in segments {
        file[offset..offset + len].copy_from_slice(&stored[at..at + len]);
        at += len;
    }
    assert_eq!(at, stored.len());
    file
}

/// A record's time in the manifest's form: the seconds are rounded down, the nanoseconds count up from there.
fn manifest_time(text: &str) -> String {
    let is_negative = text.starts_with('-');
    let (seconds, fraction) =
        text.trim_start_matches('-').split_once('.').unwrap_or((text.trim_start_matches('-'), ""));
    let nanoseconds: i128 = format!("{fraction:0<9}").parse().unwrap();
    let all = seconds.parse::<i128>().unwrap() * 1_000_000_000 + nanoseconds;
    let all = if is_negative { -all } else { all };
    format!("{}.{:09}", all.div_euclid(1_000_000_000), all.rem_euclid(1_000_000_000))
}

fn name(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "hex": hex(bytes) }),
    }
}

/// Archives unpacked by GNU tar (and bsdtar, where it is installed), with everything it can restore, compared as a copy is.
#[test]
fn an_archive_unpacked_by_the_systems_tar_is_what_openzfs_showed() {
    if system_program("tar").is_none() {
        eprintln!("left out: tar is not installed");
        return;
    }
    for theme in ["basic", "acl", "xattrs"] {
        let pool = Pool::of(theme);
        for dataset in pool.filesystems() {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("archive.tar");
            let output = pool.command(&["tar"], &["-o", file.to_str().unwrap(), &dataset]).output().unwrap();
            assert!(output.status.success(), "{dataset}: {}", said(&output));
            for (tool, options) in [
                ("tar", &["--xattrs", "--xattrs-include=*", "--acls", "--same-owner", "-p"][..]),
                ("bsdtar", &["--xattrs", "--acls", "--same-owner", "-p"]),
            ] {
                let Some(tool_path) = system_program(tool) else {
                    eprintln!("left out: {tool} is not installed");
                    continue;
                };
                let target = dir.path().join(tool);
                fs::create_dir(&target).unwrap();
                let mut command = Command::new(tool_path);
                command.arg("-x").arg("-f").arg(&file).arg("-C").arg(&target).args(options);
                if is_root() {
                    good(&mut command);
                } else {
                    // Owners and devices are errors for others.
                    command.output().unwrap();
                }
                let got = walk::entries(&target).unwrap().as_array().unwrap().clone();
                let mut want = makeable(pool.entries(&dataset));
                want.retain(|entry| entry["type"] != "s");
                let got = without_large_xattrs(&want, makeable(got));
                assert_same(&format!("{dataset} by {tool}"), &want, &got, &unsettable());
            }
        }
    }
}
