//! Writing: logical bytes to a block pointer.
//!
//! ```text
//! all zeros? ── yes ─► a hole
//!     │ no
//! compress, if that saves an eighth ─► fits the pointer? ── yes ─► embedded
//!     │ no
//! pad to the allocation unit ─► checksum ─► same as before, by a strong checksum? ── yes ─► the old pointer
//!     │ no
//! allocate the copies ── no room in one piece ─► gang: pieces first, then headers that point to them
//!     │
//! write all copies at once ─► good while one copy is whole
//! ```
//!
//! **Three steps.** A txg's sync takes them apart, since what they need differs: [`Zio::prepare`] computes (compression, checksum) and can
//! run anywhere, in any order; [`Zio::place`] allocates, and a caller that wants the same places for the same input calls it in a fixed
//! order, or for many blocks at once (`batch`); [`Zio::store`] waits for devices (`store`). A pointer is complete once it is placed, so its
//! parent can be prepared while the block is still on its way.
//!
//! **Rewriting.** A block that this txg wrote already is not part of any state of the pool yet. With
//! [`WritePolicy::may_rewrite`] its successor takes its place if it has the same size, which is what makes a txg's passes
//! come to an end. Gang blocks too (`regang`).
//!
//! Space comes from above through [`Allocator`]. Space allocated for a write that failed is given back, so an error leaves no trace but
//! bytes that nothing points to.

use std::future::Future;
use std::pin::Pin;

use cenote_codec::checksum;
use cenote_codec::compress::{self, CompressLevel};
use cenote_codec::crypt::indirect_mac;
use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::dmu_type::DmuType;
use cenote_format::eck::EmbeddedChecksum;
use cenote_format::endian::Endian;
use cenote_format::enums::{Checksum, Compress};
use cenote_format::gang::{GangHeader, MIN_BYTES as GANG_HEADER_BYTES};
use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{BoxFuture, boxed};

use crate::gang::DEPTH_MAX;
use crate::seal::Seal;
use crate::{Bookmark, OutsideExtents, Zio, ZioError, ZioErrorKind};

/// The byte order of everything that Cenote writes, on any machine: the same input gives the same bytes.
pub const ORDER: Endian = Endian::Little;

/// The largest payload of an embedded pointer (`BPE_PAYLOAD_SIZE`).
const EMBEDDED_MAX_BYTES: usize = 112;
/// Pointers in a gang header of the old size.
const GANG_PIECES: usize = 3;
/// The most copies of a block (`SPA_DVAS_PER_BP`).
const COPIES_MAX: u8 = 3;

/// A request for space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationRequest {
    /// Bytes to be stored in each copy.
    pub psize_bytes: u64,
    /// How many copies, on different vdevs where there are.
    pub copies: u8,
    /// The txg in which it becomes allocated.
    pub txg: Txg,
    /// The block's type: decides on its allocation class.
    pub object_type: DmuType,
    /// The block's level in its tree: likewise.
    pub level: u8,
    /// Data is small up to this many bytes: likewise.
    pub small_block_bytes: u32,
    /// Bytes of the whole block, of which this may be a part.
    pub block_bytes: u64,
}

/// In which units blocks are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationUnits {
    /// The smallest allocation in bytes (`spa_min_alloc`).
    pub min_bytes: u64,
    /// Larger ones are multiples of this (`spa_gcd_alloc`).
    pub step_bytes: u64,
}

impl AllocationUnits {
    /// The bytes that a block of `psize_bytes` is padded to.
    #[must_use]
    pub(crate) const fn round(self, psize_bytes: u64) -> u64 {
        if psize_bytes <= self.min_bytes { self.min_bytes } else { psize_bytes.next_multiple_of(self.step_bytes) }
    }
}

/// There is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSpace {
    /// Not in one piece, but smaller pieces can be had.
    Fragmented,
    /// Not at all.
    Full,
}

/// Where new blocks get their places: the space layer, as far as this one must know it.
pub trait Allocator: Send + Sync {
    /// The units of allocation.
    fn units(&self) -> AllocationUnits;

    /// Places for the copies of one block, first copy first, each with the bytes it takes on its vdev. All or nothing.
    #[boxed]
    async fn allocate(&self, request: AllocationRequest) -> Result<Vec<Dva>, NoSpace>;

    /// Places for several blocks alike, first block first: those that asking for one after the other would give, as many as can be had at
    /// once. The places of each block's copies follow each other. The missing ones (all of them where that is simplest) are asked for with
    /// [`Self::allocate`].
    fn allocate_some(&self, request: AllocationRequest, count: usize) -> Vec<Dva> {
        let _ = (request, count);
        Vec::new()
    }

    /// A place for a block of an intent log, whole or not at all. It does not wait for space: if there is none, the client waits for the
    /// txg instead.
    fn allocate_log(&self, request: AllocationRequest) -> BoxFuture<'_, Result<Vec<Dva>, NoSpace>> {
        self.allocate(request)
    }

    /// As [`Self::allocate`], but it fails at once if there is no space now.
    fn allocate_at_once(&self, request: AllocationRequest) -> BoxFuture<'_, Result<Vec<Dva>, NoSpace>> {
        self.allocate(request)
    }

    /// True if intent logs have taken so much since the last txg that the open one should be written: their blocks are freed with it.
    fn logs_want_txg(&self) -> bool {
        false
    }

    /// Bytes that can be allocated now, and those of them that are kept back, for the replay of an intent log; `None` without a limit.
    fn replay_space(&self) -> Option<(u64, u64)> {
        None
    }

    /// True if some vdev has nothing but intent logs.
    fn has_log_devices(&self) -> bool {
        false
    }

    /// True if some vdev is for metadata and small blocks.
    fn has_special_devices(&self) -> bool {
        false
    }

    /// Whether a vdev has nothing but intent logs: if it fails, the pool goes on without it.
    fn is_log_device(&self, vdev: VdevId) -> bool {
        let _ = vdev;
        false
    }

    /// A log device has failed: the allocator gives no more places on it.
    fn log_device_failed(&self, vdev: VdevId, why: &str) {
        let _ = (vdev, why);
    }

    /// Gives back what was allocated in the same txg and is not pointed to by anything.
    fn release(&self, dva: Dva, txg: Txg);

    /// Checks before a device write that the extent is allocated, if a second record of allocations is kept (`ExtentCheck`).
    ///
    /// # Errors
    /// It is not, or not all of it.
    fn check_write(&self, dva: Dva) -> Result<(), OutsideExtents> {
        let _ = dva;
        Ok(())
    }
}

/// How a block is to be written. The values come from the dataset's properties, resolved: nothing says `on` or `inherit`.
#[derive(Clone, Debug)]
pub struct WritePolicy {
    /// Where the block belongs, for errors.
    pub bookmark: Bookmark,
    /// The block's type.
    pub object_type: DmuType,
    /// Its level in its tree; 0 is data.
    pub level: u8,
    /// The txg that writes it: its birth.
    pub txg: Txg,
    /// The compression.
    pub compress: Compress,
    /// The level of the compression, for those that have any.
    pub compress_level: CompressLevel,
    /// The checksum.
    pub checksum: Checksum,
    /// How many copies: 1 to 3.
    pub copies: u8,
    /// Blocks in use below: 1 for data, dnodes in use for blocks of dnodes, the sum of the children's above.
    pub fill: u64,
    /// Data that is stored in no more bytes than this counts as small (`special_small_blocks`).
    pub small_block_bytes: u32,
    /// Small data may go into the pointer (feature `embedded_data`).
    pub may_embed: bool,
    /// Holes say when they came to be (feature `hole_birth`).
    pub holes_have_births: bool,
    /// The pointer that this write replaces, a hole if there was none.
    pub previous: Blkptr,
    /// Unchanged content need not be written again: nothing else may change with it (as a new checksum would).
    pub nopwrite: bool,
    /// The previous block is of this txg: take its place if the size is the same.
    pub may_rewrite: bool,
    /// The dataset is encrypted: blocks of the lowest level come sealed ([`crate::ReadyBlock`]), those above have a MAC of those below.
    pub protects: bool,
    /// For tests: blocks above this many bytes are written as gangs (`metaslab_force_ganging`).
    pub force_gang_above_bytes: Option<u64>,
}

/// A block that was written.
#[derive(Clone, Debug)]
pub struct Written {
    /// Where and what it is.
    pub bp: Blkptr,
    /// Leaves that should have it and have not: their dirty time logs get the txg.
    pub missed: Vec<Guid>,
}

/// The keys' part in a block's pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Protection {
    None,
    /// Of an indirect block, the MAC of those that its pointers have.
    Indirect([u8; 16]),
    Sealed(Seal),
}

/// A block made ready: all but its place.
#[derive(Clone, Debug)]
pub struct Prepared(pub(crate) Content);

#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Nothing has to be stored: a hole, an embedded pointer, or what is there already.
    Unstored(Blkptr),
    /// The pointer without its places, and the bytes.
    Stored(Blkptr, Block),
}

impl Prepared {
    /// A block that is stored already, and all of whose pointer is known.
    #[must_use]
    pub const fn stored(bp: Blkptr) -> Self {
        Self(Content::Unstored(bp))
    }
}

/// A block that has its place. Its pointer is complete; its bytes are still to be stored.
#[derive(Debug)]
pub struct Placed {
    /// Where and what it is.
    pub bp: Blkptr,
    /// Bytes and their places.
    pub(crate) writes: Vec<(Vec<Dva>, Block)>,
    /// The space allocated for it, for [`Zio::write`], which gives it back where storing fails.
    pub(crate) taken: Vec<Dva>,
    pub(crate) bookmark: Bookmark,
    pub(crate) txg: Txg,
}

impl Placed {
    /// The places that [`Zio::place`] has allocated for it. A caller that does not store it gives them back.
    #[must_use]
    pub fn taken(&self) -> &[Dva] {
        &self.taken
    }

    /// Bytes that are to be stored, for bounding the data in flight.
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        self.writes.iter().map(|(dvas, block)| dvas.len() as u64 * block.len() as u64).sum()
    }

    /// Places that it is to be written to.
    pub(crate) fn places(&self) -> usize {
        self.writes.iter().map(|(dvas, _)| dvas.len()).sum()
    }

    /// Whether the pointer says that the txg has written it, if it does.
    pub(crate) fn is_of_its_txg(&self) -> bool {
        self.writes.is_empty() || self.bp.physical_birth() == self.txg
    }
}

impl Zio {
    /// Writes a block of logical bytes, whose multi-byte fields are in [`ORDER`], and says how to find it again. Its length is the block's logical size: a multiple of 512.
    ///
    /// # Errors
    /// No space, or too few devices took it; the pointer's place is named. Its space is given back.
    pub async fn write(
        &self,
        allocator: &dyn Allocator,
        data: &Block,
        policy: &WritePolicy,
    ) -> Result<Written, ZioError> {
        let prepared = self.prepare(allocator.units(), data, policy)?;
        let placed = self.place(allocator, prepared, policy).await?;
        let (bp, taken) = (placed.bp, placed.taken.clone());
        match self.store(allocator, placed).await {
            Ok(missed) => Ok(Written { bp, missed }),
            Err(error) => {
                taken.iter().for_each(|dva| allocator.release(*dva, policy.txg));
                Err(error)
            }
        }
    }

    /// Compresses and sums up a block: the part of [`Zio::write`] that only computes.
    ///
    /// # Errors
    /// The policy asks for something that does not exist, such as a level of compression.
    pub fn prepare(&self, units: AllocationUnits, data: &Block, policy: &WritePolicy) -> Result<Prepared, ZioError> {
        let fail = |kind| ZioError::new(policy.bookmark, kind);
        check(data, policy).map_err(fail)?;
        let lsize = data.len() as u64;
        let protection = match policy.protects && policy.object_type != DmuType::OBJSET {
            false => Protection::None,
            true if policy.level > 0 => Protection::Indirect(indirect_mac(data, ORDER)),
            true => return Err(fail(ZioErrorKind::Unwritable("a block of an encrypted dataset that is not sealed"))),
        };
        let mut physical = data.clone();
        let mut compress = Compress::Off;
        if policy.compress != Compress::Off {
            if compress::is_all_zero(data) {
                return Ok(Prepared(Content::Unstored(hole(policy, lsize))));
            }
            let target_max = data.len() - data.len() / 8;
            if let Some(packed) = compress::compress(policy.compress, policy.compress_level, data, target_max) {
                assert!(packed.len() <= target_max, "what is compressed saves an eighth");
                if can_embed(policy, &packed) {
                    let (kind, birth) = (policy.compress, policy.txg);
                    let bp = Blkptr::embedded(policy.object_type, policy.level, kind, lsize, &packed, birth, ORDER);
                    return Ok(Prepared(Content::Unstored(bp)));
                }
                let rounded = units.round(packed.len() as u64);
                if rounded < lsize {
                    physical = padded(&packed, rounded as usize).freeze();
                    compress = policy.compress;
                }
            }
        }
        let bp = self.pointer(policy, compress, lsize, &physical, protection).map_err(fail)?;
        if is_unchanged(policy, &bp) {
            return Ok(Prepared(Content::Unstored(policy.previous)));
        }
        Ok(Prepared(Content::Stored(bp, physical)))
    }

    /// Finds the places of a prepared block. Nothing is written yet.
    ///
    /// # Errors
    /// No space. Space allocated on the way is given back.
    pub async fn place(
        &self,
        allocator: &dyn Allocator,
        prepared: Prepared,
        policy: &WritePolicy,
    ) -> Result<Placed, ZioError> {
        let block_bytes = match &prepared.0 {
            Content::Stored(bp, _) => bp.psize_bytes(),
            Content::Unstored(_) => 0,
        };
        let mut space = Space { allocator, block_bytes, taken: Vec::new(), writes: Vec::new() };
        let done = |bp, space: Space<'_>| Placed {
            bp,
            writes: space.writes,
            taken: space.taken,
            bookmark: policy.bookmark,
            txg: policy.txg,
        };
        assert!(policy.txg > Txg(0), "a block that no txg has written is a hole");
        let (mut bp, physical) = match prepared.0 {
            Content::Unstored(bp) => return Ok(done(bp, space)),
            Content::Stored(bp, physical) => (bp, physical),
        };
        if can_rewrite(policy, &bp) {
            let again = self.place_again(&mut space, &mut bp, &policy.previous, &physical, policy, 1).await;
            if again.is_ok() {
                return Ok(done(bp, space));
            }
            // A gang header could not be read, so the block gets new places.
            space.writes.clear();
        }
        match self.find_place(&mut space, &mut bp, &physical, policy, policy.copies, 1).await {
            Ok(()) => {
                assert!(bp.dvas().next().is_some(), "a block that is placed has a place");
                let placed = done(bp, space);
                debug_assert!(
                    placed.places() == placed.taken.len() || mutant::is(Mutant::GangHeaderDropped),
                    "all that was allocated is written to"
                );
                Ok(placed)
            }
            Err(kind) => {
                space.taken.iter().for_each(|dva| allocator.release(*dva, policy.txg));
                Err(ZioError::new(policy.bookmark, kind))
            }
        }
    }

    /// A pointer with everything but a place.
    pub(crate) fn pointer(
        &self,
        policy: &WritePolicy,
        compress: Compress,
        lsize_bytes: u64,
        physical: &[u8],
        protection: Protection,
    ) -> Result<Blkptr, ZioErrorKind> {
        let psize_bytes = physical.len() as u64;
        // Pointers count sectors: what is less than one would be cut off.
        assert!(psize_bytes > 0 && psize_bytes.is_multiple_of(512), "blocks are stored in whole sectors");
        match compress {
            Compress::Off => assert_eq!(psize_bytes, lsize_bytes, "what is not compressed is stored as it is"),
            // A block that came compressed may fill its last unit exactly.
            _ => assert!(psize_bytes <= lsize_bytes, "what is compressed is not larger"),
        }
        let order = if let Protection::Sealed(seal) = protection { seal.order } else { ORDER };
        let mut words = checksum::compute(policy.checksum, physical, order, self.salt())
            .ok_or(ZioErrorKind::Unwritable("the checksum cannot be computed: no such kind, or no salt"))?;
        let mut bp = Blkptr::HOLE;
        bp.set_dmu_type(policy.object_type);
        bp.set_level(policy.level);
        bp.set_byte_order(order);
        bp.set_lsize_bytes(lsize_bytes);
        bp.set_psize_bytes(psize_bytes);
        bp.set_compress(compress);
        bp.set_checksum(policy.checksum);
        bp.set_births(policy.txg, policy.txg);
        if !matches!(protection, Protection::None) {
            words = checksum::truncate_for_mac(policy.checksum, words);
            bp.set_crypt(true);
        }
        bp.set_checksum_words(words);
        bp.set_fill(policy.fill);
        match protection {
            Protection::None => {}
            Protection::Sealed(Seal { salt, iv, mac, .. }) if bp.is_encrypted() => bp.set_crypt_params(salt, iv, mac),
            Protection::Sealed(Seal { mac, .. }) | Protection::Indirect(mac) => bp.set_mac(mac),
        }
        Ok(bp)
    }

    /// Finds places for a block: whole, or as a gang.
    fn find_place<'a>(
        &'a self,
        space: &'a mut Space<'_>,
        bp: &'a mut Blkptr,
        physical: &'a Block,
        policy: &'a WritePolicy,
        copies: u8,
        depth: usize,
    ) -> Placing<'a> {
        Box::pin(async move {
            let psize_bytes = physical.len() as u64;
            let is_forced = policy.force_gang_above_bytes.is_some_and(|limit| psize_bytes > limit);
            let units = space.allocator.units();
            let can_gang = psize_bytes > units.min_bytes && depth < DEPTH_MAX;
            if !(is_forced && can_gang) {
                match space.take(psize_bytes, copies, policy).await {
                    Ok(dvas) => {
                        space.put(bp, &dvas, physical);
                        return Ok(());
                    }
                    Err(NoSpace::Fragmented) if can_gang => {}
                    Err(_) => return Err(ZioErrorKind::NoSpace { size_bytes: psize_bytes }),
                }
            }
            self.gang(space, bp, physical, policy, copies, depth).await
        })
    }

    /// Makes a gang: pieces of about a third each, and a header that points to them.
    async fn gang(
        &self,
        space: &mut Space<'_>,
        bp: &mut Blkptr,
        physical: &Block,
        policy: &WritePolicy,
        copies: u8,
        depth: usize,
    ) -> Result<(), ZioErrorKind> {
        assert!(depth < DEPTH_MAX, "no gang is deeper than one that can be read");
        let units = space.allocator.units();
        // A header lost is a block lost, so there is one copy more of it than of the pieces.
        let header_copies = (copies + 1).min(if bp.is_encrypted() { COPIES_MAX - 1 } else { COPIES_MAX });
        let size_bytes = GANG_HEADER_BYTES as u64;
        let headers = space
            .take(size_bytes, header_copies, policy)
            .await
            .map_err(|_| ZioErrorKind::NoSpace { size_bytes: physical.len() as u64 })?;
        let mut header = GangHeader {
            blkptrs: Vec::with_capacity(GANG_PIECES),
            // Readers take the header to be in the order that the block's pointer says.
            checksum: EmbeddedChecksum { endian: bp.byte_order(), words: [0; 4] },
        };
        let mut asizes: Vec<u64> = headers.iter().map(|dva| dva.asize_bytes).collect();
        let mut start = 0;
        while start < physical.len() {
            let left = physical.len() - start;
            let pieces_left = GANG_PIECES.saturating_sub(header.blkptrs.len()).max(1);
            assert!(header.blkptrs.len() < GANG_PIECES, "a gang has no more pieces than pointers in its header");
            let share = units.round(left.div_ceil(pieces_left) as u64) as usize;
            let piece = physical.slice(start..start + share.min(left));
            // The whole block is checksummed, padded and compressed; a piece is just bytes.
            let mut child = self.pointer(policy, Compress::Off, piece.len() as u64, &piece, Protection::None)?;
            child.set_fill(0);
            self.find_place(space, &mut child, &piece, policy, copies, depth + 1).await?;
            for (asize, dva) in asizes.iter_mut().zip(child.dvas()) {
                *asize += dva.asize_bytes;
            }
            header.blkptrs.push(child);
            start += piece.len();
        }
        let sealed = self.seal_header(&header, bp, headers[0], policy)?;
        space.put(bp, &headers, &sealed);
        if mutant::is(Mutant::GangHeaderDropped) {
            space.writes.pop();
        }
        for (index, (dva, asize_bytes)) in headers.into_iter().zip(asizes).enumerate() {
            bp.set_dva(index, Some(Dva { gang: true, asize_bytes, ..dva }));
        }
        Ok(())
    }
}

/// A block on its way to its places.
pub(crate) type Placing<'a> = Pin<Box<dyn Future<Output = Result<(), ZioErrorKind>> + Send + 'a>>;

/// The space that one write has allocated, in case it fails, and the bytes to be stored there.
pub(crate) struct Space<'a> {
    allocator: &'a dyn Allocator,
    /// Bytes of the whole block.
    block_bytes: u64,
    taken: Vec<Dva>,
    writes: Vec<(Vec<Dva>, Block)>,
}

/// The allocation request for a block, or for a piece of a block of `block_bytes`.
pub(crate) const fn allocation_request(
    psize_bytes: u64,
    copies: u8,
    block_bytes: u64,
    policy: &WritePolicy,
) -> AllocationRequest {
    let WritePolicy { txg, object_type, level, small_block_bytes, .. } = *policy;
    AllocationRequest { psize_bytes, copies, txg, object_type, level, small_block_bytes, block_bytes }
}

impl Space<'_> {
    async fn take(&mut self, psize_bytes: u64, copies: u8, policy: &WritePolicy) -> Result<Vec<Dva>, NoSpace> {
        let dvas = self.allocator.allocate(allocation_request(psize_bytes, copies, self.block_bytes, policy)).await?;
        self.taken.extend(&dvas);
        if dvas.is_empty() {
            return Err(NoSpace::Full);
        }
        assert_eq!(dvas.len(), usize::from(copies), "a block gets places for all its copies, or none");
        Ok(dvas)
    }

    /// Notes that the bytes belong at these places, and that the pointer says so.
    pub(crate) fn put(&mut self, bp: &mut Blkptr, dvas: &[Dva], physical: &Block) {
        dvas.iter().enumerate().for_each(|(index, dva)| bp.set_dva(index, Some(*dva)));
        self.writes.push((dvas.to_vec(), physical.clone()));
    }
}

fn check(data: &Block, policy: &WritePolicy) -> Result<(), ZioErrorKind> {
    let is_sized = !data.is_empty() && data.len().is_multiple_of(512) && data.len() as u64 <= 1 << 24;
    if !is_sized {
        return Err(ZioErrorKind::Unwritable("a block is a multiple of 512 bytes, at most 16 MiB"));
    }
    if !(1..=COPIES_MAX).contains(&policy.copies) {
        return Err(ZioErrorKind::Unwritable("a block has 1 to 3 copies"));
    }
    if matches!(policy.compress, Compress::On | Compress::Inherit) {
        return Err(ZioErrorKind::Unwritable("the compression is not resolved"));
    }
    // With a level that does not exist nothing would ever be compressed, without an error.
    if policy.compress == Compress::Zstd && policy.compress_level.zstd_level().is_none() {
        return Err(ZioErrorKind::Unwritable("the compression's level is not resolved"));
    }
    Ok(())
}

/// The hole that stands for a block of zeros. It has a birth only where there was something before it.
pub(crate) fn hole(policy: &WritePolicy, lsize_bytes: u64) -> Blkptr {
    if policy.holes_have_births && policy.previous.logical_birth() != Txg(0) {
        Blkptr::hole_with_birth(policy.object_type, policy.level, lsize_bytes, policy.txg)
    } else {
        Blkptr::HOLE
    }
}

/// Whether compressed data is embedded in the pointer: data only, and no block whose fill count matters.
fn can_embed(policy: &WritePolicy, packed: &[u8]) -> bool {
    policy.may_embed
        && policy.level == 0
        && !policy.object_type.has_fill()
        && (1..=EMBEDDED_MAX_BYTES).contains(&packed.len())
}

impl WritePolicy {
    /// Whether the block that would be replaced has the same content as the one of a pointer, by a cryptographic checksum, so that it stays
    /// in its place (nopwrite).
    #[must_use]
    pub fn keeps_previous(&self, bp: &Blkptr) -> bool {
        is_unchanged(self, bp)
    }
}

/// Whether the previous block has the same content, by a cryptographic checksum (nopwrite).
pub(crate) fn is_unchanged(policy: &WritePolicy, bp: &Blkptr) -> bool {
    let previous = &policy.previous;
    policy.nopwrite
        && identifies(policy.checksum)
        && policy.compress != Compress::Off
        && !previous.is_hole()
        && !previous.is_embedded()
        && !previous.is_gang()
        && !previous.dedup()
        && previous.checksum() == bp.checksum()
        && previous.compress() == bp.compress()
        && previous.dvas().count() == usize::from(policy.copies)
        && previous.lsize_bytes() == bp.lsize_bytes()
        && previous.psize_bytes() == bp.psize_bytes()
        && previous.checksum_words() == bp.checksum_words()
}

/// Whether the block can take the place of its predecessor, which this txg wrote and which nothing on disk knows of.
pub(crate) fn can_rewrite(policy: &WritePolicy, bp: &Blkptr) -> bool {
    let previous = &policy.previous;
    policy.may_rewrite
        && !previous.is_hole()
        && !previous.is_embedded()
        && previous.physical_birth() == policy.txg
        && previous.logical_birth() == policy.txg
        && previous.psize_bytes() == bp.psize_bytes()
        && (previous.is_gang() || previous.dvas().count() == usize::from(policy.copies))
}

/// Whether two blocks with this checksum in common may be taken for one (`ZCHECKSUM_FLAG_NOPWRITE`).
const fn identifies(kind: Checksum) -> bool {
    matches!(kind, Checksum::Sha256 | Checksum::Sha512 | Checksum::Skein | Checksum::Edonr | Checksum::Blake3)
}

/// The bytes with zeros behind them.
pub(crate) fn padded(bytes: &[u8], len: usize) -> Buf {
    let mut buf = Buf::unfilled(len);
    let (head, tail) = buf.split_at_mut(bytes.len());
    head.copy_from_slice(bytes);
    tail.fill(0);
    buf
}
