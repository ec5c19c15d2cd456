//! POSIX access control lists: from the bytes of an extended attribute to the text of an archive.
//!
//! ```text
//! 0        4                    6      8              12
//! version  tag of entry         perm   id             … 8 bytes an entry, all little-endian
//! (2)      1 owner, 2 user,     rwx    of the user
//!          4 owning group,      as in  or group
//!          8 group, 16 mask,    a mode
//!          32 others
//! ```

/// The version of the attribute's form, the only one there is.
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

/// The text form that `SCHILY.acl.*` records hold, with numeric ids: `user::rw-,user:1000:r--,group::r--,…`. `None` for
/// bytes that are no such list.
pub(crate) fn text(bytes: &[u8]) -> Option<String> {
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
    }

    #[test]
    fn other_bytes_are_no_list() {
        assert_eq!(text(b""), None);
        assert_eq!(text(&[1, 0, 0, 0]), None);
        assert_eq!(text(&[2, 0, 0, 0, 1]), None);
        assert_eq!(text(&[2, 0, 0, 0, 3, 0, 7, 0, 0, 0, 0, 0]), None);
    }
}
