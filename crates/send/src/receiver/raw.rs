//! Records of raw streams: blocks as on the sender's disk, encrypted, and the parts of objects that their MACs cover.
//!
//! No code here can verify a block; a reader with the key can. This code checks everything that the pool depends on: sizes, numbers, the shape
//! of trees. [`cenote_dmu::RawRoot`]'s module describes how the parts fit together.
//!
//! ```text
//! OBJECT_RANGE   the seal of a block of dnodes; kept for the objects that follow, each of which must be in that block
//! OBJECT         form, bonus area; an object of another form is freed first, since the parts that MACs cover cannot change in place
//! WRITE, SPILL   bytes and seal
//! FREE           holes; the object is not shortened
//! ```

use std::ops::Range;

use cenote_dmu::tx::Cost;
use cenote_dmu::{INDIRECT_SHIFT, Object, ObjectSpec, RawRoot};
use cenote_format::Endian;
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{DnodeFlags, DnodePhys, MAX_LEVELS, bonus_capacity_bytes};
use cenote_format::dsl::{CryptSuite, CryptoKeyPhys, KeyFormat, crypto_key};
use cenote_format::enums::{Checksum, Compress};
use cenote_format::ids::{Guid, ObjectId};
use cenote_format::stream::{Object as Record, ObjectRange, RecordFlags, Sealing, Spill, Write};
use cenote_spa::RawSpec;
use cenote_taskq::buf::Block;
use cenote_zio::{ReadyBlock, ReadyForm, Seal};

use super::apply::{Applier, OBJECTS_END, PLAIN_BLOCK_MAX_BYTES};
use super::object::Wanted;
use super::{Header, ReceiverError};

/// The version of the encryption format that can be received.
const KEY_VERSION: u64 = 1;
/// Slots in a block of dnodes.
const SLOTS: u64 = 32;
/// The maximum size of an object.
const OBJECT_MAX_BYTES: u128 = 1 << 63;

/// The encryption parameters of a raw stream, from the list in its BEGIN.
pub(super) fn spec(header: &Header) -> Result<RawSpec, ReceiverError> {
    let invalid = |what: String| ReceiverError::Invalid { offset_bytes: header.offset_bytes, what };
    let list = header.list.list("crypt_keydata").ok_or_else(|| invalid("a raw stream without a key".to_owned()))?;
    let word = |name: &str| list.u64(name).ok_or_else(|| invalid(format!("a key without '{name}'")));
    let small = |name: &str| {
        let number = word(name)?;
        u8::try_from(number).map_err(|_| invalid(format!("'{name}' of {number}")))
    };
    let suite = word(crypto_key::SUITE)?;
    if suite > CryptSuite::Aes256Gcm.number() {
        return Err(ReceiverError::Unsupported("raw streams of ciphers that are not known"));
    }
    let version = word(crypto_key::VERSION)?;
    if version != KEY_VERSION {
        return Err(ReceiverError::Unsupported("raw streams of another version of encryption"));
    }
    let key_format = word(crypto_key::KEY_FORMAT)?;
    let key_format = KeyFormat::from_number(key_format).ok_or_else(|| invalid(format!("keyformat {key_format}")))?;
    let (iterations, salt) = (word(crypto_key::PBKDF2_ITERATIONS)?, word(crypto_key::PBKDF2_SALT)?);
    let is_passphrase = key_format == KeyFormat::Passphrase;
    if (iterations != 0) != is_passphrase || (salt != 0) != is_passphrase {
        return Err(invalid("a key whose derivation is not that of its format".to_owned()));
    }
    let key = CryptoKeyPhys {
        suite: CryptSuite::from_number(suite).ok_or_else(|| invalid(format!("suite {suite}")))?,
        guid: Guid(word(crypto_key::GUID)?),
        version,
        root_dir: ObjectId(0),
        refcount: 1,
        key_format,
        pbkdf2_salt: salt,
        pbkdf2_iterations: iterations,
        iv: bytes(header, crypto_key::IV)?,
        mac: bytes(header, crypto_key::MAC)?,
        master_key: bytes(header, crypto_key::MASTER_KEY)?,
        hmac_key: bytes(header, crypto_key::HMAC_KEY)?,
    };
    let root = RawRoot {
        portable_mac: bytes(header, "portable_mac")?,
        checksum: small("mdn_checksum")?,
        compress: small("mdn_compress")?,
        levels: small("mdn_nlevels")?,
        block_bytes: word("mdn_blksz")?,
        indirect_shift: small("mdn_indblkshift")?,
        pointers: small("mdn_nblkptr")?,
        max_block_id: word("mdn_maxblkid")?,
    };
    let is_known = Checksum::from_number(root.checksum).is_some() && Compress::from_number(root.compress).is_some();
    if !is_known || !root.is_possible() {
        return Err(invalid("a table of objects in a form that no dataset has".to_owned()));
    }
    let optional = |name: &str| list.u64(name).unwrap_or(0);
    Ok(RawSpec { key, root, to_ivset_guid: optional("to_ivset_guid"), from_ivset_guid: optional("from_ivset_guid") })
}

fn bytes<const N: usize>(header: &Header, name: &str) -> Result<[u8; N], ReceiverError> {
    let found = header.list.list("crypt_keydata").and_then(|list| list.bytes(name));
    found.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| ReceiverError::Invalid {
        offset_bytes: header.offset_bytes,
        what: format!("a key whose '{name}' is not of {N} bytes"),
    })
}

/// The valid form of an object in a raw stream.
struct Form {
    indirect_shift: u8,
    levels: u8,
    pointers: u8,
    last_block: u64,
    seal: Seal,
}

impl Applier {
    /// Records the seal of the following objects' block of dnodes.
    pub(super) fn object_range(&mut self, range: &ObjectRange) -> Result<(), ReceiverError> {
        let first = range.first_object.0;
        let is_block = range.slot_count == SLOTS && first.is_multiple_of(SLOTS) && first < OBJECTS_END;
        if !is_block {
            return Err(
                self.invalid(format!("{} objects from {first}, which are no block of dnodes", range.slot_count))
            );
        }
        if range.flags.contains(RecordFlags::RAW_BYTESWAP) {
            return Err(ReceiverError::Unsupported(
                "raw streams of datasets that machines of both byte orders have written",
            ));
        }
        self.range = Some((first, seal(&range.sealing, range.flags)));
        Ok(())
    }

    fn form(&self, record: &Record, wanted: &Wanted, payload: &[u8]) -> Result<Form, ReceiverError> {
        let id = record.object.0;
        let range = self.range.filter(|(first, _)| id / SLOTS == first / SLOTS);
        let (_, seal) =
            range.ok_or_else(|| self.invalid(format!("object {id}, whose block of dnodes was not told of")))?;
        if record.flags.contains(RecordFlags::RAW_BYTESWAP) {
            return Err(ReceiverError::Unsupported(
                "raw streams of datasets that machines of both byte orders have written",
            ));
        }
        let is_foreign = |kind| matches!(kind, DmuType::DNODE | DmuType::OBJSET | DmuType::INTENT_LOG);
        if matches!(wanted.kind, DmuType::OBJSET | DmuType::INTENT_LOG) || is_foreign(wanted.bonus_kind) {
            return Err(self.invalid("an object of a kind that no dataset has"));
        }
        let indirect_shift = match record.indirect_block_shift {
            0 => INDIRECT_SHIFT,
            shift @ 12..=17 => shift,
            shift => return Err(self.invalid(format!("indirect blocks of 2^{shift} bytes"))),
        };
        let pointers = wanted.pointers(record.bonus_bytes as usize);
        if usize::from(record.block_pointers) != pointers {
            let count = record.block_pointers;
            return Err(self.invalid(format!("{count} pointers, where such an object has {pointers}")));
        }
        let (levels, last_block) = (record.levels, record.block_id_max);
        let width = u32::from(indirect_shift) - Blkptr::SHIFT;
        let reach = (pointers as u128) << (width * u32::from(levels.clamp(1, MAX_LEVELS) - 1)).min(100);
        // No object has enough blocks to need a higher tree, and block numbers have 64 bits.
        let is_low = width * u32::from(levels.saturating_sub(1)) < u64::BITS;
        let is_tree = (1..=MAX_LEVELS).contains(&levels) && is_low && u128::from(last_block) < reach;
        let is_sized = (u128::from(last_block) + 1) * u128::from(record.block_bytes) <= OBJECT_MAX_BYTES;
        if !is_tree || !is_sized {
            return Err(self.invalid(format!("{levels} levels for a last block of {last_block}")));
        }
        let spill = if wanted.has_spill { Blkptr::SIZE } else { 0 };
        let room = bonus_capacity_bytes(usize::from(wanted.slots)) - (pointers - 1) * Blkptr::SIZE;
        if payload.len() + spill > room || payload.len() < record.bonus_bytes as usize {
            return Err(self.invalid(format!("a bonus area of {} bytes, where {room} have room", payload.len())));
        }
        Ok(Form { indirect_shift, levels, pointers: record.block_pointers, last_block, seal })
    }

    /// Creates or changes the object of a raw stream's record. False if it has no room yet.
    pub(super) async fn put_raw_object(&mut self, record: &Record, payload: &[u8]) -> Result<bool, ReceiverError> {
        let wanted = self.wanted(record)?;
        let form = self.form(record, &wanted, payload)?;
        let bonus = &payload[..record.bonus_bytes as usize];
        let object = match self.find(record.object).await? {
            Some(object) if fits(&object, &wanted, &form) => {
                self.clear_for(&object, &wanted, &form).await?;
                let tx = self.begin(Cost::objects(1).with_bytes(u64::from(wanted.block_bytes))).await?;
                let phys = object.phys();
                if !wanted.has_spill && phys.flags.contains(DnodeFlags::SPILL_BLKPTR) {
                    object.set_spill(tx.txg(), None);
                }
                object.set_kind(tx.txg(), wanted.kind);
                object.replace_bonus(tx.txg(), wanted.bonus_kind, bonus)?;
                object.set_block_bytes(tx.txg(), wanted.block_bytes).await?;
                (object, tx)
            }
            found => {
                if let Some(object) = found {
                    self.free_object(&object).await?;
                }
                if !self.clear_slots(record.object, wanted.slots).await? {
                    return Ok(false);
                }
                let spec = ObjectSpec {
                    kind: wanted.kind,
                    block_bytes: wanted.block_bytes,
                    indirect_shift: form.indirect_shift,
                    bonus_kind: wanted.bonus_kind,
                    bonus: bonus.to_vec(),
                    slots: wanted.slots,
                    uncompressed: false,
                    has_spill: false,
                };
                let tx = self.begin(Cost::objects(1)).await?;
                (self.objset().create_at(tx.txg(), record.object, &spec)?, tx)
            }
        };
        let (object, tx) = object;
        let txg = tx.txg();
        object.set_shape(txg, form.levels, form.last_block);
        object.set_transforms(txg, record.checksum_type, record.compress);
        self.objset().seal_dnodes(txg, record.object, form.seal);
        self.objset().set_bonus_area(txg, record.object, payload.into());
        drop(tx);
        self.keep_open(object);
        Ok(true)
    }

    /// Frees the blocks that an object must not keep: all of them if the block size changes.
    async fn clear_for(&self, object: &Object, wanted: &Wanted, form: &Form) -> Result<(), ReceiverError> {
        let keeps = object.block_bytes() == u64::from(wanted.block_bytes);
        if !keeps {
            return self.shrink(object, 0).await;
        }
        match object.last_block().0 > form.last_block {
            true => self.shrink(object, form.last_block + 1).await,
            false => Ok(()),
        }
    }

    pub(super) async fn write_raw(&mut self, write: &Write, payload: &[u8]) -> Result<(), ReceiverError> {
        let data = self.sealed(write.compress, write.logical_bytes, payload, seal(&write.sealing, write.flags))?;
        let object = self.existing(write.object).await?;
        let (size, offset) = (object.block_bytes(), write.offset_bytes);
        if size != write.logical_bytes || !offset.is_multiple_of(size) || offset / size > object.last_block().0 {
            let what = format!("an encrypted block of {} bytes at {offset}, where none stands", write.logical_bytes);
            return Err(self.invalid(what));
        }
        let tx = self.begin(Cost::write(offset, size, size)).await?;
        object.write_ready(tx.txg(), offset / size, data);
        Ok(())
    }

    pub(super) async fn spill_raw(&mut self, spill: &Spill, payload: &[u8]) -> Result<(), ReceiverError> {
        let object = self.existing(spill.object).await?;
        let has = object.phys().flags.contains(DnodeFlags::SPILL_BLKPTR);
        // Unchanged: the stream has it for receivers that have lost theirs.
        if spill.flags.contains(RecordFlags::SPILL) && has {
            return Ok(());
        }
        if spill.length_bytes > PLAIN_BLOCK_MAX_BYTES || !object.has_room_for_spill() {
            return Err(self.invalid(format!("a spill block of {} bytes that has no room", spill.length_bytes)));
        }
        let data = self.sealed(spill.compress, spill.length_bytes, payload, seal(&spill.sealing, spill.flags))?;
        let tx = self.begin(Cost::objects(1).with_bytes(spill.length_bytes)).await?;
        object.set_ready_spill(tx.txg(), data);
        Ok(())
    }

    /// A block in its stored form.
    fn sealed(&self, compress: u8, logical: u64, payload: &[u8], seal: Seal) -> Result<ReadyBlock, ReceiverError> {
        self.check_block_size(logical)?;
        let compress = match Compress::from_number(compress) {
            Some(Compress::Off) => Compress::Off,
            _ => {
                let found = super::apply::compression(compress).filter(|compress| self.may_have(*compress));
                found.ok_or_else(|| self.invalid("a compression that the stream's features do not allow"))?
            }
        };
        let len = payload.len() as u64;
        let is_sized = len > 0 && len.is_multiple_of(512) && logical.is_multiple_of(512) && len <= logical;
        if !is_sized || (compress == Compress::Off && len != logical) {
            return Err(self.invalid(format!("{len} stored bytes for a block of {logical}")));
        }
        let form = ReadyForm { compress, logical_bytes: logical as u32, seal: Some(seal), is_redacted: false };
        Ok(ReadyBlock { bytes: Block::copied_from(payload), form })
    }

    /// Makes a range of an object a hole. The object keeps the length in its record, since a MAC covers that.
    pub(super) async fn free_raw(&self, object: &Object, bytes: Range<u64>) -> Result<(), ReceiverError> {
        let (size, last) = (object.block_bytes(), object.last_block().0);
        let end = bytes.end / size;
        if !bytes.start.is_multiple_of(size) || (!bytes.end.is_multiple_of(size) && end <= last) {
            return Err(self.invalid("a hole in an encrypted object that is not made of whole blocks"));
        }
        self.free_blocks(object, bytes.start / size..end.min(last + 1)).await
    }
}

/// True if an object can take the record's form in place.
fn fits(object: &Object, wanted: &Wanted, form: &Form) -> bool {
    let phys = object.phys();
    let levels = |phys: &DnodePhys| phys.levels;
    let high = object.synced().map_or(0, |synced| levels(&synced)).max(phys.levels);
    phys.slots() == usize::from(wanted.slots)
        && phys.blkptr_count == form.pointers
        && phys.indirect_block_shift == form.indirect_shift
        && high <= form.levels
}

/// A record's seal. The byte order is the stream's, or the other one.
const fn seal(sealing: &Sealing, flags: RecordFlags) -> Seal {
    let order = if flags.contains(RecordFlags::RAW_BYTESWAP) { Endian::Big } else { Endian::Little };
    Seal { order, salt: sealing.salt, iv: sealing.iv, mac: sealing.mac }
}
