//! Snapshots, clones, bookmarks, holds and streams, while files and volumes are written and the power is cut.
//!
//! # Theory
//!
//! **Need.** The verbs about snapshots change many accounts in one txg: links, deadlists, what each dataset has alone, what directories
//! use. A test that makes them one after the other, on a pool that nobody else uses, does not show that they are whole when they meet txgs
//! that are being written, datasets in use, and power cuts.
//!
//! **Structures.**
//! ```text
//! family     datasets that are clones and replicas of each other, with one actor that changes them      model, actor
//!            0: the file system f0, which writers have in use, and written/s0/…
//!            1: the file system f1, the volume v0, and written/s1/…
//! snapshot   of a dataset of the actor's own: contents that the model has
//!            of one in use: as its writers' logs say for the txg in which it was taken
//! partial    what a receive has left that did not come to its end
//! ```
//! Two families change at once, each on its own, so that a model of each is a list of verbs.
//!
//! **Life of a verb.** The actor draws one that the model allows, and notes that it begins. The change is in one txg, which only some verbs
//! tell: it is after the last that was on disk when the verb began, and not after the last when it was answered. So a pool as of a txg
//! between the two may have it or not; one as of a later txg has it, since it was answered. A verb without an answer is there wholly or not
//! at all.
//!
//! **Life of a receive.** The actor sends a snapshot to memory, receives all of it, or first a part, as a replica in the same pool. A
//! receive that a cut interrupted is resumed by its token in the next stretch, begun anew, or given up. The replica has the contents of its
//! source.
//!
//! Family 0 also has a dataset that came from OpenZFS raw, whose key nobody has: it is sent on raw, and replicas of it are compared by what
//! is sent of them.
//!
//! **Verdict.** Names, links, holds, marks, bookmarks and clones are those of a state that may be there, and so are the contents of all
//! snapshots and datasets. All accounts of space are those of the trees ([`cenote_sim::audit_space`]). Snapshots of one command have one
//! txg, which is not before any change that was made before the command.
//!
//! **Invariants.** 1. A dataset or snapshot belongs to one family for good. 2. A snapshot that a partial receive is made from stays.
//!
//! **Rejected.** *One actor for all*: two verbs would never be under way at once. *To ask the engine for each verb's txg*: it would have to
//! carry it for this test alone.

mod actor;
mod local;
mod make;
mod model;
mod raw;
mod streams;
mod verdict;

pub(crate) use actor::{InUse, Snapshotter};
pub(crate) use local::Local;
pub(crate) use model::{FAMILIES, Family, Verb, in_use};
pub(crate) use raw::receive_golden;
pub(crate) use verdict::judge;
