//! A run of streams: a package, or one alone.

use cenote_send::StreamReader;
use cenote_spa::Pool;

use super::request::{Caller, ReceiveOutcome, ReceiveRequest};

/// A run of streams.
pub(super) struct Run<'a, R> {
    pub(super) pool: &'a Pool,
    pub(super) request: &'a ReceiveRequest,
    pub(super) reader: StreamReader<R>,
    pub(super) caller: &'a mut dyn Caller,
    pub(super) outcome: ReceiveOutcome,
    /// The first stream has begun. A dry run cannot know the targets of later ones of a package.
    pub(super) has_begun: bool,
    /// Names that were given out to step aside.
    pub(super) aside: u64,
}
