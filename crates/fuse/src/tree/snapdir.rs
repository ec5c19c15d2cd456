//! Changes in `.zfs/snapshot`: `mkdir` takes a snapshot, `rmdir` destroys one, and `rename` gives one another name.
//!
//! # Theory
//!
//! **Need.** In a container, or over NFS or SMB, users cannot run `zfs`, but they can make a directory. OpenZFS allows this if its tunable
//! `zfs_admin_snapshot` is set, and so does a mount here; otherwise these calls fail with `EACCES`, as in OpenZFS. OpenZFS lets root take,
//! destroy and rename snapshots, and users to whom the right is delegated. Here root may, and the user who runs the process that has the
//! pool, since that user can run the commands too. Others get `EPERM`.
//!
//! **The kernel waits.** It holds the directory's lock until it has the answer, and it takes the same lock to forget a name. So nothing that is
//! awaited here may ask the kernel to forget something; that would be a deadlock. The commands do ask (`zfs destroy` has the kernel forget the
//! snapshot first); this module calls only the operations of `cenote_admin` below them. It need not ask: the kernel itself drops the
//! name that it has changed, and the listing.
//!
//! **Life of an `rmdir`.** The kernel has just looked the name up, so it remembers the snapshot, and the snapshot's slot has a hold on it.
//! [`crate::slots::Slot::leave`] makes new requests for files of the snapshot fail with `ESTALE`, waits for requests that are being served, and
//! releases the hold. If a program has a file of the snapshot open, the slot stays and the answer is `EBUSY`; so it is if the snapshot
//! has holds or clones. Then the snapshot is destroyed as by a command. If that is refused the slot is restored. The kernel does not report current
//! directories, so a program whose current directory is in the snapshot does not keep it, and gets `ESTALE` there afterwards.
//!
//! **Crash.** As with the command: the snapshot exists whole, or not at all. The change is on disk when the call returns.
//!
//! **Rejected.** *Refusing while the kernel remembers files of the snapshot*: it remembers every `ls` for a long time, so most calls would fail.

use std::time::Duration;

use cenote_admin::{AdminError, destroy_snapshots, take_snapshots};
use cenote_dsl::name::{NAME_MAX_BYTES, check_new_snapshot};
use cenote_dsl::{Dataset, DslError};
use cenote_inuse::OpenError;
use cenote_spa::{Pool, PoolError, Refusal, SpaError};
use cenote_zpl::FileKind;

use super::{At, Tree};
use crate::node::Place;
use crate::server::{Caller, Entry, Errno, NewFile, NodeId, Rename};
use crate::zfsvfs::open_errno;

/// The bits of a mode that say what a node is.
const KIND_BITS: u32 = 0o170_000;
/// The wait for requests that read a snapshot. After it the snapshot counts as in use.
const REQUESTS_TIME_MAX: Duration = Duration::from_secs(2);
/// The interval at which that wait checks whether they have ended.
const REQUESTS_POLL: Duration = Duration::from_millis(5);

impl Tree {
    /// `mkdir`: takes a snapshot of the dataset in a slot.
    pub(super) async fn make_snapshot(&self, slot: u16, name: &[u8], new: &NewFile) -> Result<Entry, Errno> {
        if new.mode & KIND_BITS != FileKind::Directory.mode_bits() {
            return Err(Errno::PERM);
        }
        let (head, pool) = self.administered(slot, new.caller).await?;
        let full = new_name(&head, name)?;
        let taken = take_snapshots(pool, std::slice::from_ref(&full), &[]).await;
        taken.map_err(|error| self.refused(&format!("taking '{full}'"), head.slot.root, &error))?;
        self.lookup_snapshot(slot, name).await
    }

    /// `rmdir`: destroys a snapshot of the dataset in a slot.
    pub(super) async fn remove_snapshot(&self, slot: u16, name: &[u8], caller: Caller) -> Result<(), Errno> {
        let (head, pool) = self.administered(slot, caller).await?;
        let snapshot = self.named_snapshot(&head, name).await?;
        let full = snapshot.name();
        let known = self.shared.slots.known(snapshot.object).filter(|known| !known.is_gone());
        if let Some(known) = &known {
            let handle = pool.handle();
            let begun = handle.now();
            while !known.leave().await {
                if known.has_open_file() || handle.now() - begun > REQUESTS_TIME_MAX {
                    return Err(Errno::BUSY);
                }
                handle.sleep(REQUESTS_POLL).await;
            }
        }
        let destroyed = destroy_snapshots(pool, std::slice::from_ref(&full), false, &|_| ()).await;
        if let Some(known) = known {
            match &destroyed {
                Ok(()) => known.destroyed(),
                Err(_) => known.stays(),
            }
        }
        destroyed.map_err(|error| self.refused(&format!("destroying '{full}'"), head.slot.root, &error))
    }

    /// `rename`: gives a snapshot of the dataset in a slot another name. None is replaced.
    pub(super) async fn rename_snapshot(
        &self,
        slot: u16,
        from: &[u8],
        to: &[u8],
        how: Rename,
        caller: Caller,
    ) -> Result<(), Errno> {
        if how == Rename::Exchange {
            return Err(Errno::INVAL);
        }
        let (head, pool) = self.administered(slot, caller).await?;
        let snapshot = self.named_snapshot(&head, from).await?;
        if from == to {
            return Ok(());
        }
        let full = new_name(&head, to)?;
        let (Some(old), Some((dataset, new))) = (&snapshot.snapshot, full.split_once('@')) else {
            return Err(Errno::NOENT);
        };
        let renamed = pool.rename_snapshots(dataset, old, new, false).await.map_err(AdminError::from);
        renamed.map_err(|error| self.refused(&format!("renaming '{}'", snapshot.name()), head.slot.root, &error))?;
        // The kernel moves its own entry to the new name and does not look it up again.
        if let Some(known) = self.shared.slots.known(snapshot.object).filter(|known| !known.is_gone()) {
            known.set_dataset(Dataset { snapshot: Some(new.to_owned()), ..snapshot });
        }
        Ok(())
    }

    /// The dataset in a slot and the pool, if the caller may change its snapshots in this way.
    async fn administered(&self, slot: u16, caller: Caller) -> Result<(At<'_>, &Pool), Errno> {
        let head = self.with_control(slot).await?;
        let pool = self.shared.source.as_pool().ok_or(Errno::ROFS)?;
        head.zfsvfs.changeable()?;
        if !self.shared.admin_snapshots {
            return Err(Errno::ACCESS);
        }
        let owner = rustix::process::geteuid().as_raw();
        if caller.uid == 0 || caller.uid == owner { Ok((head, pool)) } else { Err(Errno::PERM) }
    }

    /// A snapshot of a head, by the last part of its name.
    async fn named_snapshot(&self, head: &At<'_>, name: &[u8]) -> Result<Dataset, Errno> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::NOENT)?;
        if name.contains(['@', '#', '/']) {
            return Err(Errno::NOENT);
        }
        let dir = &head.slot.dataset().dir;
        let found = self.dsl()?.dataset(&format!("{}@{name}", dir.name)).await;
        let found = found.map_err(|error| {
            let error = OpenError::from(error);
            self.failed("look-up", head.slot.root, &error, open_errno(&error))
        })?;
        if found.is_snapshot() && found.phys.dir == dir.object { Ok(found) } else { Err(Errno::NOENT) }
    }

    /// The errno for a change that was refused. The cause is reported where the errno says too little.
    fn refused(&self, what: &str, node: NodeId, error: &AdminError) -> Errno {
        self.failed(what, node, error, errno(error))
    }
}

/// The full name of a new snapshot.
fn new_name(head: &At<'_>, name: &[u8]) -> Result<String, Errno> {
    let name = std::str::from_utf8(name).map_err(|_| Errno::ILSEQ)?;
    let full = format!("{}@{name}", head.slot.dataset().dir.name);
    if full.len() > NAME_MAX_BYTES {
        return Err(Errno::NAMETOOLONG);
    }
    // OpenZFS answers invalid names with EILSEQ.
    check_new_snapshot(&full).map(|()| full).map_err(|_| Errno::ILSEQ)
}

/// The errno that a caller gets for an error of the administrative operation.
fn errno(error: &AdminError) -> Errno {
    let error = match error {
        AdminError::Spa(error) => error,
        AdminError::Dsl(DslError::NoSuchDataset(_)) => return Errno::NOENT,
        _ => return Errno::IO,
    };
    match &**error {
        SpaError::Pool { error: PoolError::Dsl(DslError::NoSuchDataset(_)), .. } => Errno::NOENT,
        SpaError::Refused { why, .. } => match why {
            Refusal::Exists => Errno::EXIST,
            Refusal::NotThere => Errno::NOENT,
            Refusal::Busy => Errno::BUSY,
            Refusal::NoSpace => Errno::NOSPC,
            Refusal::Invalid => Errno::INVAL,
            _ => Errno::OPNOTSUPP,
        },
        error if error.is_unsupported() => Errno::OPNOTSUPP,
        _ => Errno::IO,
    }
}

/// The dataset's slot, if this node is a `.zfs/snapshot` directory.
pub(super) const fn snapshots_of(node: NodeId) -> Option<u16> {
    match Place::of(node) {
        Place::Snapshots { slot } => Some(slot),
        _ => None,
    }
}
