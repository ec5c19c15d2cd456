//! The access control list that says what a mode says.

use cenote_dmu::ORDER;
use cenote_dmu::sa::SaRecord;
use cenote_format::FormatError;
use cenote_format::acl::{Ace, AceFlags, AclVersion, ace_type, emit_aces};
use cenote_format::sa::ZplAttribute;
use cenote_format::znode::ZnodeFlags;

use crate::FileKind;

const READ_DATA: u32 = 0x1;
const WRITE_DATA: u32 = 0x2;
const APPEND_DATA: u32 = 0x4;
const READ_NAMED_ATTRS: u32 = 0x8;
const WRITE_NAMED_ATTRS: u32 = 0x10;
const EXECUTE: u32 = 0x20;
const DELETE_CHILD: u32 = 0x40;
const READ_ATTRIBUTES: u32 = 0x80;
const WRITE_ATTRIBUTES: u32 = 0x100;
const READ_ACL: u32 = 0x2_0000;
const WRITE_ACL: u32 = 0x4_0000;
const WRITE_OWNER: u32 = 0x8_0000;
const SYNCHRONIZE: u32 = 0x10_0000;

/// Bytes of an entry without an id.
const ACE_BYTES: usize = 8;
/// The part of an old znode's list that says where it is and how long: all zero where there is none.
const OLD_HEAD_BYTES: usize = 12;
/// The permissions of everyone.
const COMMON: u32 = READ_ACL | READ_ATTRIBUTES | READ_NAMED_ATTRS | SYNCHRONIZE;
/// The permissions that an owner has besides.
const OWNERS: u32 = WRITE_ATTRIBUTES | WRITE_OWNER | WRITE_ACL | WRITE_NAMED_ATTRS;

/// Flags of a file whose list says what its mode says. OpenZFS lets everyone execute (or search) what has the flag that nobody
/// is denied that, without a look at the list.
pub(crate) fn flags(mode: u32) -> ZnodeFlags {
    let all_may_execute = mode & 0o111 == 0o111;
    ZnodeFlags::ACL_TRIVIAL | if all_may_execute { ZnodeFlags::NO_EXECS_DENIED } else { ZnodeFlags::empty() }
}

/// Whether a file has an access control list that says more than its mode. That it lacks the flag of a trivial list is not enough: files
/// that other implementations have made may have no list at all, and no flag either; nor one that says what the mode says.
pub(crate) fn is_there(record: &SaRecord) -> bool {
    if record.flags().contains(ZnodeFlags::ACL_TRIVIAL) {
        return false;
    }
    if let Some(old) = record.bytes(ZplAttribute::ZnodeAcl) {
        return old.iter().take(OLD_HEAD_BYTES).any(|byte| *byte != 0);
    }
    let aces = record.bytes(ZplAttribute::DaclAces).unwrap_or_default();
    let count = record.find_u64(ZplAttribute::DaclCount);
    says_more(aces, count, record.u64(ZplAttribute::Mode))
}

/// Whether a list, as bytes and with its number of entries where that is known, says more than a mode.
fn says_more(aces: &[u8], count: Option<u64>, mode: u64) -> bool {
    if aces.is_empty() || count == Some(0) {
        return false;
    }
    let is_dir = FileKind::of_mode(mode) == Some(FileKind::Directory);
    !trivial(mode as u32, is_dir).is_ok_and(|(same, _)| same == aces)
}

/// The entries of a mode, as bytes, and their number. A class that may less than the next is denied the difference first,
/// since entries are looked at in order.
pub(crate) fn trivial(mode: u32, is_dir: bool) -> Result<(Vec<u8>, u64), FormatError> {
    let write = WRITE_DATA | APPEND_DATA | if is_dir { DELETE_CHILD } else { 0 };
    // The bits of one class, from its three mode bits.
    let access = |bits: u32| {
        (if bits & 4 != 0 { READ_DATA } else { 0 })
            | (if bits & 2 != 0 { write } else { 0 })
            | (if bits & 1 != 0 { EXECUTE } else { 0 })
    };
    let (owner, group, other) = (mode >> 6 & 7, mode >> 3 & 7, mode & 7);
    let entries = [
        (ace_type::ALLOW, AceFlags::OWNER, access(owner & !group & other)),
        (ace_type::DENY, AceFlags::OWNER, access(!owner & (group | other))),
        (ace_type::DENY, AceFlags::GROUP | AceFlags::IDENTIFIER_GROUP, access(!group & other)),
        (ace_type::ALLOW, AceFlags::OWNER, COMMON | OWNERS | access(owner)),
        (ace_type::ALLOW, AceFlags::GROUP | AceFlags::IDENTIFIER_GROUP, COMMON | access(group)),
        (ace_type::ALLOW, AceFlags::EVERYONE, COMMON | access(other)),
    ];
    let aces: Vec<Ace> = entries
        .into_iter()
        .filter(|(.., mask)| *mask != 0)
        .map(|(kind, flags, access_mask)| Ace { kind, flags, access_mask, id: 0, object_types: None })
        .collect();
    let bytes = emit_aces(&aces, AclVersion::Fuid, ORDER)?;
    assert_eq!(bytes.len(), aces.len() * ACE_BYTES, "entries of owner, group and everyone have no id");
    Ok((bytes, aces.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All files had the flag once, and OpenZFS's short cut would have let everyone search directories of mode 700.
    #[test]
    fn only_what_everyone_may_execute_is_flagged_so() {
        for mode in [0o755, 0o4711, 0o777] {
            assert!(flags(mode).contains(ZnodeFlags::NO_EXECS_DENIED), "{mode:o}");
        }
        for mode in [0o700, 0o644, 0o750, 0o677, 0o767, 0o776] {
            assert!(!flags(mode).contains(ZnodeFlags::NO_EXECS_DENIED), "{mode:o}");
        }
    }

    /// A file without the flag of a trivial list is one with a list only if there is a list that says something.
    #[test]
    fn a_list_that_is_not_there_or_says_nothing_is_none() {
        assert!(!says_more(&[], None, 0o100_644), "no list at all");
        assert!(!says_more(&[], Some(0), 0o100_644), "a list without entries");
        let (aces, count) = trivial(0o644, false).unwrap();
        assert!(!says_more(&aces, Some(count), 0o100_644), "the list of the mode");
        assert!(says_more(&aces, Some(count), 0o100_600));
    }

    #[test]
    fn ordinary_modes_have_three_entries_and_odd_ones_denials() {
        assert_eq!(trivial(0o755, true).unwrap().1, 3);
        assert_eq!(trivial(0o644, false).unwrap().1, 3);
        assert_eq!(trivial(0o077, false).unwrap().1, 4);
        assert_eq!(trivial(0o604, false).unwrap().1, 5);
        assert_eq!(trivial(0o755, false).unwrap().0.len(), 24);
    }
}
