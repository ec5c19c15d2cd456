//! One stream: understood, applied, and made a snapshot.

use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_format::enums::ObjsetType;
use cenote_props::Types;
use cenote_props::number::nicebytes;
use cenote_send::receiver::{
    Header, ReceiveOptions, ReceiveProgress, ReceiverError, receive_resume_token, receive_stream, skip_stream,
};
use cenote_spa::{ReceiveRefusal, SpaError};
use cenote_taskq::sync::Mutex;

use super::error::{ReceiveAction, ReceiveError, ReceiveFailure};
use super::incoming::Incoming;
use super::list::List;
use super::name;
use super::properties::{Properties, set_properties};
use super::request::{Naming, Told};
use super::run::Run;

/// The line about a stream that was received, as OpenZFS prints it.
fn received_line(bytes: u64, took: Duration) -> String {
    let took = took.max(Duration::from_nanos(1)).as_secs_f64();
    let rate = (bytes as f64 / took) as u64;
    format!("received {} stream in {took:.2} seconds ({}/sec)", nicebytes(bytes), nicebytes(rate))
}

impl<R: Read> Run<'_, R> {
    pub(super) fn tell(&mut self, text: String) {
        if self.request.is_verbose {
            self.caller.told(Told::Out(text));
        }
    }

    /// Receives a stream whose beginning was read. `top`: the dataset that was sent first.
    pub(super) async fn one(&mut self, header: &Header, top: &str, list: Option<&List>) -> Result<(), ReceiveError> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let incoming = self.understand(header, top, list, is_first).await?;
        if self.request.is_dry {
            return self.only_tell(&incoming, is_first).await;
        }
        if incoming.is_new && self.request.naming == Naming::WithoutPool {
            self.make_parents(&incoming).await?;
        }
        self.tell(incoming.line("receiving"));
        let (began, progress) = (self.pool.handle().now(), ReceiveProgress::default());
        let properties = self.properties(&incoming);
        let Some(refused) = self.apply(&incoming, &properties, &progress).await? else {
            self.tell(format!("snap {} already exists; ignoring", incoming.target()));
            return Ok(skip_stream(&mut self.reader)?);
        };
        for (property, why) in refused {
            let text = format!("cannot receive {property} property on {}: {why}", incoming.dataset);
            self.caller.told(Told::Err(text));
        }
        self.reserve(&incoming.dataset, &properties).await;
        let finished = self.finish(&incoming.target(), incoming.sent).await;
        finished.map_err(|error| ReceiveError::new(incoming.action.clone(), error))?;
        if self.outcome.datasets.last() != Some(&incoming.dataset) {
            self.outcome.datasets.push(incoming.dataset.clone());
        }
        self.tell(received_line(progress.bytes.load(Ordering::Relaxed), self.pool.handle().now() - began));
        Ok(())
    }

    /// Finds the snapshot that a stream becomes, and refuses a request that does not fit the stream.
    async fn understand<'h>(
        &mut self,
        header: &'h Header,
        top: &str,
        list: Option<&'h List>,
        is_first: bool,
    ) -> Result<Incoming<'h>, ReceiveError> {
        header.check(self.reader.decoder().endian())?;
        let sent_name = header.to_name()?.to_owned();
        let is_recursive = list.is_some_and(|list| list.is_recursive);
        let target = name::of_snapshot(self.request, &sent_name, top, is_recursive)?;
        let given = &self.request.target;
        if is_first && self.request.naming != Naming::Exact && !self.exists(given).await? {
            return Err(ReceiveFailure::NoTarget(given.clone()).into());
        }
        let origin = self.origin(header, &target).await?;
        let is_new = (header.is_of_new_dataset() || origin.is_some()) && !header.is_resuming();
        let action = match (is_new, header.is_resuming()) {
            (true, _) => ReceiveAction::New,
            (_, true) => ReceiveAction::Resumed,
            _ => ReceiveAction::Incremental,
        };
        let types = match header.kind()? {
            ObjsetType::Zvol => Types::VOLUME,
            _ => Types::FILESYSTEM,
        };
        let sent = list.and_then(|list| list.find(header.begin.to_guid.0));
        let (dataset, snapshot) = target.split_once('@').expect("checked: it is a snapshot's name");
        let (dataset, snapshot) = (dataset.to_owned(), snapshot.to_owned());
        let mut incoming = Incoming { header, sent_name, sent, dataset, snapshot, origin, is_new, action, types };
        self.find_dataset(&mut incoming, top).await?;
        self.check_properties(&incoming, is_recursive)?;
        Ok(incoming)
    }

    /// Tells what would be received.
    async fn only_tell(&mut self, incoming: &Incoming<'_>, is_first: bool) -> Result<(), ReceiveError> {
        if is_first
            && !incoming.header.is_resuming()
            && let Some(why) = self.refused(incoming).await?
        {
            return Err(ReceiveError::new(incoming.action.clone(), why));
        }
        self.tell(incoming.line("would receive"));
        Ok(skip_stream(&mut self.reader)?)
    }

    /// Applies the records, and sets the properties. Returns those that were refused, each with the reason; `None` if this very snapshot exists.
    async fn apply(
        &mut self,
        incoming: &Incoming<'_>,
        properties: &Properties,
        progress: &ReceiveProgress,
    ) -> Result<Option<Vec<(String, String)>>, ReceiveError> {
        let (header, dataset) = (incoming.header, incoming.dataset.as_str());
        let options = ReceiveOptions {
            dataset: dataset.to_owned(),
            snapshot: incoming.snapshot.clone(),
            origin: incoming.origin.clone(),
            is_forced: self.request.is_forced,
            users_wait: self.caller.has_users_wait(),
            is_resumable: self.request.is_resumable,
            note_every: self.request.note_every,
        };
        let (pool, refused) = (self.pool.clone(), Mutex::new(Vec::new()));
        let begun = async |is_new: bool| {
            if is_new {
                let found = set_properties(&pool, dataset, properties).await?;
                refused.lock().extend(found);
            }
            Ok(())
        };
        let caller = &mut *self.caller;
        let ending = async |written: &str| {
            let stands = caller.suspend(dataset, written).await;
            stands.map_err(|error| SpaError::from(ReceiveRefusal::InUse(error.reason())).into())
        };
        let received = receive_stream(self.pool, &mut self.reader, header, &options, progress, begun, ending).await;
        self.caller.resume().await;
        let mut refused = refused.into_inner();
        match received {
            Ok(true) => {}
            Ok(false) => {
                let set = set_properties(self.pool, dataset, properties).await;
                refused.extend(set.map_err(|error| ReceiveError::new(incoming.action.clone(), error))?);
            }
            Err(error) if !self.is_there(&error, header, dataset).await? => {
                return Err(self.failed(error, incoming, progress).await);
            }
            Err(_) => return Ok(None),
        }
        Ok(Some(refused))
    }

    /// Returns true if a stream was refused because its very snapshot exists.
    async fn is_there(&self, error: &ReceiverError, header: &Header, dataset: &str) -> Result<bool, ReceiveError> {
        let ReceiverError::Spa(error) = error else { return Ok(false) };
        let SpaError::Receive(refusal) = error.as_ref() else { return Ok(false) };
        if !matches!(refusal, ReceiveRefusal::Exists(_)) || !self.exists(dataset).await? {
            return Ok(false);
        }
        let dsl = self.pool.dsl()?;
        let snapshots = dsl.snapshots(&dsl.dataset(dataset).await?).await?;
        Ok(snapshots.iter().any(|snapshot| snapshot.phys.guid == header.begin.to_guid))
    }

    /// The error of a stream that is not received, with the place to resume at if the request has that.
    async fn failed(&self, error: ReceiverError, incoming: &Incoming<'_>, progress: &ReceiveProgress) -> ReceiveError {
        let mut action = incoming.action.clone();
        let mut is_kept = true;
        if let ReceiverError::Spa(spa) = &error
            && let SpaError::Receive(refusal) = spa.as_ref()
        {
            // Before anything of this stream arrived, the part that may be kept is another stream's.
            is_kept = progress.bytes.load(Ordering::Relaxed) > 0;
            if let ReceiveRefusal::Exists(name) = refusal {
                (action, is_kept) = (ReceiveAction::Restore(name.clone()), false);
            }
        }
        let token = if is_kept { self.resume_token(&incoming.dataset).await } else { None };
        ReceiveError { action, why: ReceiveFailure::Records(Box::new(error)), token }
    }

    /// The place to resume a stream that broke off, if the request has that.
    async fn resume_token(&self, dataset: &str) -> Option<String> {
        if !self.request.is_resumable {
            return None;
        }
        let dsl = self.pool.dsl().ok()?;
        let dataset = dsl.dataset(dataset).await.ok()?;
        receive_resume_token(&dsl, &dataset).await.ok()?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As libzfs_sendrecv.c prints it: numbers by zfs_nicebytes, bytes with their unit.
    #[test]
    fn a_received_stream_is_told_in_openzfs_numbers() {
        let line = |bytes, millis| received_line(bytes, Duration::from_millis(millis));
        assert_eq!(line(624, 1000), "received 624B stream in 1.00 seconds (624B/sec)");
        assert_eq!(line(2048, 1000), "received 2K stream in 1.00 seconds (2K/sec)");
        assert_eq!(line(10_239, 2000), "received 10.0K stream in 2.00 seconds (5.00K/sec)");
        assert_eq!(line(1_610_612_736, 500), "received 1.50G stream in 0.50 seconds (3G/sec)");
        assert!(line(1, 0).starts_with("received 1B stream in 0.00 seconds ("));
    }
}
