//! Health of a pool's devices, its events and its txgs.

use std::fmt;
use std::time::Duration;

use cenote_taskq::{Either, race};
use cenote_vdev::tree::{VdevState, VdevStatus};

use crate::error::Error;
use crate::pool::{Access, Pool};
use crate::raise::Raise as _;

/// Health of a vdev, in the words of `zpool status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Health {
    /// All of it works.
    Online,
    /// It works, with less redundancy than it should have.
    Degraded,
    /// Too much of it is missing.
    Unavailable,
    /// It was taken offline.
    Offline,
    /// It is not used because of its errors.
    Faulted,
}

/// A vdev and those below it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Vdev {
    /// Its name, or its device.
    pub name: String,
    /// Its guid; 0 where it has none.
    pub guid: u64,
    /// Its health.
    pub health: Health,
    /// Reads that the device failed.
    pub read_errors: u64,
    /// Writes that the device failed.
    pub write_errors: u64,
    /// Reads that brought wrong bytes, which were put right where there is redundancy.
    pub checksum_errors: u64,
    /// It has missed writes that it has not made up for.
    pub is_behind: bool,
    /// The vdevs that it is made of.
    pub children: Vec<Vdev>,
}

impl Vdev {
    fn of(status: &VdevStatus) -> Self {
        Self {
            name: status.name.clone(),
            guid: status.guid.0,
            health: match status.state {
                VdevState::Online | VdevState::Removed => Health::Online,
                VdevState::Degraded => Health::Degraded,
                VdevState::Unavailable => Health::Unavailable,
                VdevState::Offline => Health::Offline,
                VdevState::Faulted => Health::Faulted,
            },
            read_errors: status.errors.read,
            write_errors: status.errors.write,
            checksum_errors: status.errors.checksum,
            is_behind: status.children.is_empty() && !status.missed.is_empty(),
            children: status.children.iter().map(Self::of).collect(),
        }
    }

    /// The devices: the vdevs that have none below them.
    #[must_use]
    pub fn devices(&self) -> Vec<&Self> {
        match self.children.is_empty() {
            true => vec![self],
            false => self.children.iter().flat_map(Self::devices).collect(),
        }
    }
}

/// Health of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The root of its vdevs.
    pub root: Vdev,
    /// Why nothing is written at present: too few devices take it. Changes wait in memory.
    pub suspended: Option<String>,
}

/// Something that happened to a pool by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Too few devices take what is written, so it waits.
    Suspended(String),
    /// It goes on being written.
    Resumed,
    /// A device does not answer.
    Hung(String),
    /// A part of the pool cannot be used, such as a space map that cannot be read.
    Trouble(String),
}

/// The events of a pool, from when this was made: see [`Pool::watch`].
pub struct Watch {
    pool: Option<cenote_spa::Pool>,
    is_suspended: bool,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("is_suspended", &self.is_suspended).finish_non_exhaustive()
    }
}

impl Watch {
    /// Waits for the next event. Each is told to one who waits. None once the pool was given up; of a pool that is open read-only, at once.
    pub async fn next(&mut self) -> Option<Event> {
        let pool = self.pool.clone()?;
        let told = race(Box::pin(pool.hung()), Box::pin(pool.troubled()));
        let turn = async {
            match self.is_suspended {
                true => pool.passed().await.then_some(Event::Resumed),
                false => Some(Event::Suspended(pool.failed().await.0.to_string())),
            }
        };
        let event = match race(Box::pin(told), Box::pin(turn)).await {
            Either::Left(Either::Left(hang)) => Some(Event::Hung(hang.message)),
            Either::Left(Either::Right(trouble)) => Some(Event::Trouble(trouble)),
            Either::Right(turn) => turn,
        };
        match &event {
            Some(Event::Suspended(_)) => self.is_suspended = true,
            Some(Event::Resumed) => self.is_suspended = false,
            Some(_) => {}
            None => self.pool = None,
        }
        event
    }
}

/// A txg that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TxgSummary {
    /// Its number.
    pub txg: u64,
    /// Bytes of data that were dirty when its sync began.
    pub dirty_bytes: u64,
    /// The time that the sync took.
    pub took: Duration,
}

impl Pool {
    /// The health of its devices, with the errors that were counted since it was opened.
    ///
    /// # Errors
    /// [`Closed`](crate::ErrorKind::Closed): it was exported.
    pub fn status(&self) -> Result<Status, Error> {
        match &self.inner.access {
            Access::Read(view) => Ok(Status { root: Vdev::of(&view.tree().status()), suspended: None }),
            Access::Write(pool) => {
                let devices = pool.devices();
                // A closed pool says so.
                let devices = match devices {
                    Some(devices) => devices,
                    None => return Err(pool.dsl().raised().err().unwrap_or_else(|| Error::misuse("no devices"))),
                };
                let suspended = pool.suspended().map(|reason| reason.to_string());
                Ok(Status { root: Vdev::of(&devices), suspended })
            }
        }
    }

    /// Has a suspended pool go on, where its devices take again what is written, and forgets the errors that were counted
    /// (`zpool clear`).
    ///
    /// # Errors
    /// They do not.
    pub async fn resume(&self) -> Result<(), Error> {
        self.writable()?.resume().await.raised()
    }

    /// Watches for what happens to it by itself.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch { pool: self.writable().ok().cloned(), is_suspended: false }
    }

    /// The last txgs that were written, the oldest first; a hundred at most. None of a pool that is open read-only.
    #[must_use]
    pub fn txgs(&self) -> Vec<TxgSummary> {
        let records = self.writable().map(cenote_spa::Pool::history).unwrap_or_default();
        let of = |record: cenote_spa::TxgRecord| TxgSummary {
            txg: record.txg.0,
            dirty_bytes: record.dirty_bytes,
            took: record.took,
        };
        records.into_iter().map(of).collect()
    }
}
