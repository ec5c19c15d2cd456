//! An encrypted dataset without its key: received raw from OpenZFS, and sent on raw. Nobody here can read what is in it, so what is
//! compared is what is sent of it.

use cenote_admin::receive::ReceiveRequest;
use cenote_format::stream::{Body, Record};
use cenote_replicas::streams::{received, stream};
use cenote_send::sender::{SendFlags, SendRequest};
use cenote_send::{Checks, StreamReader};
use cenote_spa::{Pool, View};
use cenote_testkit::Golden;

use super::model::{Contents, Family, From, Known, RAW, Snapshot};

/// The forms of records that a raw stream has.
pub(super) const RAW_FLAGS: SendFlags = SendFlags { large_blocks: true, embedded: false, compressed: true, raw: true };
/// OpenZFS's streams: a whole one, and an increment on top of it.
const STREAMS: [&str; 2] = ["enc-raw", "enc-raw-incr"];

/// Receives OpenZFS's streams, and puts their snapshots into the model.
pub(crate) async fn receive_golden(pool: &Pool, family: &mut Family) -> Result<(), String> {
    let theme = Golden::find().and_then(|golden| golden.theme("streams")).map_err(|error| format!("{error:#}"))?;
    for name in STREAMS {
        let bytes = theme.member(&format!("streams/{name}.zfs")).map_err(|error| format!("{error:#}"))?;
        let number = family.next;
        family.next += 1;
        let snapshot = format!("{RAW}@s{number}");
        let request = ReceiveRequest { target: snapshot.clone(), ..ReceiveRequest::default() };
        received(pool, &bytes, &request).await?;
        let contents = Contents { from: Some(From { dataset: RAW, taken: Some(number) }), ..Contents::default() };
        family.heads.insert(RAW.to_owned(), contents.clone());
        family.snapshots.push(Snapshot {
            name: snapshot.clone(),
            number,
            original: snapshot,
            is_received: true,
            contents,
        });
    }
    Ok(())
}

/// All records of a raw stream of a snapshot but the first and the last, which have names and sums.
pub(super) async fn read(view: &View, name: &str) -> Result<Known, String> {
    let to = view.dsl().dataset(name).await.map_err(|error| error.to_string())?;
    let bytes = stream(view, &SendRequest::full(to, RAW_FLAGS)).await.map_err(|error| format!("{error:#}"))?;
    let (mut reader, mut records) = (StreamReader::new(&bytes[..], Checks::ALL), Vec::new());
    while let Some(item) = reader.next_item().map_err(|error| error.to_string())? {
        if matches!(item.decoded.record.body, Body::Begin(_) | Body::End(_)) {
            continue;
        }
        let at = item.decoded.offset_bytes as usize;
        records.extend(&bytes[at..at + Record::CHECKSUM_OFFSET]);
        records.extend(item.payload);
    }
    Ok(Known::Raw(records))
}
