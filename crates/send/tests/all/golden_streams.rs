//! Every golden stream: read with all checks on, and dumped to the letter as `zstream dump` does.

use crate::support;

use cenote_format::stream::{Record, RecordKind};
use cenote_send::{Checks, DumpOptions, StreamReader, dump};
use support::{Zstream, section};

fn streams() -> Vec<(String, Vec<u8>)> {
    let theme = cenote_testkit::theme("streams");
    let streams: Vec<_> = theme
        .streams()
        .unwrap()
        .into_iter()
        .map(|stream| {
            let bytes = theme.stream_bytes(&stream.file).unwrap();
            (stream.file, bytes)
        })
        .collect();
    assert!(streams.len() >= 5, "only {} streams at hand", streams.len());
    streams
}

fn dumped(bytes: &[u8], options: &DumpOptions) -> (String, Vec<String>) {
    let mut out = Vec::new();
    let outcome = dump(bytes, options, &mut out).unwrap();
    assert_eq!(outcome.exit_status, 0);
    (String::from_utf8(out).unwrap(), outcome.complaints)
}

/// The first line that differs, so that a failure can be read.
#[track_caller]
fn assert_same_text(name: &str, ours: &str, theirs: &str) {
    for (number, (ours, theirs)) in ours.lines().zip(theirs.lines()).enumerate() {
        assert_eq!(ours, theirs, "{name}, line {}", number + 1);
    }
    assert_eq!(ours.lines().count(), theirs.lines().count(), "{name}: number of lines");
}

#[test]
fn the_verbose_dump_of_every_golden_stream_is_zstreams() {
    let account = cenote_testkit::theme("streams").zstream_text().unwrap();
    for (name, bytes) in streams() {
        let (ours, complaints) = dumped(&bytes, &DumpOptions { verbose: true, ..DumpOptions::default() });
        assert_same_text(&name, &ours, section(&account, &name));
        let cut_short = name.starts_with("partial");
        assert_eq!(complaints.is_empty(), !cut_short, "{name}: {complaints:?}");
    }
}

#[test]
fn every_golden_stream_but_the_partial_one_passes_all_checks() {
    for (name, bytes) in streams() {
        let result = StreamReader::new(&bytes[..], Checks::ALL).drain();
        if name.starts_with("partial") {
            assert!(result.unwrap_err().to_string().contains("the stream ends"), "{name}");
            continue;
        }
        let account = result.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(account.stream_bytes, bytes.len() as u64, "{name}");
        let [begins, ends] = [RecordKind::Begin, RecordKind::End].map(|kind| account.kind(kind).records);
        // A package has an END of its list and one of its own for its one BEGIN.
        assert!(ends == begins || ends == begins + 1, "{name}: {begins} BEGIN, {ends} END");
    }
}

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    for (name, bytes) in streams() {
        if name.starts_with("partial") {
            continue;
        }
        // The first BEGIN is covered too, by the next record's checksum. A package's last record is covered by none.
        let covered = bytes.len() - Record::SIZE;
        for at in (0..covered).step_by(bytes.len() / 23) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(StreamReader::new(&damaged[..], Checks::ALL).drain().is_err(), "{name}: byte {at}");
        }
    }
}

#[test]
fn a_stream_cut_anywhere_is_noticed() {
    for (name, bytes) in streams() {
        for at in (0..bytes.len()).step_by(bytes.len() / 23) {
            let error = StreamReader::new(&bytes[..at], Checks::ALL).drain().unwrap_err();
            assert!(error.to_string().contains("ends at offset"), "{name}: cut at {at}: {error}");
        }
    }
}

#[test]
fn every_form_of_dump_equals_the_installed_zstreams() {
    let Some(zstream) = Zstream::find() else { return };
    let forms: [(&[&str], DumpOptions); 5] = [
        (&[], DumpOptions::default()),
        (&["-v"], DumpOptions { verbose: true, ..DumpOptions::default() }),
        (&["-v", "-v"], DumpOptions { very_verbose: true, ..DumpOptions::default() }),
        (&["-C"], DumpOptions { ignore_checksums: true, ..DumpOptions::default() }),
        (&["-d"], DumpOptions { contents: true, ..DumpOptions::default() }),
    ];
    for (name, bytes) in streams() {
        for (flags, options) in &forms {
            if flags == &["-d"] && bytes.len() > 300_000 {
                continue; // Megabytes of text, all alike.
            }
            let theirs = zstream.dump(flags, &bytes);
            assert_same_text(&format!("{name} {flags:?}"), &dumped(&bytes, options).0, &theirs);
        }
    }
}

#[test]
fn dumps_of_damaged_streams_equal_the_installed_zstreams() {
    let Some(zstream) = Zstream::find() else { return };
    let options = DumpOptions { verbose: true, ..DumpOptions::default() };
    let (name, bytes) = streams().into_iter().find(|(name, _)| name == "kid.zfs").expect("kid.zfs is in every set");
    // Cuts: within a record's head, within its checksum, within a payload, right after a record.
    for at in [312, 500, 312 + 290, 2000, bytes.len() - 312, bytes.len() - 20, bytes.len() - 300] {
        let cut = &bytes[..at];
        assert_same_text(&format!("{name} cut at {at}"), &dumped(cut, &options).0, &zstream.dump(&["-v"], cut));
    }
    // Flips: in a record's body, in its checksum, in a payload, in the last END's checksum.
    for at in [320, 312 + 285, 1100, bytes.len() - 312 + 9] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        let (ours, complaints) = dumped(&damaged, &options);
        assert!(!complaints.is_empty(), "byte {at}");
        assert_same_text(&format!("{name} flipped at {at}"), &ours, &zstream.dump(&["-v"], &damaged));
    }
}
