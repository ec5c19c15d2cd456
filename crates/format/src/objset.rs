//! Objsets: a numbered set of objects with its intent log; the root of a dataset, and of the pool.
//!
//! ```text
//!     0             512           704    712     720          752         784       1024
//!   +-------------+-------------+------+-------+------------+-----------+---------+
//!   | meta-dnode  | zil header  | type | flags | portable   | local MAC | zero    |   version 1: 1024 bytes
//!   |             |             |      |       | MAC        |           |         |
//!   +-------------+-------------+------+-------+------------+-----------+---------+
//!  1024          1536          2048          2560                              4096
//!   +-------------+-------------+-------------+----------------------------------+
//!   | userused    | groupused   | projectused | zero                             |
//!   | dnode       | dnode       | dnode       |                                  |
//!   +-------------+-------------+-------------+----------------------------------+
//!                 version 2 ends ^                              version 3 ends ^
//! ```
//!
//! The meta-dnode's data is the array of all dnodes of the objset. The accounting dnodes are ZAPs outside that array.

use bitflags::bitflags;

use crate::dnode::{DnodePhys, SLOT_BYTES};
use crate::endian::{Endian, Fields, put_u64};
use crate::enums::ObjsetType;
use crate::error::FormatError;
use crate::zil_header::ZilHeader;

const NAME: &str = "objset";

const META_DNODE: usize = 0;
const ZIL_HEADER: usize = META_DNODE + SLOT_BYTES;
const TYPE: usize = ZIL_HEADER + ZilHeader::SIZE_BYTES;
const FLAGS: usize = TYPE + 8;
const PORTABLE_MAC: usize = FLAGS + 8;
const LOCAL_MAC: usize = PORTABLE_MAC + MAC_BYTES;
const USERUSED: usize = 1024;
const GROUPUSED: usize = USERUSED + SLOT_BYTES;
const PROJECTUSED: usize = GROUPUSED + SLOT_BYTES;

/// Bytes of each of the two MACs.
pub const MAC_BYTES: usize = 32;

const _: () = assert!(TYPE == 704 && LOCAL_MAC == 752 && PROJECTUSED == ObjsetVersion::V2.bytes());

bitflags! {
    /// Flags of an objset.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ObjsetFlags: u64 {
        /// Space is accounted to users and groups for all objects.
        const USERACCOUNTING_COMPLETE = 1 << 0;
        /// Object counts are, too.
        const USEROBJACCOUNTING_COMPLETE = 1 << 1;
        /// Projects are, too.
        const PROJECTQUOTA_COMPLETE = 1 << 2;
        /// Bits of a later version.
        const _ = !0;
    }
}

/// The sizes an objset may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjsetVersion {
    /// No accounting (before pool version 15; also the MOS of many pools).
    V1,
    /// With user and group accounting.
    V2,
    /// With project accounting.
    V3,
}

impl ObjsetVersion {
    /// Bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::V1 => 1024,
            Self::V2 => 2048,
            Self::V3 => 4096,
        }
    }
}

/// An objset (`objset_phys_t`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjsetPhys {
    /// Which of the three sizes.
    pub version: ObjsetVersion,
    /// The dnode of the array of dnodes.
    pub meta_dnode: DnodePhys,
    /// The intent log.
    pub zil_header: ZilHeader,
    /// The type's number; see [`Self::objset_type`].
    pub type_number: u64,
    /// The flags.
    pub flags: ObjsetFlags,
    /// MAC over what a raw send keeps.
    pub portable_mac: [u8; MAC_BYTES],
    /// MAC over what is local to the pool: the accounting dnodes.
    pub local_mac: [u8; MAC_BYTES],
    /// Space and objects by user.
    pub userused_dnode: Option<DnodePhys>,
    /// By group.
    pub groupused_dnode: Option<DnodePhys>,
    /// By project.
    pub projectused_dnode: Option<DnodePhys>,
}

impl ObjsetPhys {
    /// From a whole objset block. The length decides the version: 4096 and more, 2048 and more, 1024 and more.
    pub fn parse(bytes: &[u8], endian: Endian) -> Result<Self, FormatError> {
        let fields = Fields::new(NAME, bytes, ObjsetVersion::V1.bytes(), endian)?;
        let version = match bytes.len() {
            4096.. => ObjsetVersion::V3,
            2048.. => ObjsetVersion::V2,
            _ => ObjsetVersion::V1,
        };
        // A dnode here has one slot; handing over no more than that keeps it from claiming others.
        let dnode = |offset: usize, least: ObjsetVersion| {
            if version < least {
                return Ok(None);
            }
            DnodePhys::parse_slot(fields.slice(offset, SLOT_BYTES)?, endian).map_err(|error| within(error, offset))
        };
        Ok(Self {
            version,
            meta_dnode: dnode(META_DNODE, ObjsetVersion::V1)?
                .ok_or_else(|| FormatError::malformed(NAME, META_DNODE, "no meta-dnode"))?,
            zil_header: ZilHeader::parse(fields.slice(ZIL_HEADER, ZilHeader::SIZE_BYTES)?, endian)?,
            type_number: fields.u64(TYPE)?,
            flags: ObjsetFlags::from_bits_retain(fields.u64(FLAGS)?),
            portable_mac: fields.array(PORTABLE_MAC)?,
            local_mac: fields.array(LOCAL_MAC)?,
            userused_dnode: dnode(USERUSED, ObjsetVersion::V2)?,
            groupused_dnode: dnode(GROUPUSED, ObjsetVersion::V2)?,
            projectused_dnode: dnode(PROJECTUSED, ObjsetVersion::V3)?,
        })
    }

    /// The bytes, in the byte order of the meta-dnode.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let endian = self.endian();
        let mut out = vec![0; self.version.bytes()];
        let dnodes = [
            (META_DNODE, Some(&self.meta_dnode)),
            (USERUSED, self.userused_dnode.as_ref()),
            (GROUPUSED, self.groupused_dnode.as_ref()),
            (PROJECTUSED, self.projectused_dnode.as_ref()),
        ];
        for (offset, dnode) in dnodes {
            if let Some(dnode) = dnode {
                assert_eq!(dnode.endian, endian, "one byte order within an objset");
                out[offset..offset + SLOT_BYTES].copy_from_slice(&dnode.emit());
            }
        }
        out[ZIL_HEADER..ZIL_HEADER + ZilHeader::SIZE_BYTES].copy_from_slice(&self.zil_header.emit(endian));
        put_u64(&mut out, TYPE, self.type_number, endian);
        put_u64(&mut out, FLAGS, self.flags.bits(), endian);
        out[PORTABLE_MAC..PORTABLE_MAC + MAC_BYTES].copy_from_slice(&self.portable_mac);
        out[LOCAL_MAC..LOCAL_MAC + MAC_BYTES].copy_from_slice(&self.local_mac);
        out
    }

    /// The byte order of the objset.
    #[must_use]
    pub fn endian(&self) -> Endian {
        self.meta_dnode.endian
    }

    /// The kind of the dataset, if known.
    #[must_use]
    pub fn objset_type(&self) -> Option<ObjsetType> {
        u8::try_from(self.type_number).ok().and_then(ObjsetType::from_number)
    }
}

fn within(error: FormatError, offset: usize) -> FormatError {
    FormatError { structure: NAME, offset: error.offset + offset, kind: error.kind }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::blkptr::Blkptr;
    use crate::dnode::tests::any_dnode;
    use crate::ids::Txg;

    fn one_slot(endian: Endian) -> impl Strategy<Value = DnodePhys> {
        any_dnode(endian).prop_map(|mut dnode| {
            dnode.extra_slots = 0;
            dnode.bonus = Box::new([]);
            dnode.blkptr_count = 1;
            dnode.blkptrs[1..].fill(Blkptr::HOLE);
            dnode
        })
    }

    fn any_objset(endian: Endian) -> impl Strategy<Value = ObjsetPhys> {
        let dnodes = (one_slot(endian), proptest::option::of(one_slot(endian)), proptest::option::of(one_slot(endian)));
        (dnodes, 0usize..3, any::<[u64; 4]>(), any::<[u8; 64]>()).prop_map(
            |((meta, user, group), version, numbers, macs)| {
                let version = [ObjsetVersion::V1, ObjsetVersion::V2, ObjsetVersion::V3][version];
                ObjsetPhys {
                    version,
                    projectused_dnode: group.clone().filter(|_| version >= ObjsetVersion::V3),
                    meta_dnode: meta,
                    zil_header: ZilHeader {
                        claim_txg: Txg(numbers[0]),
                        replay_seq: numbers[1],
                        ..ZilHeader::default()
                    },
                    type_number: numbers[2],
                    flags: ObjsetFlags::from_bits_retain(numbers[3]),
                    portable_mac: macs[..32].try_into().unwrap(),
                    local_mac: macs[32..].try_into().unwrap(),
                    userused_dnode: user.filter(|_| version >= ObjsetVersion::V2),
                    groupused_dnode: group.filter(|_| version >= ObjsetVersion::V2),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn objsets_of_all_versions_round_trip(little in any_objset(Endian::Little), big in any_objset(Endian::Big)) {
            for objset in [little, big] {
                let bytes = objset.emit();
                prop_assert_eq!(bytes.len(), objset.version.bytes());
                prop_assert_eq!(ObjsetPhys::parse(&bytes, objset.endian()).unwrap(), objset);
            }
        }
    }

    #[test]
    fn zeros_and_short_blocks_are_errors() {
        assert!(ObjsetPhys::parse(&[0; 4096], Endian::Little).is_err());
        assert!(ObjsetPhys::parse(&[0; 1023], Endian::Little).is_err());
    }
}
