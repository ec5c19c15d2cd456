//! Schedules: pools that live through one failure after the other, up to their redundancy, and beyond it.
//!
//! # Theory
//!
//! **Need.** People buy redundancy for the day on which a disk lies, hangs, is pulled or dies, and for the next one, while the first disk is still
//! being made whole. Each of these has its tests; the bugs that lose data are between them: a device that comes back while another goes, a spare that
//! is taken during a replacement, a power cut in the middle of both.
//!
//! **Shape.**
//! ```text
//! Shape    a layout, its redundancy, hot spares, and blank disks beside it               shape
//! Base     the pool on it with some objects, made once in a process                      shape
//! Done     counts of a schedule                                                          done
//! Client   blocks that are written and freed, and what each txg left in them             client
//! Ailment  how a disk fails at the moment                                                ailment
//! World    the pool on its disks, and what each of its leaves may lack                   world
//! tops     kinds of top-level vdevs, and what they can do without              tops
//! kinds    the kinds of steps, and how often a schedule draws each                       kinds
//! step     a failure, its end, a verb of a person, a power cut                           step
//! reshape  vdevs come, go and get wider; checkpoints; spares fail               reshape
//! split    a leg of each mirror becomes a pool of its own                      split
//! check    the pool's word on its leaves, compared with their bytes                      check
//! verdict  all is mended, and all must be there                                          verdict
//! beyond   more is lost than there is redundancy, block by block                         beyond
//! ```
//! A seed is all of a schedule: `schedules --first SEED --count 1` makes it again. Odd ones are *wide*: they have shapes and kinds of steps more.
//!
//! **Life.** The pool of the shape is opened as a server opens it: scans are attended, spares are taken, errors are diagnosed. Up to twenty steps
//! follow. Then all disks work again, a person does what `zpool status` advises, and the verdict is given. Of some schedules blocks are destroyed
//! after that in as many columns as redundancy makes up for, or in one more.
//!
//! **Redundancy that is left.** A leaf is *sound* if its disk does what it is asked, it was not damaged since the last scrub that read all of it,
//! and the pool says that it lacks nothing. A *slot* of a vdev (a child, with a replacement or spare below it) is sound if one of its leaves is. A
//! step may harm a leaf only if no vdev has more unsound slots then than it can do without. So the pool's own word, its dirty time logs, decides on
//! what is harmed next: a log that is emptied too early, or a failed write that is in none, has a later step harm the only leaf that has a block.
//!
//! **Verdict.** 1. The pool is never suspended, no read fails or returns anything but what was written, and each verb is answered. 2. A txg that was
//! reported as synced is there after a power cut, and each block is as of the txg that is there. 3. In the end no leaf lacks anything, and the
//! exported pool is clean in every copy; it is readable without as many devices as it can do without. A scrub comes before that only where bytes
//! have rotted: it would make good what a log has forgotten. Pools that are exported on the way, and those with rot before their scrub, are read in
//! every copy too: a leaf that is sound has no wrong bytes.
//! 4. Beyond redundancy exactly the blocks that are lost give errors, and the scrub's error log and verify name exactly these.
//!
//! **Rejected.** *A model that knows which blocks each leaf has*: it would allow a leaf to fail that has txgs which another lacks, where the pool
//! must wait for it and nothing is lost; OpenZFS suspends such a pool too, and every read of those txgs would be an exception of the model.

mod ailment;
mod beyond;
mod check;
mod client;
mod done;
mod kinds;
mod reshape;
mod shape;
mod split;
mod step;
mod tops;
mod verdict;
mod world;

use std::ops::Range;

use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{Rng, Runtime};
use cenote_testkit::campaign::take_panics;

use crate::life::run;
pub use done::Done;
use shape::{Base, SHAPES, Shape, WIDE_SHAPES};
use world::World;

/// Polls that a schedule may take: many times what one takes.
const POLLS_MAX: u64 = 3_000_000;
/// Of so many schedules one goes beyond redundancy in the end.
const BEYOND_IN: u64 = 8;

/// The deliberate bugs about redundancy that schedules find: from which seed on, and by how many schedules at most. One is found soon after the
/// first.
pub const FOUND: [(Mutant, u64, u64); 4] = [
    (Mutant::OneLeg, 0, 40),
    (Mutant::DtlUnwritten, 0, 40),
    (Mutant::DtlCleared, 0, 60),
    (Mutant::MissUnnoted, 3005, 200),
];

/// Carries out the schedule of a seed; `zdb` judges what it leaves if that is wanted.
///
/// # Errors
/// The fault that was found, in words, after the steps that led to it.
pub fn live(seed: u64, has_zdb: bool) -> Result<Done, String> {
    take_panics();
    let (mixed, rng, shape) = drawn(seed);
    let base = Base::of(shape)?;
    let runtime = Runtime::simulated(mixed);
    if let Some(sim) = runtime.sim() {
        sim.set_steps_max(POLLS_MAX);
    }
    let mut world = World::new(&runtime, shape, base, rng, is_wide(seed));
    let done = run(&runtime, world.live(seed.is_multiple_of(BEYOND_IN), has_zdb));
    done.map_err(|error| format!("{}: {error}\n  after: {}", shape.words, world.steps()))
}

/// Every other schedule is of all kinds of steps: evacuations, expansions, splits, checkpoints, disks that hang.
const fn is_wide(seed: u64) -> bool {
    !seed.is_multiple_of(2)
}

/// The meaning of a seed: one that is mixed, numbers from it, and the shape.
fn drawn(seed: u64) -> (u64, Rng, &'static Shape) {
    let mixed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x7363_6865;
    let mut rng = Rng::new(mixed);
    let shapes = if is_wide(seed) && rng.chance(3, 4) { &WIDE_SHAPES[..] } else { &SHAPES[..] };
    let shape = &shapes[rng.below(shapes.len() as u64) as usize];
    (mixed, rng, shape)
}

/// Has the engine have a bug, and carries out schedules from a seed on until it is found: the seed, and what was said of it.
///
/// # Errors
/// Bugs cannot be had in this build.
pub fn hunt(mutant: Mutant, seeds: Range<u64>) -> Result<Option<(u64, String)>, String> {
    if !mutant::set(Some(mutant)) {
        return Err("deliberate bugs are only in builds with debug assertions".to_owned());
    }
    let is_worth = |seed: &u64| mutant != Mutant::PassedOverForgotten || drawn(*seed).2.has_spare_spaces();
    let found = seeds.filter(is_worth).find_map(|seed| live(seed, false).err().map(|what| (seed, what)));
    mutant::set(None);
    Ok(found)
}
