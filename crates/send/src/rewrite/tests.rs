//! Rewriting against a miniature sender: the output is the stream that it would have sent. Hostile streams are refused.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

use cenote_codec::compress::{CompressLevel, compress};
use cenote_format::Endian;
use cenote_format::ids::{Guid, ObjectId};
use cenote_format::stream::{Free, HeaderKind, Record, RecordFlags, WriteByRef, WriteEmbedded};
use proptest::prelude::*;

use super::redup::{ReadAt, redup_with};
use super::*;
use crate::tests::{Sender, begin, end, write};

const DATA: u32 = 19;
const DIRECTORY: u32 = 20;

impl ReadAt for Vec<u8> {
    fn read_at(&self, target: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        let from = offset_bytes as usize;
        let bytes = self.get(from..from + target.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        target.copy_from_slice(bytes);
        Ok(())
    }
}

fn block(guid: u64, object: u64, offset: u64, bytes: u64) -> WriteRecord {
    let Body::Write(sample) = write(bytes) else { unreachable!() };
    WriteRecord { object: ObjectId(object), offset_bytes: offset, to_guid: Guid(guid), object_type: DATA, ..sample }
}

fn contents(seed: u64, bytes: u64) -> Vec<u8> {
    // Repeats itself, so that every algorithm makes it smaller.
    (0..bytes).map(|at| (seed.wrapping_mul(31) as u8).wrapping_add((at / 64) as u8)).collect()
}

fn with_features(mut body: Body, features: Features) -> Body {
    if let Body::Begin(begin) = &mut body {
        begin.features = features;
    }
    body
}

/// One block of a stream: new, or equal to an earlier one (by its number).
#[derive(Clone, Copy, Debug)]
struct Piece {
    gap: u64,
    is_next_object: bool,
    like: Option<prop::sample::Index>,
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let like = prop::option::of(any::<prop::sample::Index>());
    let piece =
        (0..3_u64, any::<bool>(), like).prop_map(|(gap, is_next_object, like)| Piece { gap, is_next_object, like });
    prop::collection::vec(piece, 0..120)
}

/// A package of streams, deduplicated and not.
fn package(endian: Endian, streams: &[Vec<Piece>]) -> (Vec<u8>, Vec<u8>) {
    let (mut with, mut without) = (Sender::new(endian), Sender::new(endian));
    let mut known: Vec<(u64, u64, u64)> = Vec::new();
    let features = Features::SA_SPILL;
    let mut both = |dedup: Body, plain: Body, payload: Option<&[u8]>, by_ref: &[u8]| {
        with.record(dedup, payload.unwrap_or_default());
        without.record(plain, payload.unwrap_or(by_ref));
    };
    let same = |body: Body| (body.clone(), body);
    let header = begin(HeaderKind::Compound, 0);
    both(
        with_features(header.clone(), features | Features::DEDUP),
        with_features(header, features),
        Some(&[1; 8]),
        &[],
    );
    let (a, b) = same(end(0));
    both(a, b, None, &[]);
    for (index, stream) in streams.iter().enumerate() {
        let guid = index as u64 + 7;
        let header = begin(HeaderKind::Substream, guid);
        both(with_features(header.clone(), features | Features::DEDUP), with_features(header, features), None, &[]);
        let (mut object, mut offset) = (1, 0);
        for piece in stream {
            if piece.is_next_object {
                (object, offset) = (object + 1, 0);
            }
            offset += piece.gap * 512;
            let plain = block(guid, object, offset, 512);
            match piece.like.filter(|_| !known.is_empty()) {
                Some(like) => {
                    let (from_guid, from_object, from_offset) = known[like.index(known.len())];
                    let by_ref = WriteByRef {
                        object: ObjectId(object),
                        offset_bytes: offset,
                        length_bytes: 512,
                        to_guid: Guid(guid),
                        reference_guid: Guid(from_guid),
                        reference_object: ObjectId(from_object),
                        reference_offset_bytes: from_offset,
                        checksum_type: 8,
                        flags: RecordFlags::CHECKSUM_DEDUP,
                        key: plain.key,
                    };
                    let bytes = contents(from_guid * 7919 + from_object * 101 + from_offset, 512);
                    both(Body::WriteByRef(by_ref), Body::Write(plain), None, &bytes);
                }
                None => {
                    let bytes = contents(guid * 7919 + object * 101 + offset, 512);
                    let (a, b) = same(Body::Write(plain));
                    both(a, b, Some(&bytes), &[]);
                    known.push((guid, object, offset));
                }
            }
            offset += 512;
        }
        let (a, b) = same(end(guid));
        both(a, b, None, &[]);
    }
    let (a, b) = same(end(0));
    both(a, b, None, &[]);
    (with.bytes, without.bytes)
}

/// The target, and the number of threads for a batch.
type Way = (Target, usize);

fn target(kind: Compress, threads: usize) -> Way {
    (Target { kind, level: CompressLevel::DEFAULT }, threads)
}

fn packed(input: &[u8], (target, threads): &Way) -> Result<Vec<u8>, RewriteError> {
    let spread = |batch: &mut [Waiting], target: &Target| {
        let share = batch.len().div_ceil(*threads).max(1);
        std::thread::scope(|scope| {
            for part in batch.chunks_mut(share) {
                scope.spawn(move || in_turn(part, target));
            }
        });
    };
    let mut out = Vec::new();
    recompress(input, &mut out, target, &spread)?;
    Ok(out)
}

fn sound(bytes: &[u8]) -> Vec<(Body, Vec<u8>)> {
    let mut reader = StreamReader::new(bytes, Checks::ALL);
    let mut records = Vec::new();
    while let Some(item) = reader.next_item().unwrap() {
        records.push((item.decoded.record.body.clone(), item.payload.to_vec()));
    }
    records
}

/// A file that counts its reads.
struct Counted<'a>(&'a Vec<u8>, Cell<usize>);

impl ReadAt for Counted<'_> {
    fn read_at(&self, target: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.1.set(self.1.get() + 1);
        self.0.read_at(target, offset_bytes)
    }
}

#[test]
fn a_block_far_behind_others_is_found_without_reading_what_is_between() {
    const REFERENCES: usize = 40;
    // Few marks too: their thinning must leave those that stand alone.
    for marks_max in [6, 1 << 20] {
        let (mut with, mut without) = (Sender::new(Endian::Little), Sender::new(Endian::Little));
        let header = begin(HeaderKind::Substream, 7);
        with.record(with_features(header.clone(), Features::DEDUP), &[]);
        without.record(with_features(header, Features::empty()), &[]);
        let mut both = |body: Body, payload: &[u8]| {
            with.record(body.clone(), payload);
            without.record(body, payload);
        };
        for object in 1..4 {
            for number in 0..if object == 1 { 64 } else { 1 } {
                both(Body::Write(block(7, object, number * 512, 512)), &contents(object, 512));
            }
            for number in 0..1000 {
                let (object, guid) = (ObjectId(object), Guid(7));
                let free = Free { object, offset_bytes: 4096 + number, length_bytes: 1, to_guid: guid };
                both(Body::Free(free), &[]);
            }
        }
        both(Body::Write(block(7, 4, 0, 512)), &contents(4, 512));
        both(Body::Write(block(7, 5, 0, 512)), &contents(5, 512));
        for number in 0..REFERENCES {
            // Back and forth, so that the record found last does not help.
            let wanted = if number % 2 == 0 { 5 } else { 1 };
            let plain = block(7, 10 + number as u64, 0, 512);
            let by_ref = WriteByRef {
                object: plain.object,
                offset_bytes: 0,
                length_bytes: 512,
                to_guid: Guid(7),
                reference_guid: Guid(7),
                reference_object: ObjectId(wanted),
                reference_offset_bytes: 0,
                checksum_type: 8,
                flags: RecordFlags::CHECKSUM_DEDUP,
                key: plain.key,
            };
            with.record(Body::WriteByRef(by_ref), &[]);
            without.record(Body::Write(plain), &contents(wanted, 512));
        }
        with.record(end(7), &[]);
        without.record(end(7), &[]);
        let file = Counted(&with.bytes, Cell::new(0));
        let mut out = Vec::new();
        redup_with(&with.bytes[..], &file, &mut out, marks_max).unwrap();
        assert!(out == without.bytes);
        assert!(file.1.get() <= REFERENCES * 3, "{} reads", file.1.get());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn redup_gives_what_would_have_been_sent(
        streams in prop::collection::vec(pieces(), 1..4),
        is_big in any::<bool>(),
        samples_max in 1_usize..8,
    ) {
        let endian = if is_big { Endian::Big } else { Endian::Little };
        let (with, without) = package(endian, &streams);
        let mut out = Vec::new();
        let done = redup_with(&with[..], &with, &mut out, samples_max).unwrap();
        prop_assert!(out == without);
        prop_assert_eq!(done.by_ref, sound(&with).iter().filter(|(body, _)| matches!(body, Body::WriteByRef(_))).count() as u64);
    }

    #[test]
    fn a_stream_in_which_nothing_changes_is_the_same(streams in prop::collection::vec(pieces(), 1..3), is_big in any::<bool>()) {
        let endian = if is_big { Endian::Big } else { Endian::Little };
        let (_, stream) = package(endian, &streams);
        let mut out = Vec::new();
        decompress(&stream[..], &mut out, &BTreeMap::new(), |_, _| panic!("none was named")).unwrap();
        prop_assert!(out == stream);
        out.clear();
        drop_records(&stream[..], &mut out, &BTreeSet::new(), |_, _| panic!("none was named")).unwrap();
        prop_assert!(out == stream);
        out.clear();
        redup(&stream[..], &stream, &mut out).unwrap();
        prop_assert!(out == stream);
    }

    #[test]
    fn what_is_packed_unpacks_to_the_same(
        streams in prop::collection::vec(pieces(), 1..3),
        kind in prop::sample::select(vec![Compress::Lzjb, Compress::Gzip9, Compress::Zle, Compress::Lz4, Compress::Zstd]),
        between in prop::sample::select(vec![Compress::Off, Compress::Zstd, Compress::Lz4]),
        threads in 1_usize..4,
    ) {
        let (_, stream) = package(Endian::Little, &streams);
        let packed_once = packed(&stream, &target(kind, threads)).unwrap();
        prop_assert!(packed_once == packed(&stream, &target(kind, 1)).unwrap());
        // A stream that is compressed so already stays as it is.
        prop_assert!(packed_once == packed(&packed_once, &target(kind, 1)).unwrap());
        let again = packed(&packed_once, &target(between, threads)).unwrap();
        sound(&again);
        prop_assert!(packed(&again, &target(Compress::Off, threads)).unwrap() == stream);
    }
}

/// A stream with one block of each kind that is treated in its own way.
fn mixed(change: impl Fn(&mut WriteRecord)) -> Vec<u8> {
    let mut sender = Sender::new(Endian::Little);
    sender.record(begin(HeaderKind::Substream, 7), &[]);
    let mut data = block(7, 1, 0, 4096);
    let bytes = compress(Compress::Lz4, CompressLevel::INHERIT, &contents(3, 4096), 4096).unwrap();
    let mut bytes = bytes;
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    (data.compress, data.compressed_bytes) = (Compress::Lz4.number(), bytes.len() as u64);
    change(&mut data);
    sender.record(Body::Write(data), &bytes);
    sender.record(Body::Write(WriteRecord { object_type: DIRECTORY, ..block(7, 2, 0, 1024) }), &contents(0, 1024));
    let mut secret = block(7, 3, 0, 1024);
    secret.sealing.salt = [5; 8];
    sender.record(Body::Write(secret), &contents(0, 1024));
    let embedded = WriteEmbedded {
        object: ObjectId(4),
        offset_bytes: 0,
        length_bytes: 512,
        to_guid: Guid(7),
        compress: 15,
        embedded_type: 0,
        logical_bytes: 512,
        physical_bytes: 13,
    };
    sender.record(Body::WriteEmbedded(embedded), &[9; 16]);
    sender.record(end(7), &[]);
    sender.bytes
}

#[test]
fn metadata_and_encrypted_blocks_are_left_alone_and_features_go_with_the_blocks() {
    let stream = mixed(|_| {});
    for kind in [Compress::Zstd, Compress::Lz4, Compress::Lzjb, Compress::Off] {
        let records = sound(&packed(&stream, &target(kind, 2)).unwrap());
        let Body::Begin(header) = &records[0].0 else { panic!("a stream begins with BEGIN") };
        let Body::Write(data) = &records[1].0 else { panic!("then comes the data") };
        let number = if kind == Compress::Off { 0 } else { kind.number() };
        assert_eq!(data.compress, number, "{kind}");
        assert_eq!(header.features.contains(Features::COMPRESSED), kind != Compress::Off, "{kind}");
        assert_eq!(header.features.contains(Features::ZSTD), kind == Compress::Zstd, "{kind}");
        let was = sound(&stream);
        assert_eq!(records[2..5], was[2..5], "{kind}");
    }
}

#[test]
fn blocks_that_are_named_are_unpacked() {
    let plain = contents(3, 4096);
    // As bug #12762 left them: compressed, and said not to be.
    for is_marked in [true, false] {
        let stream = mixed(|write| {
            if !is_marked {
                (write.compress, write.logical_bytes) = (0, write.compressed_bytes);
            }
        });
        let mut told = Vec::new();
        let mut out = Vec::new();
        let blocks = BTreeMap::from([((1, 0), Compress::Lz4), ((9, 0), Compress::Lz4)]);
        decompress(&stream[..], &mut out, &blocks, |place, what| told.push((place, what))).unwrap();
        assert_eq!(told.len(), 1);
        if is_marked {
            assert_eq!(told[0], ((1, 0), Decompressed::Unpacked));
            assert_eq!(sound(&out)[1].1, plain);
        } else {
            // The record no longer says how long the block was.
            assert!(matches!(told[0].1, Decompressed::Failed(_)));
            assert_eq!(out, stream);
        }
    }
    let mut out = Vec::new();
    let stream = mixed(|_| {});
    decompress(&stream[..], &mut out, &BTreeMap::from([((1, 0), Compress::Off)]), |_, what| {
        assert_eq!(what, Decompressed::Reset);
    })
    .unwrap();
    let records = sound(&out);
    let Body::Write(data) = &records[1].0 else { panic!("the data") };
    assert_eq!((data.compress, data.compressed_bytes, data.logical_bytes), (0, 0, records[1].1.len() as u64));
}

#[test]
fn records_that_are_named_are_dropped() {
    let stream = mixed(|_| {});
    let mut told = Vec::new();
    let mut out = Vec::new();
    let places = BTreeSet::from([(1, 0), (4, 0), (4, 512)]);
    drop_records(&stream[..], &mut out, &places, |place, kind| told.push((place, kind.name()))).unwrap();
    assert_eq!(told, [((1, 0), "DRR_WRITE"), ((4, 0), "DRR_WRITE_EMBEDDED")]);
    let kinds: Vec<_> = sound(&out).iter().map(|(body, _)| body.kind().name()).collect();
    assert_eq!(kinds, ["DRR_BEGIN", "DRR_WRITE", "DRR_WRITE", "DRR_END"]);
}

#[test]
fn a_stream_that_was_saved_may_lack_its_end_and_no_record_a_part() {
    let stream = mixed(|_| {});
    let whole = stream.len() - Record::SIZE;
    assert!(packed(&stream[..whole], &target(Compress::Zstd, 1)).is_ok());
    for cut in [1, Record::SIZE - 1, Record::SIZE + 20, whole - 1, whole + 1] {
        let error = packed(&stream[..cut], &target(Compress::Zstd, 1)).unwrap_err();
        assert!(matches!(error, RewriteError::Stream(crate::SendError::Truncated { .. })), "{cut}: {error}");
    }
}

#[test]
fn hostile_records_are_refused_with_their_place() {
    let to_zstd = target(Compress::Zstd, 2);
    let error = packed(&mixed(|write| write.compress = 77), &to_zstd).unwrap_err();
    assert!(matches!(error, RewriteError::Compression { offset_bytes: 312, number: 77, .. }), "{error}");
    // Sixteen exbibytes, of which no byte is set aside.
    for bytes in [u64::MAX, BLOCK_PAYLOAD_BYTES_MAX + 1, 100] {
        let error = packed(&mixed(|write| write.logical_bytes = bytes), &to_zstd).unwrap_err();
        assert!(matches!(error, RewriteError::Decompress { offset_bytes: 312, .. }), "{error}");
    }
    let dedup = package(Endian::Little, &[vec![Piece { gap: 0, is_next_object: false, like: None }]]).0;
    let error = packed(&dedup, &to_zstd).unwrap_err();
    assert!(matches!(error, RewriteError::Deduplicated { offset_bytes: 0 }), "{error}");
}

#[test]
fn references_to_nothing_and_blocks_out_of_order_are_refused() {
    let by_ref = |object: u64| {
        Body::WriteByRef(WriteByRef {
            object: ObjectId(9),
            offset_bytes: 0,
            length_bytes: 512,
            to_guid: Guid(7),
            reference_guid: Guid(7),
            reference_object: ObjectId(object),
            reference_offset_bytes: 512,
            checksum_type: 8,
            flags: RecordFlags::empty(),
            key: block(7, 1, 0, 512).key,
        })
    };
    let stream = |bodies: &[Body]| {
        let mut sender = Sender::new(Endian::Little);
        sender.record(begin(HeaderKind::Substream, 7), &[]);
        for body in bodies {
            let bytes = if matches!(body, Body::Write(_)) { vec![0; 512] } else { Vec::new() };
            sender.record(body.clone(), &bytes);
        }
        sender.record(end(7), &[]);
        let mut out = Vec::new();
        redup(&sender.bytes[..], &sender.bytes, &mut out)
    };
    let data = |object, offset| Body::Write(block(7, object, offset, 512));
    assert!(stream(&[data(2, 512), by_ref(2)]).is_ok());
    for object in [1, 2, 3] {
        let error = stream(&[data(2, 0), data(2, 1024), by_ref(object)]).unwrap_err();
        assert!(matches!(error, RewriteError::NoReference { at_bytes: 512, .. }), "{error}");
    }
    // Its own block, and one that comes later.
    assert!(matches!(stream(&[by_ref(9)]).unwrap_err(), RewriteError::NoReference { offset_bytes: 312, .. }));
    for next in [data(2, 0), data(1, 4096)] {
        let error = stream(&[data(2, 0), next]).unwrap_err();
        assert!(matches!(error, RewriteError::Order { offset_bytes: 1136, .. }), "{error}");
    }
}

/// The stream that OpenZFS makes of a deduplicated one, where its tool is installed.
#[test]
fn redup_is_that_of_zstream() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let Some(zstream) = cenote_testkit::zdb::program("zstream") else {
        println!("left out: zstream is not installed");
        return;
    };
    let mut runner = TestRunner::deterministic();
    let file = std::env::temp_dir().join(format!("cenote-redup-{}", std::process::id()));
    let (mut by_ref, mut tried) = (0, 0);
    while by_ref < 50 {
        let streams: Vec<_> = (0..3).map(|_| pieces().new_tree(&mut runner).unwrap().current()).collect();
        let (with, _) = package(Endian::Little, &streams);
        std::fs::write(&file, &with).unwrap();
        let theirs = std::process::Command::new(&zstream).arg("redup").arg(&file).output().unwrap();
        let mut ours = Vec::new();
        by_ref += redup(&with[..], &with, &mut ours).unwrap().by_ref;
        tried += 1;
        assert!(theirs.status.success() && sound(&theirs.stdout) == sound(&ours), "stream {tried}");
    }
    std::fs::remove_file(&file).unwrap();
}
