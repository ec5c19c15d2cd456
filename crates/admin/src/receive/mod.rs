//! Receiving streams and packages: the names that they get here, their properties and holds, and what a package says of the rest.
//!
//! ```text
//! bytes ─► Header ─┬─ a stream ──────────────────────────────────────────► one
//!                  └─ a package: List ─► changes (datasets and snapshots that went or have other names)
//!                                        each of its streams ────────────► one ─► name ─► cenote_send::receiver
//!                                        changes once more                         properties before, holds after
//! ```
//! **Life of one.** The name comes from the stream's and from what was asked for. A stream whose snapshot is there already, by its guid, is
//! passed over. Properties are set when a new dataset has been begun, so that its blocks are written as they say; those of a dataset that
//! is there, when its snapshot is.
//!
//! **Crash.** A package is received stream by stream: what was received stays, and sending the package once more passes over it.

mod changes;
mod error;
mod heal;
mod incoming;
mod list;
mod name;
mod one;
mod peek;
mod properties;
mod request;
mod roots;
mod run;
mod target;

use std::io::Read;

use cenote_format::stream::{Body, HeaderKind};
use cenote_send::receiver::Header;
use cenote_send::{Checks, StreamReader};
use cenote_spa::Pool;

pub use self::error::{ReceiveAction, ReceiveError, ReceiveFailure};
pub use self::heal::{HealRequest, heal};
use self::list::List;
pub use self::peek::{FIRST_BYTES, sent_snapshot, verify_stream};
pub use self::request::{Caller, Naming, ReceiveOutcome, ReceiveRequest, SuspendError, Told};
use self::run::Run;

/// Receives a stream, or a package of them.
///
/// # Errors
/// The input is none, or damaged; the pool refuses it, or fails. Streams of a package before that are received.
pub async fn receive<R: Read>(
    pool: &Pool,
    input: R,
    request: &ReceiveRequest,
    caller: &mut dyn Caller,
) -> Result<ReceiveOutcome, ReceiveError> {
    let reader = StreamReader::new(input, Checks::ALL);
    let mut run = Run { pool, request, reader, caller, outcome: ReceiveOutcome::default(), has_begun: false, aside: 0 };
    let header = Header::read(&mut run.reader)?.ok_or(ReceiveFailure::NotAStream)?;
    let name = header.to_name()?;
    let top = name.split('@').next().unwrap_or(name).to_owned();
    match header.begin.header {
        HeaderKind::Compound => run.package(&header, &top).await?,
        _ => run.one(&header, &top, None).await?,
    }
    // The stream's own end is behind its last record.
    Ok(run.outcome)
}

impl<R: Read> Run<'_, R> {
    /// Receives a package whose beginning was read.
    async fn package(&mut self, header: &Header, top: &str) -> Result<(), ReceiveError> {
        let list = match header.list.iter().len() {
            0 => None,
            _ => Some(List::parse(&header.list).ok_or(ReceiveFailure::BadPackage("invalid backup stream"))?),
        };
        let is_recursive = list.as_ref().is_some_and(|list| list.is_recursive);
        if is_recursive && self.request.target.contains('@') {
            return Err(name::one_name_for_many());
        }
        match self.reader.next_item()? {
            Some(item) if matches!(item.decoded.record.body, Body::End(_)) => {}
            _ => return Err(ReceiveFailure::BadPackage("incorrect header checksum").into()),
        }
        let changes = list.as_ref().filter(|list| list.is_recursive && list.from_snapshot.is_some());
        let target = name::of_top(self.request, &header.begin.to_name, top);
        if let Some(list) = changes {
            self.outcome.is_incomplete |= !self.make_changes(&target, list).await?;
        }
        while let Some(next) = Header::read(&mut self.reader)? {
            self.one(&next, top, list.as_ref()).await?;
        }
        if let Some(list) = changes {
            // A dataset that came now may be the new parent of one that has another name.
            self.outcome.is_incomplete |= !self.make_changes(&target, list).await?;
        }
        if let Some(list) = &list {
            self.move_roots(&target, list).await?;
        }
        Ok(())
    }
}
