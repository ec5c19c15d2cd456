//! A client, as the kills see it.

use anyhow::Result;

use super::account::Compared;
use super::place::Place;
use crate::numbers::Numbers;

/// A program that works in a served pool.
pub(super) trait Client {
    /// Mount options that it needs.
    fn mount_options(&self) -> &'static str {
        ""
    }

    /// The time that it works at most before the kill, in milliseconds.
    fn load_ms_max(&self) -> u64;

    /// Makes what it works on, in a pool that is new.
    fn prepare(&mut self, place: &Place) -> Result<()>;

    /// Begins to work.
    fn start(&mut self, place: &Place, numbers: &mut Numbers) -> Result<()>;

    /// Waits until something was acknowledged, if it tells of that at once.
    fn wait_for_one(&mut self) -> Result<()> {
        Ok(())
    }

    /// Why it has ended already, which it should not have.
    fn ended(&mut self) -> Result<Option<String>>;

    /// Ends after the server was killed, with all that it was told taken in.
    fn end(&mut self) -> Result<()>;

    /// Recovers, and compares; with `is_long` in ways that take longer too.
    fn check(&mut self, place: &Place, is_long: bool) -> Result<Compared>;
}
