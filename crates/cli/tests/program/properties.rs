//! Every property of every golden pool, as OpenZFS had it and as we have it.
//!
//! The manifests carry what the real `zfs get all`, `zpool get all`, `zpool status` and `zpool list` printed of each pool.
//! Our output has to be the same, value by value and source by source. Properties that cannot be the same are listed here,
//! each with its reason, and nowhere else.

use crate::common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use cenote_codec::compress::decompress;
use cenote_format::enums::Compress;
use cenote_format::nvlist::NvList;
use cenote_testkit::{Golden, Theme};
use common::images::Images;
use serde_json::Value;

/// Pools' properties that are not compared.
const NOT_OF_THE_POOL: [(&str, &str); 2] =
    [("load_guid", "made anew at each import"), ("cachefile", "the account was made with `-o cachefile=none`")];

/// Properties that OpenZFS computes without the log space maps when it imports read-only, where a pool has some.
const WITHOUT_LOGS: [&str; 4] = ["allocated", "free", "capacity", "fragmentation"];

/// A theme's images, unpacked, and the accounts of its pools.
struct Subject {
    theme: Theme,
    dir: PathBuf,
    sections: Vec<Value>,
}

/// Whether it is the repository's own set, whose size is known.
fn is_selection() -> bool {
    std::env::var_os("CENOTE_GOLDEN").is_none()
}

/// Each section of each theme that describes the images as they are. The set is `CENOTE_GOLDEN`'s, else the repository's.
fn subjects() -> Vec<Subject> {
    let golden = match std::env::var_os("CENOTE_GOLDEN") {
        Some(_) => Golden::find().unwrap(),
        None => Golden::selection().unwrap(),
    };
    let subjects: Vec<Subject> = golden
        .themes()
        .unwrap()
        .into_iter()
        .map(|theme| {
            let json = theme.manifest_json().unwrap();
            let sections = json["sections"].as_array().unwrap().iter().filter(|each| each["section"] == "contents");
            Subject { dir: theme.unpacked().unwrap().dir, sections: sections.cloned().collect(), theme }
        })
        .collect();
    assert!(!subjects.is_empty());
    subjects
}

impl Subject {
    fn command(&self, tool: &str, words: &[&str]) -> Command {
        let mut command = common::program();
        // Some pools were copied while they were open.
        command.arg(tool).arg("-d").arg(&self.dir).arg("-f").args(words);
        command
    }

    fn json(&self, tool: &str, words: &[&str]) -> Value {
        serde_json::from_slice(&common::good(&mut self.command(tool, words))).unwrap()
    }

    fn text(&self, tool: &str, words: &[&str]) -> String {
        String::from_utf8(common::good(&mut self.command(tool, words))).unwrap()
    }
}

/// Differences between two maps of properties, and how many were compared.
fn differences(at: &str, want: &Value, got: &Value, skip: &dyn Fn(&str) -> bool, found: &mut Vec<String>) -> usize {
    let empty = serde_json::Map::new();
    let map = |value: &Value| -> BTreeMap<String, Value> {
        value.as_object().unwrap_or(&empty).iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let (want, got) = (map(want), map(got));
    let mut compared = 0;
    for name in want.keys().chain(got.keys().filter(|name| !want.contains_key(*name))) {
        if skip(name) {
            continue;
        }
        compared += 1;
        let same = match (want.get(name), got.get(name)) {
            (Some(want), Some(got)) if name == "receive_resume_token" => {
                want["source"] == got["source"] && token(want) == token(got)
            }
            (want, got) => want == got,
        };
        if !same {
            found.push(format!("{at} {name}: want {:?}, got {:?}", want.get(name), got.get(name)));
        }
    }
    compared
}

/// The content of a resume token. Two compressors need not agree on bytes.
fn token(property: &Value) -> NvList {
    let text = property["value"].as_str().unwrap();
    let parts: Vec<&str> = text.split('-').collect();
    let [version, checksum, length, data] = parts[..] else { panic!("{text}: not a token") };
    let bytes: Vec<u8> =
        (0..data.len()).step_by(2).map(|at| u8::from_str_radix(&data[at..at + 2], 16).unwrap()).collect();
    assert_eq!(version, "1");
    let sum = cenote_codec::checksum::fletcher::fletcher4(&bytes[..bytes.len() & !3], cenote_format::Endian::Little);
    assert_eq!(format!("{:x}", sum[0]), checksum, "{text}");
    let mut packed = vec![0; usize::from_str_radix(length, 16).unwrap()];
    decompress(Compress::Gzip6, &bytes, &mut packed).unwrap();
    NvList::parse(&packed).unwrap()
}

#[test]
fn zfs_get_all_is_what_openzfs_says() {
    let (mut found, mut compared) = (Vec::new(), 0);
    for subject in subjects() {
        for section in &subject.sections {
            let pool = section["pool"].as_str().unwrap();
            let got = subject.json("zfs", &["get", "-j", "-p", "-r", "-t", "all", "all", pool]);
            let want = &section["zfs_get"];
            assert_eq!(got["output_version"], want["output_version"]);
            // The content of special and dedup vdevs counts towards `available`, and OpenZFS leaves out its log space maps.
            let status = &section["zpool_status"]["pools"][pool];
            let has_classes = ["special", "dedup"].iter().any(|class| status.get(class).is_some());
            let (want, got) = (want["datasets"].as_object().unwrap(), got["datasets"].as_object().unwrap());
            let names = |map: &serde_json::Map<String, Value>| map.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(got), names(want), "{}: datasets and their order", subject.theme.name());
            for (name, want) in want {
                let got = &got[name];
                let head = |value: &Value| {
                    let mut head = value.as_object().unwrap().clone();
                    head.remove("properties");
                    head
                };
                assert_eq!(head(got), head(want), "{name}");
                let at = format!("{} {name}", subject.theme.name());
                let skip = |name: &str| has_classes && name == "available";
                compared += differences(&at, &want["properties"], &got["properties"], &skip, &mut found);
            }
        }
    }
    assert!(found.is_empty(), "{} of {compared} differ:\n{}", found.len(), found.join("\n"));
    assert!(compared > if is_selection() { 1000 } else { 0 }, "{compared}");
}

#[test]
fn zpool_get_all_is_what_openzfs_says() {
    let (mut found, mut compared) = (Vec::new(), 0);
    for subject in subjects() {
        for section in &subject.sections {
            let pool = section["pool"].as_str().unwrap();
            let got = subject.json("zpool", &["get", "-j", "-p", "all", pool]);
            let want = &section["zpool_get"];
            assert_eq!(got["output_version"], want["output_version"]);
            let (want, got) = (&want["pools"][pool], &got["pools"][pool]);
            for key in ["name", "type", "state", "pool_guid", "spa_version", "zpl_version"] {
                assert_eq!(got[key], want[key], "{pool} {key}");
            }
            let (want, got) = (&want["properties"], &got["properties"]);
            let has_logs = want["feature@log_spacemap"]["value"] == "active";
            let skip = |name: &str| {
                NOT_OF_THE_POOL.iter().any(|(other, _)| *other == name) || has_logs && WITHOUT_LOGS.contains(&name)
            };
            compared += differences(subject.theme.name(), want, got, &skip, &mut found);
            let order = |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
            assert_eq!(order(got), order(want), "{pool}: properties and their order");
        }
    }
    assert!(found.is_empty(), "{} of {compared} differ:\n{}", found.len(), found.join("\n"));
    assert!(compared > if is_selection() { 500 } else { 0 }, "{compared}");
}

/// The name of an image without its folder: the account was made where the images lay then.
fn without_folder(text: &str) -> &str {
    text.rsplit('/').next().unwrap_or(text)
}

/// Vdevs by their names without folders, with what is not compared taken out: allocated space, which leaves out the logs,
/// and paths. A partition of an image (`a.img#1`) was the disk of that name (`vda`) in the account.
fn comparable_vdevs(vdevs: &Value) -> Value {
    let Some(vdevs) = vdevs.as_object() else { return Value::Null };
    vdevs
        .values()
        .map(|vdev| {
            let mut vdev = vdev.as_object().unwrap().clone();
            let is_disk = vdev["vdev_type"] == "disk";
            for key in ["alloc_space", "path", "name", "devid", "phys_path"] {
                let value = vdev.remove(key);
                if key == "name" && !is_disk {
                    vdev.insert("name".into(), without_folder(value.unwrap().as_str().unwrap()).into());
                }
            }
            if let Some(children) = vdev.get("vdevs") {
                let children = comparable_vdevs(children);
                vdev.insert("vdevs".into(), children);
            }
            Value::Object(vdev)
        })
        .collect()
}

#[test]
fn zpool_status_is_what_openzfs_says() {
    let mut compared = 0;
    for subject in subjects() {
        for section in &subject.sections {
            let pool = section["pool"].as_str().unwrap();
            let got = subject.json("zpool", &["status", "-j", "-p", "-D", pool]);
            let want = &section["zpool_status"];
            assert_eq!(got["output_version"], want["output_version"]);
            let (mut want, mut got) = (want["pools"][pool].clone(), got["pools"][pool].clone());
            for side in [&mut want, &mut got] {
                // The txg is that of the import, which OpenZFS does not tell of one that is read-only.
                side.as_object_mut().unwrap().remove("txg");
                for key in ["vdevs", "dedup", "special", "logs", "l2cache", "spares"] {
                    if side.get(key).is_some() {
                        side[key] = comparable_vdevs(&side[key]);
                    }
                }
                if let Some(scan) = side.get_mut("scan_stats").and_then(Value::as_object_mut) {
                    // Of a scan's progress the pool records less than the kernel knows.
                    scan.retain(|key, _| ["function", "state", "start_time", "end_time", "errors"].contains(&&**key));
                }
            }
            assert_eq!(got, want, "{}", subject.theme.name());
            compared += 1;
            // The same for people, word by word.
            let words = |text: &str| -> Vec<String> {
                let word = |word: &str| without_folder(word).split('#').next().unwrap_or_default().to_owned();
                text.split_whitespace().map(word).collect()
            };
            if subject.theme.name() != "basic_gpt" {
                let got = subject.text("zpool", &["status", "-vD", pool]);
                assert_eq!(words(&got), words(section["zpool_status_text"].as_str().unwrap()), "{got}");
                // Of the space only the size does not depend on the logs.
                let columns = |text: &str| -> Vec<Vec<String>> {
                    let row = |line: &str| {
                        let row = words(line);
                        [0, 1, 4, 5, 8, 9].into_iter().filter_map(|at| row.get(at).cloned()).collect()
                    };
                    text.lines().map(row).collect()
                };
                let got = subject.text("zpool", &["list", "-v", pool]);
                assert_eq!(columns(&got), columns(section["zpool_list"].as_str().unwrap()), "{got}");
            }
        }
    }
    assert!(compared >= if is_selection() { 14 } else { 1 }, "{compared}");
}

#[test]
fn history_begins_with_the_pools_creation() {
    for subject in subjects() {
        for section in &subject.sections {
            let pool = section["pool"].as_str().unwrap();
            let text = subject.text("zpool", &["history", pool]);
            let mut lines = text.lines();
            assert_eq!(lines.next(), Some(&*format!("History for '{pool}':")));
            let first = lines.next().unwrap();
            assert!(first.contains(" zpool create ") && first.contains(pool), "{first}");
            let internal = subject.text("zpool", &["history", "-il", pool]);
            let events: Vec<&str> = internal.lines().filter(|line| line.contains(" [txg:")).collect();
            assert!(events.iter().any(|line| line.contains(" create ")), "{internal}");
            assert!(internal.lines().count() > text.lines().count());
        }
    }
}

#[test]
fn a_missing_disk_shows_in_status_and_import() {
    let subject = subjects().into_iter().find(|subject| subject.theme.name() == "raidz1").unwrap();
    let pool = subject.sections[0]["pool"].as_str().unwrap().to_owned();
    let present = tempfile::tempdir().unwrap();
    for image in ["d1.img", "d3.img"] {
        std::os::unix::fs::symlink(subject.dir.join(image), present.path().join(image)).unwrap();
    }
    let run = |words: &[&str]| {
        let mut command = common::program();
        command.env("CENOTE_CACHE", present.path().join("none.json"));
        String::from_utf8(common::good(command.arg("zpool").arg("-d").arg(present.path()).args(words))).unwrap()
    };
    let text = run(&["status", &pool]);
    assert!(text.contains("state: DEGRADED"), "{text}");
    assert!(text.contains("see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-2Q"), "{text}");
    assert!(text.contains("UNAVAIL      0     0     0  was /run/img/d2.img"), "{text}");
    assert!(run(&["status", "-x"]).contains("DEGRADED"));
    let text = run(&["import"]);
    assert!(text.contains("status: One or more devices are missing from the system.\n"), "{text}");
    assert!(text.contains("/run/img/d2.img"), "{text}");
    assert!(text.contains("UNAVAIL  cannot open\n"), "{text}");
    std::fs::remove_file(present.path().join("d3.img")).unwrap();
    let text = run(&["import"]);
    assert!(text.contains(" state: UNAVAIL\n"), "{text}");
    assert!(text.contains("action: The pool cannot be imported. Attach the missing\n"), "{text}");
}

/// A user who removes an image and makes it again is told why that is refused.
#[test]
fn a_pool_whose_image_was_removed_is_made_again_once_it_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("a.img");
    let command = |words: &[&str]| {
        let mut command = common::program();
        command.env("CENOTE_CACHE", folder.path().join("pools.json")).args(words);
        command
    };
    let create = ["zpool", "create", "--size", "128M", "mine", image.to_str().unwrap()];
    let refused = || {
        let output = command(&create).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    common::good(&mut command(&create));
    assert_eq!(refused(), "cannot create 'mine': pool already exists\n");
    std::fs::remove_file(&image).unwrap();
    assert_eq!(
        refused(),
        "cannot create 'mine': pool already exists, with none of its devices where it was; 'zpool export' forgets it\n"
    );
    common::good(&mut command(&["zpool", "export", "mine"]));
    common::good(&mut command(&create));
}

#[test]
fn an_import_is_noted_until_it_is_forgotten() {
    let subject = subjects().into_iter().find(|subject| subject.theme.name() == "mirror3").unwrap();
    let pool = subject.sections[0]["pool"].as_str().unwrap().to_owned();
    let folder = tempfile::tempdir().unwrap();
    let command = |words: &[&str]| {
        let mut command = common::program();
        command.env("CENOTE_CACHE", folder.path().join("pools.json")).args(words);
        command
    };
    let dir = subject.dir.to_str().unwrap();
    common::good(&mut command(&["zpool", "import", "-d", dir, "-o", "readonly=on", &pool, "other"]));
    let list = |words: &[&str]| String::from_utf8(common::good(&mut command(words))).unwrap();
    assert_eq!(list(&["zpool", "list", "-H", "-o", "name,readonly"]), "other\ton\n");
    assert!(list(&["zfs", "list", "-H", "-o", "name"]).starts_with("other\n"));
    let again = command(&["zpool", "import", "-d", dir, &pool, "other"]).output().unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("a pool with that name already exists"));
    common::good(&mut command(&["zpool", "export", "other"]));
    assert_eq!(list(&["zpool", "list"]), "no pools available\n");
    common::good(&mut command(&["zpool", "import", "-d", dir, "-F", "-n", &pool]));
    assert_eq!(list(&["zpool", "list"]), "no pools available\n");
    common::good(&mut command(&["zpool", "import", "-d", dir, "-R", "/mnt", &pool]));
    assert_eq!(list(&["zfs", "get", "-H", "-o", "value", "mountpoint", &pool]), format!("/mnt/{pool}\n"));
    common::good(&mut command(&["zpool", "export", "-a"]));
    for (words, code) in [
        (&["zpool", "import", "-X", "x"][..], 2),
        (&["zpool", "import", "-a", "x"], 2),
        (&["zpool", "import", "-d", dir, "-o", "readonly=off", "x"], 1),
        (&["zpool", "import", "-d", dir, "-o", "nonsense=on", "x"], 2),
        (&["zpool", "import", "-d", dir, "-T", "x", "x"], 2),
        (&["zpool", "import", "-d", dir, "nonsense"], 1),
        (&["zpool", "import", "-d", "/nonsense"], 1),
    ] {
        let output = command(words).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", common::said(&output));
    }
}

/// Mounts as a user would, looks, and interrupts. Left out where the system has no FUSE.
#[test]
fn file_systems_are_mounted_at_their_mount_points() {
    if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        assert!(std::env::var_os("CI").is_none(), "no /dev/fuse");
        eprintln!("left out: no /dev/fuse");
        return;
    }
    let subject = subjects().into_iter().find(|subject| subject.theme.name() == "basic").unwrap();
    let pool = subject.sections[0]["pool"].as_str().unwrap().to_owned();
    let root = tempfile::tempdir().unwrap();
    let at = root.path().join(&pool);
    let mut words = vec!["mount", "-a", "--altroot", root.path().to_str().unwrap()];
    let mut child = subject.command("zfs", &words).stderr(std::process::Stdio::null()).spawn().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while std::fs::read_dir(&at).map_or(true, |mut entries| entries.next().is_none()) {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        assert!(std::time::Instant::now() < deadline, "nothing is mounted after a minute");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let mounted = String::from_utf8(common::good(common::program().args(["zfs", "mount"]))).unwrap();
    let line = format!("{pool:30}  {}", at.display());
    assert!(mounted.lines().any(|each| each == line), "{mounted}");
    let got = subject.text("zfs", &["get", "-H", "-o", "value,source", "mounted,readonly", &pool]);
    assert_eq!(got, "yes\t-\non\ttemporary\n");
    // A path in it names it.
    assert_eq!(subject.text("zfs", &["list", "-H", "-o", "name", at.to_str().unwrap()]), format!("{pool}\n"));
    // One below it is there, in the same mount.
    assert!(std::fs::read_dir(at.join("quinbehol1")).unwrap().next().is_some());
    let id = child.id().to_string();
    common::good(std::process::Command::new("kill").args(["-INT", &id]));
    assert!(child.wait().unwrap().success());
    assert!(std::fs::read_dir(&at).unwrap().next().is_none(), "still mounted");
    // Mounting a dataset that cannot be mounted fails with the reason.
    words = vec!["mount", "--altroot", "/nonexistent"];
    for (name, reason) in [
        (format!("{pool}/jorganjor3"), "no mountpoint set"),
        (format!("{pool}/elalwil4"), "operation not applicable to datasets of this type"),
    ] {
        let output = subject.command("zfs", &[&words[..], &[&name]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains(reason), "{}", common::said(&output));
    }
}

#[test]
fn tables_have_openzfs_columns() {
    let subject = subjects().into_iter().find(|subject| subject.theme.name() == "raidz1").unwrap();
    let pool = subject.sections[0]["pool"].as_str().unwrap().to_owned();
    let text = subject.text("zfs", &["list", "-o", "name,used,refer,recordsize", &pool]);
    assert_eq!(text, "NAME          USED  REFER  RECSIZE\nholzedquin0  10.9M  1.27M     128K\n");
    let text = subject.text("zfs", &["get", "-t", "fs", "used,compression,org.x:y", &pool]);
    let want = "NAME         PROPERTY     VALUE           SOURCE\n\
                holzedquin0  used         10.9M           -\n\
                holzedquin0  compression  on              default\n\
                holzedquin0  org.x:y      -               -\n";
    assert_eq!(text, want);
    let text = subject.text("zfs", &["list", "-Hp", "-r", "-S", "name", "-o", "name,type", &pool]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.last(), Some(&"holzedquin0\tfilesystem"));
    assert!(lines.windows(2).all(|pair| pair[0] > pair[1]), "{text}");
    let text = subject.text("zpool", &["list", "-o", "name,size,guid,health", &pool]);
    assert_eq!(text, "NAME          SIZE   GUID    HEALTH\nholzedquin0   176M  3961062769413408879    ONLINE\n");
}

#[test]
fn wrong_input_has_openzfs_statuses() {
    let subject = subjects().into_iter().find(|subject| subject.theme.name() == "raidz1").unwrap();
    let status = |tool: &str, words: &[&str]| {
        let output = subject.command(tool, words).output().unwrap();
        assert!(!output.stderr.is_empty(), "{words:?} says nothing");
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let pool = "holzedquin0";
    for (tool, words, code, text) in [
        ("zfs", &["list", "nonsense"][..], 1, "cannot open 'nonsense': dataset does not exist"),
        ("zfs", &["list", "holzedquin0/nonsense"], 1, "cannot open 'holzedquin0/nonsense': dataset does not exist"),
        ("zfs", &["list", "-t", "filesystem", "holzedquin0@s"], 1, "snapshot delimiter '@' is not expected here"),
        ("zfs", &["list", "-o", "nonsense", pool], 2, "bad property list: invalid property 'nonsense'"),
        ("zfs", &["list", "-s", "nonsense", pool], 2, "invalid property 'nonsense'"),
        ("zfs", &["list", "-t", "nonsense", pool], 2, "invalid type 'nonsense'"),
        ("zfs", &["list", "--json-int", pool], 2, "'--json-int' only works with '-j' option"),
        ("zfs", &["list", "--nonsense", pool], 2, "unexpected argument"),
        ("zfs", &["get", "nonsense", pool], 2, "bad property list: invalid property 'nonsense'"),
        ("zfs", &["get", "-s", "nonsense", "all", pool], 2, "invalid source 'nonsense'"),
        ("zfs", &["get", "-o", "nonsense", "all", pool], 2, "invalid column name 'nonsense'"),
        ("zfs", &["get"], 2, "PROPERTIES"),
        ("zpool", &["list", "nonsense"], 1, "cannot open 'nonsense': no such pool"),
        ("zpool", &["list", "-o", "nonsense", pool], 2, "bad property list: invalid property 'nonsense'"),
        ("zpool", &["get", "all", "nonsense"], 1, "Cannot get properties of nonsense: no such pool available."),
        ("zpool", &["get", "nonsense", pool], 2, "bad property list: invalid property 'nonsense'"),
    ] {
        let (got, said) = status(tool, words);
        assert_eq!(got, code, "{tool} {words:?}: {said}");
        assert!(said.contains(text), "{tool} {words:?}: {said}");
    }
}

/// Goal: a snapshot's user properties are set, inherited, sent and received as a dataset's. Method: `set`, `inherit`, `snapshot -o`, a stream
/// with properties, and `zdb`, which finds nothing wrong.
#[test]
fn user_properties_of_snapshots_are_set_inherited_and_sent() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-o", "a:b=above", "mine/a"]);
    images.run("zfs", &["snapshot", "mine/a@1"]);
    images.run("zfs", &["snapshot", "mine/a@2"]);
    images.run("zfs", &["snapshot", "-o", "a:b=first", "mine/a@3"]);
    assert_eq!(images.get("a:b", "mine/a@1"), "above\tinherited from mine/a");
    images.run("zfs", &["set", "a:b=own", "c:d=x", "mine/a@1", "mine/a@2"]);
    assert_eq!(images.get("a:b", "mine/a@1"), "own\tlocal");
    assert_eq!(images.get("c:d", "mine/a@2"), "x\tlocal");
    assert_eq!(images.get("c:d", "mine/a"), "-\t-");
    images.run("zfs", &["inherit", "a:b", "mine/a@2", "mine/a@3"]);
    for snapshot in ["mine/a@2", "mine/a@3"] {
        assert_eq!(images.get("a:b", snapshot), "above\tinherited from mine/a");
    }
    let refused = images.refused("zfs", &["set", "compression=off", "mine/a@1"]);
    assert!(refused.contains("this property can not be modified for snapshots"), "{refused}");
    images.refused("zfs", &["inherit", "exec", "mine/a@1"]);
    let sent = images.command("zfs", &["send", "-R", "mine/a@2"]).output().unwrap();
    let mut command = images.command("zfs", &["receive", "mine/b"]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &sent.stdout).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(images.get("a:b", "mine/b@1"), "own\treceived");
    images.run("zfs", &["set", "a:b=here", "mine/b@1"]);
    assert_eq!(images.get("a:b", "mine/b@1"), "here\tlocal");
    images.run("zfs", &["inherit", "-S", "a:b", "mine/b@1"]);
    assert_eq!(images.get("a:b", "mine/b@1"), "own\treceived");
    images.run("zfs", &["inherit", "a:b", "mine/b@1"]);
    assert_eq!(images.get("a:b", "mine/b@1"), "above\tinherited from mine/b");
    images.assert_whole();
}

/// Goal: a property is the same by each of its names, on every way that a name comes. Method: the columns of `zfs list`, in small letters.
#[test]
fn a_property_is_known_by_its_column_everywhere() {
    let images = Images::made(&[], 1, &["-O", "compress=zle"]);
    images.run("zfs", &["create", "-o", "compress=zstd", "-o", "recsize=16k", "-o", "rdonly=on", "mine/s"]);
    images.run("zfs", &["create", "-s", "-V", "1M", "-o", "volblock=4k", "mine/v"]);
    assert_eq!(images.get("volblocksize", "mine/v"), "4K\t-");
    images.run("zfs", &["set", "refreserv=1M", "mine/v"]);
    assert_eq!(images.get("refreservation", "mine/v"), "1M\tlocal");
    images.run("zfs", &["snapshot", "mine/s@1"]);
    let sent = images.command("zfs", &["send", "-p", "mine/s@1"]).output().unwrap().stdout;
    let receive = |words: &[&str]| {
        let mut command = images.command("zfs", &[&["receive"], words].concat());
        let mut child =
            command.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
        let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), &sent);
        child.wait().unwrap().success()
    };
    for (at, alias, name, value) in
        [("1", "compress", "compression", "zle\tinherited from mine"), ("2", "recsize", "recordsize", "128K\tdefault")]
    {
        for word in [alias, name] {
            let target = format!("mine/{at}{word}");
            assert!(receive(&["-x", word, &target]));
            assert_eq!(images.get(name, &target), value, "-x {word}");
        }
        images.run("zfs", &["inherit", alias, "mine/s"]);
        assert_eq!(images.get(name, "mine/s"), value);
    }
    for twice in [
        &["-o", "compress=off", "-x", "compression", "mine/x"][..],
        &["-o", "compression=off", "-x", "compress", "mine/x"],
        &["-o", "compress=off", "-o", "compression=on", "mine/x"],
        &["-x", "compress", "-x", "compression", "mine/x"],
        &["-x", "version", "mine/x"],
    ] {
        assert!(!receive(twice), "{twice:?}");
    }
    let twice = images.command("zfs", &["set", "compress=off", "compression=on", "mine/s"]).output().unwrap();
    assert!(!twice.status.success());
    // A value that is set here stays in force when it is excluded.
    images.run("zfs", &["set", "compress=gzip", "mine/2recsize"]);
    images.run("zfs", &["set", "rdonly=off", "compress=lz4", "mine/s"]);
    images.run("zfs", &["snapshot", "mine/s@2"]);
    let sent = images.command("zfs", &["send", "-p", "-i", "@1", "mine/s@2"]).output().unwrap().stdout;
    let mut command = images.command("zfs", &["receive", "-x", "compress", "mine/2recsize"]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &sent).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(images.get("compression", "mine/2recsize"), "gzip\tlocal");
    images.assert_whole();
}

/// Goal: `receive -o` of a package gives its top the property; what is below inherits it, or where it is none that is inherited has its
/// default. Method: one of each kind.
#[test]
fn what_is_set_of_a_received_top_is_not_set_below() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-p", "mine/s/kid"]);
    images.run("zfs", &["set", "canmount=off", "mine/s/kid"]);
    images.run("zfs", &["snapshot", "-r", "mine/s@1"]);
    let sent = images.command("zfs", &["send", "-R", "mine/s@1"]).output().unwrap().stdout;
    let mut command = images.command("zfs", &["receive", "-o", "canmount=noauto", "-o", "atime=off", "mine/d"]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &sent).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(images.get("canmount", "mine/d"), "noauto\tlocal");
    assert_eq!(images.get("canmount", "mine/d/kid"), "on\tdefault");
    assert_eq!(images.get("atime", "mine/d/kid"), "off\tinherited from mine/d");
}

/// Goal: the time when snapshots last came or went is kept, of a receive the time of the receive. Method: snapshots taken, received and
/// destroyed; `verify` and `zdb` count the tables that keep it.
#[test]
fn the_time_when_snapshots_changed_is_kept() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    let changed = |name: &str| {
        let value = images.run("zfs", &["get", "-Hp", "-o", "value", "snapshots_changed", name]);
        value.trim().parse::<u64>().ok()
    };
    assert_eq!(changed("mine/a"), None);
    images.run("zfs", &["snapshot", "-r", "mine@1"]);
    let first = changed("mine/a").unwrap();
    let created = images.run("zfs", &["get", "-Hp", "-o", "value", "creation", "mine/a@1"]);
    assert!(first.abs_diff(created.trim().parse().unwrap()) <= 1);
    images.run("zfs", &["destroy", "mine/a@1"]);
    assert!(changed("mine/a").unwrap() >= first);
    images.run("zfs", &["destroy", "mine/a"]);
    images.assert_whole();
}

/// Goal: a pool's `bootfs` is a file system or a snapshot of its own, follows it to other names, and goes with it. Method: OpenZFS's tests
/// of it; `zdb` names the number of an object that there is.
#[test]
fn a_pool_is_booted_from_a_file_system_of_its_own_until_that_is_destroyed() {
    let images = Images::made(&[], 1, &[]);
    let set = |value: &str| images.run("zpool", &["set", &format!("bootfs={value}"), "mine"]);
    let got = || images.run("zpool", &["get", "-H", "-o", "value,source", "bootfs", "mine"]).trim().to_owned();
    // A number that leads nowhere is shown as none.
    let is_kept = |images: &Images| {
        let is_there = cenote_testkit::zdb::program("zdb").is_some();
        let devices = cenote_testkit::zdb::Devices::of(&images.files).unwrap();
        is_there.then(|| cenote_testkit::zdb::run(&devices, &["-dddd"], "mine").unwrap().text.contains("bootfs = "))
    };
    for line in ["create mine/a", "create mine/b", "create -V 1M mine/v", "snapshot mine/a@s", "clone mine/a@s mine/c"]
    {
        images.run("zfs", &line.split(' ').collect::<Vec<_>>());
    }
    assert_eq!(got(), "-\tdefault");
    for name in ["mine", "mine/a", "mine/a@s", "mine/c"] {
        set(name);
        assert_eq!(got(), format!("{name}\tlocal"));
    }
    let begins = "cannot set property for 'mine': ";
    for (wrong, why) in [
        ("mine/v", "operation not supported on this type of pool"),
        ("mine/none", "no such pool or dataset"),
        ("mine/a@none", "no such pool or dataset"),
        ("other/a", "'other/a' is an invalid name"),
        ("mined", "'mined' is an invalid name"),
        ("mine//a", "'mine//a' is an invalid name"),
        ("mine/a#s", "'mine/a#s' is an invalid name"),
        ("mine/%recv", "'mine/%recv' is an invalid name"),
        ("mine/a@", "'mine/a@' is an invalid name"),
    ] {
        let said = images.refused("zpool", &["set", &format!("bootfs={wrong}"), "mine"]);
        assert!(said.contains(&format!("{begins}{why}")), "{wrong}: {said}");
    }
    images.run("zfs", &["promote", "mine/c"]);
    assert_eq!(got(), "mine/c\tlocal", "what is refused changes nothing");
    images.run("zfs", &["rename", "mine/c", "mine/d"]);
    assert_eq!(got(), "mine/d\tlocal");
    images.run("zfs", &["rollback", "mine/d@s"]);
    assert_eq!(got(), "mine/d\tlocal");
    images.assert_whole();
    set("mine/b");
    assert_ne!(is_kept(&images), Some(false));
    images.run("zfs", &["destroy", "mine/b"]);
    assert_eq!(got(), "-\tdefault");
    assert_ne!(is_kept(&images), Some(true), "the number could become another's");
    images.run("zfs", &["snapshot", "mine/a@t"]);
    set("mine/a@t");
    images.run("zfs", &["destroy", "mine/a@t"]);
    assert_eq!(got(), "-\tdefault");
    set("mine/d");
    set("");
    assert_eq!(got(), "-\tdefault");
    images.assert_whole();
    images.run("zpool", &["export", "mine"]);
    let at_first = "property 'bootfs' cannot be set at creation or import time";
    assert!(images.refused("zpool", &["import", "-o", "bootfs=mine/a", "mine"]).contains(at_first));
    let other = images.dir.join("other.img");
    let output = images.bare().args(["zpool", "create", "--size", "80M", "-o", "bootfs=o/a", "o"]).arg(&other).output();
    let output = output.unwrap();
    assert!(common::said(&output).contains(at_first) && !other.exists(), "{}", common::said(&output));
}
