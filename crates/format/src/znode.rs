//! The fixed structure that held a file's metadata before system attributes (ZPL versions below 5), and a file's flags,
//! which both forms share.
//!
//! ```text
//!   0  access time (2 words)     64  generation        112  device number     144  unused (4 words)
//!  16  modification time         72  mode              120  flags             176  ACL (88 bytes)
//!  32  change time               80  size              128  owner             264  a symbolic link's target, or
//!  48  creation time             88  parent            136  group                  a virus scanner's mark (32 bytes)
//!                                96  links
//!                               104  extended attributes' directory
//! ```

use crate::acl::AclPhys;
use crate::endian::{Endian, Fields};
use crate::error::FormatError;
use crate::ids::{ObjectId, Txg};
use crate::words::{one_field, word_struct};

bitflags::bitflags! {
    /// A file's persistent flags (`ZPL_FLAGS`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ZnodeFlags: u64 {
        /// It is an extended attribute or a directory of them.
        const XATTR = 0x1;
        /// Its ACL has inheritable entries.
        const INHERIT_ACE = 0x2;
        /// Its ACL says no more than its mode.
        const ACL_TRIVIAL = 0x4;
        /// Its ACL has entries with object types.
        const ACL_OBJECT_ACE = 0x8;
        /// Its ACL is protected from inheritance.
        const ACL_PROTECTED = 0x10;
        /// Its ACL came by default.
        const ACL_DEFAULTED = 0x20;
        /// Its ACL is to be inherited.
        const ACL_AUTO_INHERIT = 0x40;
        /// A virus scanner's mark follows the fixed structure.
        const BONUS_SCANSTAMP = 0x80;
        /// Nobody is denied execution.
        const NO_EXECS_DENIED = 0x100;
        /// DOS: read-only.
        const READONLY = 0x1_0000_0000;
        /// DOS: hidden.
        const HIDDEN = 0x2_0000_0000;
        /// DOS: system.
        const SYSTEM = 0x4_0000_0000;
        /// DOS: archive.
        const ARCHIVE = 0x8_0000_0000;
        /// Cannot be changed.
        const IMMUTABLE = 0x10_0000_0000;
        /// Cannot be unlinked.
        const NO_UNLINK = 0x20_0000_0000;
        /// Can only be appended to.
        const APPEND_ONLY = 0x40_0000_0000;
        /// Not to be dumped.
        const NO_DUMP = 0x80_0000_0000;
        /// Opaque.
        const OPAQUE = 0x100_0000_0000;
        /// Quarantined by a virus scanner.
        const AV_QUARANTINED = 0x200_0000_0000;
        /// Changed since a virus scan.
        const AV_MODIFIED = 0x400_0000_0000;
        /// A reparse point.
        const REPARSE = 0x800_0000_0000;
        /// DOS: offline.
        const OFFLINE = 0x1000_0000_0000;
        /// DOS: sparse.
        const SPARSE = 0x2000_0000_0000;
        /// New children get its project.
        const PROJECT_INHERIT = 0x4000_0000_0000;
        /// It has a project.
        const PROJECT_ID = 0x8000_0000_0000;
        /// Unknown bits are kept.
        const _ = !0;
    }
}

one_field! { ZnodeFlags as u64: |word| Self::from_bits_retain(word), |value| value.bits(); }

word_struct! {
    /// The words before the ACL.
    ZnodePhys("znode", 176) {
        /// Access time: seconds and nanoseconds.
        atime: [u64; 2],
        /// Modification time.
        mtime: [u64; 2],
        /// Change time.
        ctime: [u64; 2],
        /// Creation time.
        crtime: [u64; 2],
        /// The txg of creation.
        generation: Txg,
        /// Type and permission bits.
        mode: u64,
        /// Size in bytes.
        size_bytes: u64,
        /// The directory that holds it.
        parent: ObjectId,
        /// Number of links.
        links: u64,
        /// The directory of its extended attributes.
        xattr_dir: ObjectId,
        /// Device number.
        rdev: u64,
        /// Flags.
        flags: ZnodeFlags,
        /// Owner.
        uid: u64,
        /// Group.
        gid: u64,
        /// Unused.
        pad: [u64; 4],
    }
}

impl ZnodePhys {
    /// The size with the ACL.
    pub const WITH_ACL_SIZE_BYTES: usize = Self::SIZE_BYTES + AclPhys::SIZE_BYTES;

    /// The ACL of a whole bonus.
    pub(crate) fn acl(bonus: &[u8], endian: Endian) -> Result<AclPhys, FormatError> {
        let fields = Fields::new("znode", bonus, Self::WITH_ACL_SIZE_BYTES, endian)?;
        AclPhys::parse(fields.slice(Self::SIZE_BYTES, AclPhys::SIZE_BYTES)?, endian)
    }

    /// The bytes after the structure in the bonus: a symbolic link's target, if it is not longer than this.
    #[must_use]
    pub(crate) fn tail(bonus: &[u8]) -> &[u8] {
        bonus.get(Self::WITH_ACL_SIZE_BYTES..).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sa::{SaLayout, SaRegistry, SaView, ZplAttribute};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_structure_reads_the_same_as_layout_0(bytes in proptest::collection::vec(any::<u8>(), 264..320), big in any::<bool>()) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let znode = ZnodePhys::parse(&bytes, endian).unwrap();
            prop_assert_eq!(&znode.emit(endian)[..], &bytes[..176]);
            let registry = SaRegistry::legacy();
            let layout = SaLayout::legacy();
            let view = SaView::legacy(&bytes, endian, &layout).unwrap();
            let number = |attribute| registry.zpl(attribute).unwrap();
            prop_assert_eq!(view.u64(number(ZplAttribute::Mode)).unwrap(), Some(znode.mode));
            prop_assert_eq!(view.u64(number(ZplAttribute::Gid)).unwrap(), Some(znode.gid));
            prop_assert_eq!(view.u64_pair(number(ZplAttribute::Crtime)).unwrap(), Some(znode.crtime));
            let acl = view.find(number(ZplAttribute::ZnodeAcl)).unwrap().unwrap();
            prop_assert_eq!(ZnodePhys::acl(&bytes, endian), AclPhys::parse(acl, endian));
            prop_assert_eq!(ZnodePhys::tail(&bytes), &bytes[264..]);
        }
    }
}
