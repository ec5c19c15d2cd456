//! Writing blocks and reading them back: whatever the compression, checksum, copies and pieces, the logical bytes come back,
//! the pointer is one that the format allows, and space is taken for what was written and for nothing else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cenote_codec::compress::{CompressLevel, compress as compress_block};
use cenote_codec::crypt::{BlockLayout, CryptSuite, DatasetKey};
use cenote_format::Endian;
use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::{Checksum, Compress};
use cenote_format::ids::{BlockId, Guid, ObjectId, ObjsetId, Txg, VdevId};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_taskq::buf::Block;
use cenote_taskq::{BoxFuture, Device, RamDevice, Runtime};
use cenote_vdev::config::VdevConfig;
use cenote_vdev::disk::Disk;
use cenote_vdev::queue::QueueClass;
use cenote_vdev::tree::VdevTree;
use cenote_zio::{
    AllocationRequest, AllocationUnits, Allocator, Bookmark, NoSpace, ORDER, PreparedBatch, ReadContext, ReadyBlock,
    ReadyForm, Seal, WritePolicy, Zio, ZioErrorKind,
};
use proptest::prelude::*;

const TXG: Txg = Txg(77);
const DISK_BYTES: usize = 48 << 20;

/// Hands out space from the front of each vdev, in turn, in pieces of at most `largest_bytes`.
struct Bump {
    tree: Arc<VdevTree>,
    largest_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: Vec<u64>,
    turn: usize,
    taken: BTreeMap<(u32, u64), u64>,
    left_bytes: u64,
}

impl Bump {
    fn new(tree: &Arc<VdevTree>, largest_bytes: u64, left_bytes: u64) -> Self {
        let state = State { next: vec![0; tree.top_count()], left_bytes, ..State::default() };
        Self { tree: tree.clone(), largest_bytes, state: Mutex::new(state) }
    }

    fn taken(&self) -> BTreeMap<(u32, u64), u64> {
        self.state.lock().unwrap().taken.clone()
    }
}

impl Allocator for Bump {
    fn units(&self) -> AllocationUnits {
        AllocationUnits { min_bytes: 4096, step_bytes: 4096 }
    }

    fn allocate(&self, request: AllocationRequest) -> BoxFuture<'_, Result<Vec<Dva>, NoSpace>> {
        let result = self.take(request);
        Box::pin(async move { result })
    }

    /// Never more than three blocks at once.
    fn allocate_some(&self, request: AllocationRequest, count: usize) -> Vec<Dva> {
        (0..count.min(3)).map_while(|_| self.take(request).ok()).flatten().collect()
    }

    fn release(&self, dva: Dva, txg: Txg) {
        assert_eq!(txg, TXG);
        let released = self.state.lock().unwrap().taken.remove(&(dva.vdev.0, dva.offset_bytes));
        assert_eq!(released, Some(dva.asize_bytes), "given back what was not taken");
    }
}

impl Bump {
    fn take(&self, request: AllocationRequest) -> Result<Vec<Dva>, NoSpace> {
        let mut state = self.state.lock().unwrap();
        if request.psize_bytes > self.largest_bytes {
            Err(NoSpace::Fragmented)
        } else {
            // A refusal leaves nothing behind: who asks again is refused again.
            let (mut next, mut turn) = (state.next.clone(), state.turn);
            let mut dvas = Vec::new();
            for _ in 0..request.copies {
                let vdev = turn % next.len();
                turn += 1;
                let id = VdevId(vdev as u32);
                let asize = self.tree.psize_to_asize(id, request.psize_bytes, request.txg).unwrap();
                dvas.push(Dva { vdev: id, offset_bytes: next[vdev], asize_bytes: asize, gang: false });
                next[vdev] += asize;
            }
            let total: u64 = dvas.iter().map(|dva| dva.asize_bytes).sum();
            if total > state.left_bytes {
                Err(NoSpace::Full)
            } else {
                (state.next, state.turn) = (next, turn);
                state.left_bytes -= total;
                dvas.iter().for_each(|dva| {
                    state.taken.insert((dva.vdev.0, dva.offset_bytes), dva.asize_bytes);
                });
                Ok(dvas)
            }
        }
    }
}

/// A pool of a mirror and a raidz vdev; `without` some of its disks.
fn pipeline(without: &[u64]) -> Zio {
    pipeline_on(without, |_, bytes| Device::from_driver(RamDevice::new("disk", bytes)))
}

/// The same on these devices.
fn pipeline_on(without: &[u64], mut device: impl FnMut(Guid, Vec<u8>) -> Device) -> Zio {
    let list = |kind: &str, guid: u64, id: u64| {
        let mut list = NvList::new();
        list.push("type", kind);
        list.push("guid", guid);
        list.push("id", id);
        list
    };
    let top = |kind: &str, id: u64, first: u64, count: u64| {
        let mut top = list(kind, 100 + id, id);
        top.push("ashift", 12_u64);
        if kind == "raidz" {
            top.push("nparity", 1_u64);
        }
        let leaves = (0..count).map(|index| list("file", first + index, index)).collect();
        top.push("children", NvValue::NvlistArray(leaves));
        top
    };
    let mut root = list("root", 1, 0);
    root.push("children", NvValue::NvlistArray(vec![top("mirror", 0, 10, 2), top("raidz", 1, 20, 3)]));
    let config = VdevConfig::parse(&root).unwrap();
    let disks = config
        .leaves()
        .into_iter()
        .filter(|leaf| !without.contains(&leaf.guid.0))
        .map(|leaf| (leaf.guid, Disk::whole(device(leaf.guid, vec![0; DISK_BYTES]))));
    let zio = Zio::new(VdevTree::open(&config, disks.collect::<Vec<_>>()).unwrap());
    zio.set_salt(&[7; 32]);
    zio
}

fn policy(compress: Compress, checksum: Checksum) -> WritePolicy {
    WritePolicy {
        bookmark: Bookmark { objset: ObjsetId(5), object: ObjectId(6), level: 0, block: BlockId(7) },
        object_type: DmuType::PLAIN_FILE_CONTENTS,
        level: 0,
        txg: TXG,
        compress,
        compress_level: CompressLevel::DEFAULT,
        checksum,
        copies: 1,
        fill: 1,
        small_block_bytes: 0,
        may_embed: true,
        holes_have_births: true,
        previous: Blkptr::HOLE,
        nopwrite: true,
        may_rewrite: false,
        protects: false,
        force_gang_above_bytes: None,
    }
}

/// Bytes of which about one in `rarity` is not what was there before.
fn data(sectors: usize, rarity: u64, seed: u64) -> Block {
    let mut state = seed | 1;
    let mut last = 0;
    let bytes: Vec<u8> = (0..sectors * 512)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if rarity != 0 && (state >> 33).is_multiple_of(rarity) {
                last = (state >> 56) as u8;
            }
            last
        })
        .collect();
    Block::from(bytes)
}

#[test]
fn zstd_without_a_level_is_refused_and_not_stored_as_it_is() {
    let (zio, runtime) = (pipeline(&[]), Runtime::simulated(1));
    let allocator = Bump::new(zio.tree(), 1 << 30, u64::MAX);
    let mut policy = policy(Compress::Zstd, Checksum::Fletcher4);
    policy.compress_level = CompressLevel::INHERIT;
    let error = runtime.block_on(zio.write(&allocator, &data(8, 0, 1), &policy)).map(drop).unwrap_err();
    assert!(error.to_string().contains("level"), "{error}");
}

const COMPRESSIONS: [Compress; 7] =
    [Compress::Off, Compress::Lzjb, Compress::Zle, Compress::Lz4, Compress::Gzip6, Compress::Zstd, Compress::Empty];
const CHECKSUMS: [Checksum; 8] = [
    Checksum::Off,
    Checksum::Fletcher2,
    Checksum::Fletcher4,
    Checksum::Sha256,
    Checksum::Sha512,
    Checksum::Skein,
    Checksum::Edonr,
    Checksum::Blake3,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]

    #[test]
    fn what_was_written_is_read_back(
        compress in 0..COMPRESSIONS.len(), checksum in 0..CHECKSUMS.len(), copies in 1_u8..=3, sectors in 1_usize..600,
        rarity in prop::sample::select(vec![0_u64, 1, 3, 40, 4000]), seed: u64,
        largest in prop::sample::select(vec![4096_u64, 12 << 10, 64 << 10, 1 << 30]), force: bool,
    ) {
        let (zio, runtime) = (pipeline(&[]), Runtime::simulated(seed));
        let allocator = Bump::new(zio.tree(), largest, u64::MAX);
        let block = data(sectors, rarity, seed);
        let mut policy = policy(COMPRESSIONS[compress], CHECKSUMS[checksum]);
        policy.copies = copies;
        policy.force_gang_above_bytes = force.then_some(20_000);
        let written = runtime.block_on(zio.write(&allocator, &block, &policy)).unwrap();
        let bp = written.bp;
        prop_assert!(written.missed.is_empty());

        let taken: u64 = allocator.taken().values().sum();
        prop_assert_eq!(bp.asize_bytes(), taken, "the pointer accounts for what was taken");
        if bp.is_hole() {
            prop_assert!(block.iter().all(|byte| *byte == 0) && policy.compress != Compress::Off);
            return Ok(());
        }
        bp.verify().unwrap();
        // The pointer survives being stored.
        let bp = Blkptr::from_array(&bp.emit(ORDER), ORDER);
        prop_assert_eq!(bp.lsize_bytes(), block.len() as u64);
        prop_assert_eq!(bp.logical_birth(), TXG);
        if bp.is_embedded() {
            prop_assert!(taken == 0);
        } else {
            prop_assert_eq!(bp.dvas().count() >= usize::from(copies), true);
            prop_assert_eq!(bp.is_gang(), bp.psize_bytes() > largest.min(if force { 20_000 } else { u64::MAX }));
            if bp.compress() == Some(Compress::Off) {
                prop_assert_eq!(bp.psize_bytes(), bp.lsize_bytes());
            } else {
                prop_assert!(bp.psize_bytes() < bp.lsize_bytes() && bp.psize_bytes().is_multiple_of(4096));
            }
        }
        let context = ReadContext::new(policy.bookmark, None);
        let read = runtime.block_on(zio.read(&bp, context)).unwrap();
        prop_assert!(read == block);
        if !bp.is_embedded() {
            let copies = runtime.block_on(zio.read_copies(&bp, context)).unwrap();
            prop_assert_eq!(copies.bad, Vec::<String>::new());
        }
    }

    /// A later pass of the same txg overwrites the block of the earlier one in place, as a whole or as (nested) gangs, and takes no new space.
    /// If the size differs, or a gang header is lost, the block gets new places.
    #[test]
    fn a_block_of_the_same_txg_is_written_in_its_place(
        copies in 1_u8..=3, sectors in 1_usize..600, seed: u64, more in 0_usize..2, is_lost: bool,
        largest in prop::sample::select(vec![4096_u64, 12 << 10, 64 << 10, 1 << 30]),
    ) {
        let (zio, runtime) = (pipeline(&[]), Runtime::simulated(seed));
        let allocator = Bump::new(zio.tree(), largest, u64::MAX);
        let mut policy = policy(Compress::Off, Checksum::Fletcher4);
        policy.copies = copies;
        let first = runtime.block_on(zio.write(&allocator, &data(sectors, 1, seed), &policy)).unwrap().bp;
        let before: u64 = allocator.taken().values().sum();
        if is_lost {
            for dva in first.dvas() {
                runtime.block_on(zio.tree().write(dva.vdev, dva.offset_bytes, &Block::from(vec![9; 4096]), TXG)).unwrap();
            }
        }
        policy.may_rewrite = true;
        policy.previous = first;
        let block = data(sectors + more * 8, 1, seed ^ 1);
        let second = runtime.block_on(zio.write(&allocator, &block, &policy)).unwrap().bp;
        let after: u64 = allocator.taken().values().sum();
        if first.psize_bytes() == second.psize_bytes() && !(is_lost && first.is_gang()) {
            prop_assert_eq!(before, after, "no space is taken");
            prop_assert_eq!(first.dvas().collect::<Vec<_>>(), second.dvas().collect::<Vec<_>>());
        } else {
            prop_assert!(after > before && first.dva(0) != second.dva(0));
        }
        prop_assert_eq!(second.asize_bytes() + if after > before { first.asize_bytes() } else { 0 }, after);
        let context = ReadContext::new(policy.bookmark, None);
        prop_assert!(runtime.block_on(zio.read(&second, context)).unwrap() == block);
        let copies = runtime.block_on(zio.read_copies(&second, context)).unwrap();
        prop_assert_eq!(copies.bad, Vec::<String>::new());
    }

    /// Bytes that came compressed or encrypted are stored as they are, whole and in pieces, and read as what they stand for.
    #[test]
    fn what_came_ready_is_stored_as_it_came(
        compress in 0..COMPRESSIONS.len(), checksum in 0..CHECKSUMS.len(), copies in 1_u8..=3, sectors in 1_usize..300,
        rarity in prop::sample::select(vec![0_u64, 3, 40, 4000]), seed: u64, is_sealed: bool, is_big: bool, is_file: bool,
        largest in prop::sample::select(vec![4096_u64, 12 << 10, 1 << 30]),
    ) {
        let (zio, runtime) = (pipeline(&[]), Runtime::simulated(seed));
        let allocator = Bump::new(zio.tree(), largest, u64::MAX);
        let block = data(sectors, rarity, seed);
        let kind = COMPRESSIONS[compress];
        let packed = match kind {
            Compress::Off | Compress::Empty => None,
            kind => compress_block(kind, CompressLevel::DEFAULT, &block, block.len() - 1),
        };
        let (mut bytes, compress) = match packed {
            Some(packed) => (packed, kind),
            None => (block.to_vec(), Compress::Off),
        };
        let object_type = if is_file { DmuType::PLAIN_FILE_CONTENTS } else { DmuType::MASTER_NODE };
        let mut policy = WritePolicy { object_type, protects: is_sealed, copies, ..policy(Compress::Off, CHECKSUMS[checksum]) };
        let mut random = |target: &mut [u8]| target.fill(seed as u8);
        let key = DatasetKey::generate(CryptSuite::ON, Guid(5), &mut random).unwrap();
        let seal = is_sealed.then(|| {
            if is_file {
                policy.copies = copies.min(2);
            }
            bytes.resize(bytes.len().next_multiple_of(512), 0);
            let (order, salt, iv) = (if is_big { Endian::Big } else { Endian::Little }, [3; 8], [seed as u8; 12]);
            let mac = match is_file {
                true => key.encrypt(BlockLayout::Normal, order, &salt, &iv, &mut bytes).unwrap(),
                false => key.mac(&bytes),
            };
            Seal { order, salt, iv, mac }
        });
        let form = ReadyForm { compress, logical_bytes: block.len() as u32, seal, is_redacted: false };
        let ready = ReadyBlock { bytes: Block::from(bytes.clone()), form };
        if bytes.len() > block.len() {
            // A sealed block fills whole sectors, and is no longer than the block that it stands for.
            prop_assert!(zio.prepare_ready(allocator.units(), &ready, &policy).is_err());
            return Ok(());
        }
        let placed = runtime.block_on(async {
            let prepared = zio.prepare_ready(allocator.units(), &ready, &policy)?;
            let placed = zio.place(&allocator, prepared, &policy).await?;
            let bp = placed.bp;
            zio.store(&allocator, placed).await.map(|_| bp)
        });
        let bp = Blkptr::from_array(&placed.unwrap().emit(ORDER), ORDER);
        bp.verify().unwrap();
        prop_assert_eq!((bp.lsize_bytes(), bp.compress()), (block.len() as u64, Some(compress)));
        prop_assert_eq!((bp.is_embedded(), bp.is_hole(), bp.uses_crypt()), (false, false, is_sealed));
        let padded = (bytes.len() as u64).next_multiple_of(4096).min(block.len() as u64);
        prop_assert_eq!(bp.psize_bytes(), if is_sealed { bytes.len() as u64 } else { padded });
        let plain = ReadContext::new(policy.bookmark, None);
        let opened = ReadContext::new(policy.bookmark, is_sealed.then_some(&key));
        let stored = runtime.block_on(zio.read_physical(&bp, plain)).unwrap();
        prop_assert!(stored[..bytes.len()] == bytes[..]);
        prop_assert!(runtime.block_on(zio.read(&bp, opened)).unwrap() == block);
        let copies = runtime.block_on(zio.read_copies(&bp, plain)).unwrap();
        prop_assert_eq!(copies.bad, Vec::<String>::new());
    }

    /// However little space there is: the block is whole, or an error and nothing taken.
    #[test]
    fn a_write_without_room_takes_nothing(sectors in 1_usize..300, left in 0_u64..400_000, largest in 1_u64..5, seed: u64) {
        let (zio, runtime) = (pipeline(&[]), Runtime::simulated(seed));
        let allocator = Bump::new(zio.tree(), largest * 4096, left);
        let block = data(sectors, 1, seed);
        match runtime.block_on(zio.write(&allocator, &block, &policy(Compress::Off, Checksum::Fletcher4))) {
            Ok(written) => prop_assert!(written.bp.asize_bytes() <= left),
            Err(error) => {
                prop_assert!(matches!(error.kind(), ZioErrorKind::NoSpace { .. }), "{}", error);
                prop_assert!(allocator.taken().is_empty());
            }
        }
    }
}

#[test]
fn a_hole_has_a_birth_only_where_something_was_before() {
    let (zio, runtime) = (pipeline(&[]), Runtime::simulated(1));
    let allocator = Bump::new(zio.tree(), 1 << 30, u64::MAX);
    let mut policy = policy(Compress::Lz4, Checksum::Fletcher4);
    let write =
        |policy: &WritePolicy, block: &Block| runtime.block_on(zio.write(&allocator, block, policy)).unwrap().bp;
    let (zeros, ones) = (Block::from(vec![0; 8192]), data(16, 1, 1));
    assert_eq!(write(&policy, &zeros), Blkptr::HOLE);
    policy.previous = write(&policy, &ones);
    policy.txg = Txg(78);
    let hole = write(&policy, &zeros);
    assert!(hole.is_hole());
    assert_eq!((hole.logical_birth(), hole.lsize_bytes()), (Txg(78), 8192));
    policy.holes_have_births = false;
    assert_eq!(write(&policy, &zeros), Blkptr::HOLE);
    // Without compression nobody looks for zeros.
    policy.compress = Compress::Off;
    assert!(!write(&policy, &zeros).is_hole());
}

#[test]
fn unchanged_content_is_not_written_again_where_the_checksum_identifies_it() {
    for (checksum, is_kept) in [(Checksum::Sha256, true), (Checksum::Blake3, true), (Checksum::Fletcher4, false)] {
        let (zio, runtime) = (pipeline(&[]), Runtime::simulated(1));
        let allocator = Bump::new(zio.tree(), 1 << 30, u64::MAX);
        let mut policy = policy(Compress::Lz4, checksum);
        let block = data(256, 40, 9);
        let first = runtime.block_on(zio.write(&allocator, &block, &policy)).unwrap().bp;
        (policy.previous, policy.txg) = (first, Txg(78));
        let again = runtime.block_on(zio.write(&allocator, &block, &policy)).unwrap().bp;
        assert_eq!(again == first, is_kept, "{checksum:?}");
        // Another number of copies is a change.
        policy.copies = 2;
        let again = runtime.block_on(zio.write(&allocator, &block, &policy)).unwrap().bp;
        assert_eq!(again.dvas().count(), 2);
    }
}

#[test]
fn a_copy_that_fails_is_missed_and_all_that_fail_are_an_error() {
    let block = data(64, 1, 3);
    let mut policy = policy(Compress::Off, Checksum::Fletcher4);
    policy.copies = 2;
    // The mirror lost a child, the raidz all but one.
    let (zio, runtime) = (pipeline(&[10, 21, 22]), Runtime::simulated(1));
    let allocator = Bump::new(zio.tree(), 1 << 30, u64::MAX);
    let written = runtime.block_on(zio.write(&allocator, &block, &policy)).unwrap();
    // The copy that no device of the raidz took is missed by those that are there.
    assert_eq!(written.missed, [Guid(10), Guid(21), Guid(22)]);
    let context = ReadContext::new(policy.bookmark, None);
    assert!(runtime.block_on(zio.read(&written.bp, context)).unwrap() == block);

    let (zio, runtime) = (pipeline(&[10, 11, 21, 22]), Runtime::simulated(1));
    let allocator = Bump::new(zio.tree(), 1 << 30, u64::MAX);
    let error = runtime.block_on(zio.write(&allocator, &block, &policy)).unwrap_err();
    assert!(matches!(error.kind(), ZioErrorKind::NoCopyWritten { copies: 2, .. }), "{error}");
    assert!(error.to_string().contains("object 6"), "{error}");
    assert!(allocator.taken().is_empty());
}

/// Small and large blocks, in one and two copies, whole and as gangs, of vdevs that keep neighbours together and of others; stored
/// together on whole and on degraded vdevs each is there.
#[test]
fn blocks_that_are_stored_together_are_each_there() {
    for (without, largest_bytes, missed) in
        [(&[][..], 1 << 30, &[][..]), (&[10], 1 << 30, &[Guid(10)]), (&[10, 11], 64 << 10, &[Guid(10), Guid(11)])]
    {
        let (zio, runtime) = (pipeline(without), Runtime::simulated(1));
        let allocator = Bump::new(zio.tree(), largest_bytes, u64::MAX);
        let blocks: Vec<(Block, WritePolicy)> = (0..60)
            .map(|number| {
                let sectors = [8, 8, 1, 16, 300, 8, 8][number % 7];
                let copies = if without.len() > 1 { 2 } else { 1 + u8::from(number % 11 > 5) };
                let policy = WritePolicy { copies, ..policy(Compress::Off, Checksum::Fletcher4) };
                (data(sectors, 1, number as u64), policy)
            })
            .collect();
        let (pointers, told) = runtime.block_on(async {
            let mut batch = PreparedBatch::default();
            for (block, policy) in &blocks {
                batch.push(zio.prepare(allocator.units(), block, policy), policy.clone());
            }
            let places = zio.find_places(&allocator, &batch).await;
            let placed: Vec<_> = batch.placed(places).into_iter().map(|(_, placed)| placed.unwrap()).collect();
            let pointers: Vec<Blkptr> = placed.iter().map(|placed| placed.bp).collect();
            (pointers, zio.store_all(&allocator, placed).await.unwrap())
        });
        // A write that no child took is an error, made up for by the copy on the other vdev.
        assert!(without.len() > 1 || told == missed, "{told:?}");
        for ((block, policy), bp) in blocks.iter().zip(&pointers) {
            let context = ReadContext::new(policy.bookmark, None);
            assert!(runtime.block_on(zio.read(bp, context)).unwrap() == *block, "{without:?} {bp:?}");
        }
        let neighbours = neighbours_read_together(&zio, &runtime, &blocks, &pointers, without.len() > 1);
        assert!(neighbours > 0 || largest_bytes < 1 << 30, "{without:?}: some blocks lie one behind the other");
    }
}

/// A read of neighbours does not hide a fault of one child of a mirror: it gives nothing, so that each block is read by itself, and the
/// fault is counted against the child.
#[test]
fn neighbours_of_which_a_child_has_one_wrong_are_left_to_reads_of_their_own() {
    let mut drivers = Vec::new();
    let zio = pipeline_on(&[], |guid, bytes| {
        let driver = RamDevice::new("disk", bytes);
        drivers.push((guid, driver.clone()));
        Device::from_driver(driver)
    });
    let runtime = Runtime::simulated(1);
    let allocator = Bump::new(zio.tree(), 1 << 30, u64::MAX);
    let policy = policy(Compress::Off, Checksum::Fletcher4);
    let pointers: Vec<Blkptr> = (0..64)
        .map(|number| runtime.block_on(zio.write(&allocator, &data(8, 1, number), &policy)).unwrap().bp)
        .filter(|bp| bp.dva(0).is_some_and(|dva| dva.vdev == VdevId(0)))
        .collect();
    let run = pointers.iter().zip(&pointers[1..]).position(|(one, next)| Zio::are_neighbours(one, next)).unwrap();
    let run = &pointers[run..run + 2];
    let read = || runtime.block_on(zio.read_neighbours(run, QueueClass::AsyncRead));
    assert!((0..8).all(|_| read().is_some()), "all is well");
    let place = run[1].dva(0).unwrap().offset_bytes + cenote_format::label::START_BYTES;
    let (guid, driver) = &drivers[0];
    let wrong = Block::copied_from(&[0xee; 512]);
    runtime.block_on(Device::from_driver(driver.clone()).write(place, wrong)).unwrap();
    let given = (0..64).filter(|_| read().is_some()).count();
    assert!(given < 64, "some reads ask the wrong child first");
    assert_eq!(zio.tree().error_counts(*guid).unwrap().totals().checksum, 0, "nothing is counted yet");
    let context = ReadContext::new(policy.bookmark, None);
    for _ in 0..64 {
        runtime.block_on(zio.read(&run[1], context)).unwrap();
    }
    assert!(zio.tree().error_counts(*guid).unwrap().totals().checksum > 0, "a read of its own counts it");
}

/// Reads what lies one behind the other together, and says how many blocks had a neighbour. `is_lost`: a vdev gives nothing.
fn neighbours_read_together(
    zio: &Zio,
    runtime: &Runtime,
    blocks: &[(Block, WritePolicy)],
    pointers: &[Blkptr],
    is_lost: bool,
) -> usize {
    let (mut at, mut neighbours) = (0, 0);
    while at < pointers.len() {
        let is_last = |end: &usize| !Zio::are_neighbours(&pointers[*end - 1], &pointers[*end]);
        let end = (at + 1..pointers.len()).find(is_last).unwrap_or(pointers.len());
        let run = &pointers[at..end];
        if run.len() > 1 {
            neighbours += run.len();
            let read = |run: &[Blkptr]| runtime.block_on(zio.read_neighbours(run, QueueClass::AsyncRead));
            let Some(together) = read(run) else {
                // Their vdev has lost all its children: each is read from its other copy.
                assert!(is_lost, "each is good: {run:?}");
                at = end;
                continue;
            };
            let expected: Vec<Block> = blocks[at..end].iter().map(|(block, _)| block.clone()).collect();
            assert!(together == expected, "{run:?}");
            // One that is not what its pointer says, or is missing between two, is for a read of its own.
            let mut wrong = run.to_vec();
            let [first, rest @ ..] = run[0].checksum_words();
            wrong[0].set_checksum_words([first ^ 1, rest[0], rest[1], rest[2]]);
            assert!(read(&wrong).is_none(), "a block that does not verify");
            wrong = run.to_vec();
            wrong.swap(0, 1);
            assert!(read(&wrong).is_none(), "blocks that are not in the order of their places");
        }
        at = end;
    }
    neighbours
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A batch's blocks get the places that placing one after the other gives, up to the first error, which is the same: holes, blocks
    /// that fit their pointer, blocks in one to three copies, gangs (forced or for want of room), blocks that take the place of
    /// others, blocks that cannot be prepared, and a pool that is full.
    #[test]
    fn a_batch_is_placed_like_its_blocks(
        kinds in prop::collection::vec(0_u8..14, 1..40),
        largest_bytes in prop::sample::select(vec![32_u64 << 10, 1 << 30]),
        left_bytes in prop::sample::select(vec![1_u64 << 20, 1 << 40]),
    ) {
        let (zio, runtime) = (pipeline(&[]), Runtime::simulated(1));
        let mut previous = None;
        let blocks: Vec<(Block, WritePolicy)> = kinds
            .iter()
            .enumerate()
            .map(|(number, kind)| {
                let mut policy = policy(Compress::Lz4, Checksum::Fletcher4);
                policy.bookmark.block = BlockId(number as u64);
                policy.may_embed = true;
                let number = number as u64;
                let block = match kind {
                    0..6 => data(8, 1, number),
                    6 => data(64, 1, number),
                    7 => Block::from(vec![0; 4096]),
                    8 => Block::from(vec![5; 4096]),
                    9 => {
                        policy.copies = 3;
                        data(8, 1, number)
                    }
                    10 => {
                        policy.force_gang_above_bytes = Some(4096);
                        data(64, 1, number)
                    }
                    11 | 12 => {
                        policy.may_rewrite = true;
                        policy.previous = previous.unwrap_or(Blkptr::HOLE);
                        data(8, 1, number)
                    }
                    _ => {
                        // Rarely, and behind others.
                        policy.copies = if number > 20 { 9 } else { 1 };
                        data(300, 1, number)
                    }
                };
                let mut other = policy.clone();
                other.previous = Blkptr::HOLE;
                if *kind == 5 {
                    let elsewhere = Bump::new(zio.tree(), 1 << 30, u64::MAX);
                    previous = runtime.block_on(zio.write(&elsewhere, &data(8, 1, 1000), &other)).ok().map(|it| it.bp);
                }
                (block, policy)
            })
            .collect();
        let allocator = || Bump::new(zio.tree(), largest_bytes, left_bytes);
        let (together, apart) = (allocator(), allocator());
        let said = |placed: Result<cenote_zio::Placed, cenote_zio::ZioError>| placed.map(|it| it.bp).map_err(|error| error.to_string());
        let mut expected = Vec::new();
        for (block, policy) in &blocks {
            let placed = runtime.block_on(async {
                zio.place(&apart, zio.prepare(apart.units(), block, policy)?, policy).await
            });
            expected.push(said(placed));
            if matches!(expected.last(), Some(Err(_))) {
                break;
            }
        }
        let mut batch = PreparedBatch::with_capacity(blocks.len());
        for (block, policy) in &blocks {
            batch.push(zio.prepare(together.units(), block, policy), policy.clone());
        }
        let places = runtime.block_on(zio.find_places(&together, &batch));
        let found: Vec<_> = batch.placed(places).into_iter().map(|(_, placed)| said(placed)).collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(together.taken(), apart.taken());
    }
}

/// A write of neighbours that fails says nothing of each of them: each is tried alone, and the error names the first.
#[test]
fn neighbours_that_cannot_be_written_are_an_error_of_the_first() {
    let (zio, runtime) = (pipeline(&[10, 11, 21, 22]), Runtime::simulated(1));
    let allocator = Bump::new(zio.tree(), 1 << 30, u64::MAX);
    let error = runtime.block_on(async {
        let mut placed = Vec::new();
        for number in 0..4 {
            let mut policy = policy(Compress::Off, Checksum::Fletcher4);
            policy.bookmark.block = BlockId(number);
            let prepared = zio.prepare(allocator.units(), &data(8, 1, number), &policy).unwrap();
            placed.push(zio.place(&allocator, prepared, &policy).await.unwrap());
        }
        zio.store_all(&allocator, placed).await.unwrap_err()
    });
    assert!(matches!(error.kind(), ZioErrorKind::NoCopyWritten { copies: 1, .. }), "{error}");
    assert!(error.to_string().contains("block 0"), "{error}");
}

#[test]
fn what_cannot_be_a_block_is_refused() {
    let (zio, runtime) = (pipeline(&[]), Runtime::simulated(1));
    let allocator = Bump::new(zio.tree(), 1 << 30, u64::MAX);
    let refuse = |block: Block, policy: WritePolicy| {
        let error = runtime.block_on(zio.write(&allocator, &block, &policy)).unwrap_err();
        assert!(matches!(error.kind(), ZioErrorKind::Unwritable(_)), "{error}");
    };
    let good = policy(Compress::Lz4, Checksum::Fletcher4);
    refuse(Block::from(vec![1; 100]), good.clone());
    refuse(Block::from(vec![]), good.clone());
    refuse(data(1, 1, 1), WritePolicy { copies: 0, ..good.clone() });
    refuse(data(1, 1, 1), WritePolicy { copies: 4, ..good.clone() });
    refuse(data(1, 1, 1), WritePolicy { compress: Compress::On, ..good.clone() });
    refuse(data(1, 1, 1), WritePolicy { checksum: Checksum::On, ..good });
}
