//! Pools that are made to be walked for ever: every block is sound and every number is in bounds, but pointers and names lead
//! back to where one was. Goal: each walk ends in an error or a report after about as many steps as a sound pool takes.
//! Method: golden pools in simulation, blocks changed behind their checksums; a bound on steps is the judge of "for ever".

use crate::common;

use std::cell::RefCell;
use std::rc::Rc;

use cenote_codec::checksum::embedded::{gang_verifier, seal_embedded};
use cenote_dmu::Zap;
use cenote_format::Endian;
use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::{Checksum, Compress};
use cenote_format::ids::{ObjectId, ObjsetId, Txg, VdevId};
use cenote_format::label::START_BYTES;
use cenote_scan::VerifyOptions;
use cenote_spa::View;
use cenote_taskq::sim::disk::SimDisk;
use cenote_zio::mutation::{Filter, set_filter};
use cenote_zio::{Bookmark, ReadContext};

use common::{open, report, runtime, theme, with_pool};

/// A gang header that holds its own pointer three times, with three copies each, for a block as small as they come: however
/// one goes on, there is a header left to read. It lies where the pool of `basic` has nothing; its checksum is right.
fn self_referring_gang(disk: &SimDisk, size_bytes: u64) -> Blkptr {
    let offset_bytes = (size_bytes / 2).next_multiple_of(4096);
    let mut bp = Blkptr::HOLE;
    let dva = Dva { vdev: VdevId(0), offset_bytes, asize_bytes: 4096, gang: true };
    (0..3).for_each(|index| bp.set_dva(index, Some(dva)));
    bp.set_lsize_bytes(512);
    bp.set_psize_bytes(512);
    bp.set_compress(Compress::Off);
    bp.set_checksum(Checksum::Fletcher4);
    bp.set_dmu_type(DmuType::PLAIN_FILE_CONTENTS);
    bp.set_byte_order(Endian::Little);
    bp.set_births(Txg(5), Txg(5));
    bp.set_fill(1);
    let mut header = bp.emit(Endian::Little).repeat(3);
    header.resize(512, 0);
    let verifier = gang_verifier(0, offset_bytes, 5);
    seal_embedded(Checksum::GangHeader, &mut header, verifier, Endian::Little, None).unwrap();
    disk.poke(START_BYTES + offset_bytes, &header);
    bp
}

/// Each copy of each pointer in a hostile gang header was followed twelve levels down.
#[test]
fn a_gang_header_that_leads_to_itself_is_left_soon() {
    let images = theme("basic");
    let (runtime, disks, paths) = runtime(&images);
    let handle = runtime.handle();
    let gang = self_referring_gang(&disks[0], images.images[0].content.len() as u64);
    // In place of the only block of every file that has one.
    set_filter(Some(Box::new(move |_, bookmark, bytes| {
        if bookmark.objset.0 == 0 || bookmark.object.0 != 0 || bookmark.level != 0 {
            return None;
        }
        let mut changed = bytes.to_vec();
        for dnode in changed.chunks_exact_mut(512).filter(|dnode| dnode[0] == DmuType::PLAIN_FILE_CONTENTS.number()) {
            // Bytes 2 and 4: levels, and the type of the bonus, which every file has.
            if dnode[2] == 1 && dnode[4] != 0 {
                dnode[64..192].copy_from_slice(&gang.emit(Endian::Little));
            }
        }
        Some(changed)
    })));
    let result = runtime.try_block_on(async {
        let pool = open(&handle, &paths).await;
        report(&handle, &pool, VerifyOptions::default()).await
    });
    set_filter(None);
    let report = result.unwrap_or_else(|deadlock| panic!("the walk does not end: {deadlock}"));
    let told = report.errors.iter().filter(|error| error.why.contains("gang")).count();
    assert!(told > 0, "{:?}", report.errors);
}

/// The same by way of a read, which has no account of sizes but that of what it has filled.
#[test]
fn a_read_of_a_gang_that_leads_to_itself_is_an_error_soon() {
    let images = theme("basic");
    let (runtime, disks, paths) = runtime(&images);
    let handle = runtime.handle();
    let gang = self_referring_gang(&disks[0], images.images[0].content.len() as u64);
    let result = runtime.try_block_on(async {
        let pool = open(&handle, &paths).await;
        let context = ReadContext::new(Bookmark::objset(ObjsetId(7)), None);
        pool.dmu().zio().read(&gang, context).await.map(|_| ()).map_err(|error| error.to_string())
    });
    let error = result.unwrap_or_else(|deadlock| panic!("the read does not end: {deadlock}")).unwrap_err();
    assert!(error.contains("gang"), "{error}");
}

/// Indirect blocks that hold their own pointer a thousand times, one level lower each time: 1024 to the power of the tree's
/// height ways from the top to the bottom, all over one block.
#[test]
fn indirect_blocks_that_all_lead_to_one_block_are_walked_once() {
    for options in [VerifyOptions { data: true, space: false }, VerifyOptions { data: false, space: true }] {
        let seen = Rc::new(RefCell::new(0_u64));
        let count = seen.clone();
        let filter: Filter = Box::new(move |bp, bookmark, bytes| {
            if bookmark.objset.0 == 0 || bookmark.object.0 != 0 || bookmark.level < 1 {
                return None;
            }
            *count.borrow_mut() += 1;
            Some(lower(bp, bookmark).repeat(bytes.len() / Blkptr::SIZE))
        });
        let report = with_pool("basic", |_| Some(filter), async |handle, pool| report(handle, &pool, options).await);
        assert!(*seen.borrow() > 0, "nothing was changed");
        assert!(!report.is_clean());
        assert!(report.misuse_count > 0, "{report:?}");
    }
}

/// The block's own pointer as that of a block one level below it.
fn lower(bp: &Blkptr, bookmark: Bookmark) -> Vec<u8> {
    let mut bytes = bp.emit(Endian::Little);
    bytes[55] = (bytes[55] & 0xe0) | (bookmark.level - 1) as u8;
    bytes.to_vec()
}

/// A directory's list of children that names one child many times; were the child's list like it, there would be names
/// enough for the rest of time.
#[test]
fn a_child_that_is_listed_twice_is_an_error() {
    let filter = |pool: &View| -> Option<Filter> {
        let mos_objset = pool.mos().id();
        Some(Box::new(move |bp: &Blkptr, bookmark: Bookmark, bytes: &[u8]| {
            // Every list of children: its object type says what it is.
            if bookmark.objset != mos_objset || bp.dmu_type() != cenote_format::dmu_type::DmuType::DSL_DIR_CHILD_MAP {
                return None;
            }
            let mut changed = bytes.to_vec();
            let mut first = None;
            // Micro: a head of 64 bytes, then entries of 64 that begin with the value and end with the name.
            for entry in changed.chunks_exact_mut(64).skip(1).filter(|entry| entry[14] != 0 && entry[14] != b'$') {
                match &first {
                    None => first = Some(entry[..8].to_vec()),
                    Some(value) => entry[..8].copy_from_slice(value),
                }
            }
            Some(changed)
        }))
    };
    let error = with_pool("snapshots", filter, async |_, pool| {
        let root = pool.dsl().root_dir().await.unwrap();
        pool.dsl().tree(root, true).await.unwrap_err()
    });
    assert!(error.to_string().contains("listed twice"), "{error}");
}

/// A leaf that says that it owns few of the pointers that lead to it: a hostile table can have as many of them as there are
/// hashes, each of which was followed to the same leaf.
#[test]
fn a_leaf_at_pointers_that_are_not_its_own_is_an_error() {
    let target = Rc::new(RefCell::new(None::<ObjectId>));
    let chosen = target.clone();
    let filter: Filter = Box::new(move |_, bookmark, bytes| {
        if bookmark.objset.0 != 0
            || bookmark.level != 0
            || Some(bookmark.object) != *chosen.borrow()
            || bookmark.block.0 == 0
        {
            return None;
        }
        // The prefix length is at 32 of the leaf's head.
        let mut changed = bytes.to_vec();
        changed[32..34].copy_from_slice(&20_u16.to_le_bytes());
        Some(changed)
    });
    let error = with_pool(
        "basic",
        |_| Some(filter),
        async |_, pool| {
            let mos = pool.mos();
            let mut from = ObjectId(0);
            while let Some(batch) = mos.next_objects(from).await.unwrap() {
                from = batch.next;
                for (id, dnode) in batch.objects {
                    let dnode = dnode.unwrap();
                    if !dnode.phys().object_type.is_zap() {
                        continue;
                    }
                    *target.borrow_mut() = Some(id);
                    let zap = Zap::open(dnode).await.unwrap();
                    // Blocks that the import has read are in the cache as they were.
                    if zap.header().is_some_and(|header| header.leaf_count == 1)
                        && let Err(error) = zap.entries(1 << 20).await
                    {
                        return error;
                    }
                }
            }
            panic!("no fat ZAP of one leaf in the pool, or none that is checked");
        },
    );
    assert!(error.to_string().contains("pointers"), "{error}");
}
