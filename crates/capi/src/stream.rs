//! Streams of snapshots, through descriptors of files, pipes and sockets.

use std::ffi::CString;
use std::io::BufReader;
use std::sync::Mutex;

use cenote::{ReceiveOptions, SendOptions, SentName};

use crate::border::{Borrowed, Descriptor, Give, GiveText, In, Text};
use crate::fault::{Fault, c_text};
use crate::locked;
use crate::pool::PoolHandle;
use crate::runtime::wait;

type Done = Result<(), Fault>;

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// Options of a send.
#[derive(Default)]
pub(crate) struct Sending(Mutex<SendOptions>);

/// Options of a receive.
#[derive(Default)]
pub(crate) struct Receiving(Mutex<ReceiveOptions>);

/// Messages about streams, and what was received: `cenote_report`.
pub(crate) struct Report {
    datasets: Vec<CString>,
    warnings: Vec<CString>,
    bytes: u64,
    is_whole: bool,
}

/// The part of a sent name that is added: `enum cenote_sent_name`.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Name {
    Replaced = 0,
    WithoutPool = 1,
    Last = 2,
}

impl Sending {
    fn change(&self, change: impl FnOnce(SendOptions) -> SendOptions) -> Done {
        let mut options = locked(&self.0);
        *options = change(std::mem::take(&mut *options));
        Ok(())
    }
}

impl Receiving {
    fn change(&self, change: impl FnOnce(ReceiveOptions) -> ReceiveOptions) -> Done {
        let mut options = locked(&self.0);
        *options = change(std::mem::take(&mut *options));
        Ok(())
    }
}

pub(crate) fn send_options(options: Give<Sending>) -> Done {
    options.get("options")?.give(Sending::default());
    Ok(())
}

pub(crate) fn since(options: In<Sending>, source: Text, with_between: bool) -> Done {
    let (options, source) = (options.get("options")?, source.get("source")?);
    options.change(|send| send.since(source).with_between(with_between))
}

pub(crate) fn replicate(options: In<Sending>, replicate: bool) -> Done {
    options.get("options")?.change(|send| send.replicate(replicate))
}

pub(crate) fn send_exclude(options: In<Sending>, dataset: Text) -> Done {
    let (options, dataset) = (options.get("options")?, dataset.get("dataset")?);
    options.change(|send| send.exclude(dataset))
}

pub(crate) fn skip_missing(options: In<Sending>, skip: bool) -> Done {
    options.get("options")?.change(|send| send.skip_missing(skip))
}

pub(crate) fn properties(options: In<Sending>, with: bool) -> Done {
    options.get("options")?.change(|send| send.properties(with))
}

pub(crate) fn holds(options: In<Sending>, with: bool) -> Done {
    options.get("options")?.change(|send| send.holds(with))
}

pub(crate) fn raw(options: In<Sending>, raw: bool) -> Done {
    options.get("options")?.change(|send| send.raw(raw))
}

pub(crate) fn compressed(options: In<Sending>, compressed: bool) -> Done {
    options.get("options")?.change(|send| send.compressed(compressed))
}

pub(crate) fn large_blocks(options: In<Sending>, large: bool) -> Done {
    options.get("options")?.change(|send| send.large_blocks(large))
}

fn sending(options: &In<Sending>) -> SendOptions {
    options.optional().map(|options| locked(&options.0).clone()).unwrap_or_default()
}

impl Report {
    fn of_sent(sent: cenote::Sent) -> Self {
        let warnings = sent.warnings.into_iter().map(c_text).collect();
        Self { datasets: Vec::new(), warnings, bytes: sent.bytes, is_whole: sent.is_whole }
    }
}

pub(crate) fn send(
    pool: In<PoolHandle>,
    snapshot: Text,
    options: In<Sending>,
    fd: Descriptor,
    report: Give<Report>,
) -> Done {
    let (place, pool, snapshot) = (report.optional("report")?, pool.get("pool")?, snapshot.get("snapshot")?);
    let (options, out) = (sending(&options), fd.get("fd")?);
    let sent = wait(async { options.send(&pool.pool.snapshot(snapshot).await?, out).await })?;
    if let Some(place) = place {
        place.give(Report::of_sent(sent));
    }
    Ok(())
}

pub(crate) fn resume(
    pool: In<PoolHandle>,
    token: Text,
    options: In<Sending>,
    fd: Descriptor,
    report: Give<Report>,
) -> Done {
    let (place, pool, token) = (report.optional("report")?, pool.get("pool")?, token.get("token")?);
    let (options, out) = (sending(&options), fd.get("fd")?);
    let sent = wait(async { options.resume(&pool.pool, token).await?.write_to(out).await })?;
    if let Some(place) = place {
        place.give(Report::of_sent(sent));
    }
    Ok(())
}

pub(crate) fn receive_options(options: Give<Receiving>) -> Done {
    options.get("options")?.give(Receiving::default());
    Ok(())
}

pub(crate) fn force(options: In<Receiving>, force: bool) -> Done {
    options.get("options")?.change(|receive| receive.force(force))
}

pub(crate) fn resumable(options: In<Receiving>, resumable: bool) -> Done {
    options.get("options")?.change(|receive| receive.resumable(resumable))
}

pub(crate) fn skip_holds(options: In<Receiving>, skip: bool) -> Done {
    options.get("options")?.change(|receive| receive.skip_holds(skip))
}

pub(crate) fn sent_name(options: In<Receiving>, part: u32) -> Done {
    let part = match part {
        part if part == Name::Replaced as u32 => SentName::Replaced,
        part if part == Name::WithoutPool as u32 => SentName::WithoutPool,
        part if part == Name::Last as u32 => SentName::Last,
        part => return Err(Fault::misuse(format!("`part` is {part}, which is none of enum cenote_sent_name"))),
    };
    options.get("options")?.change(|receive| receive.sent_name(part))
}

pub(crate) fn origin(options: In<Receiving>, snapshot: Text) -> Done {
    let (options, snapshot) = (options.get("options")?, snapshot.get("snapshot")?);
    options.change(|receive| receive.origin(snapshot))
}

pub(crate) fn property(options: In<Receiving>, name: Text, value: Text) -> Done {
    let (options, name, value) = (options.get("options")?, name.get("name")?, value.get("value")?);
    options.change(|receive| receive.property(name, value))
}

pub(crate) fn exclude(options: In<Receiving>, property: Text) -> Done {
    let (options, property) = (options.get("options")?, property.get("property")?);
    options.change(|receive| receive.exclude(property))
}

pub(crate) fn receive(
    pool: In<PoolHandle>,
    target: Text,
    options: In<Receiving>,
    fd: Descriptor,
    report: Give<Report>,
) -> Done {
    let (place, pool, target) = (report.optional("report")?, pool.get("pool")?, target.get("target")?);
    let options = options.optional().map(|options| locked(&options.0).clone()).unwrap_or_default();
    let input = BufReader::with_capacity(READ_BYTES, fd.get("fd")?);
    let received = wait(options.receive(&pool.pool, target, input))?;
    let text = |texts: Vec<String>| texts.into_iter().map(c_text).collect();
    if let Some(place) = place {
        place.give(Report {
            datasets: text(received.datasets),
            warnings: text(received.warnings),
            bytes: 0,
            is_whole: !received.is_incomplete,
        });
    }
    Ok(())
}

pub(crate) fn resume_token(pool: In<PoolHandle>, dataset: Text, token: GiveText) -> Done {
    let (place, pool, dataset) = (token.get("token")?, pool.get("pool")?, dataset.get("dataset")?);
    match wait(async { pool.pool.dataset(dataset).await?.receive_resume_token().await })? {
        Some(token) => place.text(token.as_bytes()),
        None => Ok(()),
    }
}

pub(crate) fn abort_receive(pool: In<PoolHandle>, dataset: Text) -> Done {
    let (pool, dataset) = (pool.get("pool")?, dataset.get("dataset")?);
    wait(async { pool.pool.dataset(dataset).await?.abort_receive().await })
}

pub(crate) fn bytes(report: In<Report>) -> u64 {
    report.optional().map_or(0, |report| report.bytes)
}

pub(crate) fn is_whole(report: In<Report>) -> bool {
    report.optional().is_some_and(|report| report.is_whole)
}

pub(crate) fn dataset(report: In<Report>, index: usize) -> Borrowed {
    Borrowed::of(report.optional().and_then(|report| report.datasets.get(index)).map(CString::as_c_str))
}

pub(crate) fn warning(report: In<Report>, index: usize) -> Borrowed {
    Borrowed::of(report.optional().and_then(|report| report.warnings.get(index)).map(CString::as_c_str))
}

#[cfg(test)]
pub(crate) fn layout() -> String {
    crate::border::spelling::numbers(&[
        ("SENT_NAME_REPLACED", Name::Replaced as u32),
        ("SENT_NAME_WITHOUT_POOL", Name::WithoutPool as u32),
        ("SENT_NAME_LAST", Name::Last as u32),
    ])
}

#[cfg(test)]
mod names {
    use super::*;
    use crate::border::spelling::Named;

    impl Named for Sending {
        const NAME: &'static str = "cenote_send_options";
    }

    impl Named for Receiving {
        const NAME: &'static str = "cenote_receive_options";
    }

    impl Named for Report {
        const NAME: &'static str = "cenote_report";
    }
}
