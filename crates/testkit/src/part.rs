//! Parts of long tests: a run of all tests does one of them.
//!
//! A test that does the same for many seeds finds faults by their number, and a run of all tests has half an hour. `cargo xtask test` sets
//! [`VARIABLE`] by the commit for the test programs that it runs: over the commits of a day each seed has its turn, and the same commit has the same
//! ones again. Without the variable, as when a crate is tested while somebody works on it, a test does all.

/// The part and their number: `1/3` is the first of three.
pub const VARIABLE: &str = "CENOTE_PART";

/// A part of the trials of a test or a campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Its number, from 0 on.
    pub at: u64,
    /// How many there are. One is the whole.
    pub of: u64,
}

impl Part {
    /// All trials.
    pub const WHOLE: Part = Part { at: 0, of: 1 };

    /// The part that the environment asks for, otherwise the whole.
    ///
    /// # Panics
    /// The variable holds no part: a test that did not do what it was asked for would be believed.
    pub fn of_environment() -> Self {
        match std::env::var(VARIABLE) {
            Err(_) => Self::WHOLE,
            Ok(text) => Self::parse(&text).unwrap_or_else(|| panic!("{VARIABLE}={text}: no part such as 1/3")),
        }
    }

    /// The text for [`VARIABLE`].
    pub fn text(self) -> String {
        format!("{}/{}", self.at + 1, self.of)
    }

    fn parse(text: &str) -> Option<Self> {
        let (at, of) = text.split_once('/')?;
        let (at, of) = (at.parse::<u64>().ok()?.checked_sub(1)?, of.parse().ok()?);
        (at < of).then_some(Self { at, of })
    }

    /// Its share of `count` trials: how many come before it, and how many it has.
    pub fn share(self, count: u64) -> (u64, u64) {
        let before = count * self.at / self.of;
        (before, count * (self.at + 1) / self.of - before)
    }

    /// Whether it has the trial of this number.
    pub fn has(self, number: u64) -> bool {
        number % self.of == self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trial_is_in_one_part() {
        for (count, of) in [(256, 3), (40, 3), (3, 3), (2000, 4), (7, 1)] {
            let mut next = 0;
            for at in 0..of {
                let (before, mine) = Part { at, of }.share(count);
                assert_eq!(before, next);
                next += mine;
                assert_eq!((0..count).filter(|number| Part { at, of }.has(*number)).count() as u64 / (count / of), 1);
            }
            assert_eq!(next, count);
        }
    }

    #[test]
    fn a_part_is_read_as_it_is_written_and_what_is_none_is_not() {
        let part = Part { at: 2, of: 3 };
        assert_eq!(Part::parse(&part.text()), Some(part));
        for none in ["", "0/3", "4/3", "1/0", "1", "a/b"] {
            assert_eq!(Part::parse(none), None, "{none}");
        }
    }
}
