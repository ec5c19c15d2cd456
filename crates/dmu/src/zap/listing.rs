//! Listing a ZAP, leaf by leaf.

use cenote_format::FormatError;
use cenote_format::zap::{Leaf, ZapFlags, ZapHasher, ZapKeyBuf, ZapValue, hash_index};
use cenote_taskq::boxed;

use super::{Form, Zap, ZapEntry};
use crate::{DmuError, DmuErrorKind};

/// Leaves without an entry that a listing passes over in a row, before the ZAP is called corrupt. A directory that had two
/// hundred million files and lost them all has about as many.
const EMPTY_LEAVES_MAX: u64 = 1 << 22;

/// A listing in progress: hands out the entries of a leaf at a time.
pub struct ZapListing<'a> {
    zap: &'a Zap,
    next_index: u64,
    /// The slot and leaf at hand, which a failure is about.
    at: (u64, Option<u64>),
    /// The leaf that was given up, whose other slots are passed over.
    bad_leaf: Option<u64>,
    last_leaf: Option<u64>,
    leaves_seen: u64,
    empty_in_a_row: u64,
    done: bool,
}

impl Zap {
    /// A listing of all entries, ordered by (hash, differentiator).
    #[must_use]
    pub fn listing(&self) -> ZapListing<'_> {
        ZapListing {
            zap: self,
            next_index: 0,
            at: (0, None),
            bad_leaf: None,
            last_leaf: None,
            leaves_seen: 0,
            empty_in_a_row: 0,
            done: false,
        }
    }

    /// All entries at once, for ZAPs that are small by nature. `limit` bounds them.
    ///
    /// # Errors
    /// There are more, or the ZAP cannot be read.
    #[boxed]
    pub async fn entries(&self, limit: usize) -> Result<Vec<ZapEntry>, DmuError> {
        let mut all = Vec::new();
        let mut listing = self.listing();
        while let Some(mut batch) = listing.next().await? {
            if all.len() + batch.len() > limit {
                return Err(self.fail(DmuErrorKind::Corrupt(format!("more than {limit} entries"))));
            }
            all.append(&mut batch);
        }
        Ok(all)
    }

    /// About `count_max` entries after a place (a hash and a differentiator; nothing for the start), in the order of places. None at the
    /// end. An entry that was there before the first of several such calls and is still there after the last is listed once, whatever else
    /// comes and goes between them.
    ///
    /// # Errors
    /// The ZAP cannot be read, or contradicts itself.
    #[boxed]
    pub async fn list(&self, after: Option<(u64, u32)>, count_max: usize) -> Result<Vec<ZapEntry>, DmuError> {
        let mut listing = self.listing();
        if let Some((hash, _)) = after {
            listing.seek(hash);
        }
        let mut found = Vec::new();
        while found.len() < count_max
            && let Some(batch) = listing.next().await?
        {
            let rest = batch.into_iter().filter(|entry| after.is_none_or(|after| (entry.hash, entry.cd) > after));
            found.extend(rest.take(count_max - found.len()));
        }
        Ok(found)
    }
}

impl Zap {
    /// The cursor of the end of a listing, as OpenZFS keeps it.
    pub const CURSOR_END: u64 = u64::MAX;

    /// The cursor behind an entry, as OpenZFS keeps it (`zap_cursor_serialize`): the bits of the hash that count, and above them the differentiator of what
    /// comes next.
    #[must_use]
    pub fn cursor_after(&self, entry: &ZapEntry) -> u64 {
        let bits = self.hash_bits();
        let next = u64::from(entry.cd) + 1;
        // No ZAP has so many entries of one hash.
        if next >> (64 - bits) == 0 { entry.hash >> (64 - bits) | next << bits } else { Self::CURSOR_END }
    }

    /// Whether an entry comes before this cursor.
    #[must_use]
    pub fn is_before_cursor(&self, entry: &ZapEntry, cursor: u64) -> bool {
        let bits = self.hash_bits();
        let place = (cursor << (64 - bits), cursor >> bits);
        cursor == Self::CURSOR_END || (entry.hash, u64::from(entry.cd)) < place
    }

    fn hash_bits(&self) -> u32 {
        let flags = match &self.form {
            Form::Fat(header) => header.flags,
            Form::Micro(_) => ZapFlags::empty(),
        };
        ZapHasher::new(0, flags).bits()
    }
}

impl ZapListing<'_> {
    /// After a failure: goes on after the leaf (or the slot of the pointer table) that could not be read. `false` where
    /// nothing is left.
    pub fn skip(&mut self) -> bool {
        let Form::Fat(header) = &self.zap.form else { return false };
        // A failure after a leaf's first look has moved on already.
        self.next_index = self.next_index.max(self.at.0.saturating_add(1));
        self.bad_leaf = self.at.1.take();
        self.next_index < header.pointer_count()
    }

    /// Goes on at the leaf that holds `hash`: the entries before it in that leaf are listed again.
    pub(crate) fn seek(&mut self, hash: u64) {
        if let Form::Fat(header) = &self.zap.form {
            self.next_index = hash_index(hash, header.table.shift as u32);
            self.last_leaf = None;
        }
    }

    /// The entries of the next leaf that has any (sorted); `None` at the end.
    ///
    /// # Errors
    /// The leaf cannot be read, or contradicts itself.
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<Vec<ZapEntry>>, DmuError> {
        let zap = self.zap;
        if self.done {
            return Ok(None);
        }
        let Form::Fat(header) = &zap.form else {
            self.done = true;
            let entries = zap.micro()?.sorted();
            return Ok(Some(
                entries
                    .into_iter()
                    .map(|(hash, entry)| ZapEntry {
                        key: ZapKeyBuf::Name(entry.name.to_vec()),
                        value: ZapValue::from_u64(entry.value),
                        hash,
                        cd: entry.cd,
                    })
                    .collect(),
            ));
        };
        while self.next_index < header.pointer_count() {
            self.at = (self.next_index, None);
            let leaf_id = zap.leaf_at(header, header.index_place(self.next_index)).await?;
            self.at.1 = Some(leaf_id);
            if self.bad_leaf == Some(leaf_id) {
                self.next_index += 1;
                continue;
            }
            if self.last_leaf == Some(leaf_id) {
                return Err(zap.fail(misplaced(leaf_id)));
            }
            let (block, order) = zap.block(leaf_id).await?;
            let fail = |error: FormatError| zap.fail(error);
            let leaf = Leaf::parse(&block, order).map_err(fail)?;
            // The leaf owns every slot with its prefix: go to the first that it does not.
            let own_len = u64::from(leaf.header().prefix_len);
            let prefix_len = own_len.min(header.table.shift);
            let slots = 1_u64 << (header.table.shift - prefix_len);
            let is_misplaced = prefix_len == own_len && self.next_index / slots != leaf.header().prefix;
            self.next_index = (self.next_index / slots + 1) * slots;
            assert!(self.next_index > self.at.0, "a listing moves on");
            if is_misplaced {
                return Err(zap.fail(misplaced(leaf_id)));
            }
            self.last_leaf = Some(leaf_id);
            self.leaves_seen += 1;
            if self.leaves_seen > zap.blocks_end() {
                return Err(zap.fail(DmuErrorKind::Corrupt("more leaves than blocks".into())));
            }
            let uint64_key = header.flags.contains(ZapFlags::UINT64_KEY);
            let mut entries = Vec::new();
            for entry in leaf.sorted().map_err(fail)? {
                entries.push(ZapEntry {
                    key: entry.key(uint64_key).map_err(fail)?,
                    value: entry.value().map_err(fail)?,
                    hash: entry.hash,
                    cd: entry.cd,
                });
            }
            if !entries.is_empty() {
                self.empty_in_a_row = 0;
                return Ok(Some(entries));
            }
            self.empty_in_a_row += 1;
            if self.empty_in_a_row > EMPTY_LEAVES_MAX {
                let what = format!("more than {EMPTY_LEAVES_MAX} leaves in a row without an entry");
                return Err(zap.fail(DmuErrorKind::Corrupt(what)));
            }
        }
        self.done = true;
        Ok(None)
    }
}

fn misplaced(leaf: u64) -> DmuErrorKind {
    DmuErrorKind::Corrupt(format!("leaf {leaf} stands at pointers that its prefix says are another's"))
}
