//! Goal: volumes that commands make, resize and destroy are those that OpenZFS would have made: their properties, what is reserved
//! for them, and the accounts. Method: pools of several layouts, changed by the program, looked at by it and by `zdb`.

use crate::common;

use common::images::Images;

fn number(images: &Images, property: &str, dataset: &str) -> u64 {
    images.run("zfs", &["get", "-H", "-p", "-o", "value", property, dataset]).trim().parse().unwrap()
}

#[test]
fn a_volume_is_made_resized_and_destroyed() {
    // On three disks with parity blocks of 8 KiB take 16 KiB, and those of 128 KiB, which count as what they are, 192 KiB.
    for (layout, count, block, bytes) in [("mirror", 2, "16K", 16 << 10), ("raidz1", 3, "8K", 8 << 10)] {
        let reserved = |size: u64| {
            let blocks: u64 = size / bytes;
            let data = if count == 2 { size } else { blocks * (16 << 10) / (192 * 2) * 256 };
            // Of the volume, two copies of each, and seven of the meta-dnode.
            let indirect = if blocks > 1024 { 3 } else { 1 };
            data + (7 + indirect) * 2 * (128 << 10)
        };
        let layout = [layout];
        let images = Images::made(&layout, count, &["-o", "ashift=12"]);
        images.run("zfs", &["create", "mine/box"]);
        let before = number(&images, "used", "mine/box");
        images.run("zfs", &["create", "-V", "8M", "-b", block, "-o", "compression=zstd", "mine/box/thick"]);
        images.run("zfs", &["create", "-s", "-V", "1G", "-b", "4K", "mine/box/thin"]);
        images.assert_whole();
        assert_eq!(images.get("type", "mine/box/thick"), "volume\t-");
        assert_eq!(images.get("volsize", "mine/box/thick"), "8M\tlocal");
        let source = if block == "16K" { "default" } else { "-" };
        assert_eq!(images.get("volblocksize", "mine/box/thick"), format!("{block}\t{source}"));
        assert_eq!(images.get("volblocksize", "mine/box/thin"), "4K\t-");
        assert_eq!(images.get("compression", "mine/box/thick"), "zstd\tlocal");
        assert_eq!(images.get("refreservation", "mine/box/thin"), "none\tdefault");
        let full = reserved(8 << 20);
        assert_eq!(number(&images, "refreservation", "mine/box/thick"), full);
        assert_eq!(number(&images, "used", "mine/box/thick"), full);
        let unique = number(&images, "usedbydataset", "mine/box/thick");
        assert_eq!(number(&images, "usedbyrefreservation", "mine/box/thick"), full - unique);
        let thin = number(&images, "used", "mine/box/thin");
        assert_eq!(number(&images, "used", "mine/box"), before + full + thin);

        images.run("zfs", &["set", "volsize=12M", "mine/box/thick"]);
        let grown = reserved(12 << 20);
        assert_eq!(number(&images, "volsize", "mine/box/thick"), 12 << 20);
        assert_eq!(number(&images, "refreservation", "mine/box/thick"), grown);
        assert_eq!(number(&images, "used", "mine/box/thick"), grown);
        images.run("zfs", &["set", "volsize=4M", "mine/box/thick"]);
        images.run("zfs", &["set", "refreservation=none", "mine/box/thick"]);
        assert_eq!(images.get("refreservation", "mine/box/thick"), "none\tlocal");
        assert!(number(&images, "used", "mine/box/thick") < 1 << 20);
        images.run("zfs", &["set", "refreservation=auto", "mine/box/thick"]);
        assert_eq!(number(&images, "refreservation", "mine/box/thick"), reserved(4 << 20));
        images.assert_whole();
        for name in ["mine/box/thick", "mine/box/thin"] {
            images.run("zfs", &["destroy", name]);
        }
        assert_eq!(number(&images, "used", "mine/box"), before);
        images.assert_whole();
    }
}

#[test]
fn volumes_of_every_block_size_are_whole() {
    let images = Images::made(&[], 1, &[]);
    for size in ["512", "1K", "8K", "128K", "256K", "1M", "16M"] {
        let name = format!("mine/v{size}");
        images.run("zfs", &["create", "-s", "-V", "32M", "-b", size, &name]);
        assert_eq!(images.get("volsize", &name), "32M\tlocal");
    }
    // Up to whole blocks.
    images.run("zfs", &["create", "-p", "-s", "-V", "1000000", "mine/a/b/odd"]);
    assert_eq!(number(&images, "volsize", "mine/a/b/odd"), 62 * (16 << 10));
    images.assert_whole();
    let history = images.run("zpool", &["history", "mine"]);
    assert!(history.contains("zfs create -s -b 256K -V 32M mine/v256K"), "{history}");
}

#[test]
fn what_no_volume_can_have_is_refused_and_changes_nothing() {
    let images = Images::made(&["mirror"], 2, &[]);
    images.run("zfs", &["create", "-V", "1M", "mine/v"]);
    for (line, why) in [
        (vec!["create", "-V", "1G", "mine/w"], "out of space"),
        (vec!["create", "-V", "0", "mine/w"], "cannot be zero"),
        (vec!["create", "-V", "1M", "-b", "3K", "mine/w"], "power of 2"),
        (vec!["create", "-V", "1M", "-b", "32M", "mine/w"], "power of 2"),
        (vec!["create", "-V", "1M", "-o", "atime=off", "mine/w"], "does not apply"),
        (vec!["create", "-V", "1M", "mine/v"], "already exists"),
        (vec!["create", "-V", "1M", "mine/v/w"], "not a filesystem"),
        (vec!["set", "volsize=1000", "mine/v"], "multiple of volume block size"),
        (vec!["set", "volsize=1G", "mine/v"], "available space"),
        (vec!["set", "volsize=1M", "mine"], "does not apply to datasets of this type"),
        (vec!["set", "refreservation=1G", "mine/v"], "available space"),
        (vec!["set", "volblocksize=4K", "mine/v"], "readonly"),
        (vec!["inherit", "refreservation", "mine/v"], "cannot be inherited"),
    ] {
        let before: Vec<Vec<u8>> = images.files.iter().map(|file| std::fs::read(file).unwrap()).collect();
        let said = images.refused("zfs", &line);
        assert!(said.contains(why), "{line:?}: {said}");
        let after: Vec<Vec<u8>> = images.files.iter().map(|file| std::fs::read(file).unwrap()).collect();
        assert!(before == after, "{line:?} changed something");
    }
    images.run("zfs", &["set", "readonly=on", "mine/v"]);
    assert!(images.refused("zfs", &["set", "volsize=2M", "mine/v"]).contains("read-only"));
}
