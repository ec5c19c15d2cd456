//! POSIX access control lists: from the bytes of an extended attribute to the text of an archive.
//!
//! ```text
//! 0        4                    6      8              12
//! version  tag of entry         perm   id             … 8 bytes an entry, all little-endian
//! (2)      1 owner, 2 user,     rwx    user
//!          4 owning group,      as in  or group
//!          8 group, 16 mask,    a mode
//!          32 others
//! ```

use crate::error::{Context as _, Result, malformed};

/// The only version of the attribute's format.
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

/// The text form in `SCHILY.acl.*` records, with numeric ids: `user::rw-,user:1000:r--,group::r--,…`. `None` if the bytes are not such a list.
pub fn text(bytes: &[u8]) -> Option<String> {
    let version = u32::from_le_bytes(*bytes.first_chunk::<HEADER_BYTES>()?);
    let entries = &bytes[HEADER_BYTES..];
    if version != VERSION || !entries.len().is_multiple_of(ENTRY_BYTES) {
        return None;
    }
    let entries: Option<Vec<String>> = entries.chunks_exact(ENTRY_BYTES).map(entry).collect();
    Some(entries?.join(","))
}

fn entry(bytes: &[u8]) -> Option<String> {
    let tag = u16::from_le_bytes([bytes[0], bytes[1]]);
    let permissions = u16::from_le_bytes([bytes[2], bytes[3]]);
    let id = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    let who = match tag {
        0x01 => "user:".to_owned(),
        0x02 => format!("user:{id}"),
        0x04 => "group:".to_owned(),
        0x08 => format!("group:{id}"),
        0x10 => "mask:".to_owned(),
        0x20 => "other:".to_owned(),
        _ => return None,
    };
    let bit = |bit: u16, letter: char| if permissions & bit != 0 { letter } else { '-' };
    Some(format!("{who}:{}{}{}", bit(4, 'r'), bit(2, 'w'), bit(1, 'x')))
}

/// The bytes of an attribute from that text. In an entry with four fields, as star writes it, the fourth is the id of the name.
pub fn bytes(text: &str) -> Result<Vec<u8>> {
    const NOBODY: u32 = u32::MAX;
    let mut entries = Vec::new();
    for entry in text.split([',', '\n']).map(str::trim).filter(|entry| !entry.is_empty() && !entry.starts_with('#')) {
        let fields: Vec<&str> = entry.split(':').collect();
        let [who, name, permissions, rest @ ..] = &fields[..] else {
            return Err(malformed(format!("'{entry}' in an access control list")));
        };
        let tag = match (*who, name.is_empty()) {
            ("user" | "u", true) => 0x01,
            ("user" | "u", false) => 0x02,
            ("group" | "g", true) => 0x04,
            ("group" | "g", false) => 0x08,
            ("mask" | "m", _) => 0x10,
            ("other" | "o", _) => 0x20,
            _ => return Err(malformed(format!("'{entry}' in an access control list"))),
        };
        let id = match tag {
            0x02 | 0x08 => {
                let id = rest.first().and_then(|id| id.parse().ok()).or_else(|| name.parse().ok());
                id.with_context(|| format!("'{entry}' in an access control list has a name without a number"))?
            }
            _ => NOBODY,
        };
        let mut bits = 0_u16;
        for letter in permissions.chars() {
            bits |= match letter {
                'r' => 4,
                'w' => 2,
                'x' => 1,
                '-' => 0,
                _ => return Err(malformed(format!("'{entry}' in an access control list"))),
            };
        }
        entries.push((tag, id, bits));
    }
    // In Linux's order.
    entries.sort_unstable();
    let mut target = VERSION.to_le_bytes().to_vec();
    for (tag, id, bits) in entries {
        target.extend(u16::to_le_bytes(tag));
        target.extend(bits.to_le_bytes());
        target.extend(id.to_le_bytes());
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_becomes_text_with_numbers() {
        let mut bytes = vec![2, 0, 0, 0];
        let entries =
            [(1, 6, u32::MAX), (2, 6, 1000), (4, 4, u32::MAX), (8, 5, 100), (16, 7, u32::MAX), (32, 0, u32::MAX)];
        for (tag, permissions, id) in entries {
            bytes.extend([tag, 0, permissions, 0]);
            bytes.extend(id.to_le_bytes());
        }
        let want = "user::rw-,user:1000:rw-,group::r--,group:100:r-x,mask::rwx,other::---";
        assert_eq!(text(&bytes).as_deref(), Some(want));
        assert_eq!(super::bytes(want).unwrap(), bytes);
        let stars = "user::rw-,user:amy:rw-:1000,group::r--,group:all:r-x:100,mask::rwx,other::---";
        assert_eq!(super::bytes(stars).unwrap(), bytes);
        assert!(super::bytes("user:amy:rw-").is_err());
    }

    #[test]
    fn other_bytes_are_no_list() {
        assert_eq!(text(b""), None);
        assert_eq!(text(&[1, 0, 0, 0]), None);
        assert_eq!(text(&[2, 0, 0, 0, 1]), None);
        assert_eq!(text(&[2, 0, 0, 0, 3, 0, 7, 0, 0, 0, 0, 0]), None);
    }
}
