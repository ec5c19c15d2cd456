//! The owner of a pool that was not exported.
//!
//! # Theory
//!
//! **Need.** A pool in state `ACTIVE` is in use, or its user died. Written by two it is lost, so it must not be opened for writing
//! unless its last user is known to be gone, or a person says so (`-f`). The host id does not tell: many systems have none, and
//! one's own is also that of the kernel's module on the same machine.
//!
//! **On disk.** While a pool is open for writing here, its labels have an entry [`MARK`]: a number that was drawn for this opening.
//! OpenZFS passes over the entry, and leaves it out of labels that it writes, at its import above all. So a label with a mark
//! was written last by the one opening that the mark is of. It is not in the labels of an exported pool.
//!
//! **Life.** A program that opens pools records each mark for as long as the opening lasts, in a way that shows afterwards that the
//! process is gone (the command line: a locked file), and passes marks of openings that are known to be over as
//! [`ImportOptions::gone_marks`](crate::ImportOptions).
//! ```text
//! state of the newest label    mark                                 opened for writing
//! exported, …                  -                                    yes
//! ACTIVE                       none                                 with -f
//! ACTIVE                       one whose opening is over            yes
//! ACTIVE                       another                              with -f
//! any, and the kernel's module on this machine has the pool         no
//! ```
//! It is looked at twice: before devices are opened for writing, and again when they are this process's alone.
//!
//! **Crash.** Before the first labels are written the old mark stands, and its opening is over; after that the new one does, whose note
//! was there first.
//!
//! **Rejected.** *The process's number in the label*: it says nothing in another system or container. *The label's txg instead of a
//! mark*: a process that died may have got further than it noted, and another owner as far.

use std::path::Path;
use std::sync::Arc;

use cenote_format::nvlist::NvList;
use cenote_taskq::{Handle, boxed};

use crate::config::PoolState;
use crate::{FoundLeaf, FoundPool, ImportOptions, SpaError};

/// The label's entry with the mark of the opening that has the pool for writing.
pub(crate) const MARK: &str = "org.cenote:owner";
/// Where the kernel's module shows the pools that it has, a folder each.
pub const KERNEL_POOLS: &str = "/proc/spl/kstat/zfs";
/// Bytes of a file of that folder at most.
const KSTAT_BYTES_MAX: usize = 4096;

impl FoundPool {
    /// The mark of the opening for writing that has the pool or had it last and did not export it. None where another program wrote
    /// the labels last.
    #[must_use]
    pub fn owner_mark(&self) -> Option<u64> {
        self.newest()?.config.u64(MARK)
    }

    /// `true` if the newest label has this system's host id, or that of a process of it that holds pools, or none: then the host id
    /// does not identify the owner.
    pub(crate) fn is_of_here(&self, how: &ImportOptions) -> bool {
        let id = self.newest().and_then(|newest| newest.config.u64("hostid")).unwrap_or(0);
        id == 0 || id == how.host_id || id == holder_id(how.host_id)
    }

    /// `true` if the opening that wrote the newest label is known to be over: by its mark, or, where no marks are given, because the
    /// caller knows it otherwise.
    pub(crate) fn is_left(&self, how: &ImportOptions) -> bool {
        match how.gone_marks.is_empty() {
            true => how.owner_is_gone,
            false => self.owner_mark().is_some_and(|mark| how.gone_marks.contains(&mark)),
        }
    }

    /// `true` if the pool may be in use, so that it is opened for writing only with [`ImportOptions::force`]: it was not exported, and the
    /// opening that wrote its newest label is another system's, or is not known to be over.
    #[must_use]
    pub fn needs_force(&self, how: &ImportOptions) -> bool {
        self.state() == PoolState::Active && !(self.is_of_here(how) && self.is_left(how))
    }

    /// Refuses to write a pool of this system that may be in use. Another system's is refused by the import.
    pub(crate) fn check_owner(&self, how: &ImportOptions) -> Result<(), SpaError> {
        let is_in_use = self.state() == PoolState::Active && !how.force;
        let Some(newest) = self.newest().filter(|_| is_in_use && self.is_of_here(how) && !self.is_left(how)) else {
            return Ok(());
        };
        let (hostname, hostid) = host_of(Some(&newest.config));
        Err(SpaError::NotExported { pool: self.name().to_owned(), hostname, hostid, when: last_written(newest) })
    }

    /// Refuses to write a pool that the kernel's module has. `root`: [`KERNEL_POOLS`], or what stands for it.
    pub(crate) async fn check_kernel(&self, handle: &Handle, root: &Path) -> Result<(), SpaError> {
        match kernel_pool(handle, root, self.guid.0, self.name()).await {
            None => Ok(()),
            Some((name, state)) => {
                Err(SpaError::InKernel { pool: self.name().to_owned(), name, state: state.to_lowercase() })
            }
        }
    }
}

/// The name and state that the kernel's module of this machine has a pool under, if it has it; by its guid, or by its name where
/// the module shows none. Also for pools that were found by a label.
///
/// The module's text is taken as it is; where it cannot be read nothing is known.
#[boxed]
pub async fn kernel_pool(handle: &Handle, root: &Path, guid: u64, name: &str) -> Option<(String, String)> {
    for folder in handle.list_directory(root).await.unwrap_or_default() {
        let own = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = async |file: &str| {
            let bytes = handle.read_file(&folder.join(file), KSTAT_BYTES_MAX).await.ok()?;
            Some(String::from_utf8_lossy(&bytes).trim().to_owned())
        };
        // Files beside the folders are of the module itself; a folder without a state is left of a pool that is gone.
        let Some(state) = text("state").await else { continue };
        let is_it = match text("guid").await.and_then(|text| text.parse::<u64>().ok()) {
            Some(found) => found == guid,
            None => own == name,
        };
        if is_it {
            return Some((own, state));
        }
    }
    None
}

/// Bits by which a holder's id differs from its host's ("ceno").
const HOLDER_MARK: u64 = 0x6365_6e6f;

/// The host id that the labels of a pool have while it is written by a process of the host with this id: never 0 and never that
/// host's own, so that no importer takes the pool for its own.
#[must_use]
pub const fn holder_id(host_id: u64) -> u64 {
    match (host_id ^ HOLDER_MARK) & u32::MAX as u64 {
        0 => 1,
        id => id,
    }
}

/// The name and the id (0 if it has none) of the host that wrote a label.
pub(crate) fn host_of(label: Option<&Arc<NvList>>) -> (String, u64) {
    let name = label.and_then(|label| label.str("hostname")).unwrap_or("an unknown host");
    (name.to_owned(), label.and_then(|label| label.u64("hostid")).unwrap_or(0))
}

/// The time of a leaf's newest uberblock, as text.
pub(crate) fn last_written(leaf: &FoundLeaf) -> String {
    utc(leaf.uberblocks.iter().map(|copy| copy.uberblock.timestamp_s).max().unwrap_or(0))
}

/// A time as people read it, in UTC.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86400, seconds % 86400);
    // Days are counted from the first of March of the year 0, so that the leap day is a year's last; 400 years have 146097 days.
    let days = days.saturating_add(719_468);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    debug_assert!((1..=12).contains(&month) && (1..=31).contains(&date), "a day is one of a month of a year");
    format!("{year:04}-{month:02}-{date:02} {:02}:{:02}:{:02} UTC", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use cenote_taskq::{Runtime, RuntimeOptions};

    use super::*;

    #[test]
    fn a_holder_never_has_the_id_of_its_host_nor_none() {
        for id in [0, 1, 0x6f7a_766d, HOLDER_MARK, u64::from(u32::MAX)] {
            let holder = holder_id(id);
            assert!(holder != id && holder != 0 && holder <= u64::from(u32::MAX), "{id:#x}");
        }
    }

    #[test]
    fn times_are_told_as_dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_827_696), "2000-02-29 12:34:56 UTC");
        assert_eq!(utc(1_709_251_199), "2024-02-29 23:59:59 UTC");
        assert_eq!(utc(1_795_510_800), "2026-11-24 09:00:00 UTC");
        assert!(utc(u64::MAX).ends_with("UTC"));
    }

    #[test]
    fn a_pool_of_the_kernels_module_is_known_by_its_guid_under_any_name() {
        let temp = tempfile::tempdir().expect("a folder");
        let put = |path: &str, text: &str| {
            let path = temp.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        put("arcstats", "13 1 0x01\n");
        put("tank/state", "ONLINE\n");
        put("tank/guid", "12345678901234567890\n");
        put("old/state", "SUSPENDED\n");
        put("left/guid", "7\n");
        let runtime =
            Runtime::real(RuntimeOptions { workers: Some(1), ..RuntimeOptions::default() }).expect("a runtime");
        let known = |guid, name: &str| runtime.block_on(kernel_pool(&runtime.handle(), temp.path(), guid, name));
        let tank = Some(("tank".to_owned(), "ONLINE".to_owned()));
        assert_eq!(known(12_345_678_901_234_567_890, "other"), tank);
        assert_eq!(known(1, "tank"), None, "another pool of that name");
        assert_eq!(known(1, "old"), Some(("old".to_owned(), "SUSPENDED".to_owned())), "a module that shows no guids");
        assert_eq!(known(7, "left"), None);
        let nowhere = temp.path().join("nowhere");
        assert_eq!(runtime.block_on(kernel_pool(&runtime.handle(), &nowhere, 1, "tank")), None);
    }
}
