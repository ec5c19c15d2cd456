//! POSIX access control lists: extended attributes that say more than a mode, and keep step with it.
//!
//! ```text
//! 0  version 2 (u32)   then entries of 8 bytes:  0 tag (u16)  2 permissions (u16)  4 user or group (u32)
//! ```
//! All in little-endian order, as Linux hands them to programs and OpenZFS keeps them.

use crate::ZplError;

/// The name of the list that is in force.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The name of the list that a directory hands down.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const ENTRIES_MAX: usize = 1024;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

fn parse(bytes: &[u8]) -> Result<Vec<Entry>, ZplError> {
    let bad = || ZplError::Invalid("no POSIX access control list");
    let (version, rest) = bytes.split_first_chunk::<4>().ok_or_else(bad)?;
    if u32::from_le_bytes(*version) != VERSION || !rest.len().is_multiple_of(8) || rest.len() / 8 > ENTRIES_MAX {
        return Err(bad());
    }
    let word = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let entries: Vec<Entry> = rest
        .chunks_exact(8)
        .map(|entry| Entry {
            tag: word(entry, 0),
            permissions: word(entry, 2),
            id: u32::from(word(entry, 4)) | u32::from(word(entry, 6)) << 16,
        })
        .collect();
    let count = |tag: u16| entries.iter().filter(|entry| entry.tag == tag).count();
    let known = [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER].map(count).iter().sum::<usize>() == entries.len();
    let has_named = count(USER) + count(GROUP) > 0;
    let sound = known
        && [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|tag| count(*tag) == 1)
        && count(MASK) <= 1
        && (!has_named || count(MASK) == 1)
        && entries.iter().all(|entry| entry.permissions <= 7);
    if sound { Ok(entries) } else { Err(bad()) }
}

fn emit(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for entry in entries {
        bytes.extend_from_slice(&entry.tag.to_le_bytes());
        bytes.extend_from_slice(&entry.permissions.to_le_bytes());
        bytes.extend_from_slice(&entry.id.to_le_bytes());
    }
    bytes
}

/// Whether a list says more than a mode.
fn says_more(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| matches!(entry.tag, USER | GROUP | MASK))
}

/// Which of a mode's classes an entry speaks for, as the place of its bits.
fn place(entries: &[Entry], tag: u16) -> Option<u32> {
    let has_mask = entries.iter().any(|entry| entry.tag == MASK);
    match tag {
        USER_OBJ => Some(6),
        MASK => Some(3),
        GROUP_OBJ if !has_mask => Some(3),
        OTHER => Some(0),
        _ => None,
    }
}

/// A list that is set: the permission bits that go with it, and the list unless it says no more than those.
pub(crate) fn to_mode(acl: &[u8]) -> Result<(u32, Option<Vec<u8>>), ZplError> {
    let entries = parse(acl)?;
    let bits = |entry: &Entry| place(&entries, entry.tag).map_or(0, |place| u32::from(entry.permissions) << place);
    let mode = entries.iter().map(bits).fold(0, |mode, bits| mode | bits);
    assert_eq!(mode & !0o777, 0, "a list says nothing but permissions");
    Ok((mode, says_more(&entries).then(|| emit(&entries))))
}

/// # Errors
/// It is no list.
pub(crate) fn check(acl: &[u8]) -> Result<(), ZplError> {
    parse(acl).map(drop)
}

/// A list with the permissions of a mode.
pub(crate) fn with_mode(acl: &[u8], mode: u32) -> Result<Vec<u8>, ZplError> {
    let mut entries = parse(acl)?;
    let before = entries.clone();
    for entry in &mut entries {
        if let Some(place) = place(&before, entry.tag) {
            entry.permissions = (mode >> place & 7) as u16;
        }
    }
    let list = emit(&entries);
    debug_assert!(
        to_mode(&list).is_ok_and(|(bits, _)| bits == mode & 0o777),
        "a list that gets a mode's permissions says what the mode says"
    );
    Ok(list)
}

/// Lists by name.
pub(crate) type Named = Vec<(Vec<u8>, Vec<u8>)>;

/// The mode, which was asked for as `mode`, and the lists that a new node gets from its directory's default list.
pub(crate) fn inherit(default: &[u8], mode: u32, is_dir: bool) -> Result<(u32, Named), ZplError> {
    let mut entries = parse(default)?;
    let before = entries.clone();
    let mut made = mode;
    for entry in &mut entries {
        let Some(place) = place(&before, entry.tag) else { continue };
        entry.permissions &= (mode >> place & 7) as u16;
        made = made & !(7 << place) | u32::from(entry.permissions) << place;
    }
    assert_eq!(made & !mode, 0, "nothing is handed down beyond what is asked for");
    assert_eq!(made & !0o777, mode & !0o777, "a list that is handed down limits permissions and nothing else");
    let mut lists = Vec::new();
    if says_more(&entries) {
        lists.push((ACCESS.to_vec(), emit(&entries)));
    }
    if is_dir {
        lists.push((DEFAULT.to_vec(), default.to_vec()));
    }
    debug_assert!(lists.iter().all(|(_, list)| check(list).is_ok()), "what is handed down is a list");
    Ok((made, lists))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entries: Vec<Entry> = entries
            .iter()
            .map(|(tag, permissions, id)| Entry { tag: *tag, permissions: *permissions, id: *id })
            .collect();
        emit(&entries)
    }

    const NONE: u32 = u32::MAX;

    #[test]
    fn a_list_and_its_mode_keep_step() {
        let list =
            acl(&[(USER_OBJ, 7, NONE), (USER, 5, 1000), (GROUP_OBJ, 7, NONE), (MASK, 5, NONE), (OTHER, 1, NONE)]);
        assert_eq!(to_mode(&list).unwrap(), (0o751, Some(list.clone())));
        let changed = with_mode(&list, 0o640).unwrap();
        assert_eq!(to_mode(&changed).unwrap().0, 0o640);
        // The owning group keeps what the mask now hides.
        assert!(parse(&changed).unwrap().contains(&Entry { tag: GROUP_OBJ, permissions: 7, id: NONE }));
        let plain = acl(&[(USER_OBJ, 6, NONE), (GROUP_OBJ, 4, NONE), (OTHER, 0, NONE)]);
        assert_eq!(to_mode(&plain).unwrap(), (0o640, None));
    }

    #[test]
    fn what_is_asked_for_limits_what_is_handed_down() {
        let default =
            acl(&[(USER_OBJ, 7, NONE), (GROUP, 7, 5), (GROUP_OBJ, 5, NONE), (MASK, 7, NONE), (OTHER, 5, NONE)]);
        let (mode, lists) = inherit(&default, 0o100_644, false).unwrap();
        assert_eq!(mode, 0o100_644);
        assert_eq!(lists.len(), 1);
        assert_eq!(to_mode(&lists[0].1).unwrap().0, 0o644);
        let (mode, lists) = inherit(&default, 0o040_777, true).unwrap();
        assert_eq!((mode, lists.len()), (0o040_775, 2));
        assert_eq!(lists[1].1, default);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let whole = acl(&[(USER_OBJ, 7, NONE), (GROUP_OBJ, 5, NONE), (OTHER, 5, NONE)]);
        for cut in 0..whole.len() {
            assert!(parse(&whole[..cut]).is_err());
        }
        assert!(parse(&acl(&[(USER_OBJ, 7, NONE), (USER, 7, 1), (GROUP_OBJ, 5, NONE), (OTHER, 5, NONE)])).is_err());
        assert!(parse(&acl(&[(USER_OBJ, 9, NONE), (GROUP_OBJ, 5, NONE), (OTHER, 5, NONE)])).is_err());
    }
}
