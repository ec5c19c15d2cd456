//! The kinds of steps, and how often a schedule draws each.

use cenote_taskq::Rng;

use super::shape::Shape;

/// The kinds of steps.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Change,
    Sync,
    Pause,
    Quiet,
    Compare,
    Pull,
    Errors,
    Slow,
    Rot,
    Mend,
    Exchange,
    Offline,
    Online,
    Replace,
    Attach,
    Detach,
    Scrub,
    StopScan,
    Clear,
    Reopen,
    Export,
    Cut,
    Hang,
    Spoil,
    Add,
    Remove,
    StopRemoval,
    Expand,
    Split,
    Checkpoint,
    Discard,
    Rewind,
    Work,
}

/// All of them, and how often each is drawn on the whole.
pub(super) const STEPS: [(Step, u64); 33] = [
    (Step::Change, 12),
    (Step::Sync, 8),
    (Step::Pause, 6),
    (Step::Quiet, 6),
    (Step::Compare, 2),
    (Step::Pull, 6),
    (Step::Errors, 7),
    (Step::Slow, 3),
    (Step::Rot, 4),
    (Step::Mend, 10),
    (Step::Exchange, 2),
    (Step::Offline, 3),
    (Step::Online, 5),
    (Step::Replace, 5),
    (Step::Attach, 2),
    (Step::Detach, 3),
    (Step::Scrub, 3),
    (Step::StopScan, 1),
    (Step::Clear, 5),
    (Step::Reopen, 4),
    (Step::Export, 3),
    (Step::Cut, 6),
    (Step::Hang, 5),
    (Step::Spoil, 3),
    (Step::Add, 3),
    (Step::Remove, 9),
    (Step::StopRemoval, 2),
    (Step::Expand, 8),
    (Step::Split, 3),
    (Step::Checkpoint, 3),
    (Step::Discard, 2),
    (Step::Rewind, 2),
    (Step::Work, 3),
];

/// So many of the kinds, the first ones, are in each schedule; the others only where all kinds are wanted.
const NARROW: usize = 22;

/// How often a schedule draws each kind. Some have none of a kind, and more of others: what takes many of the same is met then, and what another
/// step would undo.
pub(super) fn weights(rng: &mut Rng, shape: &Shape, is_wide: bool) -> (Vec<u64>, bool) {
    let may_rot = rng.chance(1, 3);
    // One device after the other fails and is back, and spares have the time to be rebuilt.
    let is_of_spares = shape.has_spare_spaces() && rng.chance(1, 2);
    let mut weight = |(step, weight): &(Step, u64)| match step {
        // Without these nothing happens.
        Step::Change | Step::Sync | Step::Mend => *weight,
        // A scrub has to make good what has rotted, and hides then what was forgotten.
        Step::Rot if !may_rot => 0,
        Step::Offline | Step::Quiet if is_of_spares => weight * 5,
        Step::Clear | Step::Export if is_of_spares => weight * 3,
        Step::Cut | Step::Replace | Step::Detach if is_of_spares => 0,
        _ => weight * [0, 1, 1, 1, 3][rng.below(5) as usize],
    };
    let mut weights: Vec<u64> = STEPS[..NARROW].iter().map(&mut weight).collect();
    if is_wide {
        weights.extend(STEPS[NARROW..].iter().map(&mut weight));
    }
    (weights, may_rot)
}
