//! Streams of a family: a snapshot is sent to memory and received in the same pool.

use std::time::Duration;

use cenote_admin::receive::ReceiveRequest;
use cenote_replicas::streams::{draw_flags, received, rest_of, stream, token};
use cenote_send::sender::{Base, SendFlags, SendRequest};
use cenote_spa::View;

use super::actor::Snapshotter;
use super::model::{Family, Outcome, Verb, of};
use super::raw::RAW_FLAGS;
use crate::DISK_BYTES;
use crate::judge::import_options;
use crate::stage::words;

/// The times between two notes of the place to go on from. A note waits for its txg, so with the first each record takes one.
const NOTE_EVERY: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(4), Duration::from_millis(12), Duration::from_secs(5)];
/// A receive that finds no room says this, and has reason to where so many bytes are in use.
const FULL: &str = "no space left";
const FULL_BYTES: u64 = DISK_BYTES / 4;
/// Bytes of a record: a stream that is broken off has its beginning.
const RECORD_BYTES: u64 = 312;

impl Snapshotter {
    pub(super) async fn receive(&mut self, state: &Family, mut verb: Verb) -> Result<Outcome, String> {
        match self.try_receive(state, &mut verb).await {
            Ok(true) => Ok(Outcome::Made { verb, txg: None }),
            Ok(false) => Ok(Outcome::Refused),
            // A receive that failing devices left undone is judged after the cut.
            Err(_) if self.has_outage => std::future::pending().await,
            Err(error) => Err(error),
        }
    }

    /// False if nothing was begun.
    async fn try_receive(&mut self, state: &Family, verb: &mut Verb) -> Result<bool, String> {
        let (Verb::Receive { source, from, snapshot, .. } | Verb::ReceivePart { source, from, snapshot }) = verb else {
            return Err("no receive".to_owned());
        };
        let (source, from, snapshot) = (source.clone(), from.clone(), snapshot.clone());
        let dataset = of(&snapshot);
        let place = match state.partials.contains_key(dataset) {
            true => token(&self.pool, dataset).await.map_err(|error| format!("{error:#}"))?,
            false => None,
        };
        let view = self.pool.view(&import_options()).await.map_err(|error| format!("to be sent: {error}"))?;
        let is_raw = state.snapshot(&source).is_some_and(|source| source.contents.is_raw());
        let flags = if is_raw { RAW_FLAGS } else { draw_flags(&mut self.rng) };
        let bytes = sent(&view, &source, from.as_deref(), place.as_deref(), flags).await;
        view.close().await;
        let bytes = bytes.map_err(|error| format!("sent: {error:#}"))?;
        let request = ReceiveRequest {
            target: snapshot.clone(),
            is_forced: from.is_some(),
            is_resumable: place.is_some() || matches!(verb, Verb::ReceivePart { .. }) || self.rng.chance(2, 3),
            note_every: Some(NOTE_EVERY[self.rng.below(NOTE_EVERY.len() as u64) as usize]),
            ..ReceiveRequest::default()
        };
        if let Verb::Receive { is_resumed, .. } = verb {
            *is_resumed = place.is_some();
            let Err(error) = received(&self.pool, &bytes, &request).await else { return Ok(true) };
            // The raw stream has blocks of 1 MiB, which may take a good part of such a pool at worst.
            if !error.contains(FULL) || !is_raw && self.used_bytes().await? < FULL_BYTES {
                return Err(format!("{error}, where {} bytes are in use", self.used_bytes().await?));
            }
            // A part may be there now.
            *verb = Verb::ReceivePart { source, from, snapshot: snapshot.clone() };
            return Ok(self.has_token(dataset).await? && !state.partials.contains_key(dataset));
        }
        let end = RECORD_BYTES + self.rng.below((bytes.len() as u64).saturating_sub(RECORD_BYTES));
        if received(&self.pool, &bytes[..end as usize], &request).await.is_ok() {
            return Err(format!("{end} of {} bytes are received as if they were all", bytes.len()));
        }
        self.has_token(dataset).await
    }

    async fn has_token(&self, dataset: &str) -> Result<bool, String> {
        Ok(token(&self.pool, dataset).await.map_err(|error| format!("{error:#}"))?.is_some())
    }

    /// Bytes that all datasets use.
    async fn used_bytes(&self) -> Result<u64, String> {
        let dsl = self.pool.dsl().map_err(words)?;
        Ok(dsl.root_dir().await.map_err(words)?.phys.used_bytes)
    }
}

async fn sent(
    view: &View,
    source: &str,
    from: Option<&str>,
    token: Option<&str>,
    flags: SendFlags,
) -> anyhow::Result<Vec<u8>> {
    let to = view.dsl().dataset(source).await?;
    let mut request = SendRequest::full(to.clone(), flags);
    if let Some(from) = from {
        request.base = Some(Base::snapshot(view.dsl(), &to, &view.dsl().dataset(from).await?).await?);
    }
    match token {
        Some(token) => rest_of(view, &request, token).await,
        None => stream(view, &request).await,
    }
}
