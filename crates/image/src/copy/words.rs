//! The result of a copy as text.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_props::number::{counted, nicebytes};
use cenote_zpl::shown;

use super::{Account, Lost};

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Account {
    /// The attributes that could not be kept, one line each.
    pub fn losses(&self, has_xattrs: bool) -> Vec<String> {
        let mut lines = Vec::new();
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        for (what, (entries, first)) in lost.iter() {
            let what = match what {
                Lost::Owner => "the owner could not be set",
                Lost::Mode => "the mode could not be set",
                Lost::Times => "times could not be set",
                Lost::Xattrs => "some extended attributes could not be set",
                Lost::Lists => "the access control list could not be set",
                Lost::NotMade => "left without its attributes, since another file has taken its place",
                Lost::Directory => {
                    "was there before and belongs to somebody else: filled, its own attributes left alone"
                }
                Lost::SetId | Lost::PrivilegedXattrs | Lost::Device => continue,
            };
            lines.push(format!("{what}: /{}{}", shown(first), others(*entries)));
        }
        let left_out: Vec<String> = [
            (Lost::SetId, "set-id bits of"),
            (Lost::Device, "devices:"),
            (Lost::PrivilegedXattrs, "trusted.* and security.* attributes of"),
        ]
        .iter()
        .filter_map(|(what, text)| Some(format!("{text} {}", lost.get(what)?.0)))
        .collect();
        if !left_out.is_empty() {
            lines.push(format!(
                "left out, since they give rights here (--privileged keeps them): {}",
                left_out.join(", ")
            ));
        }
        if count(&self.foreign_lists) > 0 && has_xattrs {
            let entries = counted(count(&self.foreign_lists), "entry has", "entries have");
            lines.push(format!("NFSv4 access control lists cannot be kept here: {entries} one"));
        }
        if count(&self.failures) > 0 {
            let entries = counted(count(&self.failures), "entry", "entries");
            lines.push(format!("{entries} could not be copied, or not wholly"));
        }
        lines
    }

    /// The counts of copied files and bytes, on one line.
    pub fn text(&self) -> String {
        format!(
            "{} ({}), {} there already, {}, {}, {}\n",
            counted(count(&self.files), "file", "files"),
            nicebytes(count(&self.bytes)),
            count(&self.skipped),
            counted(count(&self.directories), "directory", "directories"),
            counted(count(&self.links), "further link", "further links"),
            counted(count(&self.others), "link or special file", "links and special files")
        )
    }
}

fn others(entries: u64) -> String {
    if entries > 1 { format!(" and {}", counted(entries - 1, "other", "others")) } else { String::new() }
}

/// Raises it: a copy holds a descriptor for each directory that it is in, and for each file in flight.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
