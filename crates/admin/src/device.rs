//! Verbs of a pool's devices: `zpool offline`, `online`, `attach`, `replace` and `detach`.

use std::path::PathBuf;

use cenote_format::ids::Guid;
use cenote_scan::attend;
use cenote_spa::{AttachOptions, NewDevice, Offline, Pool, SpaError};
use cenote_taskq::boxed;

use crate::error::AdminError;
use crate::request::{Line, Request, Users};

/// A device of a pool, as a command names it.
#[derive(Clone, Debug)]
pub struct NamedDevice {
    /// The word that named it.
    pub word: String,
    /// The device.
    pub guid: Guid,
    /// Where it is now, if the word says so.
    pub path: Option<PathBuf>,
}

/// Devices that a verb has changed, by their words. What could not be done was told to the user.
#[derive(Clone, Debug, Default)]
pub struct ChangedDevices {
    /// Those that it has changed.
    pub words: Vec<String>,
    /// All that were named were changed.
    pub is_all: bool,
}

impl ChangedDevices {
    pub(crate) fn none() -> Self {
        Self { words: Vec::new(), is_all: true }
    }

    /// Tells why something more was not done with a device that is counted.
    fn note_more<T>(&mut self, verb: &str, word: &str, made: Result<T, SpaError>, users: &dyn Users) {
        if let Err(error) = made {
            users.tell(&format!("cannot {verb} {word}: {error}"));
            self.is_all = false;
        }
    }

    /// Counts a device, or tells why it was not changed.
    pub(crate) fn note<T>(
        &mut self,
        verb: &str,
        word: &str,
        made: Result<T, SpaError>,
        users: &dyn Users,
    ) -> Option<T> {
        match made {
            Ok(made) => {
                self.words.push(word.to_owned());
                Some(made)
            }
            Err(error) => {
                users.tell(&format!("cannot {verb} {word}: {error}"));
                self.is_all = false;
                None
            }
        }
    }
}

/// Devices to be taken out of use: `zpool offline`.
#[derive(Clone, Debug, Default)]
pub struct OfflineRequest {
    /// The pool.
    pub pool: String,
    /// The devices.
    pub devices: Vec<NamedDevice>,
    /// As if they had failed (`-f`).
    pub is_fault: bool,
    /// Until the pool is exported (`-t`).
    pub is_temporary: bool,
}

impl Request for OfflineRequest {
    type Made = ChangedDevices;

    fn subject(&self) -> &str {
        &self.pool
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<ChangedDevices, AdminError> {
        let mut changed = ChangedDevices::none();
        let how = Offline { is_temporary: self.is_temporary, is_fault: self.is_fault };
        let verb = if self.is_fault { "fault" } else { "offline" };
        for NamedDevice { word, guid, .. } in &self.devices {
            changed.note(verb, word, pool.offline_device(*guid, how).await, users);
        }
        Ok(changed)
    }

    fn history_line(&self) -> Option<Line> {
        let line = Line::new("zpool offline").flag(self.is_fault, "-f").flag(self.is_temporary, "-t");
        Some(line.word(&self.pool).words(self.devices.iter().map(|device| &device.word)))
    }

    fn is_void(&self, made: &ChangedDevices) -> bool {
        made.words.is_empty()
    }

    fn changes_config(&self) -> bool {
        true
    }
}

/// Devices to be taken into use again: `zpool online`.
#[derive(Clone, Debug, Default)]
pub struct OnlineRequest {
    /// The pool.
    pub pool: String,
    /// The devices.
    pub devices: Vec<NamedDevice>,
    /// Use all of devices that have grown (`-e`).
    pub expands: bool,
}

impl Request for OnlineRequest {
    type Made = ChangedDevices;

    fn subject(&self) -> &str {
        &self.pool
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<ChangedDevices, AdminError> {
        let mut changed = ChangedDevices::none();
        for NamedDevice { word, guid, path } in &self.devices {
            let paths = path.iter().cloned().collect();
            let onlined = pool.online_device(*guid, paths).await;
            let Some(onlined) = changed.note("online", word, onlined, users) else { continue };
            if !onlined.state.is_readable() {
                users.tell(&format!("warning: device '{word}' onlined, but remains in faulted state"));
                users.tell(match &onlined.reason {
                    Some(reason) => reason,
                    None => "use 'zpool replace' to replace devices that are no longer present",
                });
                continue;
            }
            if self.expands || pool.number_property("autoexpand").await? != 0 {
                changed.note_more("expand", word, pool.expand_devices(vec![*guid]).await, users);
            }
        }
        Ok(changed)
    }

    fn history_line(&self) -> Option<Line> {
        Some(
            Line::new("zpool online")
                .flag(self.expands, "-e")
                .word(&self.pool)
                .words(self.devices.iter().map(|device| &device.word)),
        )
    }

    fn is_void(&self, made: &ChangedDevices) -> bool {
        made.words.is_empty()
    }

    fn changes_config(&self) -> bool {
        true
    }
}

/// Devices that were not there, to be opened again: `zpool reopen`.
#[derive(Clone, Debug, Default)]
pub struct ReopenRequest {
    /// The pool.
    pub pool: String,
    /// A scan that is under way is not begun again (`-n`).
    pub keeps_scan: bool,
}

impl Request for ReopenRequest {
    type Made = ();

    fn subject(&self) -> &str {
        &self.pool
    }

    #[boxed]
    async fn run(&self, pool: &Pool, _: &dyn Users) -> Result<(), AdminError> {
        pool.reopen_devices().await?;
        Ok(())
    }

    fn history_line(&self) -> Option<Line> {
        Some(Line::new("zpool reopen").flag(self.keeps_scan, "-n").word(&self.pool))
    }
}

/// Devices whose errors are forgotten, and which are used again if they had failed: `zpool clear` with devices.
#[derive(Clone, Debug, Default)]
pub struct ClearDevicesRequest {
    /// The pool.
    pub pool: String,
    /// The devices.
    pub devices: Vec<NamedDevice>,
}

impl Request for ClearDevicesRequest {
    type Made = ChangedDevices;

    fn subject(&self) -> &str {
        &self.pool
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<ChangedDevices, AdminError> {
        let mut changed = ChangedDevices::none();
        for NamedDevice { word, guid, .. } in &self.devices {
            changed.note("clear errors for", word, pool.clear_device(*guid).await, users);
        }
        Ok(changed)
    }

    fn history_line(&self) -> Option<Line> {
        Some(Line::new("zpool clear").word(&self.pool).words(self.devices.iter().map(|device| &device.word)))
    }

    fn is_void(&self, made: &ChangedDevices) -> bool {
        made.words.is_empty()
    }
}

/// A device to be put next to one of the pool, or in its place: `zpool attach` and `replace`.
#[derive(Clone, Debug)]
pub struct AttachRequest {
    /// The pool.
    pub pool: String,
    /// The device that is there.
    pub old: NamedDevice,
    /// The word that names the new one.
    pub new_word: String,
    /// The new one.
    pub new: NewDevice,
    /// The old one goes when the new one has everything.
    pub is_replacing: bool,
    /// The old one is a raidz, and the new one a further child of it.
    pub is_expansion: bool,
    /// It is rebuilt in the order of the vdev, without checksums (`-s`).
    pub is_sequential: bool,
    /// The setting `ashift`.
    pub ashift: Option<u32>,
    /// Flags and settings of the command, for the history.
    pub words: Vec<String>,
    /// Wait until the new one has everything (`-w`). A process that keeps the pool is waited for by [`crate::wait`].
    pub waits: bool,
}

impl AttachRequest {
    fn refused(&self, error: SpaError) -> AdminError {
        let (old, new) = (&self.old.word, &self.new_word);
        match error {
            SpaError::Refused { what, .. } => AdminError::Said(match self.is_replacing {
                true => format!("cannot replace {old} with {new}: {what}"),
                false => format!("cannot attach {new} to {old}: {what}"),
            }),
            error => error.into(),
        }
    }
}

impl Request for AttachRequest {
    type Made = ();

    fn subject(&self) -> &str {
        &self.pool
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<(), AdminError> {
        if self.waits && !users.keep_pool() {
            attend(pool);
        }
        let options = AttachOptions {
            old: self.old.guid,
            new: self.new.clone(),
            is_replacing: self.is_replacing,
            is_sequential: self.is_sequential,
            ashift: self.ashift,
            seed: None,
        };
        pool.attach_device(options).await.map(drop).map_err(|error| self.refused(error))
    }

    fn history_line(&self) -> Option<Line> {
        let verb = if self.is_replacing { "zpool replace" } else { "zpool attach" };
        let line = Line::new(verb).words(&self.words).word(&self.pool).word(&self.old.word);
        Some(if self.new_word == self.old.word { line } else { line.word(&self.new_word) })
    }

    fn is_long(&self) -> bool {
        self.waits
    }

    fn works_on(&self, (): &()) -> Option<&'static str> {
        let work = if self.is_expansion { "expanding" } else { "resilvering" };
        self.waits.then_some(work)
    }

    fn changes_config(&self) -> bool {
        true
    }
}

/// A leg of a mirror, or a side of a replacement or of a spare in use, to be taken out of the pool: `zpool detach`.
#[derive(Clone, Debug)]
pub struct DetachRequest {
    /// The pool.
    pub pool: String,
    /// The device.
    pub device: NamedDevice,
}

impl Request for DetachRequest {
    type Made = ();

    fn subject(&self) -> &str {
        &self.pool
    }

    #[boxed]
    async fn run(&self, pool: &Pool, _: &dyn Users) -> Result<(), AdminError> {
        match pool.detach_device(self.device.guid).await {
            Ok(_) => Ok(()),
            Err(SpaError::Refused { what, .. }) => {
                Err(AdminError::Said(format!("cannot detach {}: {what}", self.device.word)))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn history_line(&self) -> Option<Line> {
        Some(Line::new("zpool detach").words([&self.pool, &self.device.word]))
    }

    fn changes_config(&self) -> bool {
        true
    }
}
