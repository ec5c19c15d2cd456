//! Cases that real clients do not bring about: order of replies, refusals, hostile input, the end of the server.

use crate::support;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_nbd::{
    BlockSizes, Export, ExportError, ExportErrorKind, Listener, MemoryExport, Piece, ServerOptions, limits,
};
use cenote_taskq::{BoxFuture, Event};
use support::{Client, Fixture, be32, contents};

/// Reads of the first page wait until they are let go; the second page panics; the third returns too little.
struct Peculiar {
    inner: MemoryExport,
    gate: Event,
    reached: AtomicBool,
}

impl Export for Peculiar {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn block_sizes(&self) -> BlockSizes {
        BlockSizes { minimum_bytes: 512, ..BlockSizes::default() }
    }

    fn read(&self, offset_bytes: u64, length_bytes: u32) -> BoxFuture<'_, Result<Vec<Piece>, ExportError>> {
        Box::pin(async move {
            match offset_bytes / 4096 {
                0 => {
                    self.reached.store(true, Ordering::SeqCst);
                    self.gate.wait().await;
                }
                1 => panic!("a defect of the engine"),
                2 => return Ok(vec![Piece::Zeros(u64::from(length_bytes) - 1)]),
                3 => return Err(ExportError::new(ExportErrorKind::Io, "pool/vol: block 3 is damaged")),
                _ => {}
            }
            self.inner.read(offset_bytes, length_bytes).await
        })
    }
}

fn peculiar() -> (Fixture, Arc<Peculiar>) {
    let export = Arc::new(Peculiar {
        inner: MemoryExport::with_contents(&contents(1 << 20)),
        gate: Event::new(),
        reached: AtomicBool::new(false),
    });
    (Fixture::new(vec![("vol", export.clone())]), export)
}

#[test]
fn a_slow_request_does_not_hold_up_others() {
    let (fixture, export) = peculiar();
    let mut client = fixture.client();
    client.go("vol");
    client.request(0, 0, 1, 0, 512);
    for cookie in 2..100 {
        client.request(0, 0, cookie, 16384, 512);
    }
    let mut seen = Vec::new();
    for _ in 2..100 {
        let (error, cookie) = client.simple_reply();
        assert_eq!(error, 0);
        assert!(client.read(512) == contents(1 << 20)[16384..][..512]);
        seen.push(cookie);
    }
    seen.sort_unstable();
    assert_eq!(seen, (2..100).collect::<Vec<u64>>());
    export.gate.set();
    assert_eq!(client.simple_reply(), (0, 1));
    client.read(512);
}

#[test]
fn every_request_is_answered_even_when_the_engine_fails() {
    let (fixture, _) = peculiar();
    let mut client = fixture.client();
    client.go("vol");
    client.request(0, 0, 1, 4096, 512);
    assert_eq!(client.simple_reply(), (5, 1));
    client.request(0, 0, 2, 8192, 512);
    assert_eq!(client.simple_reply(), (5, 2));
    let mut client = fixture.client();
    client.structured();
    client.go("vol");
    client.request(0, 0, 3, 12288, 512);
    let (flags, kind, cookie, body) = client.chunk();
    assert_eq!((flags, kind, cookie), (1, 0x8001, 3));
    assert_eq!(be32(&body), 5);
    assert_eq!(&body[6..], b"pool/vol: block 3 is damaged");
}

#[test]
fn what_makes_no_sense_is_refused_and_the_connection_goes_on() {
    let (fixture, _) = peculiar();
    let mut client = fixture.client();
    let (size, flags) = client.go("vol");
    assert_eq!(size, 1 << 20);
    assert_eq!(flags & 0b11, 0b11, "has flags, is read-only");
    let refusals: [(u16, u16, u64, u32, u32); 12] = [
        (0, 0, 1 << 20, 512, 22),                       // past the end
        (0, 0, u64::MAX - 511, 512, 22),                // offset and length overflow
        (0, 0, 16384, limits::REQUEST_BYTES + 512, 22), // too long
        (0, 0, 16384, 100, 22),                         // not aligned
        (0, 0, 16385, 512, 22),
        (0, 1 << 9, 16384, 512, 22), // unknown flag
        (0, 1 << 2, 16384, 512, 22), // DF without structured replies
        (4, 0, 16384, 512, 1),       // trim, read-only
        (6, 0, 16384, 512, 1),       // write zeroes, read-only
        (7, 0, 16384, 512, 22),      // block status, not agreed upon
        (8, 0, 0, 0, 22),            // resize
        (999, 0, 0, 0, 22),
    ];
    for (command, flags, offset, length, error) in refusals {
        client.request(command, flags, 77, offset, length);
        assert_eq!(client.simple_reply(), (error, 77), "{command} {flags} {offset} {length}");
    }
    client.request(1, 0, 78, 16384, 100_000);
    client.write(&[0xee; 100_000]);
    assert_eq!(client.simple_reply(), (1, 78), "a refused write's data is skipped");
    client.request(0, 0, 79, 16384, 0);
    assert_eq!(client.simple_reply(), (0, 79), "a read of nothing");
    client.request(2, 0, 0, 0, 0);
    assert!(client.is_closed());
}

#[test]
fn options_are_refused_one_by_one() {
    let (fixture, _) = peculiar();
    let mut client = fixture.client();
    for (number, data, reply) in [
        (5, &b""[..], 0x8000_0001_u32), // TLS
        (11, b"", 0x8000_0001),         // extended headers
        (4711, b"whatever", 0x8000_0001),
        (3, b"x", 0x8000_0003), // LIST takes no data
        (7, b"", 0x8000_0003),  // GO without a name
        (7, b"\xff\xff\xff\xff\0\0", 0x8000_0003),
        (7, b"\0\0\0\x02xy\0\0", 0x8000_0006),       // unknown export
        (10, b"\0\0\0\x03vol\0\0\0\0", 0x8000_0003), // context before structured replies
        (9, b"\0\0\0\x03vol\xff\xff\xff\xff", 0x8000_0003),
        (9, b"\0\0\0\x02xy\0\0\0\0", 0x8000_0006),
    ] {
        client.option(number, data);
        assert_eq!(client.option_reply(number).0, reply, "option {number} {data:?}");
    }
    client.option_head(4711, limits::OPTION_BYTES + 1);
    client.write(&vec![0; limits::OPTION_BYTES as usize + 1]);
    assert_eq!(client.option_reply(4711).0, 0x8000_0009, "too big, skipped");
    client.option(3, b"");
    assert_eq!(client.option_reply(3), (2, b"\0\0\0\x03vol".to_vec()));
    assert_eq!(client.option_reply(3).0, 1);
    client.option(2, b"");
    assert_eq!(client.option_reply(2).0, 1);
    assert!(client.is_closed());
}

#[test]
fn a_context_holds_for_its_export_only() {
    let exports: Vec<(&str, Arc<dyn Export>)> =
        vec![("a", Arc::new(MemoryExport::new(4096))), ("b", Arc::new(MemoryExport::new(4096)))];
    let fixture = Fixture::new(exports);
    for (opened, error) in [("a", None), ("b", Some(22))] {
        let mut client = fixture.client();
        client.structured();
        client.option(10, b"\0\0\0\x01a\0\0\0\x01\0\0\0\x0fbase:allocation");
        assert_eq!(client.option_reply(10), (4, b"\0\0\0\x01base:allocation".to_vec()));
        assert_eq!(client.option_reply(10).0, 1);
        client.go(opened);
        client.request(7, 0, 5, 0, 4096);
        let (flags, kind, cookie, body) = client.chunk();
        assert_eq!((flags, cookie), (1, 5));
        match error {
            None => assert_eq!((kind, body), (5, b"\0\0\0\x01\0\0\x10\0\0\0\0\x03".to_vec())),
            Some(error) => assert_eq!((kind, be32(&body)), (0x8001, error)),
        }
    }
}

#[test]
fn the_old_way_to_open_an_export_works_and_hangs_up_on_unknown_names() {
    let (fixture, _) = peculiar();
    let mut client = fixture.client();
    client.option(1, b"vol");
    let reply = client.read(10);
    assert_eq!(u64::from_be_bytes(reply[..8].try_into().unwrap()), 1 << 20);
    client.request(0, 0, 9, 16384, 512);
    assert_eq!(client.simple_reply(), (0, 9));
    let mut client = fixture.client();
    client.option(1, b"nobody");
    assert!(client.is_closed());
}

#[test]
fn garbage_ends_the_connection_and_harms_nobody() {
    let (fixture, _) = peculiar();
    let inputs: [&[u8]; 5] = [
        b"IHAVEOPX\0\0\0\x03\0\0\0\0",
        b"IHAVEOPT\0\0\0\x07\xff\xff\xff\xff",
        b"IHAVEOPT\0\0\0\x01\xff\xff\xff\xff",
        b"IHAVEOPT\0\0\0\x01\0\0\0\x02\xff\xfe",
        b"GET / HTTP/1.1\r\n\r\n",
    ];
    for input in inputs {
        let mut client = fixture.client();
        client.write(input);
        assert!(client.is_closed(), "{input:?}");
    }
    let mut client = fixture.client();
    client.go("vol");
    client.write(&[0; 28]);
    assert!(client.is_closed(), "a request without magic");
    let mut client = fixture.client();
    client.go("vol");
    client.request(1, 0, 1, 0, u32::MAX);
    assert_eq!(client.simple_reply(), (5, 1));
    assert!(client.is_closed(), "a write of 4 GiB");
    let mut client = fixture.client();
    assert_eq!(client.go("vol").0, 1 << 20, "the server lives");
}

#[test]
fn a_client_that_reads_no_replies_stops_only_itself() {
    let (fixture, _) = peculiar();
    let mut greedy = fixture.client();
    greedy.go("vol");
    greedy.0.set_nonblocking(true).unwrap();
    // Far more replies than sockets and budget hold. The server must stop reading at some point.
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend([0; 4 + 8]);
    request.extend(16384_u64.to_be_bytes());
    request.extend((512_u32 << 10).to_be_bytes());
    let stopped = (0..1_000_000).any(|_| greedy.0.write(&request).is_err());
    assert!(stopped, "the server read a million requests ahead");
    let mut client = fixture.client();
    client.go("vol");
    client.request(0, 0, 1, 16384, 512);
    assert_eq!(client.simple_reply(), (0, 1));
    drop(greedy);
}

/// How long the servers of these tests wait for a client that owes something.
const STALL: Duration = Duration::from_millis(50);

/// Waits until the server has ended a connection. Nothing here depends on how long that takes.
fn ended(client: &mut Client) {
    client.0.set_read_timeout(None).unwrap();
    let mut rest = [0; 1 << 16];
    while !matches!(client.0.read(&mut rest), Ok(0) | Err(_)) {}
}

/// Goal: one client cannot take all memory, nor all places. Method: twelve ask twice for 32 MiB each and read nothing, where
/// all may have 64 MiB; then one reads. Would go wrong if each connection had a budget of its own, or replies that are not
/// taken were kept for ever.
#[test]
fn clients_that_take_no_replies_share_one_budget_and_are_ended() {
    let volume: Arc<dyn Export> = Arc::new(MemoryExport::new(64 << 20));
    let options = ServerOptions {
        data_bytes_max: 64 << 20,
        stall_max: STALL,
        slowest_bytes_s: u64::MAX,
        ..ServerOptions::default()
    };
    let fixture = Fixture::with_options(vec![("vol", volume)], options);
    let greedy: Vec<Client> = (0..12)
        .map(|_| {
            let mut client = fixture.client();
            client.go("vol");
            client.request(0, 0, 1, 0, 32 << 20);
            client.request(0, 0, 2, 0, 32 << 20);
            client
        })
        .collect();
    let server = fixture.server.as_ref().unwrap();
    let mut client = fixture.client();
    client.go("vol");
    client.0.set_read_timeout(None).unwrap();
    client.request(0, 0, 1, 0, 512);
    assert_eq!(client.simple_reply(), (0, 1));
    client.read(512);
    assert!(server.stats().data_peak_bytes <= 64 << 20, "{:?}", server.stats());
    // They take nothing to the end: one that did would be in time, and go on.
    while server.stats().connections > 1 {
        std::thread::yield_now();
    }
    drop(greedy);
}

#[test]
fn a_client_that_sends_a_byte_at_a_time_does_not_stay_in_the_handshake() {
    let volume: Arc<dyn Export> = Arc::new(MemoryExport::new(4096));
    let options = ServerOptions { handshake_max: Duration::from_millis(100), ..ServerOptions::default() };
    let fixture = Fixture::with_options(vec![("vol", volume)], options);
    let mut client = fixture.client();
    // An option that skips 64 KiB, of which a byte comes now and then: each in time, all of them never.
    client.option_head(99, 64 << 10);
    while client.0.write(&[0]).is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let server = fixture.server.as_ref().unwrap();
    while server.stats().connections > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_client_that_does_not_send_what_it_announced_is_ended_and_a_silent_one_is_not() {
    let volume: Arc<dyn Export> = Arc::new(MemoryExport::new(4096));
    let options = ServerOptions { stall_max: STALL, slowest_bytes_s: u64::MAX, ..ServerOptions::default() };
    let fixture = Fixture::with_options(vec![("vol", volume)], options);
    let (mut silent, mut stalled) = (fixture.client(), fixture.client());
    silent.go("vol");
    stalled.go("vol");
    stalled.request(1, 0, 7, 0, 512);
    stalled.write(&[0; 511]);
    ended(&mut stalled);
    silent.request(0, 0, 1, 0, 512);
    assert_eq!(silent.simple_reply(), (0, 1));
}

#[test]
fn a_socket_is_its_users_alone_unless_a_group_is_named() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let dir = tempfile::tempdir().unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let path = dir.path().join("own.sock");
    let listener = Listener::unix(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
    drop(listener);
    let path = dir.path().join("group.sock");
    let group = std::fs::metadata(dir.path()).unwrap().gid();
    let _listener = Listener::unix_for(&path, Some(group)).unwrap();
    assert_eq!(mode(&path), 0o660);
    assert_eq!(std::fs::metadata(&path).unwrap().gid(), group);
}

#[test]
fn too_many_clients_are_turned_away() {
    let export: Arc<dyn Export> = Arc::new(MemoryExport::new(4096));
    let options = ServerOptions { connections_max: 2, ..ServerOptions::default() };
    let fixture = Fixture::with_options(vec![("vol", export)], options);
    let (mut first, mut second) = (fixture.client(), fixture.client());
    first.go("vol");
    second.go("vol");
    let mut third = Client(std::os::unix::net::UnixStream::connect(&fixture.socket).unwrap());
    assert!(third.is_closed());
    first.request(2, 0, 0, 0, 0);
    assert!(first.is_closed());
    let server = fixture.server.as_ref().unwrap();
    while server.stats().connections > 1 {
        std::thread::yield_now();
    }
    fixture.client().go("vol");
}

#[test]
fn shutdown_answers_what_was_asked_and_then_ends() {
    let (mut fixture, export) = peculiar();
    let mut client = fixture.client();
    client.go("vol");
    client.request(0, 0, 1, 0, 512);
    let mut idle = fixture.client();
    idle.go("vol");
    let mut half_open = fixture.client();
    while !export.reached.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    let server = fixture.server.take().unwrap();
    let shutting = std::thread::spawn(move || server.shutdown());
    assert!(idle.is_closed() && half_open.is_closed());
    assert!(!shutting.is_finished(), "it waits for the request in flight");
    export.gate.set();
    assert_eq!(client.simple_reply(), (0, 1));
    client.read(512);
    assert!(client.is_closed());
    shutting.join().unwrap();
    assert!(!fixture.socket.exists(), "the socket's name is gone");
    Listener::unix(&fixture.socket).unwrap();
}

#[test]
fn a_dead_servers_socket_is_replaced_and_a_live_ones_is_not() {
    let (fixture, _) = peculiar();
    assert!(Listener::unix(&fixture.socket).is_err(), "in use");
    let dead = fixture.dir.path().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    assert!(dead.exists());
    drop(Listener::unix(&dead).unwrap());
    let file = fixture.dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(Listener::unix(&file).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}

/// Found by a campaign of kills: a client that had waited for the name was refused.
#[test]
fn a_socket_that_has_its_name_can_be_connected_to() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nbd.sock");
    for _ in 0..200 {
        let (name, begin) = (socket.clone(), Arc::new(std::sync::Barrier::new(2)));
        let begun = begin.clone();
        let client = std::thread::spawn(move || {
            begun.wait();
            loop {
                match std::os::unix::net::UnixStream::connect(&name) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => std::hint::spin_loop(),
                    other => break other,
                }
            }
        });
        begin.wait();
        let listener = Listener::unix(&socket).unwrap();
        client.join().unwrap().unwrap();
        drop(listener);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no name is left behind");
    }
}
