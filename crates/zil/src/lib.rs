//! The intent log (ZIL): changes that were acknowledged as durable before their txg is on disk.
//!
//! # Theory
//!
//! **Need.** A write that was acknowledged as stable must be there after a crash. The txg of the write may take seconds to be on disk. So
//! the change is also recorded in a log, one for each file system and volume, and is replayed when the dataset is next opened for writing.
//! A commit costs one write to stable storage; several commits share a log block, or write theirs at the same time.
//!
//! **On disk** (`cenote_format::zil`): a header in the objset, and a chain of log blocks, each of which points to the next, allocated but
//! unwritten block. The chain ends at the first block whose checksum does not verify; that is the normal end and no damage.
//!
//! **Life of a change that is logged.**
//! ```text
//! Log::begin_change ─► LoggedTx: in its txg it makes the record to be replayed ─► an itx in memory, by txg (`itx`)
//!                                                                               │ dropped when the txg is on disk
//! Log::sync (fsync, FLUSH, FUA, sync=always) ─► the object's itxs come into the order ─► records fill blocks (`lwb`)
//!    │                                                                                      │ one burst at a time (`writer::issue`)
//!    └◄── stable up to there ◄── written so that they are stable, several blocks in flight ◄┘
//! the sync of a txg (`writer::blocks`, and the pool): blocks whose records it has are freed, the header names the first that is left
//! ```
//! *Changes of names* are logged in their order (OpenZFS's sync list), since each may depend on those before. *Changes of data and
//! attributes* of an object (its async itxs) are logged when a client syncs that object, after the names. The data of a write is read
//! when its record is made (`WR_NEED_COPY`), so a range that was overwritten in between is logged once. The block of a large write is
//! stored at its final place, and the record points to it (`WR_INDIRECT`, module `indirect`).
//!
//! *The next block* is allocated in the open txg when a block is issued. Its size is that of the records known to follow, or that of most
//! recent bursts. So a chain ends in a block that is allocated and not written yet. The first block of a chain is allocated in the sync
//! of the txg with the dataset's first change, which is synced soon; a client that syncs earlier waits for that txg.
//!
//! *Space.* A log block takes main space only from the share that logs have until the next sync (`log_room` in `spa`): the sync needs space
//! too. Without a place for the next block the log ends, as after an error, and its clients wait for their txg, whose sync frees the log.
//! A log that has taken half of the share has the open txg written, so that this is rare.
//!
//! *Few blocks*: a *burst* turns all itxs that are in the commit order into records and fills log blocks with them; one burst runs at a
//! time. A burst is delayed while earlier blocks are being written or wait for their flush to begin, for at most the recent latency of a
//! block, and only while more clients may join: not once as many clients wait as the log has had recently.
//!
//! *Flushes.* A block whose records point to no data is made stable by its own write (`RWF_DSYNC`: FUA where the device has it, else the
//! kernel flushes behind the write). That takes one device request instead of two, and on raidz it affects only the leaves that have the
//! block, not the whole vdev. Blocks in flight at the same time each do so; the kernel's block layer sends one flush at a time and lets
//! all waiting writes share the next, so it merges the flushes. (Measured against flushes that we share among blocks: with 4 to 64
//! writers 1.1 to 1.3 times the rate on the modelled drives in 25 of 28 cases, 0.89 to 0.99 in the others, for half the processor time of
//! a commit.) A block whose records point to data is written concurrently with the data; a flush of the vdevs of both follows, and all
//! blocks that wait for a flush share it. Either way a commit to a log device (SLOG) waits for that device only.
//!
//! *A change without a record* (of attributes in hidden directories, for example) is noted by its txg: the next client that syncs waits
//! for that txg, and nothing is logged before it is on disk, since a record might depend on the change. A change that is dropped without
//! logging anything counts as one without a record.
//!
//! **Life of a log after a crash.**
//! ```text
//! opening the pool to be written          the dataset is next opened to be changed          the end
//! ┌ check ───────┐  ┌ claim, one txg ──┐  ┌ replay ───────────────────────────────────┐  ┌ destroy ──────────┐
//! │ can each log │─►│ its blocks get   │─►│ record by record: the effect and the      │─►│ blocks are freed, │
//! │ be read?     │  │ their places     │  │ position in the header, in one txg        │  │ the header zeroed │
//! └──────────────┘  └──────────────────┘  └───────────────────────────────────────────┘  └───────────────────┘
//!    spa                spa                   zpl, zvol                                       spa
//! ```
//! *Claiming*: the last txg on disk has no allocations of log blocks that were written after it, so their space counts as free until the
//! claim allocates it. The claim records in the header how far the log was readable: blocks that can be read only later (a device was
//! away) are not part of the log any more. If the block of an indirect write cannot be read, the log ends at its record: the client
//! cannot have been answered, since the block was not stable.
//!
//! *Replaying*: [`Position`] says which records are left. If the replay of a record is one change in one txg, that txg also stores the
//! position ([`Marking::Within`]). Other records can be replayed twice without harm (writes, sizes, attributes): a later txg stores their
//! position ([`Marking::After`]).
//!
//! *Space while replaying*: a log may have taken most of the pool. Each txg of a replay frees the log blocks that it has passed, and the data
//! blocks that no later record points to ([`Replaying::passed`]). A write whose bytes later records write again is passed over ([`Survey`]).
//! Where space is short the txgs are small, and a change that cannot fit ends the replay instead of suspending the pool (`room`).
//!
//! *Reading ahead*: each block names the next, so that a walk would wait for a device at each. Blocks that follow one another on a vdev are
//! read together (`ahead`), and so is what the writes of the next records will read of the dataset (`batch`).
//!
//! **Errors.** If a log block cannot be written, flushed or allocated, the log is *broken*: later changes are acknowledged only when
//! their txg is on disk, after a successful flush. A new chain begins when no record of the old one is needed.
//!
//! **In memory.** [`Chain`] has a window of 1 MiB at most, and replay the blocks of 64 records; a log of any length is walked in that. Only the
//! walk for its space ([`Chain::new_blocks`]) remembers each block's place.
//!
//! **Invariants.**
//! 1. A walk ends: each block has a sequence number one higher than the one before, and its bytes are verified against that.
//! 2. Records rise in sequence along the chain (asserted where a block is filled, `lwb`); a block that breaks that is damage.
//! 3. A claimed log ends where the claim says (asserted in `chain`).
//! 4. A client is answered when the block of its last record and all blocks before it in the chain are stable, or when its txg is on
//!    disk. Itxs are issued in their order, and nothing is stable that was not issued (asserted in `itx` and `writer::blocks`).
//! 5. A log block is freed in the sync of a txg that contains all changes of its records; while the log is in use, that txg is later than
//!    the one in which the block was allocated: until that txg is on disk the block may be needed, and freed space is not used before two
//!    more are (asserted by the order of txgs in `itx` and `writer::blocks`; by power cuts in `crates/crash`).
//! 6. No client is answered before the blocks that its records point to are stable. A log block may be stable before them (another request
//!    flushes the device): then the claim reads them, verifies them, and ends the log before that record.
//! 7. A record is written only when every earlier change without a record is on disk.
//! 8. Every log block that a txg has allocated can be reached from the log's header once the txg is on disk (else it would leak): the
//!    sync waits for the blocks that lead to it (`Logs::landed`), and frees the blocks behind one that failed (`writer::blocks`; checked
//!    by the account of space after power cuts).
//! 9. A block of a claimed log is freed in the txg whose header names the block after it and has a position behind its records (asserted in
//!    `replaying`); a data block that records point to, with the last of them.
//!
//! **Crash.** Claiming is one txg: before it the log is as it was, after it the header says so. A crash while replaying leaves a
//! position, and what is left of the log from there on; replay goes on there. A crash before the log is destroyed leaves a log whose records are all replayed already.
//!
//! **Rejected.** *Replaying when the pool is opened*: a dataset that is not opened need not be changed, and the key of an encrypted one is
//! not there yet. *Skipping a record that cannot be replayed*, as OpenZFS does after a warning: an acknowledged change would be lost.
//! Here the dataset is not opened for writing, and its log stays. *Acknowledging after a failed flush*, as OpenZFS does.
//! *A chain for each client*: the on-disk format allows one chain for each dataset.
//!
//! **Not here yet.** Replay of NFSv4 access control lists; encrypted logs. No records are written for changes of file flags and project
//! ids, nor for extended attributes in hidden directories; such records of OpenZFS are replayed.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod ahead;
mod batch;
mod chain;
mod check;
mod clients;
mod data;
mod indirect;
mod itx;
mod kstat;
mod log;
mod log_io;
mod logs;
mod lwb;
mod position;
mod replaying;
mod room;
mod survey;
mod tunables;
mod writer;

/// The number of `logbias=throughput`.
pub const LOGBIAS_THROUGHPUT: u64 = 1;

pub use batch::next_batch;
pub use chain::{Chain, Content, End, Link};
pub use check::{ReplayError, check, reaches_claim};
pub use indirect::{LogTxg, WriteShape};
pub use log::{Log, LoggedTx, Ticket};
pub use logs::Logs;
pub use position::{Marking, Position, unsupported};
pub use replaying::Replaying;
pub use survey::Survey;
pub use tunables::ZilTunables;
pub use writer::{LogData, LogDataError, LogWriter, Retired};
