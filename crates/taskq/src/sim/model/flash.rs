//! A solid-state device: cells that work side by side behind one interface.
//!
//! ```text
//!   arrive --> [ one of `channels`, for `access` ] --> [ the interface, for command + size / bytes_per_s ] --> done
//!                 waits while all are busy                waits for those before it
//! ```
//!
//! From which follow, and are tested:
//!
//! * alone: `access + command + size / rate`;
//! * many small ones: the slower of `channels / access` and `1 / (command + size / rate)` a second;
//! * many large ones: `rate`, but for the commands.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use super::{Asked, DeviceModel, Done, Stalls, after_stalls, transfer};
use crate::sim::disk::RequestKind;
use crate::time::Instant;

/// The parameters of a [`Flash`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashOptions {
    /// How many requests its cells serve at once.
    pub channels: usize,
    /// How long cells take to bring what is read.
    pub access: Duration,
    /// How long its cache takes to accept what is written.
    pub write: Duration,
    /// How long a flush takes, beside everything else.
    pub flush: Duration,
    /// How long the interface is busy with each request, beside its bytes.
    pub command: Duration,
    /// The interface's rate.
    pub bytes_per_s: u64,
    /// When it stands still.
    pub stalls: Option<Stalls>,
}

impl FlashOptions {
    /// A SATA solid-state disk: 94 µs for 4 KiB alone, 81 000 a second many at once, 550 MB/s.
    #[must_use]
    pub const fn sata() -> FlashOptions {
        FlashOptions {
            channels: 8,
            access: Duration::from_micros(82),
            write: Duration::from_micros(25),
            flush: Duration::from_micros(500),
            command: Duration::from_nanos(4850),
            bytes_per_s: 550_000_000,
            stalls: None,
        }
    }

    /// An NVMe disk: 66 µs for 4 KiB alone, 900 000 a second many at once, 7 GB/s.
    #[must_use]
    pub const fn nvme() -> FlashOptions {
        FlashOptions {
            channels: 64,
            access: Duration::from_micros(65),
            write: Duration::from_micros(10),
            flush: Duration::from_micros(20),
            command: Duration::from_nanos(525),
            bytes_per_s: 7_000_000_000,
            stalls: None,
        }
    }

    /// The same, `factor` times slower in everything.
    #[must_use]
    pub fn slower(self, factor: u32) -> FlashOptions {
        FlashOptions {
            access: self.access * factor,
            write: self.write * factor,
            flush: self.flush * factor,
            command: self.command * factor,
            bytes_per_s: self.bytes_per_s / u64::from(factor.max(1)),
            ..self
        }
    }
}

/// The model; see the module comment.
#[derive(Debug)]
pub struct Flash {
    options: FlashOptions,
    channels_free: BinaryHeap<Reverse<Instant>>,
    interface_free: Instant,
    /// All that is outstanding, by when it will be done: nothing that comes later changes that.
    finishing: BTreeMap<(Instant, u64), ()>,
}

impl Flash {
    /// An idle device.
    #[must_use]
    pub fn new(options: FlashOptions) -> Flash {
        let channels_free = std::iter::repeat_n(Reverse(Instant::default()), options.channels.max(1)).collect();
        Flash { options, channels_free, interface_free: Instant::default(), finishing: BTreeMap::new() }
    }
}

impl DeviceModel for Flash {
    fn submit(&mut self, now: Instant, asked: Asked) {
        let options = self.options;
        let access = match asked.kind {
            RequestKind::Read => options.access,
            RequestKind::Write => options.write,
            RequestKind::Flush => {
                let done = after_stalls(options.stalls.as_ref(), now) + options.flush;
                self.finishing.insert((done, asked.id), ());
                return;
            }
        };
        let free = self.channels_free.pop().map_or(now, |Reverse(free)| free);
        let begin = after_stalls(options.stalls.as_ref(), now.max(free));
        let fetched = begin + access;
        self.channels_free.push(Reverse(fetched));
        let start = fetched.max(self.interface_free);
        let done = start + options.command + transfer(asked.size_bytes, options.bytes_per_s);
        self.interface_free = done;
        self.finishing.insert((done, asked.id), ());
    }

    fn next_event(&self) -> Option<Instant> {
        self.finishing.first_key_value().map(|(&(at, _), ())| at)
    }

    fn advance(&mut self, now: Instant, done: &mut Vec<Done>) {
        while let Some((&(at, id), ())) = self.finishing.first_key_value() {
            if at > now {
                return;
            }
            self.finishing.pop_first();
            done.push(Done { id, at });
        }
    }
}
