//! One stream whose beginning was read.

use cenote_props::Types;
use cenote_send::receiver::Header;

use super::error::ReceiveAction;
use super::list::Sent;

/// A stream whose beginning was read, and the snapshot that it becomes.
pub(super) struct Incoming<'a> {
    pub(super) header: &'a Header,
    /// The full name of the snapshot at the sender.
    pub(super) sent_name: String,
    /// Its dataset in the list of the package, and the snapshot's name there.
    pub(super) sent: Option<(&'a Sent, &'a str)>,
    pub(super) dataset: String,
    /// The snapshot's name, without the dataset's.
    pub(super) snapshot: String,
    /// The full name of the origin of a clone.
    pub(super) origin: Option<String>,
    /// It makes a dataset.
    pub(super) is_new: bool,
    pub(super) action: ReceiveAction,
    pub(super) types: Types,
}

impl Incoming<'_> {
    /// The full name of the snapshot.
    pub(super) fn target(&self) -> String {
        format!("{}@{}", self.dataset, self.snapshot)
    }

    pub(super) fn line(&self, doing: &str) -> String {
        let how = if self.header.begin.from_guid.0 == 0 { "full" } else { "incremental" };
        format!("{doing} {how} stream of {} into {}", self.sent_name, self.target())
    }
}
