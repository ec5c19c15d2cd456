//! Blocks as people name them: by place, or by what they belong to.

use cenote_format::ids::VdevId;
use cenote_props::WrongUse;

use crate::BLOCK_MAX_BYTES;

/// A block, as people name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// By its place.
    Place {
        /// The top-level vdev.
        vdev: VdevId,
        /// As DVAs count.
        offset_bytes: u64,
        /// The size as the reader sees it, where that was said.
        lsize_bytes: Option<u64>,
        /// The size after compression.
        psize_bytes: u64,
        /// Letters after it, as of `zdb -R`.
        flags: String,
    },
    /// By what it belongs to.
    Tuple {
        /// The objset's number.
        objset: u64,
        /// The object's number.
        object: u64,
        /// The level; -1 is the objset's own block.
        level: i8,
        /// The block's number on its level.
        block: u64,
    },
}

impl Address {
    /// `VDEV:OFFSET:SIZE[:FLAGS]`, hexadecimal but for the vdev, with LSIZE/PSIZE for a size; or `OBJSET:OBJECT:LEVEL:BLOCK`, decimal.
    ///
    /// # Errors
    /// It is neither, or no block has such a size.
    pub fn parse(text: &str) -> Result<Self, WrongUse> {
        let bad =
            || WrongUse::new(format!("'{text}' is neither VDEV:OFFSET:SIZE[:FLAGS] nor OBJSET:OBJECT:LEVEL:BLOCK"));
        let parts: Vec<&str> = text.split(':').collect();
        let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).map_err(|_| bad());
        match parts[..] {
            [objset, object, level, block] if !block.is_empty() && block.bytes().all(|byte| byte.is_ascii_digit()) => {
                Ok(Self::Tuple {
                    objset: objset.parse().map_err(|_| bad())?,
                    object: object.parse().map_err(|_| bad())?,
                    level: level.parse().map_err(|_| bad())?,
                    block: block.parse().map_err(|_| bad())?,
                })
            }
            [vdev, offset, size, ref flags @ ..] if flags.len() <= 1 => {
                let (lsize_bytes, psize_bytes) = match size.split_once('/') {
                    Some((lsize, psize)) => (Some(hex(lsize)?), hex(psize)?),
                    None => (None, hex(size)?),
                };
                if psize_bytes == 0 || psize_bytes.max(lsize_bytes.unwrap_or(0)) > BLOCK_MAX_BYTES {
                    return Err(WrongUse::new(format!(
                        "'{size}': a block has 1 to {BLOCK_MAX_BYTES:x} bytes (hexadecimal)"
                    )));
                }
                Ok(Self::Place {
                    vdev: VdevId(vdev.parse().map_err(|_| bad())?),
                    offset_bytes: hex(offset)?,
                    lsize_bytes,
                    psize_bytes,
                    flags: flags.first().map_or_else(String::new, |flags| (*flags).to_owned()),
                })
            }
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_hexadecimal_and_tuples_decimal() {
        let Ok(Address::Place { vdev, offset_bytes, lsize_bytes, psize_bytes, flags }) =
            Address::parse("1:4a000:20000/600:d")
        else {
            panic!("no place");
        };
        assert_eq!((vdev, offset_bytes, lsize_bytes, psize_bytes), (VdevId(1), 0x4a000, Some(0x20000), 0x600));
        assert_eq!(flags, "d");
        let Ok(Address::Tuple { objset, object, level, block }) = Address::parse("54:128:-1:0") else {
            panic!("no tuple")
        };
        assert_eq!((objset, object, level, block), (54, 128, -1, 0));
        for wrong in ["", "1", "1:2", "1:2:0", "x:2:3", "1:2:ffffffff", "1:2:3:4:5", "1:2:300:0", "0:0:zz"] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
