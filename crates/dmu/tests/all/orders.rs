//! Pools that machines of both byte orders have written. The order belongs to a block: an object's blocks may differ from each other, and
//! from the block that holds the object's dnode.
//!
//! Method: a pool is written, and then every other block of its MOS is turned round where it lies, with the checksums above it, up to the
//! uberblock. Nothing that the pool holds has changed by that, so readers must find the same.

use std::collections::BTreeMap;

use cenote_codec::checksum::embedded::{label_verifier, seal_embedded};
use cenote_codec::checksum::{Salt, compute};
use cenote_codec::compress::{CompressLevel, compress, decompress};
use cenote_format::Endian;
use cenote_format::blkptr::Blkptr;
use cenote_format::byteswap::swap;
use cenote_format::dmu_type::{Byteswap, DmuType};
use cenote_format::dnode::dnodes_in_block;
use cenote_format::enums::{Checksum, Compress, ObjsetType};
use cenote_format::ids::VdevId;
use cenote_format::label::{LABEL_BYTES, LABEL_COUNT, RING_OFFSET, START_BYTES, slot_bytes, slot_count};
use cenote_format::uberblock::Uberblock;
use cenote_spa::{NewSnapshot, Pool, View};
use cenote_taskq::sim::disk::{Latency, SimDisk};
use cenote_taskq::{Handle, Runtime};

use cenote_sim::{Machine, audit_space};

use cenote_sim::written::blocks::filled;
use cenote_sim::written::*;

const ASHIFT: u32 = 12;
/// Where the pointers of a dnode begin.
const DNODE_POINTERS: usize = 64;
const DNODE_BYTES: usize = 512;

/// Turns blocks of the MOS round.
struct Turner<'a> {
    disk: &'a SimDisk,
    /// Blocks that could be turned round, by the type of their object. The first of each type is, and every other one after it.
    seen: BTreeMap<u8, u64>,
}

impl Turner<'_> {
    fn turns(&mut self, kind: DmuType) -> bool {
        let seen = self.seen.entry(kind.number()).or_default();
        *seen += 1;
        !seen.is_multiple_of(2)
    }

    fn load(&self, bp: &Blkptr) -> Vec<u8> {
        let stored = match bp.embedded_payload() {
            Some(payload) => payload.as_bytes().to_vec(),
            None => {
                let first = bp.dva(0).unwrap();
                self.disk.peek(START_BYTES + first.offset_bytes, bp.psize_bytes() as usize)
            }
        };
        if bp.compress() == Some(Compress::Off) {
            return stored;
        }
        let mut bytes = vec![0; bp.lsize_bytes() as usize];
        decompress(bp.compress().unwrap(), &stored, &mut bytes).unwrap();
        bytes
    }

    /// Stores a block where it was. Nothing if it does not fit there.
    fn store(&self, bp: &Blkptr, bytes: &[u8], order: Endian) -> Option<Blkptr> {
        let kind = bp.compress().unwrap();
        let packed = |most: usize| match kind {
            Compress::Off => Some(bytes.to_vec()),
            _ => compress(kind, CompressLevel::INHERIT, bytes, most),
        };
        if let Some(before) = bp.embedded_payload() {
            let payload = packed(112).filter(|payload| (1..=112).contains(&payload.len()))?;
            assert!(!before.as_bytes().is_empty());
            let made = Blkptr::embedded(bp.dmu_type(), bp.level(), kind, bp.lsize_bytes(), &payload, bp.birth(), order);
            return Some(made);
        }
        let size = bp.psize_bytes() as usize;
        let mut physical = packed(size).filter(|packed| packed.len() <= size)?;
        physical.resize(size, 0);
        let mut made = *bp;
        made.set_byte_order(order);
        made.set_checksum_words(compute(bp.checksum().unwrap(), &physical, order, &Salt::unknown()).unwrap());
        for dva in bp.dvas() {
            assert_eq!(dva.vdev, VdevId(0));
            self.disk.poke(START_BYTES + dva.offset_bytes, &physical);
        }
        Some(made)
    }

    /// Turns round what is below a pointer, and the block itself: data of this kind.
    fn tree(&mut self, bp: &Blkptr, kind: DmuType) -> Blkptr {
        if bp.is_hole() {
            return *bp;
        }
        let mut bytes = self.load(bp);
        let mut order = bp.byte_order();
        if bp.level() > 0 {
            let children: Vec<Blkptr> = Blkptr::array(&bytes, order).map(|child| self.tree(&child, kind)).collect();
            let turned = if self.turns(kind) { order.swapped() } else { order };
            let emit = |order| children.iter().flat_map(|child| child.emit(order)).collect::<Vec<u8>>();
            return self.store(bp, &emit(turned), turned).or_else(|| self.store(bp, &emit(order), order)).unwrap();
        }
        if kind == DmuType::DNODE {
            self.dnodes(&mut bytes);
            return self.store(bp, &bytes, order).unwrap();
        }
        let how = kind.byteswap().filter(|how| matches!(how, Byteswap::Uint64 | Byteswap::Zap));
        let Some(how) = how.filter(|_| self.turns(kind)) else { return *bp };
        swap(how, &mut bytes, order).unwrap();
        order = order.swapped();
        self.store(bp, &bytes, order).unwrap_or(*bp)
    }

    fn dnodes(&mut self, bytes: &mut [u8]) {
        let mut pointers = Vec::new();
        for (slot, dnode) in dnodes_in_block(bytes, Endian::Little) {
            let dnode = dnode.unwrap();
            for index in 0..dnode.blkptr_count() {
                let at = slot * DNODE_BYTES + DNODE_POINTERS + index * Blkptr::SIZE;
                pointers.push((at, dnode.object_type(), dnode.blkptr(index).unwrap()));
            }
        }
        for (at, kind, bp) in pointers {
            let made = self.tree(&bp, kind).emit(Endian::Little);
            bytes[at..at + Blkptr::SIZE].copy_from_slice(&made);
        }
    }

    fn objset(&mut self, bp: &Blkptr) -> Blkptr {
        let mut bytes = self.load(bp);
        for at in (DNODE_POINTERS..DNODE_POINTERS + 3 * Blkptr::SIZE).step_by(Blkptr::SIZE).take(usize::from(bytes[3]))
        {
            let below = Blkptr::parse(&bytes[at..], Endian::Little).unwrap();
            let made = self.tree(&below, DmuType::DNODE).emit(Endian::Little);
            bytes[at..at + Blkptr::SIZE].copy_from_slice(&made);
        }
        self.store(bp, &bytes, Endian::Little).unwrap()
    }

    /// Turns blocks of the pool's newest state round.
    fn pool(&mut self, size_bytes: u64) {
        let label = LABEL_BYTES as u64;
        let labels = [0, label, size_bytes - 2 * label, size_bytes - label];
        assert_eq!(labels.len(), LABEL_COUNT);
        let slot = slot_bytes(ASHIFT);
        let mut places = Vec::new();
        for start in labels {
            for index in 0..slot_count(ASHIFT) {
                let at = start + (RING_OFFSET + index * slot) as u64;
                if let Ok(uberblock) = Uberblock::parse(&self.disk.peek(at, slot)) {
                    places.push((at, uberblock));
                }
            }
        }
        let newest = places.iter().map(|(_, uberblock)| uberblock.txg).max().unwrap();
        places.retain(|(_, uberblock)| uberblock.txg == newest);
        let made = self.objset(&places[0].1.rootbp);
        for (at, mut uberblock) in places {
            uberblock.rootbp = made;
            let mut block = self.disk.peek(at, slot);
            block[..Uberblock::SIZE].copy_from_slice(&uberblock.emit());
            seal_embedded(Checksum::Label, &mut block, label_verifier(at), Endian::Little, None).unwrap();
            self.disk.poke(at, &block);
        }
    }
}

/// A pool with snapshots, a clone with a livelist, deadlists and a list of blocks to free.
async fn make_pool(handle: &Handle, machine: &Machine) {
    filled(handle, machine, 40, ASHIFT).await;
    let pool = reopen(handle, &machine.paths).await.unwrap();
    pool.create_dataset("written/a", ObjsetType::Zfs).await.unwrap();
    for name in ["written@1", "written/a@1", "written@2"] {
        pool.take_snapshots(vec![NewSnapshot { name: name.into(), ..NewSnapshot::default() }]).await.unwrap();
        pool.sync().await.unwrap();
    }
    let cloned = pool.change(|syncer| Box::pin(async { syncer.clone_dataset("written/a@1", "written/clone").await }));
    cloned.await.unwrap();
    pool.sync().await.unwrap();
    pool.export().await.unwrap();
}

/// The findings of readers in a pool, in words.
async fn facts(pool: &View) -> String {
    audit_space(pool).await.unwrap();
    let space = pool.space().await.unwrap();
    assert!(space.problems.is_empty(), "{:?}", space.problems);
    let maps: Vec<_> =
        space.vdevs.iter().flat_map(|vdev| &vdev.metaslabs).map(|it| (it.object, it.allocated_bytes)).collect();
    let mut history = Vec::new();
    pool.history(|record| history.push(format!("{record:?}"))).await.unwrap();
    format!("{maps:?} {:?} {:?} {:?}", space.figures(), pool.log_figures().await.unwrap(), history)
}

#[test]
fn a_block_is_read_in_its_own_byte_order_whatever_its_object_has() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        make_pool(&handle, &machine).await;
        let before = facts(&read(&handle, &machine.paths).await).await;
        let mut turner = Turner { disk: &machine.disks[0], seen: BTreeMap::new() };
        turner.pool(machine.size_bytes);
        for kind in [DmuType::OBJECT_ARRAY, DmuType::SPACE_MAP, DmuType::OBJECT_DIRECTORY] {
            assert!(turner.seen.contains_key(&kind.number()), "{kind}: {:?}", turner.seen);
        }
        if cenote_testkit::zdb::program("zdb").is_some() {
            cenote_sim::zdb("written", &[machine.disks[0].image()], machine.size_bytes).unwrap();
        }
        let (_, report) = check(&handle, &machine.paths).await;
        assert_clean(&report, "after blocks were turned round");
        assert_eq!(facts(&read(&handle, &machine.paths).await).await, before);
        // To write it is refused before anything is changed.
        let refused = reopen(&handle, &machine.paths).await.map(drop::<Pool>).unwrap_err().to_string();
        assert!(refused.contains("big-endian"), "{refused}");
        let (_, report) = check(&handle, &machine.paths).await;
        assert_clean(&report, "after it was refused");
    });
}
