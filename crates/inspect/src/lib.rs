//! Looking inside a pool, however damaged: reports on labels, roots, objects, block pointers, space maps and logs.
//!
//! # Theory
//!
//! **Need.** The user has a damaged pool, or studies the format, and looks at single structures. A tool that stops at the first bad block
//! does not help. A command prints these reports as text or JSON; a server or another program reads the same documents.
//!
//! **Shape.** A function for each kind of piece takes what its caller has opened (a pool as of a txg, labels, an objset) and adds to a
//! [`Report`]:
//! ```text
//! labels_of, uberblocks        of devices          mos, objects                   of an objset (Target)
//! features, history            of a pool           block_of, Place                one block
//! datasets, deadlists, zil     of all datasets     bpobj, dedup, spacemaps        of the pool's own objects
//! blocks, verified             of a walk over all  txgs                           of a pool in use
//! ```
//! A block that cannot be read becomes a problem with its place in the report, and the function goes on past it.
//!
//! **Invariants.**
//! 1. Lists are bounded, and a list that was cut says so.
//! 2. A problem never ends the report where there is more to show.
//! 3. Numbers from the disk are added and shifted with checks: a hostile pool can make a report wrong, not a panic.
//!
//! **Rejected.** *A type for each report*: a document is what both JSON and text are made of, its names are its contract, and a type for
//! each row would say every name twice. *The text of `zdb`, letter by letter*: scripts have JSON here, and people units.

#![forbid(unsafe_code)]

mod address;
mod blocks;
mod bp;
mod bpobj;
mod datasets;
mod deadlists;
mod dedup;
mod error;
mod features;
mod history;
mod labels;
mod mos;
mod object;
mod objects;
mod render;
mod report;
mod spacemaps;
mod target;
mod txgs;
mod txgstext;
mod uberblocks;
mod values;
mod verify;
mod zil;

pub use address::Address;
pub use blocks::blocks;
pub use bp::{BLOCK_MAX_BYTES, BlockOf, Place, PlaceForm, block_of, bytes_of_block};
pub use bpobj::bpobj;
pub use cenote_scan::{
    Progress, Verification, VerifyOptions, VerifyReport, VerifyStop, ViewError, Views, WalkControl, verify,
};
pub use datasets::datasets;
pub use deadlists::deadlists;
pub use dedup::dedup;
pub use error::InspectError;
pub use features::features;
pub use history::history;
pub use labels::labels_of;
pub use mos::mos;
pub use object::{Chosen, ObjectParts, objects};
pub use report::{Report, TimeText};
pub use spacemaps::{SpaceMaps, spacemaps};
pub(crate) use target::parse_number;
pub use target::{Target, dmu_of_labels};
pub use txgs::txgs;
pub use txgstext::{TxgText, txgs_text};
pub use uberblocks::uberblocks;
pub use values::nvlist;
pub use verify::{Places, damaged, verified, verified_text};
pub use zil::{IntentLogs, zil};
