//! The groups of a process that asks for something.
//!
//! A request names one group of its caller; the others the kernel keeps to itself, but shows of each thread. The caller waits in its
//! system call meanwhile, so its thread is there.

use std::fs::File;
use std::io::Read as _;

use crate::server::Caller;

/// Bytes of a thread's status that are read at most: it may be in 65 536 groups.
const STATUS_BYTES_MAX: u64 = 1 << 20;

/// True if a caller is known to be in a group. Blocks.
pub(crate) fn is_member(caller: Caller, gid: u32) -> bool {
    if caller.gid == gid {
        return true;
    }
    if caller.thread == 0 {
        return false;
    }
    let Ok(file) = File::open(format!("/proc/{}/status", caller.thread)) else { return false };
    let mut status = String::new();
    file.take(STATUS_BYTES_MAX).read_to_string(&mut status).is_ok() && has_group(&status, gid)
}

/// True if a thread's status lists a group.
fn has_group(status: &str, gid: u32) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.is_some_and(|groups| groups.split_whitespace().any(|group| group.parse() == Ok(gid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_the_line_that_lists_them() {
        let status = "Name:\tx\nGid:\t7\t7\t7\t7\nFDSize:\t64\nGroups:\t4 24 1000 \nNStgid:\t5\n";
        assert!(has_group(status, 24) && has_group(status, 1000));
        assert!(!has_group(status, 5) && !has_group(status, 7) && !has_group(status, 100));
        assert!(!has_group("Groups:\t\n", 0) && !has_group("", 0));
    }

    #[test]
    fn a_thread_without_a_number_here_is_in_the_group_that_it_names() {
        let caller = Caller { uid: 1, gid: 7, thread: 0 };
        assert!(is_member(caller, 7) && !is_member(caller, 8));
    }
}
