//! Goal: this crate reads real pools' labels, configurations, uberblocks, objsets and dnodes as OpenZFS wrote them.
//! Method: read them from every golden image; compare with zdb's account of the same pool, and emit again and
//! compare bytes. Fault caught: a misplaced field that round-trips with itself.

use crate::mini;

use cenote_format::Endian;
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::dnodes_in_block;
use cenote_format::enums::ObjsetType;
use cenote_format::label::{LABEL_COUNT, RING_OFFSET, VDEV_PHYS_OFFSET, VdevLabel, slot_of_txg};
use cenote_format::nvlist::NvList;
use cenote_format::objset::ObjsetPhys;
use cenote_format::uberblock::Uberblock;
use cenote_testkit::{Golden, Theme};
use mini::{Device, Pool};
use sha2::{Digest, Sha256};

fn themes() -> Vec<Theme> {
    let golden = Golden::find().unwrap();
    let themes = golden.themes().unwrap();
    assert!(!themes.is_empty());
    themes
}

/// Whether a self-checksumming structure at a device offset is sound.
fn is_sound(block: &[u8], checksum: cenote_format::eck::EmbeddedChecksum, device_offset: u64) -> bool {
    let sum_at = block.len() - 32;
    let mut hash = Sha256::new();
    hash.update(&block[..sum_at]);
    for word in [device_offset, 0, 0, 0] {
        hash.update(checksum.endian.bytes64(word));
    }
    let digest = hash.finalize();
    // The digest is stored as four numbers.
    let words: Vec<u64> = digest.as_chunks::<8>().0.iter().map(|chunk| u64::from_be_bytes(*chunk)).collect();
    words == checksum.words
}

fn ashift(config: &NvList) -> u32 {
    config.list("vdev_tree").unwrap().u64("ashift").unwrap() as u32
}

/// The best uberblock of a device, after checking everything about its labels.
fn check_labels(device: &Device) -> (Uberblock, NvList) {
    let mut best: Option<Uberblock> = None;
    let mut configs = Vec::new();
    for (index, bytes) in device.labels().iter().enumerate() {
        let start = device.layout.label_offset(index);
        let label = VdevLabel::new(bytes).unwrap();
        let checksum = label.vdev_phys_checksum().unwrap();
        assert!(is_sound(label.vdev_phys(), checksum, start + VDEV_PHYS_OFFSET as u64), "{} {index}", device.name);
        let config = label.config().unwrap();
        let emitted = config.emit_xdr();
        assert_eq!(emitted, label.vdev_phys()[..emitted.len()], "XDR is emitted byte for byte");
        assert!(label.vdev_phys()[emitted.len()..label.vdev_phys().len() - 40].iter().all(|byte| *byte == 0));
        for order in [Endian::Little, Endian::Big] {
            assert_eq!(NvList::parse(&config.emit_native(order)).unwrap(), config);
        }
        label.boot_env().unwrap();
        let mut sound = 0;
        for slot in label.slots(ashift(&config)) {
            let Ok(uberblock) = slot.uberblock() else {
                continue;
            };
            assert!(is_sound(slot.bytes, slot.checksum().unwrap(), start + slot.label_offset as u64));
            assert_eq!(slot.bytes[..Uberblock::SIZE], uberblock.emit(), "uberblocks are emitted byte for byte");
            assert!(slot.bytes[Uberblock::SIZE..slot.bytes.len() - 40].iter().all(|byte| *byte == 0));
            assert_eq!(uberblock.version, 5000);
            assert_eq!(slot.label_offset, RING_OFFSET + slot.index * slot.bytes.len());
            assert_eq!(slot.index, slot_of_txg(uberblock.txg.0, ashift(&config), false));
            uberblock.rootbp.verify().unwrap();
            assert_eq!(uberblock.rootbp.dmu_type(), DmuType::OBJSET);
            if best.is_none_or(|best| best.cmp_age(&uberblock).is_lt()) {
                best = Some(uberblock);
            }
            sound += 1;
        }
        assert!(sound > 0);
        configs.push(config);
    }
    assert_eq!(configs.len(), LABEL_COUNT);
    assert!(configs.windows(2).all(|pair| pair[0] == pair[1]), "the labels of {} differ", device.name);
    (best.unwrap(), configs.swap_remove(0))
}

/// A block of `zdb.txt`: from its heading to the next.
fn zdb_section<'a>(text: &'a str, heading: &str) -> &'a str {
    let start = text.find(heading).unwrap_or_else(|| panic!("zdb.txt has no {heading}"));
    let body = &text[start + heading.len()..];
    &body[..body.find("\n###").unwrap_or(body.len())]
}

/// The value behind `name: ` or `name = ` of a line of zdb's.
fn zdb_field<'a>(section: &'a str, name: &str) -> Option<&'a str> {
    section.lines().find_map(|line| {
        let rest = line.trim_start().strip_prefix(name)?;
        rest.strip_prefix(": ").or_else(|| rest.strip_prefix(" = "))
    })
}

#[test]
fn labels_of_all_images_are_as_zdb_describes_them() {
    for theme in themes() {
        let text = theme.zdb_text().unwrap();
        let images = theme.manifest().unwrap().images;
        for (device, image) in mini::devices(&theme).iter().zip(&images) {
            let (_, config) = check_labels(device);
            let section = zdb_section(&text, &format!("### zdb -l {}", image.file));
            for name in ["version", "state", "txg", "pool_guid", "hostid", "top_guid", "guid", "vdev_children"] {
                let want = zdb_field(section, name).map(|value| value.parse().unwrap());
                assert_eq!(config.u64(name), want, "{} {name}", device.name);
            }
            assert_eq!(config.str("name").map(|name| format!("'{name}'")).as_deref(), zdb_field(section, "name"));
            let tree = config.list("vdev_tree").unwrap();
            for name in ["metaslab_array", "metaslab_shift", "ashift", "asize", "is_log", "create_txg"] {
                let want = zdb_field(section, name).map(|value| value.parse().unwrap());
                assert_eq!(tree.u64(name), want, "{} {name}", device.name);
            }
            let features = config.list("features_for_read").unwrap();
            assert!(features.iter().all(|(name, _)| section.contains(name.as_str().unwrap())));
        }
    }
}

#[test]
fn the_best_uberblock_of_each_pool_is_the_one_that_zdb_opens() {
    for theme in themes() {
        let text = theme.zdb_text().unwrap();
        let section = zdb_section(&text, "\nUberblock:");
        let all = mini::devices(&theme).iter().map(|device| check_labels(device).0).collect::<Vec<_>>();
        let best = all.iter().copied().reduce(|a, b| if a.cmp_age(&b).is_lt() { b } else { a }).unwrap();
        let number = |name: &str| zdb_field(section, name).unwrap().split(' ').next().unwrap().parse::<u64>().unwrap();
        // zdb drops what follows the checkpointed or rewound txg only when asked; here it opens the latest.
        assert_eq!(best.txg.0, number("txg"), "{}", theme.name());
        assert_eq!(best.guid_sum, number("guid_sum"));
        assert_eq!(best.timestamp_s, number("timestamp"));
        assert_eq!(best.checkpoint_txg.0, number("checkpoint_txg"));
        assert_eq!(best.mmp.unwrap().delay_ns, number("mmp_delay"));
        assert_eq!(best.rootbp.to_string(), zdb_field(section, "bp").unwrap(), "{}", theme.name());
    }
}

#[derive(Default, Debug)]
struct Counts {
    objsets: u64,
    dnodes: u64,
    blkptrs: u64,
}

/// Parses every dnode of an objset and every block pointer below it, and compares the dnodes' bytes.
fn check_objset(
    pool: &Pool,
    bp: &Blkptr,
    is_old: bool,
    counts: &mut Counts,
    datasets: &mut Vec<Blkptr>,
) -> Option<ObjsetPhys> {
    let bytes = pool.block(bp)?;
    let order = bp.byte_order();
    let objset = ObjsetPhys::parse(&bytes, order).unwrap();
    assert_eq!(objset.emit(), bytes[..objset.version.bytes()]);
    counts.objsets += 1;
    let mut dnodes = Vec::new();
    pool.walk(&objset.meta_dnode, &mut |bp, block| {
        counts.blkptrs += 1;
        if bp.level() > 0 || bp.is_hole() {
            return;
        }
        let Some(block) = block else {
            return;
        };
        let mut fill = 0;
        for (_, dnode) in dnodes_in_block(block, order) {
            let view = dnode.unwrap();
            let value = view.to_value();
            if !bp.is_encrypted() {
                assert_eq!(value.emit(), view.bytes(), "{value:?}");
            }
            fill += 1;
            dnodes.push(value);
        }
        assert_eq!(bp.fill(), fill, "fill counts dnodes: {bp}");
    });
    // Software of before feature flags counts the objset itself, too.
    let itself = u64::from(is_old);
    assert!([0, itself].map(|extra| dnodes.len() as u64 + extra).contains(&bp.fill()), "{bp}");
    dnodes.extend(
        [&objset.userused_dnode, &objset.groupused_dnode, &objset.projectused_dnode].into_iter().flatten().cloned(),
    );
    counts.dnodes += dnodes.len() as u64;
    for dnode in &dnodes {
        let mut last_level = None;
        pool.walk(dnode, &mut |bp, _| {
            counts.blkptrs += 1;
            if *bp != Blkptr::HOLE && !bp.is_embedded() && !bp.is_hole() {
                bp.verify().unwrap();
                assert!(bp.level() < dnode.levels);
                last_level.get_or_insert(bp.level());
            }
        });
        if dnode.bonus_type == DmuType::DSL_DATASET {
            // The dataset's block pointer stands at byte 128 of its bonus.
            datasets.push(Blkptr::parse(&dnode.bonus[128..], dnode.endian).unwrap());
        }
    }
    Some(objset)
}

#[test]
fn every_dnode_and_block_pointer_of_every_simple_pool_parses_and_emits_its_bytes() {
    let mut pools = 0;
    for theme in themes() {
        let devices = mini::devices(&theme);
        let best = devices.iter().map(|device| check_labels(device).0).max_by(Uberblock::cmp_age).unwrap();
        let Some(pool) = Pool::of(devices) else {
            continue;
        };
        let mut counts = Counts::default();
        let mut datasets = Vec::new();
        let mos = check_objset(&pool, &best.rootbp, false, &mut counts, &mut datasets).unwrap();
        assert_eq!(mos.objset_type(), Some(ObjsetType::Meta));
        for bp in datasets.iter().filter(|bp| !bp.is_hole()) {
            check_objset(&pool, bp, false, &mut counts, &mut Vec::new());
        }
        assert!(counts.objsets >= 2 && counts.dnodes > 50, "{}: {counts:?}", theme.name());
        pools += 1;
    }
    assert!(pools > 0);
}

/// Pools of versions 1 to 15, written by Solaris, that come with OpenZFS's own tests.
const OLD_POOLS: &str = "/usr/share/zfs/zfs-tests/tests/functional/cli_root/zpool_upgrade/blockfiles";

/// Versions 1 and 15 were written by a big-endian machine.
const OLD_VERSIONS: [u64; 3] = [1, 10, 15];

#[test]
fn pools_of_before_feature_flags_parse_where_they_are_installed() {
    let mut orders = std::collections::BTreeSet::new();
    for version in OLD_VERSIONS {
        let Some(unpacked) = unpack(&format!("{OLD_POOLS}/zfs-pool-v{version}.dat.bz2")) else {
            eprintln!("left out: no old pools in {OLD_POOLS} (Debian: zfs-test)");
            return;
        };
        let device = Device::open(unpacked.path());
        let labels = device.labels();
        let label = VdevLabel::new(&labels[0]).unwrap();
        let config = label.config().unwrap();
        let emitted = config.emit_xdr();
        // The header's second byte tells a big-endian writer's order.
        assert!(emitted[2..] == label.vdev_phys()[2..emitted.len()]);
        let slots = label.slots(ashift(&config)).filter_map(|slot| slot.uberblock().ok());
        let best = slots.max_by(Uberblock::cmp_age).unwrap();
        assert!(best.is_version_supported() && best.mmp.is_none());
        assert_eq!((best.version, config.u64("version")), (version, Some(version)));
        let pool = Pool::of(vec![device]).unwrap();
        let mut counts = Counts::default();
        let mut datasets = Vec::new();
        let mos = check_objset(&pool, &best.rootbp, true, &mut counts, &mut datasets).unwrap();
        assert_eq!(mos.objset_type(), Some(ObjsetType::Meta));
        for bp in datasets.iter().filter(|bp| !bp.is_hole()) {
            check_objset(&pool, bp, true, &mut counts, &mut Vec::new()).unwrap();
        }
        assert!(counts.objsets == 2 && counts.dnodes > 15, "{counts:?}");
        orders.insert(best.endian == Endian::Big);
    }
    assert_eq!(orders.len(), 2, "pools of both byte orders");
}

fn unpack(path: &str) -> Option<tempfile::NamedTempFile> {
    std::fs::metadata(path).ok()?;
    let output = std::process::Command::new("bzip2").arg("-dc").arg(path).output().ok()?;
    assert!(output.status.success());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), output.stdout).unwrap();
    Some(file)
}
