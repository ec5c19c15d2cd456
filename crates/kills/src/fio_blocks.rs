//! The traces of fio's writes: its own log of requests, and the header that its verification puts into each block.
//!
//! A header names the block's offset and the number of the write that brought it, and has a checksum of itself and of the rest. So a
//! block tells of itself whether it is torn and which write it is from, and the log tells which writes were followed by a sync that
//! was answered. There is one request at a time, and fio ends with the first that fails; so one after which there is another was answered.
//! fio does not look at the errors of syncs of an asynchronous engine, though, and goes on to the next write, which fails. With such an engine
//! a sync counts when the write after it was answered too.
//!
//! ```text
//! 0  magic u16, kind u16, length u32   8  seed u64        16  offset u64    24  time u32, u32
//! 32 thread u16, number u16            36 CRC-32C of 0..36               40  CRC-32C of 44..length
//! ```

use anyhow::{Context as _, Result, bail, ensure};

use super::account::Compared;
use super::blocks::{BLOCK_BYTES, Blocks};

const MAGIC: u16 = 0xACCA;
const KIND_CRC32C: u16 = 5;

/// A write, in the order in which fio asked for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Write {
    offset_bytes: u64,
    size_bytes: u64,
    /// Whether a sync after it was answered.
    is_acknowledged: bool,
}

/// The requests whose answers tell that writes are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answers {
    /// The answer to a sync: the writes before it are.
    Syncs,
    /// The answer to a write after a sync: the writes before the sync are.
    WritesAfterSyncs,
    /// The answer to a write: the write is.
    Writes,
}

/// Reads a log of requests.
pub(super) fn writes(log: &str, answers: Answers) -> Result<Vec<Write>> {
    let mut writes: Vec<Write> = Vec::new();
    // Writes that are stable if the request before this one was answered, and those before the last sync.
    let (mut stable, mut before_sync) = (0, 0);
    for line in log.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, _, "write", offset, size] => {
                writes[..stable].iter_mut().for_each(|write| write.is_acknowledged = true);
                let (offset_bytes, size_bytes) = (offset.parse()?, size.parse()?);
                writes.push(Write { offset_bytes, size_bytes, is_acknowledged: false });
                stable = match answers {
                    Answers::Syncs => stable,
                    Answers::WritesAfterSyncs => before_sync,
                    Answers::Writes => writes.len(),
                };
            }
            [_, _, "sync" | "datasync", ..] => {
                writes[..stable].iter_mut().for_each(|write| write.is_acknowledged = true);
                before_sync = writes.len();
                if answers == Answers::Syncs {
                    stable = before_sync;
                }
            }
            [_, _, "add" | "open" | "close"] => {}
            _ => bail!("fio's log says {line:?}"),
        }
    }
    Ok(writes)
}

/// The number of the write that brought a block; none if it is torn, from elsewhere, or not fio's.
fn number_of(block: &[u8], offset_bytes: u64) -> Option<u16> {
    let u16_at = |at: usize| Some(u16::from_le_bytes(*block.get(at..)?.first_chunk()?));
    let u32_at = |at: usize| Some(u32::from_le_bytes(*block.get(at..)?.first_chunk()?));
    let offset = u64::from_le_bytes(*block.get(16..)?.first_chunk()?);
    let is_good = u16_at(0)? == MAGIC
        && u16_at(2)? == KIND_CRC32C
        && u32_at(4)? as usize == block.len()
        && offset == offset_bytes
        && u32_at(36)? == crc32c(&block[..36])
        && u32_at(40)? == crc32c(&block[44..]);
    if is_good { u16_at(34) } else { None }
}

/// CRC-32C as fio has it: not inverted at the end.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82F6_3B78;
    bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 })
    })
}

/// Compares a range of blocks with their known content and the writes since. The content found has to stay from then on.
///
/// Content from a former run under the number that a write of this one has would pass; the seed, which differs, makes that one chance
/// in as many as a run has writes.
pub(super) fn compare(
    blocks: &mut dyn Blocks,
    first: usize,
    known: &mut [Vec<u8>],
    writes: &[Write],
) -> Result<Compared> {
    let mut compared = Compared::default();
    for (index, known) in known.iter_mut().enumerate() {
        let offset_bytes = ((first + index) * BLOCK_BYTES) as u64;
        let here = |write: &Write| (write.offset_bytes..write.offset_bytes + write.size_bytes).contains(&offset_bytes);
        let candidates: Vec<(usize, &Write)> = writes.iter().enumerate().filter(|(_, write)| here(write)).collect();
        let last = candidates.iter().rev().find(|(_, write)| write.is_acknowledged).map(|(number, _)| *number);
        let found = blocks.read(first + index)?;
        compared.checked += u64::from(last.is_some());
        if last.is_none() && found == *known {
            continue;
        }
        let number = number_of(&found, offset_bytes).with_context(|| {
            format!("at {offset_bytes} is what was never written, or a torn block; write {last:?} was acknowledged")
        })?;
        // Headers have the number's low half.
        let from = candidates.iter().rev().find(|(candidate, _)| *candidate as u16 == number);
        let (from, write) =
            from.with_context(|| format!("at {offset_bytes} is write {number}, which was not for it"))?;
        ensure!(
            last.is_none_or(|last| *from >= last),
            "LOST: at {offset_bytes} is write {from}, and write {last:?} was acknowledged"
        );
        compared.unacknowledged += u64::from(!write.is_acknowledged);
        *known = found;
    }
    compared.acknowledged = writes.iter().filter(|write| write.is_acknowledged).count() as u64;
    Ok(compared)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "fio version 3 iolog\n21 /m/a add\n193 /m/a open\n209 /m/a write 0 8192\n262 /m/a sync 0 0\n\
                       774 /m/a write 4096 4096\n779 /m/a sync 4096 0\n800 /m/a close\n";

    /// A block as fio fills it.
    fn block(number: u16, offset_bytes: u64) -> Vec<u8> {
        let mut block = [MAGIC.to_le_bytes(), KIND_CRC32C.to_le_bytes()].concat();
        block.extend((BLOCK_BYTES as u32).to_le_bytes());
        block.extend([0; 8]);
        block.extend(offset_bytes.to_le_bytes());
        block.extend([0; 10]);
        block.extend(number.to_le_bytes());
        block.extend(crc32c(&block).to_le_bytes());
        let rest = vec![number as u8; BLOCK_BYTES - 44];
        block.extend(crc32c(&rest).to_le_bytes());
        block.extend(rest);
        block
    }

    struct Memory(Vec<Vec<u8>>);

    impl Blocks for Memory {
        fn write(&mut self, _: usize, _: &[u8]) -> Result<()> {
            bail!("nobody writes here")
        }

        fn read(&mut self, block: usize) -> Result<Vec<u8>> {
            Ok(self.0[block].clone())
        }

        fn sync(&mut self) -> Result<()> {
            Ok(())
        }
    }

    /// Whether blocks are what the log allows, of which nothing was known.
    fn is_good(blocks: [Vec<u8>; 2]) -> bool {
        let writes = writes(LOG, Answers::Syncs).expect("a good log");
        compare(&mut Memory(blocks.to_vec()), 0, &mut vec![vec![0; BLOCK_BYTES]; 2], &writes).is_ok()
    }

    #[test]
    fn a_write_counts_when_something_followed_the_sync_after_it() {
        let acknowledged = |log: &str, answers| -> Vec<bool> {
            writes(log, answers).expect("a good log").iter().map(|write| write.is_acknowledged).collect()
        };
        assert_eq!(acknowledged(LOG, Answers::Syncs), [true, false]);
        assert_eq!(acknowledged(LOG, Answers::Writes), [true, true]);
        assert_eq!(acknowledged(LOG, Answers::WritesAfterSyncs), [true, false]);
        let until_the_second_write: String = LOG.lines().take(6).map(|line| format!("{line}\n")).collect();
        assert_eq!(acknowledged(&until_the_second_write, Answers::Syncs), [true, false]);
        assert_eq!(acknowledged(&until_the_second_write, Answers::WritesAfterSyncs), [false, false]);
    }

    #[test]
    fn the_crc_is_that_of_fio() {
        // The check value of CRC-32C, without the inversion at its end.
        assert_eq!(crc32c(b"123456789"), !0xE306_9283);
    }

    #[test]
    fn a_block_is_of_its_last_acknowledged_write_or_one_after() {
        assert!(is_good([block(0, 0), block(0, 4096)]));
        assert!(is_good([block(0, 0), block(1, 4096)]));
        assert!(!is_good([vec![0; BLOCK_BYTES], block(0, 4096)]), "write 0 is lost");
        assert!(!is_good([block(1, 0), block(0, 4096)]), "write 1 was not for the first block");
        assert!(!is_good([block(0, 4096), block(0, 4096)]), "a block in another's place");
        let torn = [&block(0, 4096)[..512], &block(1, 4096)[512..]].concat();
        assert!(!is_good([block(0, 0), torn]));
    }
}
