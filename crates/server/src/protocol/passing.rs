//! Passing a descriptor with a line: the standard input of a client, which the server reads for it.
//!
//! The descriptor is sent with the first byte of a request's line (`SCM_RIGHTS`). The server accepts one; it closes further ones unread. While
//! it reads the client's input it also watches the client's connection: if that ends, as when the client is killed, the input ends with an
//! error, even if a writer still has its other end.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut, IsTerminal, Read, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// Sends a line together with a descriptor.
///
/// # Errors
/// The other end is gone.
pub(crate) fn send_with(mut stream: &UnixStream, line: &[u8], passed: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let fds = [passed];
    assert!(beside.push(SendAncillaryMessage::ScmRights(&fds)), "there is room for one descriptor");
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(line)], &mut beside, SendFlags::NOSIGNAL)?;
    stream.write_all(&line[sent..])
}

/// A connection that is read, and the descriptor that was received with the data.
pub(crate) struct Receiving<'a> {
    stream: &'a UnixStream,
    passed: &'a RefCell<Option<OwnedFd>>,
}

impl<'a> Receiving<'a> {
    /// `passed` gets the descriptor.
    pub(crate) const fn new(stream: &'a UnixStream, passed: &'a RefCell<Option<OwnedFd>>) -> Self {
        Self { stream, passed }
    }
}

impl Read for Receiving<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let came =
            rustix::net::recvmsg(self.stream, &mut [IoSliceMut::new(into)], &mut beside, RecvFlags::CMSG_CLOEXEC)?;
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                let mut passed = self.passed.borrow_mut();
                // Those after the first are closed.
                for fd in fds {
                    let _ = passed.get_or_insert(fd);
                }
            }
        }
        Ok(came.bytes)
    }
}

/// The input of a command: that of its process, or of the client for which it runs.
pub enum Input {
    /// That of its process.
    Own(io::Stdin),
    /// A client's.
    Passed(Passed),
}

/// A client's input, and its connection.
pub struct Passed {
    pub(crate) input: OwnedFd,
    pub(crate) client: UnixStream,
}

impl Input {
    /// True if it is a terminal.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::Own(stdin) => stdin.is_terminal(),
            Self::Passed(passed) => passed.input.is_terminal(),
        }
    }
}

impl Read for Input {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Own(stdin) => stdin.read(into),
            Self::Passed(passed) => passed.read(into),
        }
    }
}

impl Passed {
    fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let (input, client) = (self.input.as_fd(), self.client.as_fd());
            // The client sends nothing more, so any event on its connection is its end.
            let mut watched = [
                PollFd::from_borrowed_fd(input, PollFlags::IN),
                PollFd::from_borrowed_fd(client, PollFlags::IN | PollFlags::RDHUP),
            ];
            match poll(&mut watched, None) {
                Err(rustix::io::Errno::INTR) => continue,
                polled => polled?,
            };
            if !watched[1].revents().is_empty() {
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the command was ended"));
            }
            match rustix::io::read(&self.input, &mut *into) {
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                read => return Ok(read?),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    #[test]
    fn a_descriptor_comes_with_its_line() {
        let (client, server) = UnixStream::pair().unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        send_with(&client, b"line\n", reader.as_fd()).unwrap();
        drop(reader);
        let passed = RefCell::default();
        let mut line = String::new();
        BufReader::new(Receiving::new(&server, &passed)).read_line(&mut line).unwrap();
        assert_eq!(line, "line\n");
        let mut input = Input::Passed(Passed { input: passed.take().expect("it came"), client: server });
        assert!(!input.is_terminal());
        writer.write_all(b"abc").unwrap();
        drop(writer);
        let mut all = Vec::new();
        input.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"abc");
    }

    #[test]
    fn an_input_ends_with_its_client() {
        let (client, server) = UnixStream::pair().unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        let mut input = Input::Passed(Passed { input: reader.into(), client: server });
        writer.write_all(b"abc").unwrap();
        let mut some = [0; 3];
        input.read_exact(&mut some).unwrap();
        drop(client);
        // The writer still exists.
        let error = input.read(&mut some).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        drop(writer);
    }

    #[test]
    fn of_many_descriptors_one_is_taken() {
        let (client, server) = UnixStream::pair().unwrap();
        let (reader, _writer) = io::pipe().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        let fds = [reader.as_fd(); 3];
        assert!(beside.push(SendAncillaryMessage::ScmRights(&fds)));
        rustix::net::sendmsg(&client, &[IoSlice::new(b"x")], &mut beside, SendFlags::empty()).unwrap();
        let passed = RefCell::default();
        assert_eq!(Receiving::new(&server, &passed).read(&mut [0; 8]).unwrap(), 1);
        assert!(passed.take().is_some());
    }
}
