//! The account of a stream that `zstream dump` of OpenZFS 2.3 prints, to the letter.
//!
//! Two deliberate differences, both where the original misbehaves: checksums in records of streams with the other byte order are swapped before
//! they are compared, and a record with more payload than the format allows is an error.

use std::fmt::Write as _;
use std::io::{Read, Write};

use cenote_format::nvlist::NvList;
use cenote_format::stream::{Body, Record, RecordKind, Sealing};

use crate::account::Account;
use crate::decoder::{Checks, DecodedRecord, StreamDecoder};
use crate::error::{SendError, checksum_text};
use crate::nvprint::print_nvlist;
use crate::reader::{read_full, read_payload};

/// The parts of a stream to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpOptions {
    /// A line for each record (`-v`).
    pub verbose: bool,
    /// Also each record's checksum (`-v` twice).
    pub very_verbose: bool,
    /// Also each payload, in hexadecimal (`-d`, which implies the others).
    pub contents: bool,
    /// Verify no checksums (`-C`).
    pub ignore_checksums: bool,
}

/// The result of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpOutcome {
    /// The counts of the stream's records and bytes.
    pub account: Account,
    /// The lines for standard error.
    pub complaints: Vec<String>,
    /// The exit status of `zstream dump`. It is 0 even for streams whose checksums are wrong or whose end is missing;
    /// [`DumpOutcome::complaints`] is not empty then.
    pub exit_status: u8,
}

/// The kinds in the order of the summary, which omits two.
const SUMMARY: [RecordKind; 9] = [
    RecordKind::Begin,
    RecordKind::End,
    RecordKind::Object,
    RecordKind::FreeObjects,
    RecordKind::Write,
    RecordKind::WriteByRef,
    RecordKind::WriteEmbedded,
    RecordKind::Free,
    RecordKind::Spill,
];

/// Bytes of a record before its checksum: the original reads and counts the two parts apart.
const HEAD_BYTES: usize = Record::CHECKSUM_OFFSET;

/// Reads a stream to its end and prints its account. Fails if the input is not a stream, or breaks the format so that reading cannot continue.
pub fn dump(mut input: impl Read, options: &DumpOptions, mut out: impl Write) -> Result<DumpOutcome, SendError> {
    let checks = Checks { record_checksums: !options.ignore_checksums, structure: false };
    let mut dump = Dump {
        options: DumpOptions {
            verbose: options.verbose || options.very_verbose || options.contents,
            very_verbose: options.very_verbose || options.contents,
            ..*options
        },
        decoder: StreamDecoder::new(checks),
        text: Vec::new(),
        payload: Vec::new(),
        complaints: Vec::new(),
        lost_payload_bytes: 0,
        extra_bytes: 0,
    };
    loop {
        let more = dump.next(&mut input);
        out.write_all(&dump.text).map_err(SendError::Output)?;
        dump.text.clear();
        match more? {
            Step::More => {}
            Step::End => break,
            Step::Abort => {
                let account = dump.decoder.account().clone();
                return Ok(DumpOutcome { account, complaints: dump.complaints, exit_status: 1 });
            }
        }
    }
    let mut account = dump.decoder.account().clone();
    account.stream_bytes += dump.extra_bytes;
    print_summary(&account, &mut out).map_err(SendError::Output)?;
    Ok(DumpOutcome { account, complaints: dump.complaints, exit_status: 0 })
}

enum Step {
    More,
    End,
    Abort,
}

struct Dump {
    options: DumpOptions,
    decoder: StreamDecoder,
    /// The lines that the current record prints.
    text: Vec<u8>,
    payload: Vec<u8>,
    complaints: Vec<String>,
    /// Bytes of the last record's payload that the input did not have.
    lost_payload_bytes: u64,
    /// Bytes that the original counts and the decoder does not: a record cut within its checksum or refused for it.
    extra_bytes: u64,
}

impl Dump {
    fn next(&mut self, input: &mut impl Read) -> Result<Step, SendError> {
        debug_assert!(self.text.is_empty(), "the lines of a record are printed before the next is read");
        let mut bytes = [0; Record::SIZE];
        let at = self.decoder.offset_bytes();
        let io = |source| SendError::Io { offset_bytes: at, source };
        if self.lost_payload_bytes != 0 {
            return Ok(Step::End);
        }
        let read = read_full(input, &mut bytes).map_err(io)?;
        if read < bytes.len() {
            if read != 0 {
                self.complaints.push(format!("the stream ends within a record at offset {}", at + read as u64));
            }
            self.extra_bytes = if read >= HEAD_BYTES { HEAD_BYTES as u64 } else { 0 };
            return Ok(Step::End);
        }
        let decoded = match self.decoder.record(&bytes) {
            Ok(decoded) => decoded,
            Err(SendError::Checksum { offset_bytes, expected, .. }) => {
                self.complaints.push(format!("invalid checksum (record at offset {offset_bytes})"));
                self.line(format_args!("Incorrect checksum in record header."));
                self.line(format_args!("Expected checksum = {}", checksum_text(&expected)));
                self.extra_bytes = Record::SIZE as u64;
                return Ok(Step::End);
            }
            Err(error) => {
                let Some(number) = self.unknown_type(&bytes) else { return Err(error) };
                self.line(format_args!("INVALID record found: type 0x{number:x}\nAborting."));
                return Ok(Step::Abort);
            }
        };
        let read = read_payload(input, decoded.payload_bytes, &mut self.payload).map_err(io)?;
        if read == decoded.payload_bytes {
            self.decoder.payload(&self.payload);
        } else {
            self.lost_payload_bytes = decoded.payload_bytes - read;
            debug_assert!(self.lost_payload_bytes > 0, "a payload that is not whole lacks bytes");
            let end = self.decoder.offset_bytes() + read;
            self.complaints.push(format!("the stream ends within a record's payload at offset {end}"));
        }
        self.print(&decoded);
        Ok(Step::More)
    }

    /// The type number of a record in a stream of known byte order, if it is not a valid type.
    fn unknown_type(&self, bytes: &[u8; Record::SIZE]) -> Option<u32> {
        let endian = self.decoder.endian().or_else(|| Record::stream_endian(bytes))?;
        let mut word = [0; 4];
        word.copy_from_slice(&bytes[..4]);
        let number = endian.u32(word);
        RecordKind::from_number(number).is_none().then_some(number)
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        self.text.extend_from_slice(text.to_string().as_bytes());
        self.text.push(b'\n');
    }

    fn print(&mut self, decoded: &DecodedRecord) {
        match &decoded.record.body {
            Body::Begin(_) => self.print_begin(&decoded.record),
            Body::End(end) => {
                if !self.options.ignore_checksums && end.stream_checksum != decoded.checksum_before {
                    self.complaints.push(format!("wrong stream checksum at offset {}", decoded.offset_bytes));
                    self.line(format_args!("Expected checksum differs from checksum in stream."));
                    self.line(format_args!("Expected checksum = {}", checksum_text(&decoded.checksum_before)));
                }
                self.line(format_args!("END checksum = {}", checksum_text(&end.stream_checksum)));
            }
            body if self.options.verbose => {
                let text = body_line(body, decoded.payload_bytes);
                self.line(format_args!("{text}"));
            }
            _ => {}
        }
        if self.options.contents && !matches!(decoded.record.body, Body::Begin(_)) {
            print_contents(&self.payload, &mut self.text);
        }
        if self.options.very_verbose && !matches!(decoded.record.body, Body::Begin(_)) {
            self.line(format_args!("    checksum = {}", checksum_text(&decoded.record.checksum)));
        }
    }

    fn print_begin(&mut self, record: &Record) {
        let Body::Begin(begin) = &record.body else { return };
        self.line(format_args!("BEGIN record"));
        self.line(format_args!("\thdrtype = {}", begin.header.number()));
        self.line(format_args!("\tfeatures = {:x}", begin.features.bits()));
        self.line(format_args!("\tmagic = {:x}", cenote_format::stream::MAGIC));
        self.line(format_args!("\tcreation_time = {:x}", begin.creation_time));
        self.line(format_args!("\ttype = {}", begin.objset_type));
        self.line(format_args!("\tflags = 0x{:x}", begin.flags.bits()));
        self.line(format_args!("\ttoguid = {:x}", begin.to_guid.0));
        self.line(format_args!("\tfromguid = {:x}", begin.from_guid.0));
        self.text.extend_from_slice(b"\ttoname = ");
        self.text.extend_from_slice(&begin.to_name);
        self.text.push(b'\n');
        self.line(format_args!("\tpayloadlen = {}", record.payload_length));
        if self.options.verbose {
            self.text.push(b'\n');
        }
        if record.payload_length == 0 {
            return;
        }
        match NvList::parse(&self.payload) {
            Ok(list) => print_nvlist(&list, &mut self.text).expect("writing to memory does not fail"),
            Err(error) => self.complaints.push(format!("the list of BEGIN: {error}")),
        }
    }
}

/// The line of a record that is neither BEGIN nor END.
fn body_line(body: &Body, payload_bytes: u64) -> String {
    match body {
        Body::Begin(_) | Body::End(_) => String::new(),
        Body::Object(o) => format!(
            "OBJECT object = {} type = {} bonustype = {} blksz = {} bonuslen = {} dn_slots = {} raw_bonuslen = {} \
             flags = {} maxblkid = {} indblkshift = {} nlevels = {} nblkptr = {}",
            o.object,
            o.object_type,
            o.bonus_type,
            o.block_bytes,
            o.bonus_bytes,
            o.dnode_slots,
            o.raw_bonus_bytes,
            o.flags.bits(),
            o.block_id_max,
            o.indirect_block_shift,
            o.levels,
            o.block_pointers
        ),
        Body::FreeObjects(f) => format!("FREEOBJECTS firstobj = {} numobjs = {}", f.first_object, f.object_count),
        Body::Write(w) => format!(
            "WRITE object = {} type = {} checksum type = {} compression type = {} flags = {} offset = {} \
             logical_size = {} compressed_size = {} payload_size = {payload_bytes} props = {:x} {}",
            w.object,
            w.object_type,
            w.checksum_type,
            w.compress,
            w.flags.bits(),
            w.offset_bytes,
            w.logical_bytes,
            w.compressed_bytes,
            w.key.properties,
            sealing_text(&w.sealing)
        ),
        Body::WriteByRef(w) => format!(
            "WRITE_BYREF object = {} checksum type = {} props = {:x} offset = {} length = {} toguid = {:x} \
             refguid = {:x} refobject = {} refoffset = {}",
            w.object,
            w.checksum_type,
            w.key.properties,
            w.offset_bytes,
            w.length_bytes,
            w.to_guid.0,
            w.reference_guid.0,
            w.reference_object,
            w.reference_offset_bytes
        ),
        // Printed signed: "to the end" shows as -1.
        Body::Free(f) => {
            format!("FREE object = {} offset = {} length = {}", f.object, f.offset_bytes, f.length_bytes.cast_signed())
        }
        Body::Spill(s) => format!(
            "SPILL block for object = {} length = {} flags = {} compression type = {} compressed_size = {} \
             payload_size = {payload_bytes} {}",
            s.object,
            s.length_bytes,
            s.flags.bits(),
            s.compress,
            s.compressed_bytes,
            sealing_text(&s.sealing)
        ),
        Body::WriteEmbedded(w) => format!(
            "WRITE_EMBEDDED object = {} offset = {} length = {} toguid = {:x} comp = {} etype = {} lsize = {} psize = {}",
            w.object,
            w.offset_bytes,
            w.length_bytes,
            w.to_guid.0,
            w.compress,
            w.embedded_type,
            w.logical_bytes,
            w.physical_bytes
        ),
        Body::ObjectRange(r) => format!(
            "OBJECT_RANGE firstobj = {} numslots = {} flags = {} {}",
            r.first_object,
            r.slot_count,
            r.flags.bits(),
            sealing_text(&r.sealing)
        ),
        Body::Redact(r) => {
            format!("REDACT object = {} offset = {} length = {}", r.object, r.offset_bytes, r.length_bytes)
        }
    }
}

fn sealing_text(sealing: &Sealing) -> String {
    fn hex(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
    format!("salt = {} iv = {} mac = {}", hex(&sealing.salt), hex(&sealing.iv), hex(&sealing.mac))
}

/// Sixteen bytes a line in hexadecimal, in groups of four, and again as text.
fn print_contents(bytes: &[u8], out: &mut Vec<u8>) {
    const LINE: usize = 16;
    const GROUP: usize = 4;
    const TEXT_COLUMN: usize = LINE * 3 + LINE / GROUP + 2;
    for line in bytes.chunks(LINE) {
        let mut text = String::new();
        for group in line.chunks(GROUP) {
            text.push(' ');
            for byte in group {
                let _ = write!(text, "{byte:02x} ");
            }
        }
        let _ = write!(text, "{:width$}", " ", width = TEXT_COLUMN - text.len());
        for (index, group) in line.chunks(GROUP).enumerate() {
            if index != 0 {
                text.push(' ');
            }
            text.extend(group.iter().map(|byte| if matches!(byte, b' '..=b'~') { char::from(*byte) } else { '.' }));
        }
        text.push('\n');
        out.extend_from_slice(text.as_bytes());
    }
}

fn print_summary(account: &Account, out: &mut impl Write) -> std::io::Result<()> {
    writeln!(out, "SUMMARY:")?;
    for kind in SUMMARY {
        let of_kind = account.kind(kind);
        writeln!(out, "\tTotal {} records = {} ({} bytes)", kind.name(), of_kind.records, of_kind.payload_bytes)?;
    }
    writeln!(out, "\tTotal records = {}", account.records())?;
    let (payload, header, stream) = (account.payload_bytes(), account.header_bytes(), account.stream_bytes);
    writeln!(out, "\tTotal payload size = {payload} (0x{payload:x})")?;
    writeln!(out, "\tTotal header overhead = {header} (0x{header:x})")?;
    writeln!(out, "\tTotal stream length = {stream} (0x{stream:x})")
}
