//! The test of the test: whether points find deliberate bugs of the intent log.

use cenote_taskq::mutant::{self, Mutant};

use super::base::Base;
use super::cuts::Wanted;
use super::run::{Run, Tally};
use super::script::{Script, count};

/// Deliberate bugs of the intent log that points look for; `docs/robustness-results.md` says which of them points have found. `log-freed-early` and
/// `log-data-freed-early` are none of them: a block that is freed too early does harm only where its space is used again, for which runs are too short.
pub const LOG_MUTANTS: [Mutant; 12] = [
    Mutant::FsyncEarly,
    Mutant::LogUnflushed,
    Mutant::LogFlushEarlier,
    Mutant::LogAcksIssued,
    Mutant::LogHeaderKept,
    Mutant::LogWrongNext,
    Mutant::LogItxsDropped,
    Mutant::LogUnloggedIgnored,
    Mutant::LogDataFirst,
    Mutant::LogDataUnflushed,
    Mutant::LogDataElsewhere,
    Mutant::LogUnclaimed,
];

/// Steps of a script.
const STEPS: u32 = 2;
/// No divisor of the number of scripts, so that all operations come early.
const STRIDE: u64 = 367;
/// Of each run.
const WANTED: Wanted = Wanted { points: 24, draws: 2, has_zdb: false, moments: Wanted::EVER };

/// Has the engine have a bug until a script of so many finds it: the script's number, and what was said.
///
/// # Errors
/// Bugs cannot be had in this build.
pub fn hunt(bases: &[Base], mutant: Mutant, scripts: u64) -> Result<Option<(u64, String)>, String> {
    if !mutant::set(Some(mutant)) {
        return Err("deliberate bugs are only in builds with debug assertions".to_owned());
    }
    let mut numbers = (0..).map(|at| at * STRIDE % count(STEPS)).filter_map(|at| Some((at, Script::nth(STEPS, at)?)));
    let found = numbers.by_ref().take(scripts as usize).find_map(|(number, script)| {
        let failed = |base: &Base| {
            let run = Run::of(base, script.clone(), number);
            run.and_then(|run| run.judge(&WANTED, &mut Tally::default())).err()
        };
        Some((number, bases.iter().find_map(failed)?))
    });
    mutant::set(None);
    Ok(found)
}
