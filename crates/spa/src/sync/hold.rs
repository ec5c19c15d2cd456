//! The first changes of a pool that is taken into use: they show other hosts (multihost) that it is. And holds of its datasets.

use cenote_format::ids::ObjectId;

use crate::config::PoolState;
use crate::inuse::{LongHold, User};
use crate::sync::Syncer;
use crate::{Refusal, SpaError};

impl Syncer {
    /// Protects the pool against every second import for as long as this has it, whether `multihost` is on or not: the next txg and
    /// each following say so, and in between multihost writes show that it is in use. For a pool that is kept open.
    ///
    /// The protection begins with the next txg, which is to be synced before anybody is told that the pool is there.
    pub(crate) fn hold(&mut self) {
        assert_eq!(self.state, PoolState::Active, "a pool that is held is in use");
        self.devices.multihost.hold();
        self.devices.multihost.start(self.clock);
        self.devices.config_changed = true;
        assert!(self.devices.multihost.is_shown(), "a pool that is held is shown to others");
    }

    /// Obeys the property from the txg that is open on.
    ///
    /// # Errors
    /// This host has no id, by which others could tell it from themselves.
    pub(crate) fn set_multihost(&mut self, is_on: bool) -> Result<(), SpaError> {
        if is_on && self.host.id == 0 {
            return Err(SpaError::refused(
                Refusal::Invalid,
                format!(
                    "cannot set property for '{}': requires a non-zero system hostid; \
                 'zgenhostid' sets one (four bytes in /etc/hostid)",
                    self.name
                ),
            ));
        }
        self.devices.multihost.set_on(is_on);
        self.devices.multihost.start(self.clock);
        self.devices.config_changed = true;
        assert!(!is_on || self.devices.multihost.is_shown(), "with multihost on a pool is shown to others");
        Ok(())
    }

    /// Keeps a dataset that exists from being destroyed or rolled back, for this user.
    #[must_use]
    pub fn long_hold(&self, dataset: ObjectId, user: User) -> LongHold {
        self.in_use.hold(dataset, user)
    }

    /// True if a dataset is kept so.
    #[must_use]
    pub fn is_long_held(&self, dataset: ObjectId) -> bool {
        self.in_use.is_held(dataset)
    }
}
