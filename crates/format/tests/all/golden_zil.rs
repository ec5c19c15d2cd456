//! The intent logs in a real pool, found by their blocks' look and compared with what `zdb -iiii` says of them.
//!
//! The pool was copied while its logs were full. No other layer is needed: a log block shows itself by the magic number
//! of its embedded checksum and names its objset and sequence number. What `zdb` lists must all be there, field by
//! field; there is more in the image, since blocks of logs long committed lie about.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use cenote_format::Endian;
use cenote_format::eck;
use cenote_format::zil::{ChainLayout, CreateKind, LogBlock, LogBlockId, LogRecord, Tx};

/// A record as far as the comparison goes: objset, then `zdb`'s text of it.
type Line = (u64, String);

#[test]
fn every_log_record_that_zdb_lists_is_found_with_its_fields() {
    let theme = cenote_testkit::theme("zil");
    let expected = zdb_lines(&theme.zdb_text().unwrap());
    assert!(expected.len() > 70, "the pool's account has only {} records", expected.len());
    let image = theme.image_bytes("a.img").unwrap();
    let found = image_lines(&image);
    let missing: Vec<_> = expected.difference(&found).collect();
    assert!(missing.is_empty(), "{} of {} missing: {missing:#?}", missing.len(), expected.len());
}

#[test]
fn the_chain_of_a_real_log_links_block_to_block() {
    let image = cenote_testkit::theme("zil").image_bytes("a.img").unwrap();
    let blocks: Vec<_> = log_blocks(&image).collect();
    let linked = blocks
        .iter()
        .filter(|block| {
            let next = LogBlockId::of(&block.chain.next);
            // The successor, if it was written, is the block whose own link goes one further.
            blocks.iter().any(|other| {
                let after = LogBlockId::of(&other.chain.next);
                after == LogBlockId { sequence: next.sequence + 1, ..next } && other.continues(&block.chain.next)
            })
        })
        .count();
    assert!(linked > 20, "only {linked} of {} blocks have a successor", blocks.len());
}

fn log_blocks(image: &[u8]) -> impl Iterator<Item = LogBlock<'_>> {
    let magic = eck::MAGIC.to_le_bytes();
    (0..image.len()).step_by(4096).filter_map(move |offset| {
        // No log block of this pool is longer.
        let block = image.get(offset..(offset + (128 << 10)).min(image.len()))?;
        if block.get(144..152) != Some(&magic[..]) {
            return None;
        }
        LogBlock::parse(block, ChainLayout::Head, Endian::Little).ok()
    })
}

fn image_lines(image: &[u8]) -> BTreeSet<Line> {
    let mut lines = BTreeSet::new();
    for block in log_blocks(image) {
        let objset = LogBlockId::of(&block.chain.next).objset;
        let mut area = block.records;
        // Encrypted objsets' records are noise here; they end the block early.
        while let Ok((record, used)) = LogRecord::parse(area, Endian::Little) {
            lines.insert((objset, describe(&record, used)));
            area = &area[used..];
            if area.is_empty() {
                break;
            }
        }
    }
    lines
}

/// The parts of `zdb`'s text that are compared, in its order.
fn describe(record: &LogRecord<'_>, length: usize) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (name, details) = match &record.tx {
        Tx::Create(c) => {
            let (kind, name) = match &c.kind {
                CreateKind::File => ("TX_CREATE", text(&c.name)),
                CreateKind::Directory => ("TX_MKDIR", text(&c.name)),
                CreateKind::XattrDirectory => ("TX_MKXATTR", text(&c.name)),
                CreateKind::Symlink { target } => ("TX_SYMLINK", format!("{} -> {}", text(&c.name), text(target))),
            };
            let details = format!(
                "{name}|doid {}, foid {}, slots {}, mode {:o}|uid {}, gid {}, gen {}, rdev 0x{:x}",
                c.directory, c.object, c.dnode_slots, c.mode, c.uid, c.gid, c.generation, c.rdev
            );
            (kind, details)
        }
        Tx::Remove { directory, name } => ("TX_REMOVE", format!("doid {directory}, name {}", text(name))),
        Tx::Rmdir { directory, name } => ("TX_RMDIR", format!("doid {directory}, name {}", text(name))),
        Tx::Link { directory, object, name } => {
            ("TX_LINK", format!("doid {directory}, link_obj {object}, name {}", text(name)))
        }
        Tx::Rename(r) => (
            "TX_RENAME",
            format!(
                "sdoid {}, tdoid {}|src {} tgt {}",
                r.source_directory,
                r.target_directory,
                text(&r.source_name),
                text(&r.target_name)
            ),
        ),
        Tx::Write(w) => {
            let mut details = format!("foid {}, offset {:x}, length {:x}", w.object, w.offset_bytes, w.length_bytes);
            if w.data.is_none() {
                let _ = write!(details, "|size={:x}L", w.pointer.lsize_bytes());
            }
            ("TX_WRITE", details)
        }
        Tx::SetAttr(s) => ("TX_SETATTR", format!("foid {}, mask 0x{:x}", s.object, s.mask)),
        Tx::SetSaXattr(s) => {
            let value = text(&s.value);
            ("TX_SETSAXATTR", format!("foid {}|XAT_NAME  {}|XAT_VALUE  {value}", s.object, text(&s.name)))
        }
        other => ("other", format!("{other:?}")),
    };
    format!("{name} {length} {} {} {details}", record.txg, record.sequence)
}

fn zdb_lines(text: &str) -> BTreeSet<Line> {
    let mut lines = BTreeSet::new();
    let mut objset = 0;
    let log_part = text.split_once("-iiii").expect("the account has a part on logs").1;
    // One place where zdb forgets to end a line.
    let log_part = log_part.replace("\t\tTX_", "\n\t\tTX_");
    let mut current: Option<(String, Vec<String>)> = None;
    let mut done = |objset: u64, record: Option<(String, Vec<String>)>| {
        let Some((head, details)) = record else { return };
        if details.iter().any(|line| line.contains("(encrypted)")) {
            return;
        }
        lines.insert((objset, format!("{head} {}", details.join("|"))));
    };
    for line in log_part.lines() {
        if let Some(rest) = line.strip_prefix("Dataset ") {
            done(objset, current.take());
            let id = rest.split_once(", ID ").expect("dataset line").1;
            objset = id.split_once(',').expect("dataset line").0.parse().expect("objset id");
        } else if let Some((kind, rest)) = line.trim().split_once(" len ").filter(|_| line.trim().starts_with("TX_")) {
            done(objset, current.take());
            let numbers: Vec<&str> = rest.split(',').map(|part| part.split_whitespace().last().unwrap_or("")).collect();
            current = Some((format!("{} {}", kind.trim(), numbers.join(" ")), Vec::new()));
        } else if let (Some((_, details)), Some(line)) = (&mut current, line.strip_prefix("\t\t\t")) {
            let line = line.trim();
            if let Some((_, size)) = line.split_once("size=") {
                details.push(format!("size={}L", size.split_once('L').expect("a pointer's size").0));
            } else if !(line.starts_with("AT_") || line.contains("blkptr") || is_date(line)) {
                details.push(line.to_owned());
            }
        } else if !line.is_empty() {
            done(objset, current.take());
        }
    }
    done(objset, current);
    lines
}

/// `Sat Nov 21 20:30:23 2026`
fn is_date(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.len() == 5 && words[3].split(':').count() == 3
}
