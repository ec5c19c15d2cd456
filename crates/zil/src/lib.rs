//! The intent log (ZIL): changes that were acknowledged as durable before their txg is on disk.
//!
//! # Theory
//!
//! **Need.** A write that was acknowledged as stable must be there after a crash. The txg of the write may take seconds to be on disk. So
//! the change is also recorded in a log, one for each file system and volume, and is replayed when the dataset is next opened for writing.
//! The log is as fast as the device: one block is written and flushed, or several at once.
//!
//! **On disk** (`cenote_format::zil`): a header in the objset, and a chain of blocks, each naming the next before that is written. A
//! chain ends at the first block that is not there: that is no damage.
//!
//! **Life of a change that is logged.**
//! ```text
//! Log::begin_change ─► LoggedTx: in its txg it makes the record to be replayed ─► an itx in memory, by txg (`itx`)
//!                                                                               │ dropped when the txg is on disk
//! Log::sync (fsync, FLUSH, FUA, sync=always) ─► the object's itxs come into the order ─► records fill blocks (`lwb`)
//!    │                                                                                      │ one burst at a time (`writer::issue`)
//!    └◄── stable up to there ◄── written and flushed, several blocks on their way at once ◄─┘
//! the sync of a txg (`writer::blocks`, and the pool): blocks whose records it has are freed, the header names the first that is left
//! ```
//! *Names* are logged in their order, since each may depend on those before. *Data and attributes* of an object are logged when a client
//! syncs that object, after the names. The bytes of a write are read at that time, so a range that was overwritten in between is logged
//! once. Of a large write the block is stored where it stays, and the record points to it (`indirect`).
//!
//! *The next block* is allocated in the open txg when a block is issued, and as large as what is known to follow, or as most of the last
//! bursts were. So a chain ends in a block that is allocated and not written yet. The first block is allocated in the sync of the txg that
//! has the dataset's first change, which is written soon; a client that syncs earlier waits for that txg.
//!
//! *Few blocks*: one burst at a time takes all that is asked for. A burst is held while earlier blocks are being written or wait for their
//! flush to begin, for as long as a block took lately at most, and only while more clients may join it: not once as many clients wait as the log
//! had lately.
//!
//! *Flushes.* A block whose records point to no data is made stable by its own write (`RWF_DSYNC`: FUA where the device has it, else the
//! kernel flushes behind the write). That is one trip to the device, and on raidz it concerns the leaves that have the block, not all of the
//! vdev. Blocks that are on their way together each do so: the block layer sends one flush at a time and has all that wait share the next, so
//! flushes are merged there. (Measured against flushes that we share among blocks: with 4 to 64 writers 1.1 to 1.3 times the rate on the
//! modelled drives in 25 of 28 cases, 0.89 to 0.99 in the others, for half the processor time of a commit.)
//! A block whose records point to data is written beside the data; a flush of the vdevs that both lie on follows, which all share that wait for
//! one. Either way clients of a log device (SLOG) wait for that device only.
//!
//! *A change without a record* (attributes in hidden directories, for example) is known by its txg: the next client that syncs waits for
//! that txg, and nothing is logged before it is on disk, since a record might depend on the change. A change that makes no record counts as
//! such.
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
//! *Claiming*: no txg on disk knows the blocks that were logged after it, so their space counts as free until it is claimed. The
//! header notes how far the log was readable then: blocks that can be read only later (a device was away) are not part of the log any more.
//! If the block of an indirect write cannot be read, the log ends at its record: the client cannot have been answered, since the block was
//! not stable.
//!
//! *Replaying*: [`Position`] says which records are left. An operation that is one change of one txg has its position in that txg
//! ([`Marking::Within`]). Others may be done twice without harm (writes, sizes, attributes): their position follows them
//! ([`Marking::After`]).
//!
//! **Errors.** A block that cannot be written or flushed, or that finds no space, breaks the log off: later changes are acknowledged only
//! when their txg is on disk, whose flush has to succeed. A new chain is begun when nothing of the old one is needed.
//!
//! *Reading ahead*: each block names the next, so that a walk would wait for a device at each. Blocks that follow one another on a vdev are
//! read together (`ahead`), and so is what the writes of the next records will read of the dataset (`batch`).
//!
//! **In memory.** [`Chain`] has a window of 1 MiB at most, and replay the blocks of 64 records; a log of any length is walked in that. Only the
//! walk for its space ([`Chain::new_blocks`]) remembers each block's place.
//!
//! **Invariants.**
//! 1. A walk ends: each block has a sequence number one higher than the one before, and its bytes are verified against that.
//! 2. Records rise in sequence along the chain; a block that breaks that is damage (asserted where it is read).
//! 3. A claimed log ends where the claim says.
//! 4. A client is answered when the block of its last record and all before it in the chain are written and flushed, or its txg is on disk.
//! 5. A block is freed in the sync of a txg that has all of its records, and while the log goes on not in the txg of its own allocation:
//!    until that txg is on disk the block may be needed, and freed space is not used before two more are (asserted by the order of txgs in `itx` and `writer::blocks`; by power cuts in `crates/crash`).
//! 6. No client is answered before the blocks that its records point to are stable. A log block may be stable before them (another request
//!    flushes the device): then the claim reads them, verifies them, and ends the log before that record.
//! 7. A record is written only when every earlier change without a record is on disk.
//! 8. What a txg has allocated for a log can be reached in that log once the txg is on disk: the sync waits for the blocks that lead to it
//!    (`Logs::landed`), and frees the blocks behind one that failed (`writer::blocks`; checked by the account of space after power cuts).
//!
//! **Crash.** Claiming is one txg: before it the log is as it was, after it the header says so. A crash while replaying leaves a
//! position; replay goes on there. A crash before the log is destroyed leaves a log whose records are all replayed already.
//!
//! **Rejected.** *Replaying when the pool is opened*: a dataset that is not opened need not be changed, and the key of an encrypted one is
//! not there yet. *Skipping a record that cannot be replayed*, as the original does after a warning: an acknowledged change would be lost.
//! Here the dataset is not opened for writing, and its log stays. *Acknowledging after a failed flush*, as the original does.
//! *A chain for each client*: the format has one for a dataset.
//!
//! **Not here yet.** Replay of NFSv4 access control lists; encrypted logs. No records are written of changed flags and projects, and of extended
//! attributes in hidden directories (their replay works).

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
mod tunables;
mod writer;

pub use batch::next_batch;
pub use chain::{Chain, Content, End, Link};
pub use check::{ReplayError, check, reaches_claim};
pub use indirect::{LogTxg, WriteShape};
pub use log::{Log, LoggedTx, Ticket};
pub use logs::Logs;
pub use position::{Marking, Position, unsupported};
pub use replaying::Replaying;
pub use tunables::ZilTunables;
pub use writer::{LogData, LogWriter, Retired};
