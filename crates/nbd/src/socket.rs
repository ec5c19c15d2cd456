//! Unix and TCP sockets behind one face.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

/// A connected socket. Reading and writing go through shared references, from two threads.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    pub(crate) fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(socket) => socket.set_write_timeout(limit),
            Self::Tcp(socket) => socket.set_write_timeout(limit),
        }
    }

    /// Sends as many of these bytes as the client can be sent at once: some, or [`io::ErrorKind::WouldBlock`].
    pub(crate) fn send_now(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let descriptor = match self {
            Self::Unix(socket) => socket.as_fd(),
            Self::Tcp(socket) => socket.as_fd(),
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(sendmsg(descriptor, slices, &mut SendAncillaryBuffer::default(), flags)?)
    }

    pub(crate) fn shutdown(&self, how: Shutdown) {
        // It fails only if the client is gone already.
        let _ = match self {
            Self::Unix(socket) => socket.shutdown(how),
            Self::Tcp(socket) => socket.shutdown(how),
        };
    }
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(socket) => (&*socket).read(buffer),
            Socket::Tcp(socket) => (&*socket).read(buffer),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(socket) => (&*socket).write(bytes),
            Socket::Tcp(socket) => (&*socket).write(bytes),
        }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Unix(socket) => (&*socket).write_vectored(slices),
            Socket::Tcp(socket) => (&*socket).write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
