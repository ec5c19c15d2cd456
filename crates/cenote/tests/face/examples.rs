//! Each example does what it says.

use tempfile::tempdir;

use crate::{cat, damaged, list, power_cut, replicate, server, volume, watch, write_tree};

#[test]
fn list_shows_pool_devices_datasets_and_snapshots() {
    let folder = tempdir().unwrap();
    let text = list::run(folder.path()).unwrap();
    for wanted in ["tank as of txg", "Online", "a.img", "tank/home (FileSystem", "tank/home@monday"] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
}

#[test]
fn cat_prints_a_file() {
    let folder = tempdir().unwrap();
    assert_eq!(cat::run(folder.path()).unwrap(), b"hello from a pool\n");
}

#[test]
fn write_tree_copies_all_files() {
    let (folder, source) = (tempdir().unwrap(), tempdir().unwrap());
    std::fs::create_dir_all(source.path().join("deep/er")).unwrap();
    std::fs::write(source.path().join("deep/er/one"), "1").unwrap();
    std::fs::write(source.path().join("two"), vec![2; 300_000]).unwrap();
    std::os::unix::fs::symlink("deep/er/one", source.path().join("link")).unwrap();
    let (count, snapshot) = write_tree::run(folder.path(), source.path()).unwrap();
    assert_eq!((count, snapshot.as_str()), (2, "tank/home@copied"));
    let runtime = cenote::Runtime::new().unwrap();
    runtime.block_on(async {
        let options = cenote::OpenOptions::new().search(folder.path()).cache_bytes(16 << 20);
        let pool = options.open(&runtime, "tank").await.unwrap();
        let files = pool.filesystem(&snapshot).await.unwrap();
        assert_eq!(files.read("link").await.unwrap(), b"1", "the link is followed");
        assert_eq!(files.read("two").await.unwrap(), vec![2; 300_000]);
        pool.export().await.unwrap();
    });
}

#[test]
fn volume_and_its_snapshot_have_their_own_bytes() {
    let folder = tempdir().unwrap();
    assert_eq!(volume::run(folder.path()).unwrap(), [b"later".to_vec(), b"first".to_vec()]);
}

#[test]
fn watch_sees_a_device_go_and_come_back() {
    let told = watch::run().unwrap();
    assert!(told[0].starts_with("Suspended"), "{told:?}");
    assert_eq!(told[1], "the pool waits: true");
    assert!(told.iter().any(|line| line == "Resumed"), "{told:?}");
    assert_eq!(told.last().unwrap(), "two: waits");
}

#[test]
fn damaged_copies_all_but_the_block_that_is_lost() {
    let folder = tempdir().unwrap();
    let (copy, lost) = damaged::run(folder.path()).unwrap();
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert!(lost[0].starts_with("block 3 at 0x") && lost[0].contains("a.img"), "{lost:?}");
    assert_eq!(copy.len(), 8 * (16 << 10));
    assert!(copy.starts_with(b"this is block 0\n") && copy[3 << 14..4 << 14].iter().all(|byte| *byte == 0));
    assert!(copy[7 << 14..].starts_with(b"this is block 7\n"));
}

#[test]
fn power_cut_loses_nothing_that_was_synced() {
    let cuts: Vec<[bool; 2]> = (0..16).map(|seed| power_cut::run(seed).unwrap()).collect();
    assert!(cuts.iter().all(|[promised, _]| *promised), "{cuts:?}");
    // The cut matters: the other file is there after some, and not after others.
    assert!(cuts.iter().any(|[_, other]| *other) && cuts.iter().any(|[_, other]| !*other), "{cuts:?}");
}

#[test]
fn replicate_copies_all_of_a_pool_and_then_the_changes() {
    let folder = tempdir().unwrap();
    let (told, files) = replicate::run(folder.path()).unwrap();
    assert_eq!(files, [vec![b'1'; 1 << 20], b"two".to_vec()]);
    let (names, bytes): (Vec<&str>, Vec<u64>) = told
        .iter()
        .map(|line| {
            let (names, bytes) = line.split_once(" in ").unwrap();
            (names, bytes.split_once(' ').unwrap().0.parse::<u64>().unwrap())
        })
        .unzip();
    assert_eq!(names, ["backup/tank backup/tank/home"; 2]);
    assert!(bytes[1] < 64 << 10, "the second has the changes alone: {bytes:?}");
}

#[test]
fn server_answers_each_client() {
    let folder = tempdir().unwrap();
    let answers = server::run(folder.path()).unwrap();
    assert_eq!(answers[..2], ["OK 0\n", "OK 5\nhello"]);
    assert!(answers[2].starts_with("NotFound tank/home: nothing: "), "{answers:?}");
}
