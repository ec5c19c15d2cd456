//! Writing objects.
//!
//! # Theory
//!
//! **Need.** Files, directories and the pool's own tables change all the time, many of them at once; on disk there must
//! never be half of it. So changes gather in memory, grouped by txg, and each txg is written as a whole, to free space, from
//! the data up to one root. Whoever changes things must not wait for that, and the writing must use all cores and all
//! devices.
//!
//! **In memory.**
//! ```text
//! Writer     pipeline, allocator: what objsets are written with
//! ObjsetMut  objects in use, by number; which of them each txg has changed; the root on disk
//! Object     newest dnode ─► layer of txg 12 ─► layer of txg 11 ─► dnode on disk ─► tree on disk
//!              a layer: dnode, data blocks written, ranges freed, spill block
//! ```
//! A block is an immutable counted buffer, so a layer costs what has changed, and the txg that is written shares nothing
//! with the one that is filled. There is no state per block that was only read: that is the cache's.
//!
//! **Life of a write.**
//! 1. The caller has a txg that is open, and keeps it open while it changes things.
//! 2. [`Object::write`] waits for its turn at the blocks (`turns`), reads what it does not overwrite, makes new blocks and
//!    puts them into the layer of the txg. Others change other blocks meanwhile.
//! 3. The txg is quiesced: nobody holds it, its layers are final. Others go on in the next.
//! 4. [`Writer::sync`] loads the indirect blocks above what has changed, then goes up level by level (`sync`): blocks are
//!    taken some at a time (`level`), prepared on all cores, get their places in order, have their pointers made and what they
//!    give up counted on all cores (`pointed`, `killed`), and are stored in the background, neighbours as one (`stores`). A
//!    block's pointer is known when it is placed, so the level above need not wait for devices.
//!    Where an objset's flags say that it has accounts of owners (`accounts`), what has changed is entered and written too.
//! 5. Dnodes go into the blocks of the meta-dnode, which is written likewise, then the root block. [`Writer::sync`] is two halves:
//!    [`Writer::begin`] ends when everything has its place and is on its way, [`Storing::finish`] when devices have it. Then the
//!    layer gives way to the new tree, and its memory is given back where nobody waits for it.
//! 6. The caller gets the new root and the blocks that are not pointed to any more, and puts the first into the object above
//!    (the dataset, in the end the uberblock) and frees the others.
//!
//! **Passes.** The MOS holds the accounts of the space that its own writing takes, so it is written again, until nothing
//! changes. From the second pass on a block that this txg wrote is written in its own place again if its size is the same,
//! and from the eighth on nothing is compressed: then sizes stay, and so does the space.
//!
//! **What is kept.** Metadata goes into the cache when it gets its place, since the next txg changes it again: indirect blocks,
//! blocks of dnodes, tables. What it replaces goes out when the new tree is stored. Data does not go there: whoever writes much
//! would push out what others read.
//!
//! **Invariants.**
//! 1. A layer of a txg that is quiesced is not changed, but by the sync itself (accounts, the MOS).
//! 2. Which place a block gets follows from the changes alone: not from cores, devices or the clock.
//! 3. What a tree loses is told once, and what it gains is counted once: used bytes of a dnode are those of its blocks.
//! 4. The block of an object is written by one store at a time: a pass ends when its stores have. What the cache has of a block
//!    that is written in place again is what was written last.
//! 5. Who takes a turn before the txg is not kept waiting by who holds a txg and waits for a turn: an object is used in one way
//!    or the other.
//!
//! **Crash.** Nothing here is the pool's before the uberblock is. What was written before goes to space that is free in
//! the txg on disk.
//!
//! **Rejected.** *A dbuf for each block with a list of dirty records*: the list's head is shared by all txgs and needs a lock
//! for each access; layers need one where a txg is taken out. *Writing as soon as a block is full*: its place would depend
//! on who came first, and blocks that change twice in a txg would be written twice. *One task for each object that goes up
//! on its own*: as wide, but allocation would depend on the schedule, and equal input would not give equal bytes.

mod accounts;
mod held;
mod killed;
mod level;
mod look;
mod numbers;
mod object;
mod objset;
mod pointed;
mod policy;
mod read;
mod seek;
mod stores;
mod sync;
mod tree;
mod turns;
mod zap;

pub use cenote_zio::ORDER;
pub use killed::Killed;
pub use look::ZapLook;
pub use object::{INDIRECT_SHIFT, Object, ObjectSpec};
pub use objset::{GROUPUSED, ObjsetMut, PROJECTUSED, USERUSED};
pub use policy::{ObjsetPolicy, RedundantMetadata};
pub use read::Extent;
pub use sync::{SpaceDelta, Storing, Synced, Writer};
pub use turns::Turn;
pub use zap::{ZapMut, create_zap, put_entry};
