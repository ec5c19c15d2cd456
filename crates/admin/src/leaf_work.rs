//! Work on the free space of devices: `zpool initialize`, `zpool trim`.

use cenote_spa::{LeafAction, LeafWorkKind, Pool};
use cenote_taskq::boxed;

use crate::device::{ChangedDevices, NamedDevice};
use crate::error::AdminError;
use crate::request::{Line, Request, Users};
use crate::scan::{Activity, wait};

/// Devices of which the free space is to be initialized or trimmed, or not any more.
#[derive(Clone, Debug)]
pub struct LeafWorkRequest {
    /// The pool.
    pub pool: String,
    /// The work.
    pub kind: LeafWorkKind,
    /// Its beginning or end.
    pub action: LeafAction,
    /// The devices.
    pub devices: Vec<NamedDevice>,
    /// All devices of the pool are meant: those on which it cannot be done are passed over.
    pub is_of_all: bool,
    /// Devices are to erase what they are told of (`zpool trim -d`). None is known that can.
    pub is_secure: bool,
    /// Wait until it has ended (`-w`).
    pub waits: bool,
    /// Flags of the command and the devices that were named, for the history.
    pub words: (Vec<String>, Vec<String>),
}

impl LeafWorkRequest {
    /// The verb of `zpool`.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self.kind {
            LeafWorkKind::Initialize => "initialize",
            LeafWorkKind::Trim => "trim",
        }
    }

    const fn starts(&self) -> bool {
        matches!(self.action, LeafAction::Start { .. })
    }

    fn verb(&self) -> String {
        let word = self.word();
        match self.action {
            LeafAction::Start { .. } => word.to_owned(),
            LeafAction::Suspend => format!("suspend {}", self.doing()),
            LeafAction::Cancel => format!("cancel {}", self.doing()),
            LeafAction::Forget => format!("un{word}"),
        }
    }

    const fn doing(&self) -> &'static str {
        match self.kind {
            LeafWorkKind::Initialize => "initializing",
            LeafWorkKind::Trim => "trimming",
        }
    }
}

impl Request for LeafWorkRequest {
    type Made = ChangedDevices;

    fn subject(&self) -> &str {
        &self.pool
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<ChangedDevices, AdminError> {
        let mut changed = ChangedDevices::none();
        let mut refused = None;
        for NamedDevice { word, guid, .. } in &self.devices {
            if self.is_secure && self.starts() {
                // Files cannot, and for disks there is no call that safe code could make.
                users.tell(&format!("cannot {} {word}: trim operations are not supported by device", self.verb()));
                changed.is_all = false;
                continue;
            }
            match pool.change_leaf_work(*guid, self.kind, self.action).await {
                Err(error) if self.is_of_all => refused = Some((word, error)),
                made => drop(changed.note(&self.verb(), word, made, users)),
            }
        }
        // Where nothing could be done, the last reason is as good as any.
        if let Some((word, error)) = refused.filter(|_| changed.words.is_empty()) {
            changed.note::<()>(&self.verb(), word, Err(error), users);
        }
        if self.waits && self.starts() && users.keep_pool() {
            let activity = match self.kind {
                LeafWorkKind::Initialize => Activity::Initialize,
                LeafWorkKind::Trim => Activity::Trim,
            };
            wait(pool, &[activity]).await?;
        }
        Ok(changed)
    }

    fn history_line(&self) -> Option<Line> {
        let line = Line::new(&format!("zpool {}", self.word()));
        Some(line.words(&self.words.0).word(&self.pool).words(&self.words.1))
    }

    fn is_void(&self, made: &ChangedDevices) -> bool {
        made.words.is_empty()
    }

    fn is_long(&self) -> bool {
        self.starts()
    }

    fn works_on(&self, made: &ChangedDevices) -> Option<&'static str> {
        (self.starts() && !made.words.is_empty()).then_some(self.doing())
    }
}
