//! The error log: blocks that could not be read, as names in a ZAP.
//!
//! ```text
//! old form   one ZAP        "objset:object:level:block" -> text
//! head form  outer ZAP      "head dataset"              -> number of an inner ZAP       (feature head_errlog)
//!            inner ZAP      "object:level:block:birth"  -> text
//! ```
//!
//! Numbers are hexadecimal; levels below 0 are written as 64-bit two's complement. The text names the file when it was
//! known, and means nothing to a reader.

use crate::dsl::ZBookmark;
use crate::ids::{ObjectId, ObjsetId, Txg};
use crate::zap::int_key;

/// A block in the log of its head dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorBookmark {
    /// The object.
    pub object: ObjectId,
    /// The level.
    pub level: i64,
    /// The block.
    pub block: u64,
    /// The txg in which it was born; 0 if unknown.
    pub birth: Txg,
}

fn four(name: &[u8]) -> Option<[u64; 4]> {
    let mut parts = name.split(|byte| *byte == b':').map(int_key);
    let numbers = [parts.next()??, parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(numbers)
}

/// The block that a name of the old form says.
#[must_use]
pub fn parse_bookmark(name: &[u8]) -> Option<ZBookmark> {
    let [objset, object, level, block] = four(name)?;
    Some(ZBookmark { objset: ObjsetId(objset), object: ObjectId(object), level: level as i64, block })
}

/// A name of the old form.
#[must_use]
pub fn bookmark_name(bookmark: &ZBookmark) -> String {
    format!("{:x}:{:x}:{:x}:{:x}", bookmark.objset.0, bookmark.object.0, bookmark.level, bookmark.block)
}

impl ErrorBookmark {
    /// The block that a name of the inner ZAP says.
    #[must_use]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        let [object, level, block, birth] = four(name)?;
        Some(Self { object: ObjectId(object), level: level as i64, block, birth: Txg(birth) })
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{:x}:{:x}:{:x}:{:x}", self.object.0, self.level, self.block, self.birth.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_round_trip(words in any::<[u64; 4]>(), level in -3_i64..8) {
            let bookmark =
                ZBookmark { objset: ObjsetId(words[0]), object: ObjectId(words[1]), level, block: words[2] };
            prop_assert_eq!(parse_bookmark(bookmark_name(&bookmark).as_bytes()), Some(bookmark));
            let error = ErrorBookmark { object: ObjectId(words[1]), level, block: words[2], birth: Txg(words[3]) };
            prop_assert_eq!(ErrorBookmark::from_name(error.name().as_bytes()), Some(error));
        }
    }

    #[test]
    fn other_names_are_none() {
        assert_eq!(
            bookmark_name(&ZBookmark { objset: ObjsetId(0x36), object: ObjectId(2), level: -1, block: 0xa }),
            "36:2:ffffffffffffffff:a"
        );
        for name in ["", "1:2:3", "1:2:3:4:5", "1:2:3:g", "1:2::4", "1:2:3:11111111111111111"] {
            assert_eq!(parse_bookmark(name.as_bytes()), None, "{name}");
        }
    }
}
