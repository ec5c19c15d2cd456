//! Requests: what the kernel asks.

use super::bytes::{Fault, Reader};

/// Bytes of a request's header.
pub(crate) const HEADER_LEN: usize = 40;

/// The header of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Which operation.
    pub(crate) opcode: u32,
    /// The request's number, which its reply repeats.
    pub(crate) unique: u64,
    /// The node that it is about.
    pub(crate) node: u64,
    /// The caller's user.
    pub(crate) uid: u32,
    /// The caller's group.
    pub(crate) gid: u32,
    /// The caller's thread; 0 where it has no number in our namespace of processes.
    pub(crate) pid: u32,
}

impl Header {
    /// Whether the kernel only says something (it forgets nodes) and waits for no reply.
    #[must_use]
    pub(crate) fn takes_no_reply(&self) -> bool {
        matches!(self.opcode, 2 | 42)
    }
}

/// A request: its header, and what it asks, or why that cannot be told.
pub(crate) type Request = (Header, Result<Operation, Fault>);

/// A request's parts beside its header.
#[derive(Clone, Copy, Debug)]
struct Parts<'a> {
    argument: &'a [u8],
    payload: &'a [u8],
}

/// New attributes; `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetAttr {
    /// Mode.
    pub(crate) mode: Option<u32>,
    /// Owner.
    pub(crate) uid: Option<u32>,
    /// Group.
    pub(crate) gid: Option<u32>,
    /// Size in bytes.
    pub(crate) size: Option<u64>,
    /// Last access in seconds and nanoseconds; `None` within is now.
    pub(crate) accessed: Option<Option<(i64, u32)>>,
    /// Last change; likewise.
    pub(crate) modified: Option<Option<(i64, u32)>>,
}

/// The operation that is asked for. It owns its names and data, so that what it was read into is free for the reply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the operations and their fields are those of fuse(4)")]
pub(crate) enum Operation {
    Lookup { name: Vec<u8> },
    Forget { count: u64 },
    BatchForget(Vec<(u64, u64)>),
    GetAttr,
    SetAttr(SetAttr),
    ReadLink,
    Symlink { name: Vec<u8>, target: Vec<u8> },
    Mknod { mode: u32, umask: u32, device: u32, name: Vec<u8> },
    Mkdir { mode: u32, umask: u32, name: Vec<u8> },
    Unlink { name: Vec<u8> },
    Rmdir { name: Vec<u8> },
    Rename { name: Vec<u8>, to: u64, to_name: Vec<u8>, flags: u32 },
    Link { node: u64, name: Vec<u8> },
    Open { flags: u32 },
    Read { offset: u64, size: u32, flags: u32 },
    Write { offset: u64, write_flags: u32, flags: u32, data: Vec<u8> },
    StatFs,
    Release { flags: u32 },
    Fsync,
    SetXattr { name: Vec<u8>, value: Vec<u8>, flags: u32 },
    GetXattr { name: Vec<u8>, size: u32 },
    ListXattr { size: u32 },
    RemoveXattr { name: Vec<u8> },
    Flush,
    Init { major: u32, minor: u32, read_ahead_max: u32, flags: u64 },
    OpenDir { flags: u32 },
    ReadDir { offset: u64, size: u32, with_entries: bool },
    ReleaseDir,
    FsyncDir,
    Access { mask: u32 },
    Create { flags: u32, mode: u32, umask: u32, name: Vec<u8> },
    Interrupt { unique: u64 },
    Destroy,
    Ioctl { flags: u32, command: u32, out_size: u32 },
    Fallocate { offset: u64, len: u64, mode: u32 },
    Lseek { offset: u64, whence: u32 },
}

/// The bit of INIT's flags that says that there is a second word of them.
const INIT_EXT: u64 = 1 << 30;

/// Bytes of an operation's argument, in the forms that a kernel sends that was asked for no others; `None` for unknown operations.
/// INIT's grew with time, so all of its bytes are payload here.
fn argument_len(opcode: u32) -> Option<usize> {
    Some(match opcode {
        1 | 5 | 6 | 10 | 11 | 17 | 24 | 26 | 38 => 0,
        2 | 9 | 12 | 13 | 14 | 21 | 22 | 23 | 27 | 34 | 36 | 42 => 8,
        3 | 8 | 20 | 30 | 35 | 45 => 16,
        4 => 88,
        15 | 16 | 28 | 44 => 40,
        18 | 25 | 29 | 46 => 24,
        39 | 43 => 32,
        _ => return None,
    })
}

/// A request as it was read from the device; `None` where there is no header, and so nothing to reply to.
pub(crate) fn of_device(bytes: &[u8]) -> Option<Request> {
    let (header, len, extensions) = header(bytes).ok()?;
    let parts = || {
        let body = bytes.get(HEADER_LEN..).filter(|_| len == bytes.len()).ok_or(Fault::Malformed)?;
        let body = &body[..body.len().checked_sub(extensions).ok_or(Fault::Malformed)?];
        // An operation that is not known is told by its reply, and so needs its header only.
        let split = argument_len(header.opcode).unwrap_or(0);
        let (argument, payload) = body.split_at_checked(split).ok_or(Fault::Malformed)?;
        Parts { argument, payload }.operation(header.opcode)
    };
    Some((header, parts()))
}

/// A request as a ring's entry has it: in the places of headers, of arguments, and the used part of that of payloads. `None` where
/// there is no header.
pub(crate) fn of_ring(head: &[u8], argument: &[u8], payload: &[u8]) -> Option<Request> {
    let (header, _, extensions) = header(head).ok()?;
    let parts = || {
        let argument = argument.get(..argument_len(header.opcode).unwrap_or(0)).ok_or(Fault::Malformed)?;
        let payload = &payload[..payload.len().checked_sub(extensions).ok_or(Fault::Malformed)?];
        Parts { argument, payload }.operation(header.opcode)
    };
    Some((header, parts()))
}

impl Parts<'_> {
    /// The operation.
    ///
    /// # Errors
    /// It is not known here, or its bytes do not add up.
    fn operation(&self, opcode: u32) -> Result<Operation, Fault> {
        use Operation as Op;
        let (mut argument, mut payload) = (Reader::new(self.argument), Reader::new(self.payload));
        let (a, p) = (&mut argument, &mut payload);
        Ok(match opcode {
            1 => Op::Lookup { name: p.name()?.to_vec() },
            2 => Op::Forget { count: a.u64()? },
            3 => Op::GetAttr,
            4 => Op::SetAttr(set_attr(a)?),
            5 => Op::ReadLink,
            6 => Op::Symlink { name: p.name()?.to_vec(), target: p.name()?.to_vec() },
            8 => {
                let (mode, device, umask) = (a.u32()?, a.u32()?, a.u32()?);
                Op::Mknod { mode, umask, device, name: p.name()?.to_vec() }
            }
            9 => Op::Mkdir { mode: a.u32()?, umask: a.u32()?, name: p.name()?.to_vec() },
            10 => Op::Unlink { name: p.name()?.to_vec() },
            11 => Op::Rmdir { name: p.name()?.to_vec() },
            12 => Op::Rename { to: a.u64()?, flags: 0, name: p.name()?.to_vec(), to_name: p.name()?.to_vec() },
            13 => Op::Link { node: a.u64()?, name: p.name()?.to_vec() },
            14 => Op::Open { flags: a.u32()? },
            15 => {
                let (offset, size, flags) = transfer(a)?;
                Op::Read { offset, size, flags: flags.1 }
            }
            16 => {
                let (offset, size, (write_flags, flags)) = transfer(a)?;
                Op::Write { offset, write_flags, flags, data: p.take(size)?.to_vec() }
            }
            17 => Op::StatFs,
            18 => {
                a.u64()?;
                Op::Release { flags: a.u32()? }
            }
            20 => Op::Fsync,
            21 => {
                let (size, flags) = (a.u32()?, a.u32()?);
                Op::SetXattr { name: p.name()?.to_vec(), value: p.take(size)?.to_vec(), flags }
            }
            22 => Op::GetXattr { size: a.u32()?, name: p.name()?.to_vec() },
            23 => Op::ListXattr { size: a.u32()? },
            24 => Op::RemoveXattr { name: p.name()?.to_vec() },
            25 => Op::Flush,
            26 => {
                let (major, minor, read_ahead_max, low) = (p.u32()?, p.u32()?, p.u32()?, u64::from(p.u32()?));
                let high = if low & INIT_EXT == 0 { 0 } else { u64::from(p.u32()?) };
                Op::Init { major, minor, read_ahead_max, flags: low | high << 32 }
            }
            27 => Op::OpenDir { flags: a.u32()? },
            opcode @ (28 | 44) => {
                a.u64()?;
                // A position in a directory is any number.
                Op::ReadDir { offset: a.u64()?, size: a.u32()?, with_entries: opcode == 44 }
            }
            29 => Op::ReleaseDir,
            30 => Op::FsyncDir,
            34 => Op::Access { mask: a.u32()? },
            35 => {
                let (flags, mode, umask) = (a.u32()?, a.u32()?, a.u32()?);
                Op::Create { flags, mode, umask, name: p.name()?.to_vec() }
            }
            36 => Op::Interrupt { unique: a.u64()? },
            38 => Op::Destroy,
            39 => {
                a.u64()?;
                let (flags, command) = (a.u32()?, a.u32()?);
                a.u64()?;
                a.u32()?;
                Op::Ioctl { flags, command, out_size: a.u32()? }
            }
            42 => {
                // As many as there are bytes for, whatever the count says: it takes no memory that was not sent.
                let count = a.u32()?;
                let forgotten = (0..count).map_while(|_| Some((p.u64().ok()?, p.u64().ok()?))).collect::<Vec<_>>();
                if forgotten.len() != count as usize {
                    return Err(Fault::Malformed);
                }
                Op::BatchForget(forgotten)
            }
            43 => {
                a.u64()?;
                Op::Fallocate { offset: a.offset()?, len: a.offset()?, mode: a.u32()? }
            }
            45 => {
                let (to, flags) = (a.u64()?, a.u32()?);
                Op::Rename { to, flags, name: p.name()?.to_vec(), to_name: p.name()?.to_vec() }
            }
            46 => {
                a.u64()?;
                Op::Lseek { offset: a.u64()?, whence: a.u32()? }
            }
            _ => return Err(Fault::Unknown),
        })
    }
}

/// A header, the length that the whole has by it, and the bytes of extensions at its end.
fn header(bytes: &[u8]) -> Result<(Header, usize, usize), Fault> {
    let r = &mut Reader::new(bytes);
    let (len, opcode, unique, node) = (r.u32()?, r.u32()?, r.u64()?, r.u64()?);
    let (uid, gid, pid, extensions) = (r.u32()?, r.u32()?, r.u32()?, r.u16()?);
    r.u16()?;
    Ok((Header { opcode, unique, node, uid, gid, pid }, len as usize, usize::from(extensions) * 8))
}

/// The argument of READ and WRITE: offset, size, and their own flags and those of the descriptor.
fn transfer(a: &mut Reader<'_>) -> Result<(u64, u32, (u32, u32)), Fault> {
    a.u64()?;
    let (offset, size, own) = (a.offset()?, a.u32()?, a.u32()?);
    a.u64()?;
    Ok((offset, size, (own, a.u32()?)))
}

fn set_attr(a: &mut Reader<'_>) -> Result<SetAttr, Fault> {
    let valid = a.u32()?;
    a.u32()?;
    a.u64()?;
    let size = a.u64()?;
    a.u64()?;
    let (accessed, modified) = (a.u64()?.cast_signed(), a.u64()?.cast_signed());
    a.u64()?;
    let (accessed_ns, modified_ns) = (a.u32()?, a.u32()?);
    a.u32()?;
    let mode = a.u32()?;
    a.u32()?;
    let (uid, gid) = (a.u32()?, a.u32()?);
    let has = |bit: u32| valid & (1 << bit) != 0;
    let time = |bit, now, at| match (has(now), has(bit)) {
        (true, _) => Some(None),
        (false, true) => Some(Some(at)),
        (false, false) => None,
    };
    Ok(SetAttr {
        mode: has(0).then_some(mode),
        uid: has(1).then_some(uid),
        gid: has(2).then_some(gid),
        size: has(3).then_some(size),
        accessed: time(4, 7, (accessed, accessed_ns)),
        modified: time(5, 8, (modified, modified_ns)),
    })
}

#[cfg(test)]
mod tests {
    use super::super::bytes::Put as _;
    use super::*;

    fn head(opcode: u32, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_u32(len as u32);
        bytes.put_u32(opcode);
        bytes.put_u64(77);
        bytes.put_u64(5);
        for number in [1000, 100, 4242, 0] {
            bytes.put_u32(number);
        }
        bytes
    }

    /// The same request by the device and by a ring.
    fn both(opcode: u32, argument: &[u8], payload: &[u8], look: impl Fn(Result<Operation, Fault>)) {
        let mut bytes = head(opcode, HEADER_LEN + argument.len() + payload.len());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(payload);
        look(of_device(&bytes).unwrap().1);
        let mut place = [0xee; 128];
        place[..argument.len()].copy_from_slice(argument);
        look(of_ring(&bytes[..HEADER_LEN], &place, payload).unwrap().1);
    }

    #[test]
    fn requests_are_the_same_from_the_device_and_from_a_ring() {
        both(1, &[], b"name\0", |op| assert_eq!(op, Ok(Operation::Lookup { name: b"name".to_vec() })));
        let mut write = Vec::new();
        [9, 4096].into_iter().for_each(|number| write.put_u64(number));
        [3, 4].into_iter().for_each(|number| write.put_u32(number));
        write.put_u64(0);
        [0o40000, 0].into_iter().for_each(|number| write.put_u32(number));
        let expected = Operation::Write { offset: 4096, write_flags: 4, flags: 0o40000, data: b"abc".to_vec() };
        both(16, &write, b"abc", |op| assert_eq!(op, Ok(expected.clone())));
        both(16, &write, b"ab", |op| assert_eq!(op, Err(Fault::Malformed)));
        let mut rename = Vec::new();
        rename.put_u64(8);
        rename.put_u64(2);
        let expected = Operation::Rename { name: b"a".to_vec(), to: 8, to_name: b"b".to_vec(), flags: 2 };
        both(45, &rename, b"a\0b\0", |op| assert_eq!(op, Ok(expected.clone())));
        both(45, &rename, b"a\0b", |op| assert_eq!(op, Err(Fault::Malformed)));
        both(4000, &[], &[], |op| assert_eq!(op, Err(Fault::Unknown)));
    }

    #[test]
    fn a_batch_of_forgets_has_as_many_as_it_says() {
        let mut count = Vec::new();
        count.put_u32(2);
        count.put_u32(0);
        let mut nodes = Vec::new();
        [5, 1, 6, 3].into_iter().for_each(|number| nodes.put_u64(number));
        both(42, &count, &nodes, |op| assert_eq!(op, Ok(Operation::BatchForget(vec![(5, 1), (6, 3)]))));
        both(42, &count, &nodes[..24], |op| assert_eq!(op, Err(Fault::Malformed)));
    }

    #[test]
    fn a_time_of_now_is_told_from_a_time() {
        let mut set = Vec::new();
        set.put_u32(1 << 4 | 1 << 5 | 1 << 8);
        set.put_u32(0);
        [0, 0, 0, (-5i64).cast_unsigned(), 6, 0].into_iter().for_each(|number| set.put_u64(number));
        [7, 8, 0, 0o644, 0, 1, 2, 0].into_iter().for_each(|number| set.put_u32(number));
        let expected = SetAttr { accessed: Some(Some((-5, 7))), modified: Some(None), ..SetAttr::default() };
        both(4, &set, &[], |op| assert_eq!(op, Ok(Operation::SetAttr(expected))));
    }

    proptest::proptest! {
        /// Any bytes get an answer; and a request says its length.
        #[test]
        fn any_bytes_are_taken_or_refused(opcode in 0u32..60, fill in proptest::collection::vec(0u8.., 0..200), cut in 0usize..240) {
            let mut bytes = head(opcode, HEADER_LEN + fill.len());
            bytes.extend_from_slice(&fill);
            proptest::prop_assert_eq!(of_device(&bytes).unwrap().0.unique, 77);
            if cut < bytes.len() {
                let short = of_device(&bytes[..cut]);
                proptest::prop_assert!(short.is_none_or(|(_, operation)| operation.is_err()));
                proptest::prop_assert_eq!(of_device(&bytes[..cut]).is_some(), cut >= HEADER_LEN);
            }
            if let Some((header, _)) = of_ring(&bytes, &fill, &fill) {
                proptest::prop_assert_eq!(header.opcode, opcode);
            }
        }

        /// No header at all adds up by accident to more than there is.
        #[test]
        fn any_header_is_taken_or_refused(bytes in proptest::collection::vec(0u8.., 0..300)) {
            proptest::prop_assert_eq!(of_device(&bytes).is_some(), bytes.len() >= HEADER_LEN);
            let (head, rest) = bytes.split_at(bytes.len() / 2);
            proptest::prop_assert_eq!(of_ring(head, rest, rest).is_some(), head.len() >= HEADER_LEN);
        }
    }
}
