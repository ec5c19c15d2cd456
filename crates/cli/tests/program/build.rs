//! Pools made of directories, archives and images.

use crate::common;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Pool, good, program, said};
use serde_json::json;
use sha2::{Digest, Sha256};

/// Builds a pool from what is named; where its image is.
fn build(dir: &Path, from: &Path, rest: &[&str]) -> std::path::PathBuf {
    let image = dir.join("image");
    drop(fs::remove_file(&image));
    let mut command = program();
    command
        .args(["build", "--pool", "built", "--size", "128M", "--seed", "1", "--from"])
        .arg(from)
        .args(rest)
        .arg(&image);
    command.env("SOURCE_DATE_EPOCH", "99000000000");
    good(&mut command);
    image
}

fn tar_of(image: &Path) -> Vec<u8> {
    good(program().args(["tar", "-d"]).arg(image).args(["--force", "built"]))
}

/// An archive's headers and contents; of records all but when something was changed, which is now in a pool that is made.
fn comparable(archive: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut rest = archive;
    while rest.len() >= 512 && rest[0] != 0 {
        let header = tar::Header::from_byte_slice(&rest[..512]);
        let size = header.entry_size().unwrap() as usize;
        let content = &rest[512..512 + size];
        if header.entry_type().is_pax_local_extensions() {
            let mut records = content;
            while let Some(blank) = records.iter().position(|byte| *byte == b' ') {
                let len: usize = std::str::from_utf8(&records[..blank]).unwrap().parse().unwrap();
                if !records[blank + 1..len].starts_with(b"ctime=") {
                    found.push(records[blank + 1..len].to_vec());
                }
                records = &records[len..];
            }
        } else {
            found.push(rest[..512 + size].to_vec());
        }
        rest = &rest[512 + size.next_multiple_of(512)..];
    }
    found
}

#[test]
fn a_pool_made_of_a_datasets_archive_gives_that_archive_again() {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("a.tar");
    let mut compared = 0;
    for theme in ["basic", "acl", "xattrs"] {
        let pool = Pool::of(theme);
        for dataset in pool.filesystems() {
            // Lists that archives cannot hold are left out, and reported: then the status is 1.
            let output = pool.command(&["tar"], &[&dataset]).output().unwrap();
            fs::write(&archive, &output.stdout).unwrap();
            let image = build(dir.path(), &archive, &["--no-verify"]);
            let made = tar_of(&image);
            let (found, expected) = (comparable(&made), comparable(&output.stdout));
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert!(
                    found == expected,
                    "{theme}: {dataset}: {at}: {}",
                    String::from_utf8_lossy(&expected[..expected.len().min(300)])
                );
            }
            assert_eq!(found.len(), expected.len(), "{theme}: {dataset}");
            compared += found.len();
        }
    }
    assert!(compared > 100, "{compared} parts compared");
}

#[test]
fn an_archive_may_be_packed_and_may_come_from_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::of("basic");
    let archive = pool.command(&["tar"], &[&pool.filesystems()[0]]).output().unwrap().stdout;
    let (plain, packed) = (dir.path().join("a.tar"), dir.path().join("a.tar.zst"));
    fs::write(&plain, &archive).unwrap();
    fs::write(&packed, zstd::encode_all(archive.as_slice(), 1).unwrap()).unwrap();
    let bytes = |image: &Path| fs::read(image).unwrap();
    let expected = bytes(&build(dir.path(), &plain, &[]));
    assert!(bytes(&build(dir.path(), &packed, &[])) == expected);
    let image = dir.path().join("image");
    fs::remove_file(&image).unwrap();
    let mut child = program()
        .args(["build", "--pool", "built", "--size", "128M", "--seed", "1", "--from", "-"])
        .arg(&image)
        .env("SOURCE_DATE_EPOCH", "99000000000")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || stdin.write_all(&archive));
    assert!(child.wait().unwrap().success());
    feeder.join().unwrap().unwrap();
    assert!(bytes(&image) == expected);
}

/// Puts a blob into a layout; what refers to it comes back.
fn blob(layout: &Path, bytes: &[u8], kind: &str) -> serde_json::Value {
    let hash: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(layout.join("blobs/sha256").join(&hash), bytes).unwrap();
    json!({ "mediaType": kind, "digest": format!("sha256:{hash}"), "size": bytes.len() })
}

/// A layer with files, and directories where there is no content.
fn layer(files: &[(&str, Option<&str>)]) -> Vec<u8> {
    let mut target = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_mode(if content.is_some() { 0o644 } else { 0o755 });
        header.set_entry_type(if content.is_some() { tar::EntryType::Regular } else { tar::EntryType::Directory });
        header.set_size(content.unwrap_or_default().len() as u64);
        header.set_uid(7);
        target.append_data(&mut header, name, content.unwrap_or_default().as_bytes()).unwrap();
    }
    target.into_inner().unwrap()
}

#[test]
fn layers_of_an_image_lie_one_over_the_other() {
    const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    let dir = tempfile::tempdir().unwrap();
    let layout = dir.path().join("layout");
    fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    let below = layer(&[
        ("etc/", None),
        ("etc/gone", Some("1")),
        ("etc/changed", Some("2")),
        ("opaque/", None),
        ("opaque/hidden", Some("3")),
        ("file", Some("a file becomes a directory")),
    ]);
    // The mark of what is opaque stands behind what is in it.
    let above = layer(&[
        ("etc/.wh.gone", Some("")),
        ("etc/changed", Some("new")),
        ("opaque/seen", Some("4")),
        ("opaque/.wh..wh..opq", Some("")),
        ("file/", None),
        ("file/inside", Some("5")),
    ]);
    let plain = "application/vnd.oci.image.layer.v1.tar";
    let packed = zstd::encode_all(above.as_slice(), 1).unwrap();
    let layers = [blob(&layout, &below, plain), blob(&layout, &packed, "application/vnd.oci.image.layer.v1.tar+zstd")];
    let image_of = |architecture: &str, layers: &[serde_json::Value]| {
        let config = json!({ "os": "linux", "architecture": architecture });
        let config = blob(&layout, config.to_string().as_bytes(), "application/vnd.oci.image.config.v1+json");
        let manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers });
        blob(&layout, manifest.to_string().as_bytes(), MANIFEST)
    };
    let (mut image, mut other) = (image_of("amd64", &layers), image_of("arm64", &[]));
    let index = |images: &[&serde_json::Value]| {
        let index = json!({ "schemaVersion": 2, "manifests": images });
        fs::write(layout.join("index.json"), index.to_string()).unwrap();
    };
    let unsaid = image.clone();
    image["platform"] = json!({ "os": "linux", "architecture": "amd64" });
    other["platform"] = json!({ "os": "linux", "architecture": "arm64" });
    index(&[&image, &other]);
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let built = build(dir.path(), &layout, &["--platform", "linux/amd64"]);
    let listed = good(program().args(["ls", "-d"]).arg(&built).args(["-f", "-R", "built"]));
    let listed = String::from_utf8(listed).unwrap();
    let expected = "/:\netc\nfile\nopaque\n\n/etc:\nchanged\n\n/file:\ninside\n\n/opaque:\nseen\n";
    assert_eq!(listed, expected);
    assert_eq!(good(program().args(["cat", "-d"]).arg(&built).args(["-f", "built", "/etc/changed"])), b"new");
    let refused = |rest: &[&str]| {
        let image = dir.path().join("refused");
        let mut command = program();
        command.args(["build", "--pool", "built", "--size", "128M", "--from"]).arg(&layout).args(rest).arg(&image);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(!image.exists(), "what was made goes again");
        said(&output)
    };
    assert!(refused(&["--platform", "linux/s390x"]).contains("there is: linux/amd64, linux/arm64"));
    assert!(refused(&["--tag", "none"]).contains("no image is as --tag"));
    // An index that says nothing, or something else than the image itself.
    let mut wrong = unsaid.clone();
    wrong["platform"] = json!({ "os": "linux", "architecture": "arm64" });
    for (images, why) in [(&unsaid, "no image for linux/arm64"), (&wrong, "says linux/amd64, whatever the index says")]
    {
        index(&[images]);
        assert!(refused(&["--platform", "linux/arm64"]).contains(why), "{why}");
    }
    index(&[&unsaid]);
    build(dir.path(), &layout, &["--platform", "linux/amd64"]);
    index(&[&image, &other]);
    let path = layout.join("blobs/sha256").join(layers[0]["digest"].as_str().unwrap().trim_start_matches("sha256:"));
    let mut bytes = fs::read(&path).unwrap();
    bytes[600] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(refused(&["--platform", "linux/amd64"]).contains("is damaged"));
}

#[test]
fn what_is_no_archive_is_refused_with_a_reason_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let escape = {
        let mut bytes = layer(&[("aa/escaped", Some("x"))]);
        bytes[..2].copy_from_slice(b"..");
        // The sum of the header's bytes, its own field taken as blanks.
        let sum: u32 = bytes[..512]
            .iter()
            .enumerate()
            .map(|(at, byte)| u32::from(if (148..156).contains(&at) { b' ' } else { *byte }))
            .sum();
        bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes
    };
    let cut = layer(&[("file", Some(&"x".repeat(5000)))])[..2048].to_vec();
    for (name, bytes, reason) in [
        ("junk", vec![0xa5; 4096], "is no tar archive"),
        ("xz", b"\xfd7zXZ\0......".to_vec(), "not supported yet: xz"),
        ("escape", escape, "leads out of the archive"),
        ("cut", cut, "cut short"),
    ] {
        let (from, image) = (dir.path().join(name), dir.path().join("image"));
        fs::write(&from, bytes).unwrap();
        let mut command = program();
        command.args(["build", "--pool", "built", "--size", "128M", "--from"]).arg(&from).arg(&image);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}: {}", said(&output));
        assert!(said(&output).contains(reason), "{name}: {}", said(&output));
        assert!(!image.exists(), "{name}");
    }
}

/// A header of that type and its content, as an archive has them.
fn part(kind: tar::EntryType, name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_path(name).unwrap();
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let len = (1..12).map(|digits| rest + digits).find(|len| len.to_string().len() == len - rest).unwrap();
    [format!("{len} {key}=").as_bytes(), value, b"\n"].concat()
}

/// Goal: kilobytes do not take all memory. Method: archives that pack to little and unpack to gigabytes of records, names and
/// nodes. Would go wrong if records were limited one by one, or copied into every entry.
#[test]
fn archives_that_want_all_memory_are_refused_where_their_budget_ends() {
    use tar::EntryType::{Regular, XGlobalHeader, XHeader};
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<u8> = (0..300).flat_map(|at| part(Regular, &format!("f{at}"), b"")).collect();
    let large = part(XGlobalHeader, "g", &record("SCHILY.xattr.user.a", &vec![0; 15 << 20]));
    let values: Vec<u8> =
        (0..15).flat_map(|at| record(&format!("SCHILY.xattr.user.a{at}"), &vec![0; 1 << 20])).collect();
    let many = part(XGlobalHeader, "g", &values);
    let before_one: Vec<u8> =
        (0..5).flat_map(|at| part(XHeader, "x", &record(&format!("K{at}"), &vec![0; 15 << 20]))).collect();
    let small: Vec<u8> = (0..300_000).flat_map(|at| record(&format!("K{at}"), b"")).collect();
    let deep: Vec<u8> = (0..20)
        .flat_map(|at| {
            let path = [at.to_string().as_bytes(), b"/", &b"d/".repeat(4089), b"f"].concat();
            [part(XHeader, "x", &record("path", &path)), part(Regular, "f", b"")].concat()
        })
        .collect();
    for (name, bytes, reason) in [
        ("large", [large, files.clone()].concat(), "more than one can have"),
        ("many", [many, files.clone()].concat(), "need more than 24M of memory (--archive-memory"),
        ("before", [before_one, files.clone()].concat(), "too many names and records before one entry"),
        ("small", [part(XHeader, "x", &small), files].concat(), "too many names and records before one entry"),
        ("deep", deep, "need more than 24M of memory (--archive-memory"),
    ] {
        let (from, image) = (dir.path().join(name), dir.path().join("image"));
        fs::write(&from, zstd::encode_all(&bytes[..], 1).unwrap()).unwrap();
        assert!(fs::metadata(&from).unwrap().len() < 4 << 20);
        let mut command = program();
        command.args(["build", "--pool", "built", "--size", "128M", "--archive-memory", "24M", "--from"]);
        let output = command.arg(&from).arg(&image).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}: {}", said(&output));
        assert!(said(&output).contains(reason), "{name}: {}", said(&output));
        assert!(said(&output).contains(from.to_str().unwrap()) && said(&output).contains("byte"), "{}", said(&output));
        assert!(!image.exists(), "{name}");
    }
}

/// Goal: a pool that is too small is told from other failures, and the size that is named is enough. Method: data that does not
/// compress; and another failure, of a file whose name is that message.
#[test]
fn a_pool_that_is_too_small_is_told_with_a_size_that_is_enough() {
    use tar::EntryType::{Regular, XHeader};
    let dir = tempfile::tempdir().unwrap();
    let (source, archive, image) = (dir.path().join("source"), dir.path().join("a.tar"), dir.path().join("image"));
    fs::create_dir(&source).unwrap();
    let mut noise = vec![0; 100 << 20];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom").unwrap(), &mut noise).unwrap();
    fs::write(source.join("noise"), noise).unwrap();
    let built = |from: &Path, size: &str| {
        let mut command = program();
        command.args(["build", "--no-verify", "--pool", "built", "--size", size, "--from"]).arg(from).arg(&image);
        command.output().unwrap()
    };
    let output = built(&source, "80M");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let text = said(&output);
    let size = text.split_once("does not fit: --size ").and_then(|(_, rest)| rest.split(' ').next());
    let output = built(&source, size.unwrap_or_else(|| panic!("{text}")));
    assert!(output.status.success(), "{}", said(&output));
    fs::remove_file(&image).unwrap();

    let attribute = record(&format!("SCHILY.xattr.user.{}", "a".repeat(300)), &vec![0; 70_000]);
    fs::write(&archive, [part(XHeader, "x", &attribute), part(Regular, "no space for", b"")].concat()).unwrap();
    let output = built(&archive, "80M");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("no space for") && !said(&output).contains("does not fit"), "{}", said(&output));
}

/// Goal: a device that is left out is counted as that under each of its names. Would go wrong if its second name were taken for a
/// link that could not be made.
#[test]
fn a_device_with_two_names_is_left_out_under_both() {
    let dir = tempfile::tempdir().unwrap();
    let (from, target) = (dir.path().join("a.tar"), dir.path().join("target"));
    let header = |kind, name: &str, change: &dyn Fn(&mut tar::Header)| {
        let mut header = tar::Header::from_byte_slice(&part(kind, name, b"")[..512]).clone();
        change(&mut header);
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    let device = header(tar::EntryType::Char, "null", &|header| {
        header.set_device_major(1).unwrap();
        header.set_device_minor(3).unwrap();
    });
    let link = header(tar::EntryType::Link, "second", &|header| header.set_link_name("null").unwrap());
    fs::write(&from, [device, link].concat()).unwrap();
    let image = build(dir.path(), &from, &[]);
    let output = program().args(["cp", "-d"]).arg(&image).args(["-f", "built", "/"]).arg(&target).output().unwrap();
    assert!(said(&output).contains("devices: 2"), "{}", said(&output));
    assert!(!said(&output).contains("not linked"), "{}", said(&output));
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
}

/// Goal: many large attributes are neither lost nor shown as gigabytes of digits. Method: a file with more than is read
/// ahead, and one beside it with few.
#[test]
fn attributes_beyond_what_is_read_ahead_are_kept_and_shown_by_their_hash() {
    use tar::EntryType::{Regular, XHeader};
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("a.tar");
    let value = |at: u8| vec![at; 60_000];
    let records: Vec<u8> = (0..20).flat_map(|at| record(&format!("SCHILY.xattr.user.a{at:02}"), &value(at))).collect();
    let few = record("SCHILY.xattr.user.b", &value(7));
    let parts = [
        part(XHeader, "x", &records),
        part(Regular, "many", b"1"),
        part(XHeader, "x", &few),
        part(Regular, "few", b"2"),
    ];
    fs::write(&from, parts.concat()).unwrap();
    let image = build(dir.path(), &from, &[]);
    let manifest = good(program().args(["manifest", "-d"]).arg(&image).arg("built"));
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    let entries = manifest["datasets"]["built"]["entries"].as_array().unwrap();
    let xattrs = |name: &str| &entries.iter().find(|entry| entry["path"] == *name).unwrap()["xattrs"];
    let hash: String = Sha256::digest(value(3)).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(xattrs("many")["user.a03"], json!({ "size": 60_000, "sha256": hash }));
    assert_eq!(xattrs("many").as_object().unwrap().len(), 20);
    assert_eq!(xattrs("few")["user.b"], json!("07".repeat(60_000)));
    let archive = tar_of(&image);
    for at in 0..20 {
        let record = record(&format!("SCHILY.xattr.user.a{at:02}"), &value(at));
        assert!(archive.windows(record.len()).any(|window| window == record), "{at}");
    }
}

/// Goal: a layout leads nowhere. Method: a blob is a link to a file that has its bytes, or to one that never ends, or a pipe;
/// and a whiteout has no name, so that it would remove the directory that it is in.
#[test]
fn a_layout_leads_nowhere_and_removes_nothing_without_a_name() {
    const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    let dir = tempfile::tempdir().unwrap();
    let layout = dir.path().join("layout");
    fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let of_layer = |bytes: &[u8]| {
        let layers = [blob(&layout, bytes, "application/vnd.oci.image.layer.v1.tar")];
        let manifest = json!({ "schemaVersion": 2, "config": {}, "layers": layers });
        let image = blob(&layout, manifest.to_string().as_bytes(), MANIFEST);
        let index = json!({ "schemaVersion": 2, "manifests": [image] });
        fs::write(layout.join("index.json"), index.to_string()).unwrap();
        let path_of = |blob: &serde_json::Value| {
            layout.join("blobs/sha256").join(blob["digest"].as_str().unwrap().trim_start_matches("sha256:"))
        };
        (path_of(&image), path_of(&layers[0]))
    };
    let refused = || {
        let image = dir.path().join("refused");
        let mut command = program();
        command.args(["build", "--pool", "built", "--size", "128M", "--from"]).arg(&layout).arg(&image);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        said(&output)
    };
    let good_layer = layer(&[("etc/", None), ("etc/a", Some("1"))]);
    let (manifest, layer_path) = of_layer(&good_layer);
    for path in [manifest, layer_path] {
        let elsewhere = dir.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        for target in [elsewhere.as_path(), Path::new("/dev/zero")] {
            std::os::unix::fs::symlink(target, &path).unwrap();
            assert!(refused().contains("is a symbolic link"), "{}", refused());
            fs::remove_file(&path).unwrap();
        }
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(refused().contains("is no regular file"), "{}", refused());
        fs::remove_file(&path).unwrap();
        fs::rename(&elsewhere, &path).unwrap();
    }
    build(dir.path(), &layout, &[]);
    for name in ["etc/.wh.", "etc/.wh..", "etc/.wh..."] {
        of_layer(&layer(&[("etc/", None), ("etc/a", Some("1")), (name, Some(""))]));
        assert!(refused().contains("removes nothing that has a name"), "{name}: {}", refused());
    }
}

/// An archive with a link after the files.
fn with_link(files: &[(&str, Option<&str>)], name: &str, target: &str) -> Vec<u8> {
    let mut bytes = layer(files);
    bytes.truncate(bytes.len() - 1024);
    let mut target_of = tar::Builder::new(bytes);
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    target_of.append_link(&mut header, name, target).unwrap();
    target_of.into_inner().unwrap()
}

fn tree_of(image: &Path) -> String {
    String::from_utf8(good(program().args(["ls", "-d"]).arg(image).args(["-f", "-R", "built"]))).unwrap()
}

/// Goal: an archive of images is taken for what it is, and a hostile one leads nowhere. Method: one as docker writes it, with layers that are
/// links to others, packed or not, of several images; the same as an OCI layout; and archives with one thing wrong.
#[test]
fn an_archive_of_images_gives_the_files_of_the_one_that_is_meant() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("image.tar");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let sum = |bytes: &[u8]| {
        let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256:{hex}")
    };
    let below = text(&with_link(
        &[("usr/", None), ("usr/lib/", None), ("usr/lib/a", Some("1")), ("gone", Some(""))],
        "lib",
        "usr/lib",
    ));
    let above = text(&layer(&[("lib/b", Some("2")), (".wh.gone", Some(""))]));
    let config = |architecture: &str, layers: &[&str]| {
        let hashes: Vec<String> = layers.iter().map(|layer| sum(layer.as_bytes())).collect();
        json!({ "os": "linux", "architecture": architecture, "rootfs": { "type": "layers", "diff_ids": hashes } })
            .to_string()
    };
    let (one, two) = (config("amd64", &[&below, &above]), config("arm64", &[&below]));
    let image = |config: &str, tag: &str, layers: &[&str]| json!({ "Config": config, "RepoTags": [tag, "also:this"], "Layers": layers });
    let both = json!([image("1.json", "x/y:1", &["l1.tar", "two/layer.tar"]), image("2.json", "x/y:2", &["l1.tar"])])
        .to_string();
    let archive = |manifest: &str, link: &str| {
        let files = [
            ("manifest.json", Some(manifest)),
            ("1.json", Some(&*one)),
            ("2.json", Some(&*two)),
            ("l1.tar", Some(&*below)),
            ("l2.tar", Some(&*above)),
        ];
        with_link(&files, "two/layer.tar", link)
    };
    let whole = archive(&both, "../l2.tar");
    let merged = "/:\nlib\nusr\n\n/usr:\nlib\n\n/usr/lib:\na\nb\n";
    let lower = "/:\ngone\nlib\nusr\n\n/usr:\nlib\n\n/usr/lib:\na\n";
    for packed in [false, true] {
        let bytes = if packed { zstd::encode_all(&whole[..], 1).unwrap() } else { whole.clone() };
        fs::write(&from, bytes).unwrap();
        assert_eq!(tree_of(&build(dir.path(), &from, &["--tag", "x/y:1"])), merged);
        assert_eq!(tree_of(&build(dir.path(), &from, &["--tag", "2", "--as", "docker"])), lower);
        assert_eq!(tree_of(&build(dir.path(), &from, &["--platform", "linux/arm64"])), lower);
    }
    assert!(tree_of(&build(dir.path(), &from, &["--as", "tar"])).contains("l1.tar"), "asked for as files");
    let refused = |rest: &[&str]| {
        let mut command = program();
        command.args(["build", "--pool", "built", "--size", "128M", "--from"]).arg(&from).args(rest);
        let output = command.arg(dir.path().join("refused")).output().unwrap();
        assert!(!output.status.success(), "{rest:?}");
        said(&output)
    };
    assert!(refused(&["--tag", "3"]).contains("x/y:2"), "{}", refused(&["--tag", "3"]));
    assert!(refused(&["--as", "oci"]).contains("no archive of an OCI image layout"));
    // Of an archive that asks for more than it has nothing is taken as an image.
    for (manifest, link) in [
        (both.clone(), "../../etc/passwd"),
        (both.clone(), "two/layer.tar"),
        (both.replace("l1.tar", "/etc/passwd"), "../l2.tar"),
        (both.replace("1.json", "none.json"), "../l2.tar"),
        (json!({ "name": "an application" }).to_string(), "../l2.tar"),
    ] {
        fs::write(&from, archive(&manifest, link)).unwrap();
        assert!(refused(&["--as", "docker"]).contains("no archive as 'docker save' writes it"), "{manifest} {link}");
        assert!(tree_of(&build(dir.path(), &from, &[])).contains("l1.tar"));
    }
    let twins =
        json!([image("1.json", "x/y:1", &["l1.tar", "l2.tar"]), image("1.json", "x/y:3", &["l1.tar", "l2.tar"])]);
    fs::write(&from, archive(&twins.to_string(), "../l2.tar")).unwrap();
    for rest in [&[][..], &["--tag", "also:this"]] {
        assert!(refused(rest).contains("several images: say which with --tag"), "{}", refused(rest));
    }
    let swapped = json!([image("1.json", "x/y:1", &["two/layer.tar", "l1.tar"])]).to_string();
    fs::write(&from, archive(&swapped, "../l2.tar")).unwrap();
    assert!(refused(&[]).contains("not the one that the image's configuration gives"), "layers in another order");
    // The same image as a layout, in an archive.
    let layout = dir.path().join("layout");
    fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    let plain = "application/vnd.oci.image.layer.v1.tar";
    let layers = [blob(&layout, below.as_bytes(), plain), blob(&layout, above.as_bytes(), plain)];
    let config = blob(&layout, one.as_bytes(), "application/vnd.oci.image.config.v1+json");
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers }).to_string();
    let image = blob(&layout, manifest.as_bytes(), "application/vnd.oci.image.manifest.v1+json");
    fs::write(layout.join("index.json"), json!({ "manifests": [image] }).to_string()).unwrap();
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_dir_all(".", &layout).unwrap();
    fs::write(&from, builder.into_inner().unwrap()).unwrap();
    for rest in [&[][..], &["--as", "oci", "--platform", "linux/amd64"]] {
        assert_eq!(tree_of(&build(dir.path(), &from, rest)), merged);
    }
    assert!(refused(&["--platform", "linux/arm64"]).contains("no image for linux/arm64"));
}

/// A build of a directory into these images.
fn of_directory(source: &Path, images: &[&Path]) -> std::process::Command {
    let mut command = program();
    command.args(["build", "--pool", "built", "--size", "600M", "--seed", "1", "--from"]).arg(source).args(images);
    command
}

#[test]
fn an_image_that_is_built_inside_its_source_is_no_part_of_itself() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), b"content").unwrap();
    let image = dir.path().join("image");
    let output = of_directory(dir.path(), &[&image]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("image.unfinished: is of the pool that is written: left out"), "{}", said(&output));
    let listed = good(program().args(["ls", "-d"]).arg(&image).args(["-f", "built"]));
    assert_eq!(String::from_utf8(listed).unwrap(), "file\n");
    assert!(!dir.path().join("image.unfinished").exists());
}

#[test]
fn what_a_killed_build_left_is_made_anew_unless_somebody_writes_it() {
    let dir = tempfile::tempdir().unwrap();
    let (source, image, left) =
        (dir.path().join("source"), dir.path().join("image"), dir.path().join("image.unfinished"));
    fs::create_dir(&source).unwrap();
    fs::write(&left, b"left").unwrap();
    let writer = fs::File::open(&left).unwrap();
    rustix::fs::flock(&writer, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let output = of_directory(&source, &[&image]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("in use by another process"), "{}", said(&output));
    assert_eq!(fs::read(&left).unwrap(), b"left");
    drop(writer);
    good(&mut of_directory(&source, &[&image]));
    assert!(image.exists() && !left.exists());
}

#[test]
fn an_interrupted_build_leaves_nothing_and_names_the_devices_that_it_had_begun_to_fill() {
    let dir = tempfile::tempdir().unwrap();
    let (source, image, device) = (dir.path().join("source"), dir.path().join("image"), dir.path().join("device"));
    let unfinished = dir.path().join("image.unfinished");
    fs::create_dir(&source).unwrap();
    let noise: Vec<u8> = (0..1_u32 << 20).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    for index in 0..64 {
        fs::write(source.join(format!("{index}")), &noise).unwrap();
    }
    fs::File::create(&device).unwrap().set_len(600 << 20).unwrap();
    let mut command = of_directory(&source, &[&image, &device]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Ended when it has written something; where the machine is too fast for that, the pool is whole.
    let is_begun = || fs::metadata(&unfinished).is_ok_and(|meta| std::os::unix::fs::MetadataExt::blocks(&meta) > 1000);
    while !is_begun() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let process = rustix::process::Pid::from_child(&child);
    let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
    let output = child.wait_with_output().unwrap();
    assert!(!unfinished.exists());
    if output.status.success() {
        assert!(image.exists());
        return;
    }
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(15), "{}", said(&output));
    assert!(said(&output).contains("device' may hold an unfinished pool"), "{}", said(&output));
    assert!(!image.exists());
}

#[test]
fn a_hang_up_does_not_end_a_build_that_nohup_began() {
    let dir = tempfile::tempdir().unwrap();
    let (source, image) = (dir.path().join("source"), dir.path().join("image"));
    let unfinished = dir.path().join("image.unfinished");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("large"), vec![7; 8 << 20]).unwrap();
    let build = of_directory(&source, &[&image]);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(build.get_program()).args(build.get_args());
    command.envs(build.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while !unfinished.exists() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let process = rustix::process::Pid::from_child(&child);
    let _ = rustix::process::kill_process(process, rustix::process::Signal::HUP);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(image.exists() && !unfinished.exists());
}
