//! Streams on their way: made, broken off, gone on with, received.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cenote_admin::receive::{ReceiveRequest, Told, receive};
use cenote_send::package::{self, PackageRequest, gather, plan};
use cenote_send::receiver::receive_resume_token;
use cenote_send::sender::{Base, ResumeToken, SendFlags, SendProgress, SendRequest, send};
use cenote_send::{Checks, StreamReader};
use cenote_spa::{Pool, View};
use cenote_taskq::Rng;

use crate::swap::swapped;

/// Whether what is done with streams is told.
static IS_TOLD: AtomicBool = AtomicBool::new(false);

/// Prints each stream that is sent or received from now on, to examine a case that failed.
pub fn tell() {
    IS_TOLD.store(true, Ordering::Relaxed);
}

fn told(what: impl FnOnce() -> String) {
    if IS_TOLD.load(Ordering::Relaxed) {
        println!("{}", what());
    }
}

/// Counts of streams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Streams, or packages of them, that were received.
    pub streams: u64,
    /// That were broken off.
    pub broken: u64,
    /// Of these, that were gone on with.
    pub resumed: u64,
    /// Records in the streams, at first.
    pub records: u64,
    /// Snapshots that were compared.
    pub compared: u64,
}

impl Tally {
    /// Adds another one.
    pub fn absorb(&mut self, other: Self) {
        self.streams += other.streams;
        self.broken += other.broken;
        self.resumed += other.resumed;
        self.records += other.records;
        self.compared += other.compared;
    }
}

/// Draws the forms of records of a stream.
#[must_use]
pub fn draw_flags(rng: &mut Rng) -> SendFlags {
    let mut one = || rng.chance(1, 2);
    SendFlags { large_blocks: one(), embedded: one(), compressed: one(), raw: false }
}

/// Makes a stream.
///
/// # Errors
/// As [`send`].
pub async fn stream(view: &View, request: &SendRequest) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    send(view, request, &mut out, &SendProgress::default()).await?;
    told(|| {
        let from = request.base.as_ref().map(|base| base.txg);
        format!("{} from {from:?}, {:?}, at {:?}", request.to.name(), request.flags, request.resume)
    });
    Ok(out)
}

/// Makes a package, as `zfs send -R`, `-I` and `-p` do.
///
/// # Errors
/// Something cannot be sent, or a stream that was asked for is not among them.
pub async fn package(view: &View, request: &PackageRequest, flags: SendFlags) -> Result<Vec<u8>> {
    let mut told = Vec::new();
    let mut tell = |text: String| told.push(text);
    let list = match request.has_list() {
        true => Some(gather(view, request, &mut tell).await?),
        false => None,
    };
    let plan = plan(view, request, list.as_ref(), &mut tell).await?;
    ensure!(!plan.has_failed && plan.has_to, "{told:?}");
    let mut out = Vec::new();
    package::begin(request, list.as_ref(), &mut out)?;
    for planned in &plan.streams {
        let mut one = SendRequest::full(planned.to.clone(), flags);
        if let Some(from) = &planned.from {
            one.base = Some(Base::snapshot(view.dsl(), &planned.to, from).await?);
        }
        out.extend(stream(view, &one).await?);
    }
    package::end(&mut out)?;
    Ok(out)
}

/// The places where records begin, but for the first.
///
/// # Errors
/// It is no sound stream.
pub fn boundaries(bytes: &[u8]) -> Result<Vec<usize>> {
    let mut reader = StreamReader::new(bytes, Checks::ALL);
    let mut places = Vec::new();
    while let Some(item) = reader.next_item()? {
        places.push(item.decoded.offset_bytes as usize);
    }
    places.remove(0);
    Ok(places)
}

/// Receives what there is of a stream.
///
/// # Errors
/// It is refused, in the words of the program.
pub async fn received(pool: &Pool, bytes: &[u8], request: &ReceiveRequest) -> Result<(), String> {
    let mut say = |told: Told| self::told(|| format!("{told:?}"));
    let done = receive(pool, bytes, request, &mut say).await.map(drop).map_err(|error| error.to_string());
    told(|| format!("  {} bytes into {}, forced {}: {done:?}", bytes.len(), request.target, request.is_forced));
    done
}

/// The token by which a partial receive goes on.
///
/// # Errors
/// The dataset cannot be read.
pub async fn token(pool: &Pool, dataset: &str) -> Result<Option<String>> {
    let dsl = pool.dsl()?;
    let Ok(dataset) = dsl.dataset(dataset).await else { return Ok(None) };
    Ok(receive_resume_token(&dsl, &dataset).await?)
}

/// The offset at which a stream is broken off: mostly between records, sometimes within one.
fn cut(bytes: &[u8], rng: &mut Rng) -> Result<usize> {
    if rng.chance(1, 3) {
        return Ok(rng.below(bytes.len() as u64) as usize);
    }
    let places = boundaries(bytes)?;
    Ok(places[rng.below(places.len() as u64) as usize])
}

/// The stream that goes on where a token says.
///
/// # Errors
/// The token is not about this stream, or it cannot be sent.
pub async fn rest_of(view: &View, request: &SendRequest, token: &str) -> Result<Vec<u8>> {
    let token = ResumeToken::parse(token)?;
    ensure!(token.to_guid == request.to.phys.guid, "the token is about another snapshot");
    let from = request.base.as_ref().map(|base| base.guid);
    ensure!(token.from_guid == from, "the token goes on from {:?} in place of {from:?}", token.from_guid);
    ensure!(token.redact_snapshots.is_some() == request.redact.is_some(), "the token says otherwise what is redacted");
    let mut rest = request.clone();
    rest.resume = Some(token.point);
    rest.flags = token.flags;
    stream(view, &rest).await
}

/// Has a stream received into `dataset`, breaking it off at random.
///
/// # Errors
/// It is not received, or breaking it off leaves what it must not.
pub async fn deliver(
    view: &View,
    request: &SendRequest,
    replica: &Pool,
    dataset: &str,
    asked: &ReceiveRequest,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<()> {
    let whole = stream(view, request).await?;
    deliver_bytes(&whole, (view, request), replica, dataset, asked, rng, tally).await
}

/// The same, with a stream that is at hand. The view and the request are used to resume it.
///
/// # Errors
/// As [`deliver`].
pub async fn deliver_bytes(
    whole: &[u8],
    (view, request): (&View, &SendRequest),
    replica: &Pool,
    dataset: &str,
    asked: &ReceiveRequest,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<()> {
    // No draw decides: cases stay what they were.
    let is_foreign = request.to.phys.guid.0.is_multiple_of(4);
    let sent = |bytes: Vec<u8>| if is_foreign { swapped(&bytes, None) } else { Ok(bytes) };
    let whole = sent(whole.to_vec())?;
    tally.streams += 1;
    tally.records += boundaries(&whole)?.len() as u64;
    let mut asked = asked.clone();
    if rng.chance(1, 2) {
        asked.note_every = Some(Duration::ZERO);
    }
    let mut rest = whole.clone();
    for _ in 0..[0, 0, 1, 2, 3][rng.below(5) as usize] {
        let at = cut(&rest, rng)?;
        let Err(why) = received(replica, &rest[..at], &asked).await else {
            bail!("{at} of {} bytes are received as if they were all", rest.len());
        };
        tally.broken += 1;
        match token(replica, dataset).await? {
            Some(token) => {
                ensure!(asked.is_resumable, "without -s a part is kept: {why}");
                rest = sent(rest_of(view, request, &token).await?)?;
                tally.resumed += 1;
            }
            None => rest = whole.clone(),
        }
    }
    received(replica, &rest, &asked).await.map_err(anyhow::Error::msg).context("the whole stream")
}
