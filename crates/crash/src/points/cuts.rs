//! The cuts of a run: its moments one after the other, and in each the ways in which the power goes.

use cenote_taskq::Rng;
use cenote_taskq::sim::disk::{Crash, Image};
use cenote_taskq::sim::history::{Began, History};

/// The points that are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Of each run about so many, drawn by the seed; all if 0.
    pub points: u64,
    /// Draws of the seed in each moment, besides what is kept for sure.
    pub draws: u64,
    /// Whether `zdb` judges some.
    pub has_zdb: bool,
    /// The first moment, and the one behind the last.
    pub moments: (usize, usize),
}

impl Wanted {
    /// Of all moments.
    pub const EVER: (usize, usize) = (0, usize::MAX);
}

/// The disks that a power cut in a moment of a run leaves.
pub(super) struct Cut {
    /// The moment.
    pub(super) now: usize,
    /// The fate of unflushed writes.
    pub(super) crash: Crash,
    /// The seed of that, and of what is done with the disks.
    pub(super) seed: u64,
    /// The disks.
    pub(super) images: Vec<Image>,
}

/// Judges the cuts of a run that are wanted, in the order of its moments, up to the first that is wrong.
pub(super) fn each_cut(
    history: &History,
    wanted: &Wanted,
    mut rng: Rng,
    mut judge: impl FnMut(Cut) -> Result<(), String>,
) -> Result<(), String> {
    let mut moments = history.moments();
    let all = history.now() as u64 * (1 + wanted.draws);
    while let Some(began) = moments.advance()
        && moments.now() < wanted.moments.1
    {
        let sure = match began {
            Began::Write => Crash::KeepMore,
            Began::Written => Crash::KeepAll,
            Began::Flushed => Crash::LoseAll,
        };
        let draws = if moments.is_open() { wanted.draws } else { 0 };
        for draw in 0..=draws {
            let crash = match draw {
                0 => sure,
                _ => [Crash::Random, Crash::Torn, Crash::LoseAll, Crash::Garbage][rng.below(4) as usize],
            };
            if wanted.points == 0 || rng.chance(wanted.points, all.max(1)) {
                let seed = rng.next_u64();
                let now = moments.now();
                if wanted.moments.0 <= now && now < wanted.moments.1 {
                    let images = moments.crashed(crash, &mut Rng::new(seed));
                    judge(Cut { now, crash, seed, images })?;
                }
            }
        }
    }
    Ok(())
}
