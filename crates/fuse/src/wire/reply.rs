//! Replies and notices: what the kernel is told.

use std::time::Duration;

use super::bytes::Put as _;

/// Bytes of the header of a reply or notice.
pub(crate) const HEADER_LEN: usize = 16;

/// The version of the protocol that is spoken here. Newer kernels speak it too.
pub(crate) const VERSION: (u32, u32) = (7, 40);

/// A node's attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// The inode number shown.
    pub(crate) ino: u64,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Space in units of 512 bytes.
    pub(crate) blocks: u64,
    /// Last access in seconds and nanoseconds.
    pub(crate) accessed: (i64, u32),
    /// Last change of content.
    pub(crate) modified: (i64, u32),
    /// Last change of attributes.
    pub(crate) changed: (i64, u32),
    /// Type and permission bits.
    pub(crate) mode: u32,
    /// Links.
    pub(crate) links: u32,
    /// Owner.
    pub(crate) uid: u32,
    /// Group.
    pub(crate) gid: u32,
    /// Device number, packed.
    pub(crate) device: u32,
    /// The size in bytes in which reading is best.
    pub(crate) block_size: u32,
}

/// A node that was found or made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its number; 0 says that there is none.
    pub(crate) node: u64,
    /// Tells reuses of the number apart.
    pub(crate) generation: u64,
    /// How long name and attributes hold.
    pub(crate) kept: Duration,
    /// Its attributes.
    pub(crate) attributes: Attributes,
}

/// The terms that are agreed on when a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Init {
    /// Those of the flags offered that are wanted.
    pub(crate) flags: u64,
    /// How far the kernel reads ahead, in bytes.
    pub(crate) read_ahead_max: u32,
    /// Requests of the kernel's own that may wait.
    pub(crate) background_max: u16,
    /// The number of them at which the kernel throttles their sources.
    pub(crate) congestion: u16,
    /// The largest write in bytes.
    pub(crate) write_max: u32,
    /// The largest transfer in pages.
    pub(crate) pages_max: u16,
}

/// The header of a reply to request `unique`: an error's number, or 0, and the bytes that follow.
#[must_use]
pub(crate) fn header(unique: u64, errno: i32, body_len: usize) -> [u8; HEADER_LEN] {
    head(unique, errno.saturating_neg(), body_len)
}

#[allow(clippy::host_endian_bytes, reason = "a message to this machine's kernel, not to a disk")]
fn head(unique: u64, word: i32, body_len: usize) -> [u8; HEADER_LEN] {
    let len = u32::try_from(HEADER_LEN + body_len).unwrap_or(u32::MAX);
    let mut bytes = [0; HEADER_LEN];
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    bytes[4..8].copy_from_slice(&word.to_ne_bytes());
    bytes[8..].copy_from_slice(&unique.to_ne_bytes());
    bytes
}

fn put_attributes(out: &mut Vec<u8>, a: &Attributes) {
    let times = [a.accessed, a.modified, a.changed];
    [a.ino, a.size, a.blocks].into_iter().for_each(|number| out.put_u64(number));
    times.iter().for_each(|time| out.put_u64(time.0.cast_unsigned()));
    times.iter().for_each(|time| out.put_u32(time.1));
    let words = [a.mode, a.links, a.uid, a.gid, a.device, a.block_size, 0];
    words.into_iter().for_each(|word| out.put_u32(word));
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    let (seconds, rest) = (entry.kept.as_secs(), entry.kept.subsec_nanos());
    [entry.node, entry.generation, seconds, seconds].into_iter().for_each(|number| out.put_u64(number));
    [rest, rest].into_iter().for_each(|number| out.put_u32(number));
    put_attributes(out, &entry.attributes);
}

/// The body of a reply that tells of a node; where it was also opened, with the flags of that.
#[must_use]
pub(crate) fn entry(entry: &Entry, opened: Option<u32>) -> Vec<u8> {
    let mut out = Vec::with_capacity(144);
    put_entry(&mut out, entry);
    if let Some(flags) = opened {
        out.extend_from_slice(&open(flags));
    }
    out
}

/// The body of a reply with attributes that hold for `kept`.
#[must_use]
pub(crate) fn attributes(kept: Duration, attributes: &Attributes) -> Vec<u8> {
    let mut out = Vec::with_capacity(104);
    out.put_u64(kept.as_secs());
    out.put_u32(kept.subsec_nanos());
    out.put_u32(0);
    put_attributes(&mut out, attributes);
    out
}

/// The body of a reply to an open: no handle, and flags (`FOPEN_*`).
#[must_use]
pub(crate) fn open(flags: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(16);
    out.put_u64(0);
    out.put_u32(flags);
    out.put_u32(0);
    out
}

/// The body of a reply with one size: bytes written, or those of an attribute's value.
#[must_use]
pub(crate) fn size(bytes: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(8);
    out.put_u32(bytes);
    out.put_u32(0);
    out
}

/// The body of a reply with a place in a file.
#[must_use]
pub(crate) fn offset(at: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(8);
    out.put_u64(at);
    out
}

/// The body of a reply to an ioctl that succeeded.
#[must_use]
pub(crate) fn ioctl(data: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 16];
    out.extend_from_slice(data);
    out
}

/// The body of a reply to `statfs`: blocks, of them free, files, of them free; the unit, and the longest name, in bytes.
#[must_use]
pub(crate) fn statfs(blocks: (u64, u64), files: (u64, u64), unit: u32, name_max: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(80);
    [blocks.0, blocks.1, blocks.1, files.0, files.1].into_iter().for_each(|number| out.put_u64(number));
    [unit, name_max, unit].into_iter().for_each(|word| out.put_u32(word));
    out.resize(80, 0);
    out
}

/// The body of the reply that agrees on a connection.
#[must_use]
pub(crate) fn init(init: &Init) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    [VERSION.0, VERSION.1, init.read_ahead_max, init.flags as u32].into_iter().for_each(|word| out.put_u32(word));
    out.put_u16(init.background_max);
    out.put_u16(init.congestion);
    out.put_u32(init.write_max);
    // Times are told to the nanosecond.
    out.put_u32(1);
    out.put_u16(init.pages_max);
    out.put_u16(0);
    out.put_u32((init.flags >> 32) as u32);
    out.resize(64, 0);
    out
}

/// A listing that is filled up to the size that was asked for.
#[derive(Debug)]
pub(crate) struct Listing {
    out: Vec<u8>,
    size_max: usize,
}

impl Listing {
    /// An empty one of at most `size_max` bytes. Memory is taken as it fills.
    #[must_use]
    pub(crate) fn new(size_max: u32) -> Self {
        Self { out: Vec::new(), size_max: size_max as usize }
    }

    /// Adds an item: where the listing goes on after it, its type's bits of a mode, and where nodes are asked for its entry. False if
    /// it has no room, and then it was not added.
    #[must_use]
    pub(crate) fn add(&mut self, ino: u64, next: u64, mode: u32, name: &[u8], node: Option<&Entry>) -> bool {
        let Ok(name_len) = u32::try_from(name.len()) else { return false };
        let len = (node.map_or(0, |_| 128) + 24 + name.len()).next_multiple_of(8);
        if self.out.len() + len > self.size_max {
            return false;
        }
        let end = self.out.len() + len;
        if let Some(node) = node {
            put_entry(&mut self.out, node);
        }
        self.out.put_u64(ino);
        self.out.put_u64(next);
        self.out.put_u32(name_len);
        self.out.put_u32((mode & 0o170_000) >> 12);
        self.out.extend_from_slice(name);
        self.out.resize(end, 0);
        true
    }

    /// The body of the reply.
    #[must_use]
    pub(crate) fn finish(self) -> Vec<u8> {
        self.out
    }
}

/// A whole notice: the kernel is to drop what it keeps of a node's attributes, and of its data from `offset` on (`len` 0 is to its
/// end; a negative offset is no data).
#[must_use]
pub(crate) fn forget_inode(node: u64, offset: i64, len: i64) -> Vec<u8> {
    let mut out = head(0, 2, 24).to_vec();
    [node, offset.cast_unsigned(), len.cast_unsigned()].into_iter().for_each(|number| out.put_u64(number));
    out
}

/// A whole notice: the kernel is to drop what it keeps of a name.
#[must_use]
pub(crate) fn forget_name(parent: u64, name: &[u8]) -> Vec<u8> {
    let mut out = head(0, 3, 17 + name.len()).to_vec();
    out.put_u64(parent);
    out.put_u32(u32::try_from(name.len()).unwrap_or(u32::MAX));
    out.put_u32(0);
    out.extend_from_slice(name);
    out.push(0);
    out
}

#[cfg(test)]
mod tests {
    use super::super::bytes::Reader;
    use super::*;

    #[test]
    fn bodies_have_the_lengths_that_the_kernel_takes() {
        // Those of Linux's structures.
        let found = Entry { node: 5, ..Entry::default() };
        let agreed =
            Init { flags: 1 << 41, read_ahead_max: 0, background_max: 1, congestion: 1, write_max: 0, pages_max: 1 };
        let lengths = [
            (entry(&found, None).len(), 128),
            (entry(&found, Some(0)).len(), 144),
            (attributes(Duration::ZERO, &Attributes::default()).len(), 104),
            (open(0).len(), 16),
            (size(0).len(), 8),
            (statfs((0, 0), (0, 0), 0, 0).len(), 80),
            (init(&agreed).len(), 64),
            (forget_inode(1, 0, 0).len(), 40),
            (forget_name(1, b"abc").len(), 36),
        ];
        for (index, (len, expected)) in lengths.into_iter().enumerate() {
            assert_eq!(len, expected, "{index}");
        }
        // FUSE_OVER_IO_URING is a bit of the second word.
        assert_eq!(Reader::new(&init(&agreed)[32..]).u32(), Ok(1 << 9));
    }

    #[test]
    fn headers_tell_errors_as_negative_numbers_and_the_whole_length() {
        let bytes = header(9, 2, 8);
        let r = &mut Reader::new(&bytes);
        assert_eq!((r.u32(), r.u32(), r.u64()), (Ok(24), Ok((-2i32).cast_unsigned()), Ok(9)));
    }

    proptest::proptest! {
        /// A listing holds what was added, whole, and never more than its size.
        #[test]
        fn listings_keep_to_their_size(
            names in proptest::collection::vec(proptest::collection::vec(1u8.., 1..40), 0..30),
            size_max in 0u32..1500,
            with_nodes: bool,
        ) {
            let mut listing = Listing::new(size_max);
            let node = Entry { node: 3, ..Entry::default() };
            let mut added = Vec::new();
            for (index, name) in names.iter().enumerate() {
                let next = index as u64 + 1;
                if !listing.add(7, next, 0o100_644, name, with_nodes.then_some(&node)) {
                    break;
                }
                added.push(name.as_slice());
            }
            let bytes = listing.finish();
            proptest::prop_assert!(bytes.len() <= size_max as usize);
            let (mut at, mut seen) = (0, Vec::new());
            while at < bytes.len() {
                let head = if with_nodes { 128 } else { 0 };
                let r = &mut Reader::new(&bytes[at + head..]);
                proptest::prop_assert_eq!((r.u64(), r.u64()), (Ok(7), Ok(seen.len() as u64 + 1)));
                let len = r.u32().unwrap();
                proptest::prop_assert_eq!(r.u32(), Ok(8));
                seen.push(r.take(len).unwrap());
                at += (head + 24 + len as usize).next_multiple_of(8);
            }
            proptest::prop_assert_eq!(seen, added);
        }
    }
}
