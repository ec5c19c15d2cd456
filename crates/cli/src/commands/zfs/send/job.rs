//! One stream on its way to standard output, and what is said of one that fails.

use std::io::{self, Write};
use std::sync::Arc;

use anyhow::Result;
use cenote_send::package::PackageError;
use cenote_send::sender::{AHEAD_BYTES, SendProgress, SendRequest, SenderError, estimate, send_if};
use cenote_spa::View;
use cenote_spa::tunables::SendTunables;

use super::Args;
use super::report::Watch;
use crate::context::Context;
use crate::output::Output;

/// Standard output for the bytes of a stream.
pub(super) struct Out<'a>(pub(super) &'a Output);

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.bytes(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The parts that all streams of a command share.
pub(super) struct Job<'a> {
    pub(super) context: &'a Context,
    pub(super) args: &'a Args,
    pub(super) pool: &'a View,
    /// The words for a key that is missing.
    pub(super) key_words: &'static str,
}

impl Job<'_> {
    /// A request with the tunables' values.
    fn tuned(&self, request: &SendRequest) -> SendRequest {
        let tunables = SendTunables::default().with(self.context.tunables());
        let mut request = request.clone();
        request.sends_corrupt = tunables.zfs_send_corrupt_data;
        request.ahead_bytes = tunables.zfs_send_queue_length.max(AHEAD_BYTES);
        request
    }

    /// Writes a stream.
    ///
    /// # Errors
    /// In OpenZFS's words, and what was found.
    pub(super) async fn send(&self, request: &SendRequest) -> Result<()> {
        let request = self.tuned(request);
        let name = request.to.name();
        let progress = Arc::new(SendProgress::default());
        let watch = Watch::start(self.context, self.args, &name, &progress);
        let mut check = || self.context.check_kept().map_err(SenderError::Spa);
        let sent = send_if(self.pool, &request, &mut Out(self.context.output()), &progress, &mut check).await;
        drop(watch);
        sent.map(drop).map_err(|error| failed(&name, self.key_words, error))
    }

    /// The estimated length of a stream.
    ///
    /// # Errors
    /// As OpenZFS names them, but for a key that is missing: the numbers are there without it.
    pub(super) async fn estimate(&self, request: &SendRequest, received_bytes: u64) -> Result<u64> {
        let request = self.tuned(request);
        let name = request.to.name();
        let estimated = estimate(self.pool, &request, received_bytes).await;
        estimated.map_err(|error| failed(&name, self.key_words, error))
    }
}

/// The error of a stream as OpenZFS words it, with what was found behind it.
pub(super) fn failed(name: &str, key_words: &str, error: SenderError) -> anyhow::Error {
    let warning = |text: &str| anyhow::anyhow!("warning: cannot send '{name}': {text}");
    match error {
        // The reader has gone, or the disk is full: what the system says.
        SenderError::Output(error) => anyhow::Error::new(error).context(format!("warning: cannot send '{name}'")),
        SenderError::KeyNotLoaded(_) => warning(key_words),
        error if error.is_unreadable() => warning(&format!("Input/output error\n    {error}")),
        error => warning(&error.to_string()),
    }
}

/// The same for a package as a whole.
pub(super) fn package_failed(name: &str, error: PackageError) -> anyhow::Error {
    match error {
        PackageError::Sender(error) => failed(name, "source key must be loaded", error),
        PackageError::TooLarge => anyhow::anyhow!("warning: cannot send '{name}': {error}"),
        error => anyhow::anyhow!("{error}\nwarning: cannot send '{name}': backup failed"),
    }
}
