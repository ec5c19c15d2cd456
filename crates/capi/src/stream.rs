//! Streams of snapshots, through descriptors of files, pipes and sockets.

use std::ffi::CString;
use std::io::BufReader;

use cenote::{ReceiveOptions, SendOptions, SentName};

use crate::border::{Borrowed, Descriptor, Give, GiveText, In, Text};
use crate::fault::{Fault, c_text};
use crate::options::{Setting, given};
use crate::pool::PoolHandle;
use crate::runtime::wait;

type Done = Result<(), Fault>;

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// Options of a send.
pub(crate) type Sending = Setting<SendOptions>;

/// Options of a receive.
pub(crate) type Receiving = Setting<ReceiveOptions>;

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
pub(crate) enum Name {
    Replaced = 0,
    WithoutPool = 1,
    Last = 2,
}

pub(crate) fn since(options: In<Sending>, source: Text, with_between: bool) -> Done {
    let (options, source) = (options.get("options")?, source.get("source")?);
    options.change(|send| send.since(source).with_between(with_between))
}

pub(crate) fn send_exclude(options: In<Sending>, dataset: Text) -> Done {
    let (options, dataset) = (options.get("options")?, dataset.get("dataset")?);
    options.change(|send| send.exclude(dataset))
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
    let (options, out) = (given(&options), fd.get("fd")?);
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
    let (options, out) = (given(&options), fd.get("fd")?);
    let sent = wait(async { options.resume(&pool.pool, token).await?.write_to(out).await })?;
    if let Some(place) = place {
        place.give(Report::of_sent(sent));
    }
    Ok(())
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
    let options = given(&options);
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
