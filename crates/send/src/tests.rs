//! Streams that are in no golden set: with the other byte order, of old senders, out of order, hostile.

use cenote_codec::checksum::fletcher::Fletcher4;
use cenote_format::Endian;
use cenote_format::ids::{Guid, ObjectId};
use cenote_format::nvlist::NvList;
use cenote_format::stream::{
    Begin, BeginFlags, Body, End, Features, Free, FreeObjects, HeaderKind, Record, RecordFlags, Redact, Spill, Write,
};
use proptest::prelude::*;

use super::*;

/// A miniature sender.
pub(crate) struct Sender {
    endian: Endian,
    sum: Fletcher4,
    pub(crate) bytes: Vec<u8>,
    record_checksums: bool,
}

impl Sender {
    pub(crate) fn new(endian: Endian) -> Self {
        Self { endian, sum: Fletcher4::new(), bytes: Vec::new(), record_checksums: true }
    }

    pub(crate) fn record(&mut self, body: Body, payload: &[u8]) {
        let body = match body {
            Body::End(End { to_guid, .. }) => Body::End(End { stream_checksum: self.sum.finish(), to_guid }),
            other => other,
        };
        let is_end = matches!(body, Body::End(_));
        let payload_length = payload.len() as u32;
        let mut record = Record { payload_length, body, checksum: [0; 4] };
        let unsealed = record.emit(self.endian);
        self.sum.update(&unsealed[..Record::CHECKSUM_OFFSET], self.endian);
        if self.record_checksums && !matches!(record.body, Body::Begin(_)) {
            record.checksum = self.sum.finish();
        }
        let sealed = record.emit(self.endian);
        self.sum.update(&sealed[Record::CHECKSUM_OFFSET..], self.endian);
        self.sum.update(payload, self.endian);
        self.bytes.extend(sealed);
        self.bytes.extend(payload);
        if is_end {
            self.sum = Fletcher4::new();
        }
    }

    fn stream(&mut self, guid: u64) {
        self.record(begin(HeaderKind::Substream, guid), &[]);
        self.record(write(4096), &[7; 4096]);
        self.record(
            Body::Free(Free { object: ObjectId(3), offset_bytes: 4096, length_bytes: u64::MAX, to_guid: Guid(guid) }),
            &[],
        );
        self.record(end(guid), &[]);
    }
}

pub(crate) fn begin(header: HeaderKind, guid: u64) -> Body {
    Body::Begin(Begin {
        header,
        features: Features::SA_SPILL,
        reserved: 0,
        creation_time: 1,
        objset_type: 2,
        flags: BeginFlags::FREERECORDS,
        to_guid: Guid(guid),
        from_guid: Guid(0),
        to_name: b"pool/fs@snap".to_vec(),
    })
}

pub(crate) fn end(guid: u64) -> Body {
    Body::End(End { stream_checksum: [0; 4], to_guid: Guid(guid) })
}

pub(crate) fn write(logical_bytes: u64) -> Body {
    Body::Write(Write {
        object: ObjectId(3),
        object_type: 19,
        offset_bytes: 0,
        logical_bytes,
        to_guid: Guid(9),
        checksum_type: 7,
        flags: RecordFlags::empty(),
        compress: 0,
        key: Default::default(),
        compressed_bytes: 0,
        sealing: Default::default(),
    })
}

fn package(endian: Endian) -> Sender {
    let mut sender = Sender::new(endian);
    let mut list = NvList::new();
    list.push("tosnap", "snap");
    sender.record(begin(HeaderKind::Compound, 0), &list.emit_xdr());
    sender.record(end(0), &[]);
    sender.stream(9);
    sender.stream(10);
    sender.record(end(0), &[]);
    sender
}

fn drain(bytes: &[u8]) -> Result<Account, SendError> {
    StreamReader::new(bytes, Checks::ALL).drain()
}

#[test]
fn packages_of_both_byte_orders_pass_all_checks() {
    for endian in [Endian::Little, Endian::Big] {
        let sender = package(endian);
        let account = drain(&sender.bytes).unwrap();
        assert_eq!(account.stream_bytes, sender.bytes.len() as u64);
        assert_eq!(account.records(), 11);
    }
}

#[test]
fn the_dump_of_a_stream_does_not_depend_on_its_byte_order() {
    let dumps = [Endian::Little, Endian::Big].map(|endian| {
        let mut text = Vec::new();
        let options = DumpOptions { verbose: true, ..DumpOptions::default() };
        let outcome = dump(&package(endian).bytes[..], &options, &mut text).unwrap();
        assert_eq!(outcome.complaints, [""; 0]);
        let text = String::from_utf8(text).unwrap();
        // The checksums themselves differ.
        text.lines().filter(|line| !line.starts_with("END")).collect::<Vec<_>>().join("\n")
    });
    assert_eq!(dumps[0], dumps[1]);
    assert!(dumps[0].contains("tosnap = snap"));
}

#[test]
fn streams_of_old_senders_without_record_checksums_pass_by_their_end() {
    let mut sender = Sender::new(Endian::Little);
    sender.record_checksums = false;
    sender.stream(9);
    drain(&sender.bytes).unwrap();
    sender.bytes[Record::SIZE * 2 + 100] ^= 1;
    assert!(matches!(drain(&sender.bytes), Err(SendError::Checksum { .. })));
}

#[test]
fn what_is_no_stream_is_called_so() {
    assert!(matches!(drain(&[0; 400]), Err(SendError::NotAStream)));
    assert!(matches!(dump(&[0; 400][..], &DumpOptions::default(), Vec::new()), Err(SendError::NotAStream)));
    assert!(matches!(drain(&[]), Err(SendError::Truncated { offset_bytes: 0, .. })));
}

#[test]
fn records_out_of_order_are_refused() {
    let order_error = |build: &dyn Fn(&mut Sender)| {
        let mut sender = Sender::new(Endian::Little);
        build(&mut sender);
        match drain(&sender.bytes) {
            Err(SendError::Order { rule, .. }) => rule,
            other => panic!("{other:?}"),
        }
    };
    let free = || Body::FreeObjects(FreeObjects { first_object: ObjectId(1), object_count: 1, to_guid: Guid(9) });
    // A stream whose first record is not BEGIN does not reveal its byte order, so it is not recognised as a stream.
    assert_eq!(
        order_error(&|s| {
            s.stream(9);
            s.record(free(), &[]);
        }),
        "after the end of the stream"
    );
    assert_eq!(
        order_error(&|s| {
            s.record(begin(HeaderKind::Substream, 9), &[]);
            s.record(begin(HeaderKind::Substream, 9), &[]);
        }),
        "within a stream"
    );
    assert_eq!(
        order_error(&|s| {
            s.record(begin(HeaderKind::Substream, 9), &[]);
            s.record(end(10), &[]);
        }),
        "for another snapshot than BEGIN names"
    );
    assert_eq!(
        order_error(&|s| {
            s.record(begin(HeaderKind::Compound, 0), &[]);
            s.record(free(), &[]);
        }),
        "where a package's list must end"
    );
    assert_eq!(
        order_error(&|s| {
            s.record(begin(HeaderKind::Compound, 0), &[]);
            s.record(end(0), &[]);
            s.record(begin(HeaderKind::Compound, 0), &[]);
        }),
        "of a package within a package"
    );
    assert_eq!(
        order_error(&|s| {
            s.record(begin(HeaderKind::Compound, 0), &[]);
            s.record(end(0), &[]);
            s.record(free(), &[]);
        }),
        "between the streams of a package"
    );
    assert_eq!(
        order_error(&|s| s.record(begin(HeaderKind::Unknown(3), 9), &[])),
        "with a header type that is neither stream nor package"
    );
}

#[test]
fn payloads_that_lie_about_their_length_cost_no_memory() {
    // A BEGIN that promises 256 MiB and brings none: refused because it is truncated, not for lack of memory.
    let mut record = Record { payload_length: 1 << 28, body: begin(HeaderKind::Compound, 0), checksum: [0; 4] };
    let bytes = record.emit(Endian::Little);
    let mut reader = StreamReader::new(&bytes[..], Checks::ALL);
    assert!(matches!(reader.next_item(), Err(SendError::Truncated { .. })));
    record.payload_length += 4;
    assert!(matches!(drain(&record.emit(Endian::Little)), Err(SendError::Format { .. })));
    let mut sender = Sender::new(Endian::Little);
    sender.record(begin(HeaderKind::Substream, 9), &[]);
    sender.record(write(u64::MAX), &[]);
    assert!(matches!(drain(&sender.bytes), Err(SendError::Format { .. })));
}

#[test]
fn kinds_that_modern_senders_rarely_emit_dump_as_one_line() {
    let mut sender = Sender::new(Endian::Little);
    sender.record(begin(HeaderKind::Substream, 9), &[]);
    sender
        .record(Body::Redact(Redact { object: ObjectId(3), offset_bytes: 1, length_bytes: 2, to_guid: Guid(9) }), &[]);
    sender.record(
        Body::Spill(Spill {
            object: ObjectId(3),
            length_bytes: 512,
            to_guid: Guid(9),
            flags: RecordFlags::SPILL,
            compress: 0,
            compressed_bytes: 0,
            sealing: Default::default(),
            object_type: 0,
        }),
        &[0; 512],
    );
    sender.record(end(9), &[]);
    let mut text = Vec::new();
    dump(&sender.bytes[..], &DumpOptions { verbose: true, ..DumpOptions::default() }, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("REDACT object = 3 offset = 1 length = 2\n"), "{text}");
    assert!(text.contains("SPILL block for object = 3 length = 512 flags = 4 "), "{text}");
}

proptest! {
    #[test]
    fn any_bytes_end_in_an_account_or_an_error(
        mutations in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
        cut in any::<prop::sample::Index>(),
        checks: bool,
    ) {
        let mut bytes = package(Endian::Little).bytes;
        for (at, value) in mutations {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        let checks = if checks { Checks::ALL } else { Checks { record_checksums: false, structure: false } };
        let _ = StreamReader::new(&bytes[..], checks).drain();
        let options = DumpOptions { contents: true, ignore_checksums: true, ..DumpOptions::default() };
        let _ = dump(&bytes[..], &options, std::io::sink());
    }
}
