//! The two MACs inside an objset block.
//!
//! ```text
//! +0     meta-dnode            +712   flags               +1024  user accounting dnode
//! +512   intent log header     +720   portable MAC (32)   +1536  group accounting dnode
//! +704   type                  +752   local MAC (32)      +2048  project accounting dnode (4096-byte form)
//! ```
//!
//! The portable MAC covers the type, the portable flags (there are none yet) and the meta-dnode: the root of the tree of
//! MACs. The local MAC covers the other flags and the accounting dnodes, which a raw send leaves behind. The intent log
//! header is under neither: claiming changes it without a key, and writes the block in its own machine's order, so the
//! MACs see every field in one fixed order.

use cenote_format::Endian;
use cenote_format::endian::{Fields, put_u16, put_u64};
use hmac::{Hmac, Mac};
use sha2::Sha512;
use subtle::ConstantTimeEq;

use super::block::{DNODE_BYTES, DnodeParts, portable_core};
use super::pointers::Entry;
use super::{CryptError, DatasetKey};

const OBJSET_MAC_BYTES: usize = 32;
const META_DNODE_AT: usize = 0;
const TYPE_AT: usize = 704;
const FLAGS_AT: usize = 712;
const PORTABLE_MAC_AT: usize = 720;
const LOCAL_MAC_AT: usize = 752;
const USER_DNODE_AT: usize = 1024;
const GROUP_DNODE_AT: usize = 1536;
const PROJECT_DNODE_AT: usize = 2048;
/// The three sizes an objset block has had.
const BYTES_V1: usize = 1024;
const BYTES_V2: usize = 2048;
const BYTES_V3: usize = 4096;

/// Flags that a raw send carries. None so far.
const PORTABLE_FLAGS: u64 = 0;
/// Flag: the accounting dnodes are complete.
const ACCOUNTING_COMPLETE: u64 = 1;

struct Macs {
    portable: [u8; OBJSET_MAC_BYTES],
    /// Zeros where there is no accounting to protect.
    local: [u8; OBJSET_MAC_BYTES],
}

impl DatasetKey {
    /// Checks the MACs inside an objset block that is in `order`.
    pub fn verify_objset(&self, objset: &[u8], order: Endian) -> Result<(), CryptError> {
        verify(self, objset, order)
    }

    /// Puts the MACs into an objset block that is in `order`.
    pub fn seal_objset(&self, objset: &mut [u8], order: Endian) -> Result<(), CryptError> {
        seal(self, objset, order)
    }
}

/// See [`DatasetKey::verify_objset`].
fn verify(key: &DatasetKey, objset: &[u8], order: Endian) -> Result<(), CryptError> {
    let macs = compute(key, objset, order)?;
    let portable = macs.portable.ct_eq(&objset[PORTABLE_MAC_AT..LOCAL_MAC_AT]);
    // Without accounting the local MAC is stale: OpenZFS accepts it, since it will be rebuilt.
    let local = macs.local.ct_eq(&objset[LOCAL_MAC_AT..LOCAL_MAC_AT + OBJSET_MAC_BYTES])
        | macs.local.ct_eq(&[0; OBJSET_MAC_BYTES]);
    if bool::from(portable & local) { Ok(()) } else { Err(CryptError::Authentication) }
}

/// See [`DatasetKey::seal_objset`].
fn seal(key: &DatasetKey, objset: &mut [u8], order: Endian) -> Result<(), CryptError> {
    let macs = compute(key, objset, order)?;
    objset[PORTABLE_MAC_AT..LOCAL_MAC_AT].copy_from_slice(&macs.portable);
    objset[LOCAL_MAC_AT..LOCAL_MAC_AT + OBJSET_MAC_BYTES].copy_from_slice(&macs.local);
    Ok(())
}

/// Computes both. `objset` is at least the smallest form's length when this succeeds.
fn compute(key: &DatasetKey, objset: &[u8], order: Endian) -> Result<Macs, CryptError> {
    let malformed = CryptError::Malformed { structure: "objset", rule: "cut short" };
    let fields = Fields::new("objset", objset, BYTES_V1, order).map_err(|_| malformed)?;
    let object_type = fields.u64(TYPE_AT).map_err(|_| malformed)?;
    let flags = fields.u64(FLAGS_AT).map_err(|_| malformed)?;

    let mut portable = key.hmac();
    // The one field in big-endian order.
    portable.update(&object_type.to_be_bytes());
    portable.update(&(flags & PORTABLE_FLAGS).to_le_bytes());
    add_dnode(&mut portable, &objset[META_DNODE_AT..META_DNODE_AT + DNODE_BYTES], order, key.version())?;
    let portable = first_half(portable);

    let dnode = |at: usize| objset.get(at..at + DNODE_BYTES).filter(|dnode| dnode[0] != 0);
    let (user, group) = (dnode(USER_DNODE_AT), dnode(GROUP_DNODE_AT));
    let project = dnode(PROJECT_DNODE_AT).filter(|_| objset.len() >= BYTES_V3);
    let has_accounting = objset.len() >= BYTES_V2 && (user.is_some() || group.is_some());
    if flags & ACCOUNTING_COMPLETE == 0 || !has_accounting {
        return Ok(Macs { portable, local: [0; OBJSET_MAC_BYTES] });
    }
    let mut local = key.hmac();
    local.update(&(flags & !PORTABLE_FLAGS).to_le_bytes());
    for dnode in [user, group, project].into_iter().flatten() {
        add_dnode(&mut local, dnode, order, key.version())?;
    }
    Ok(Macs { portable, local: first_half(local) })
}

/// A dnode's core, its multi-byte fields little-endian, and its pointers. The objset's dnodes have no bonus buffer.
fn add_dnode(hmac: &mut Hmac<Sha512>, dnode: &[u8], order: Endian, version: u64) -> Result<(), CryptError> {
    let parts = DnodeParts::new(dnode)?;
    let mut core = portable_core(dnode);
    let malformed = |_| CryptError::Malformed { structure: "dnode", rule: "cut short" };
    let fields = Fields::new("dnode", dnode, DNODE_BYTES, order).map_err(malformed)?;
    // Data block size and bonus length, then the highest block id.
    for at in [8, 10] {
        put_u16(&mut core, at, fields.u16(at).map_err(malformed)?, Endian::Little);
    }
    put_u64(&mut core, 16, fields.u64(16).map_err(malformed)?, Endian::Little);
    hmac.update(&core);
    for pointer in parts.pointers(dnode) {
        hmac.update(Entry::new(pointer, order, version).bytes());
    }
    Ok(())
}

fn first_half(hmac: Hmac<Sha512>) -> [u8; OBJSET_MAC_BYTES] {
    let mut half = [0; OBJSET_MAC_BYTES];
    half.copy_from_slice(&hmac.finalize().into_bytes()[..OBJSET_MAC_BYTES]);
    half
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypt::CryptSuite;
    use cenote_format::ids::Guid;

    fn key() -> DatasetKey {
        DatasetKey::generate(CryptSuite::Aes256Gcm, Guid(5), &mut |bytes| bytes.fill(0x42)).unwrap()
    }

    /// An objset with a meta-dnode and accounting dnodes of one pointer each.
    fn objset(order: Endian) -> Vec<u8> {
        let mut block = vec![0; BYTES_V3];
        put_u64(&mut block, TYPE_AT, 2, order);
        put_u64(&mut block, FLAGS_AT, 7, order);
        for (at, object_type) in
            [(META_DNODE_AT, 10), (USER_DNODE_AT, 39), (GROUP_DNODE_AT, 39), (PROJECT_DNODE_AT, 39)]
        {
            block[at..at + 8].copy_from_slice(&[object_type, 17, 1, 1, 0, 0, 0, 3]);
            put_u16(&mut block, at + 8, 32, order);
            put_u64(&mut block, at + 16, 5, order);
            put_u64(&mut block, at + 24, 9999, order);
            put_u64(&mut block, at + 64, 1234, order);
            put_u64(&mut block, at + 64 + 48, 1 << 63 | 1 << 61 | 10 << 48 | 255, order);
            put_u64(&mut block, at + 64 + 112, 0x1122_3344_5566_7788, order);
        }
        block
    }

    #[test]
    fn the_macs_are_the_same_in_both_orders() {
        let (mut little, mut big) = (objset(Endian::Little), objset(Endian::Big));
        key().seal_objset(&mut little, Endian::Little).unwrap();
        key().seal_objset(&mut big, Endian::Big).unwrap();
        assert_eq!(little[PORTABLE_MAC_AT..LOCAL_MAC_AT + 32], big[PORTABLE_MAC_AT..LOCAL_MAC_AT + 32]);
        key().verify_objset(&little, Endian::Little).unwrap();
        key().verify_objset(&big, Endian::Big).unwrap();
        assert!(key().verify_objset(&big, Endian::Little).is_err());
    }

    #[test]
    fn alterations_are_noticed_except_where_they_are_allowed() {
        let order = Endian::Little;
        let mut block = objset(order);
        key().seal_objset(&mut block, order).unwrap();
        for (at, noticed) in [
            (0, true),
            (24, false),
            (64, false),
            (64 + 48, true),
            (64 + 112, true),
            (512, false),
            (TYPE_AT, true),
            (FLAGS_AT, true),
            (PORTABLE_MAC_AT, true),
            (LOCAL_MAC_AT, true),
            (USER_DNODE_AT + 16, true),
            (GROUP_DNODE_AT + 64 + 112, true),
            (PROJECT_DNODE_AT + 64 + 112, true),
            (PROJECT_DNODE_AT + 512, false),
        ] {
            let mut altered = block.clone();
            altered[at] ^= 2;
            assert_eq!(key().verify_objset(&altered, order).is_err(), noticed, "byte {at}");
        }
    }

    #[test]
    fn without_accounting_the_local_mac_is_zero_and_a_stale_one_is_accepted() {
        let order = Endian::Little;
        for (at, value) in [(FLAGS_AT, 6), (usize::MAX, 0)] {
            let mut block = objset(order);
            if at == FLAGS_AT {
                block[at] = value;
            } else {
                block[USER_DNODE_AT] = 0;
                block[GROUP_DNODE_AT] = 0;
            }
            key().seal_objset(&mut block, order).unwrap();
            assert_eq!(block[LOCAL_MAC_AT..LOCAL_MAC_AT + 32], [0; 32]);
            block[LOCAL_MAC_AT] = 1;
            key().verify_objset(&block, order).unwrap();
        }
        let mut old = objset(order);
        old.truncate(BYTES_V1);
        key().seal_objset(&mut old, order).unwrap();
        key().verify_objset(&old, order).unwrap();
    }

    #[test]
    fn short_and_lying_objsets_are_errors() {
        for len in [0, 511, 1023] {
            assert!(matches!(key().verify_objset(&vec![0; len], Endian::Big), Err(CryptError::Malformed { .. })));
        }
        for (at, value) in [(3, 4), (12, 1), (12, 255), (USER_DNODE_AT + 3, 200)] {
            let mut block = objset(Endian::Little);
            block[at] = value;
            let result = key().verify_objset(&block, Endian::Little);
            assert!(matches!(result, Err(CryptError::Malformed { .. })), "{at} {result:?}");
        }
    }
}
