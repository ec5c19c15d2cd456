//! A server over exports in memory, and a client in miniature for what real clients would never send.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use cenote_nbd::{Export, Listener, Server, ServerOptions, StaticExports};
use cenote_taskq::{Runtime, RuntimeOptions};

pub(crate) struct Fixture {
    pub(crate) server: Option<Server>,
    pub(crate) socket: PathBuf,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) runtime: Runtime,
}

impl Fixture {
    pub(crate) fn new(exports: Vec<(&str, Arc<dyn Export>)>) -> Self {
        Self::with_options(exports, ServerOptions::default())
    }

    pub(crate) fn with_options(exports: Vec<(&str, Arc<dyn Export>)>, options: ServerOptions) -> Self {
        let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("nbd.sock");
        let exports: BTreeMap<_, _> = exports.into_iter().map(|(name, export)| (name.to_owned(), export)).collect();
        let listener = Listener::unix(&socket).unwrap();
        let server =
            Server::start(runtime.handle(), Arc::new(StaticExports(exports)), vec![listener], options).unwrap();
        Self { server: Some(server), socket, dir, runtime }
    }

    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.socket)
    }
}

/// Data with holes, noise and runs, the same every time.
pub(crate) fn contents(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut out = vec![0; size];
    for (index, page) in out.chunks_mut(4096).enumerate() {
        // Runs of pages that are holes, so that maps have something to say.
        if (index / 5) % 3 == 1 {
            continue;
        }
        for byte in page {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
    }
    out
}

/// The protocol by hand.
pub(crate) struct Client(pub(crate) UnixStream);

impl Client {
    pub(crate) fn connect(socket: &std::path::Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        let mut client = Self(stream);
        let greeting = client.read(18);
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(greeting[16..], [0, 3]);
        client.write(&3_u32.to_be_bytes());
        client
    }

    pub(crate) fn read(&mut self, count: usize) -> Vec<u8> {
        let mut out = vec![0; count];
        self.0.read_exact(&mut out).unwrap();
        out
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Whether the server has hung up.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0) | Err(_))
    }

    pub(crate) fn option(&mut self, number: u32, data: &[u8]) {
        self.option_head(number, data.len() as u32);
        self.write(data);
    }

    pub(crate) fn option_head(&mut self, number: u32, length: u32) {
        self.write(b"IHAVEOPT");
        self.write(&number.to_be_bytes());
        self.write(&length.to_be_bytes());
    }

    /// Type and data of a reply to an option.
    pub(crate) fn option_reply(&mut self, number: u32) -> (u32, Vec<u8>) {
        let head = self.read(20);
        assert_eq!(head[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
        assert_eq!(head[8..12], number.to_be_bytes());
        let data = self.read(be32(&head[16..]) as usize);
        (be32(&head[12..]), data)
    }

    /// Opens an export with GO; returns its size and flags.
    pub(crate) fn go(&mut self, export: &str) -> (u64, u16) {
        let mut data = (export.len() as u32).to_be_bytes().to_vec();
        data.extend(export.as_bytes());
        data.extend([0, 0]);
        self.option(7, &data);
        let mut about = (0, 0);
        loop {
            match self.option_reply(7) {
                (1, _) => return about,
                (3, data) if data[..2] == [0, 0] => {
                    about = (u64::from_be_bytes(data[2..10].try_into().unwrap()), be16(&data[10..]));
                }
                (3, _) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn structured(&mut self) {
        self.option(8, &[]);
        assert_eq!(self.option_reply(8).0, 1);
    }

    pub(crate) fn request(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, length: u32) {
        let mut out = 0x2560_9513_u32.to_be_bytes().to_vec();
        out.extend(flags.to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(cookie.to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend(length.to_be_bytes());
        self.write(&out);
    }

    /// Error and cookie of a simple reply; data is the caller's to read.
    pub(crate) fn simple_reply(&mut self) -> (u32, u64) {
        let head = self.read(16);
        assert_eq!(be32(&head), 0x6744_6698);
        (be32(&head[4..]), u64::from_be_bytes(head[8..].try_into().unwrap()))
    }

    /// Flags, type, cookie and body of a chunk.
    pub(crate) fn chunk(&mut self) -> (u16, u16, u64, Vec<u8>) {
        let head = self.read(20);
        assert_eq!(be32(&head), 0x668e_33ef);
        let body = self.read(be32(&head[16..]) as usize);
        (be16(&head[4..]), be16(&head[6..]), u64::from_be_bytes(head[8..16].try_into().unwrap()), body)
    }
}

pub(crate) fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes(bytes[..2].try_into().unwrap())
}

pub(crate) fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}
