//! The attributes that file systems use.

use super::{SaAttribute, SaByteswap};

macro_rules! zpl_attributes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal, $length:literal, $kind:ident;)*) => {
        /// An attribute of a file system's objects. The discriminant is its place in the usual order, which is its number
        /// in datasets that registered them all at once; [`super::SaRegistry::zpl`] has the number in a given dataset.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum ZplAttribute { $($(#[$doc])* $variant = $number,)* }

        impl ZplAttribute {
            /// All, in the usual order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The name in the registry.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The attribute with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }

            /// The registry's description, under `number`.
            #[must_use]
            pub const fn describe(self, number: u16) -> SaAttribute {
                match self {
                    $(Self::$variant => SaAttribute { number, length_bytes: $length, byteswap: SaByteswap::$kind },)*
                }
            }
        }
    };
}

zpl_attributes! {
    /// Access time: seconds, nanoseconds.
    Atime = 0, "ZPL_ATIME", 16, U64s;
    /// Modification time.
    Mtime = 1, "ZPL_MTIME", 16, U64s;
    /// Change time.
    Ctime = 2, "ZPL_CTIME", 16, U64s;
    /// Creation time.
    Crtime = 3, "ZPL_CRTIME", 16, U64s;
    /// Generation: the txg of creation.
    Gen = 4, "ZPL_GEN", 8, U64s;
    /// Type and permission bits.
    Mode = 5, "ZPL_MODE", 8, U64s;
    /// Size in bytes; for a directory, its number of entries and 2 more.
    Size = 6, "ZPL_SIZE", 8, U64s;
    /// The directory that holds it.
    Parent = 7, "ZPL_PARENT", 8, U64s;
    /// Number of links.
    Links = 8, "ZPL_LINKS", 8, U64s;
    /// The directory of its extended attributes; 0 if none.
    Xattr = 9, "ZPL_XATTR", 8, U64s;
    /// Device number.
    Rdev = 10, "ZPL_RDEV", 8, U64s;
    /// Flags (the bits of a znode).
    Flags = 11, "ZPL_FLAGS", 8, U64s;
    /// Owner.
    Uid = 12, "ZPL_UID", 8, U64s;
    /// Group.
    Gid = 13, "ZPL_GID", 8, U64s;
    /// Unused words of the old fixed structure.
    Pad = 14, "ZPL_PAD", 32, U64s;
    /// The old fixed structure's ACL.
    ZnodeAcl = 15, "ZPL_ZNODE_ACL", 88, Bytes;
    /// Number of access control entries.
    DaclCount = 16, "ZPL_DACL_COUNT", 8, U64s;
    /// A symbolic link's target.
    Symlink = 17, "ZPL_SYMLINK", 0, Bytes;
    /// A virus scanner's mark.
    Scanstamp = 18, "ZPL_SCANSTAMP", 32, Bytes;
    /// Access control entries.
    DaclAces = 19, "ZPL_DACL_ACES", 0, Acl;
    /// Extended attributes as packed name-value list.
    Dxattr = 20, "ZPL_DXATTR", 0, Bytes;
    /// Project.
    Projid = 21, "ZPL_PROJID", 8, U64s;
    /// Sequence number of changes.
    Seq = 22, "ZPL_SEQ", 8, U64s;
}

impl ZplAttribute {
    /// The sixteen of the old fixed structure, in its order.
    pub(crate) const LEGACY: &'static [Self] = Self::ALL.split_at(16).0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_legacy_attributes_fill_the_old_structure_exactly() {
        let total: usize = ZplAttribute::LEGACY.iter().map(|known| usize::from(known.describe(0).length_bytes)).sum();
        assert_eq!(total, 264);
        for (index, known) in ZplAttribute::ALL.iter().enumerate() {
            assert_eq!(*known as usize, index);
            assert_eq!(ZplAttribute::from_name(known.name()), Some(*known));
        }
    }
}
