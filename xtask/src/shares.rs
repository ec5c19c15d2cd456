//! The processor time that a step may take, so that a run of the tests stays as short as it was made.
//!
//! A step that waits for others takes longer, and does no more: only time of processors is compared, of the step's programs and of those that
//! they began. The shares are at least twice what the steps took in continuous integration when they were set. A step that needs more for good gets it here, in the
//! commit that makes it slower, for its reader to see.

/// Steps and their seconds of processors. A step that is not listed has the last one's.
const SHARES: &[(&str, u64)] =
    &[("clippy", 600), ("tests", 1400), ("serving", 1200), ("vm", 1600), ("tour", 1500), ("dist", 1500), ("", 600)];

/// A tick of the kernel's accounts.
const TICKS_PER_SECOND: u64 = 100;

/// The seconds of processors that programs begun here have used, and theirs, as far as they have ended and were waited for.
pub(crate) fn used_s() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    used_ticks(&text).unwrap_or_default() / TICKS_PER_SECOND
}

/// `cutime` and `cstime`; the program's name before them, in brackets, may hold anything.
fn used_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(fields.get(13)?.parse::<u64>().ok()? + fields.get(14)?.parse::<u64>().ok()?)
}

/// The words of a step that took more than its share.
pub(crate) fn growth(step: &str, used_s: u64) -> Option<String> {
    let (_, share_s) = SHARES.iter().find(|(name, _)| *name == step).or(SHARES.last())?;
    (used_s > *share_s).then(|| format!("; FAILED: its share is {share_s} s of processors (xtask/src/shares.rs)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_programs_that_have_ended_is_read() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 200 0 0 3 4 500 600 20 0 1 0 100";
        assert_eq!(used_ticks(stat), Some(1100));
        assert_eq!(used_ticks("7 (a"), None);
    }

    #[test]
    fn a_step_that_takes_more_than_its_share_says_so() {
        assert_eq!(growth("clippy", 600), None);
        assert!(growth("clippy", 601).is_some_and(|words| words.contains("600 s")));
        assert!(growth("fmt", 600).is_none() && growth("fmt", 601).is_some());
    }
}
