//! The small numbers that name algorithms and object types on disk.
//!
//! Each enumeration is open: an unknown number parses to `None`, and the caller decides whether that is an error.
//! Numbers and names: OpenZFS `include/sys/zio.h`, `include/sys/dmu.h`, `include/sys/spa.h`.

/// Declares an enumeration by its numbers on disk.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident: $repr:ident { $($(#[$vdoc:meta])* $variant:ident = $number:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr($repr)]
        pub enum $name { $($(#[$vdoc])* $variant = $number,)* }

        impl $name {
            /// Every known member, in the order of the numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The member with this number, if known.
            #[must_use]
            pub const fn from_number(number: $repr) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }

            /// The number on disk.
            #[must_use]
            pub const fn number(self) -> $repr {
                self as $repr
            }
        }
    };
}
pub(crate) use numbered;

/// Declares an enumeration by its numbers on disk, with the names that OpenZFS prints.
macro_rules! disk_enum {
    ($(#[$doc:meta])* $name:ident: $repr:ident {
        $($(#[$vdoc:meta])* $variant:ident = $number:literal, $text:literal;)*
    }) => {
        $crate::enums::numbered! { $(#[$doc])* $name: $repr { $($(#[$vdoc])* $variant = $number;)* } }

        impl $name {
            /// The name that OpenZFS prints.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
pub(crate) use disk_enum;

disk_enum! {
    /// How a block is checksummed (`enum zio_checksum`).
    Checksum: u8 {
        /// Inherit from the parent dataset (property only, not in block pointers).
        Inherit = 0, "inherit";
        /// The default algorithm (property only).
        On = 1, "on";
        /// None at all.
        Off = 2, "noparity_off";
        /// SHA-256 embedded in a label (self-checksumming, seeded by offset).
        Label = 3, "label";
        /// SHA-256 embedded in a gang header.
        GangHeader = 4, "gang_header";
        /// Fletcher-2 embedded in an old intent log block.
        Zilog = 5, "zilog";
        /// Fletcher-2, 4 lanes of 64-bit words.
        Fletcher2 = 6, "fletcher2";
        /// Fletcher-4, 32-bit words; the default.
        Fletcher4 = 7, "fletcher4";
        /// SHA-256.
        Sha256 = 8, "sha256";
        /// Fletcher-4 embedded in an intent log block that may be shorter than allocated.
        Zilog2 = 9, "zilog2";
        /// No checksum, for data that needs no parity either.
        NoParity = 10, "noparity";
        /// SHA-512 truncated to 256 bits.
        Sha512 = 11, "sha512";
        /// Skein-512-256, keyed by the pool's salt.
        Skein = 12, "skein";
        /// Edon-R-512 truncated to 256 bits, prefixed by the expanded salt.
        Edonr = 13, "edonr";
        /// BLAKE3, keyed by the pool's salt.
        Blake3 = 14, "blake3";
    }
}

disk_enum! {
    /// How a block is compressed (`enum zio_compress`).
    Compress: u8 {
        /// Inherit from the parent dataset (property only).
        Inherit = 0, "inherit";
        /// The default algorithm (property only).
        On = 1, "on";
        /// Stored as it is.
        Off = 2, "uncompressed";
        /// LZJB.
        Lzjb = 3, "lzjb";
        /// The block was all zeros (never stored).
        Empty = 4, "empty";
        /// gzip (zlib stream) level 1.
        Gzip1 = 5, "gzip-1";
        /// Level 2.
        Gzip2 = 6, "gzip-2";
        /// Level 3.
        Gzip3 = 7, "gzip-3";
        /// Level 4.
        Gzip4 = 8, "gzip-4";
        /// Level 5.
        Gzip5 = 9, "gzip-5";
        /// Level 6.
        Gzip6 = 10, "gzip-6";
        /// Level 7.
        Gzip7 = 11, "gzip-7";
        /// Level 8.
        Gzip8 = 12, "gzip-8";
        /// Level 9.
        Gzip9 = 13, "gzip-9";
        /// Zero-length encoding.
        Zle = 14, "zle";
        /// LZ4 with a 4-byte big-endian length in front.
        Lz4 = 15, "lz4";
        /// zstd with ZFS's 8-byte header in front.
        Zstd = 16, "zstd";
    }
}

disk_enum! {
    /// Kinds of objset (`dmu_objset_type_t`).
    ObjsetType: u8 {
        /// None.
        None = 0, "none";
        /// The meta objset.
        Meta = 1, "META";
        /// A file system.
        Zfs = 2, "ZPL";
        /// A volume.
        Zvol = 3, "ZVOL";
        /// Anything else (test programs).
        Other = 4, "OTHER";
        /// Wildcard; never on disk.
        Any = 5, "ANY";
    }
}

impl Checksum {
    /// Whether the checksum lies inside the block it covers, with the block's place or sequence as its seed.
    #[must_use]
    pub const fn is_embedded(self) -> bool {
        matches!(self, Self::Label | Self::GangHeader | Self::Zilog | Self::Zilog2)
    }

    /// Whether the pool's salt (`org.illumos:checksum_salt` in the MOS directory) goes into it.
    #[must_use]
    pub const fn is_salted(self) -> bool {
        matches!(self, Self::Skein | Self::Edonr | Self::Blake3)
    }
}

impl Compress {
    /// The gzip level, for the gzip members.
    #[must_use]
    pub const fn gzip_level(self) -> Option<u32> {
        let number = self as u8;
        if number >= Self::Gzip1 as u8 && number <= Self::Gzip9 as u8 {
            Some((number - Self::Gzip1 as u8) as u32 + 1)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_members_map_both_ways() {
        for member in Checksum::ALL {
            assert_eq!(Checksum::from_number(member.number()), Some(*member));
        }
        for member in Compress::ALL {
            assert_eq!(Compress::from_number(member.number()), Some(*member));
        }
        assert_eq!(Compress::Gzip9.gzip_level(), Some(9));
        assert_eq!(Compress::Zle.gzip_level(), None);
        assert_eq!(Checksum::from_number(15), None);
    }
}
