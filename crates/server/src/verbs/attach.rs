//! `zpool attach`, `replace` and `detach`: devices that are opened here, and recorded wherever the pool's devices are.

use std::path::{Path, PathBuf};

use cenote_admin::values::parse_ashift;
use cenote_admin::{Activity, AttachRequest, DetachRequest, NamedDevice, wait};
use cenote_host::CacheFile;
use cenote_host::inuse::refuse_used;
use cenote_host::layout::parse_layout_in;
use cenote_props::WrongUse;
use cenote_spa::{NewDevice, TopKind, stands_for};
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::tree::VdevStatus;

use super::remove::{Device, Named};
use crate::Session;
use crate::error::{Result, ServerError, refused};

/// A device that is to be put next to one of a pool, or in its place.
#[derive(Clone, Debug, Default)]
pub struct Attaching {
    /// The pool.
    pub pool: String,
    /// The device that is there.
    pub old: String,
    /// The new one; none if it is at the same path.
    pub new: Option<String>,
    /// The old one goes when the new one has everything.
    pub is_replacing: bool,
    /// It is rebuilt in the order of the vdev, without checksums.
    pub is_sequential: bool,
    /// The folder in which the command was given.
    pub folder: PathBuf,
    /// Settings: `ashift=N`.
    pub properties: Vec<String>,
    /// A device of another pool may be used.
    pub force: bool,
    /// Wait until the new one has everything.
    pub waits: bool,
}

impl Attaching {
    fn verb(&self) -> &'static str {
        if self.is_replacing { "replace" } else { "attach" }
    }

    fn refused(&self, new: &str, what: &str) -> ServerError {
        let old = &self.old;
        refused(match self.is_replacing {
            true => format!("cannot replace {old} with {new}: {what}"),
            false => format!("cannot attach {new} to {old}: {what}"),
        })
    }

    fn ashift(&self) -> Result<Option<u32>> {
        let mut ashift = None;
        for setting in &self.properties {
            match setting.split_once('=') {
                Some(("ashift", value)) => ashift = parse_ashift(value)?,
                Some((name, _)) => {
                    return Err(refused(format!("property '{name}' cannot be set while a device is attached")));
                }
                None => return Err(WrongUse::new("missing value in -o PROPERTY=VALUE").into()),
            }
        }
        Ok(ashift)
    }

    /// Carries it out.
    ///
    /// # Errors
    /// The words name no devices, the new one is in use, or cannot have that place, or cannot be written.
    pub async fn carry_out(self, session: &Session) -> Result<()> {
        let ashift = self.ashift()?;
        let word = self.new.clone().unwrap_or_else(|| self.old.clone());
        let named = Named::read(session, &self.pool).await?;
        let Some(old) = named.find(self.verb(), &self.pool, &self.folder, &self.old)? else {
            return Err(self.refused(&word, "no such device in pool"));
        };
        let old = NamedDevice::from(old);
        // It may have been deleted or emptied while it is open, and another one made at its path.
        if let Some(pool) = session.served() {
            pool.examine_device(old.guid).await?;
        }
        let view = session.open_pool(&self.pool).await?;
        let (status, spares, leaves) = (view.tree().status(), view.spares().await?, view.vdevs().clone());
        view.close().await;
        drop(view);
        let same = |path: &str| {
            let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
            real(Path::new(path)) == real(&self.folder.join(&word)) || path == word
        };
        let spare = spares.iter().find(|spare| {
            word == spare.guid.0.to_string()
                || spare.path.as_deref().is_some_and(|path| same(path) || path.ends_with(&format!("/{word}")))
        });
        // Nothing is left to do where a server has taken it by itself.
        if spare.is_some_and(|spare| self.is_replacing && stands_for(&leaves, spare.guid, old.guid)) {
            if let Some(pool) = session.served().filter(|_| self.waits) {
                wait(pool, &[Activity::Replace]).await?;
            }
            return Ok(());
        }
        let in_place = self.new.is_none();
        let is_used = |guid| is_readable(&status, guid);
        if in_place && is_used(old.guid) {
            return Err(self.refused(&word, &format!("{word} is busy, or device removal is in progress")));
        }
        // A short name stands for a device in `/dev` too.
        let meant = parse_layout_in(&self.folder, std::slice::from_ref(&word)).ok();
        let meant = meant.and_then(|layout| layout.paths().next()?.canonicalize().ok());
        let is_it = |path: &str| same(path) || (meant.is_some() && Path::new(path).canonicalize().ok() == meant);
        let is_own = !in_place
            && leaves.leaves().iter().any(|leaf| leaf.path.as_deref().is_some_and(is_it) && is_used(leaf.guid));
        if is_own {
            return Err(self.refused(&word, &format!("{word} is busy: it is part of active pool '{}'", self.pool)));
        }
        let mut paths = Vec::new();
        let new = match spare.filter(|_| self.is_replacing) {
            Some(spare) => NewDevice::Spare(spare.guid),
            None => {
                // A device that is replaced in place is named as the pool names it.
                let at = match in_place {
                    true => leaves
                        .leaves()
                        .iter()
                        .find(|leaf| leaf.guid == old.guid)
                        .and_then(|leaf| leaf.path.as_deref().map(str::to_owned)),
                    false => None,
                };
                let layout = parse_layout_in(&self.folder, &[at.unwrap_or_else(|| word.clone())])?;
                if layout.tops.len() != 1 || layout.tops[0].kind != TopKind::Single {
                    return Err(self.refused(&word, "new device must be a single disk"));
                }
                refuse_used(session.handle(), &layout, self.force).await?;
                paths = layout.paths().map(Path::to_owned).collect();
                // It is written in the sectors of the vdev that it becomes a part of.
                let is_of =
                    |top: &&VdevConfig| top.guid == old.guid || top.leaves().iter().any(|leaf| leaf.guid == old.guid);
                let top = leaves.children.iter().find(is_of);
                let unit = ashift.or(top.map(|top| top.ashift));
                let (mut tops, _) = layout.open(session.handle(), &Path::to_owned, unit).await?;
                let disk = tops.pop().and_then(|mut top| top.disks.pop());
                NewDevice::Disk(disk.ok_or_else(|| self.refused(&word, "new device must be a single disk"))?)
            }
        };
        let is_raidz = |top: &VdevConfig| top.guid == old.guid && matches!(top.kind, VdevKind::Raidz { .. });
        let is_expansion = !self.is_replacing && leaves.children.iter().any(is_raidz);
        let mut words: Vec<String> = self.force.then(|| "-f".to_owned()).into_iter().collect();
        words.extend(self.is_sequential.then(|| "-s".to_owned()));
        words.extend(self.waits.then(|| "-w".to_owned()));
        words.extend(self.properties.iter().flat_map(|setting| ["-o".to_owned(), setting.clone()]));
        let Self { is_replacing, is_sequential, waits, .. } = self;
        let pool = self.pool.clone();
        let request = AttachRequest {
            pool,
            old,
            new_word: word,
            new,
            is_replacing,
            is_expansion,
            is_sequential,
            ashift,
            words,
            waits,
        };
        session.carry_out(&request).await?;
        session.devices_added(&paths);
        CacheFile::of_user()?.update(|pools| {
            if let Some(entry) = pools.get_mut(&self.pool) {
                let new: Vec<PathBuf> = paths.iter().filter(|path| !entry.paths.contains(path)).cloned().collect();
                entry.paths.extend(new);
            }
            Ok::<_, ServerError>(())
        })?;
        if session.served().is_none() && !self.waits {
            let (pool, what) = (
                &self.pool,
                if is_expansion { "the expansion has only begun" } else { "the new device lacks the data yet" },
            );
            session
                .advise(format!("{what}: 'zpool resilver {pool}' goes on with it, or a mount ('cenote mount --rw')"));
        }
        // A command that opened the pool has done the work by now.
        if let Some(pool) = session.served().filter(|_| self.waits) {
            let activity = match (self.is_replacing, is_expansion) {
                (true, _) => Activity::Replace,
                (false, true) => Activity::RaidzExpand,
                (false, false) => Activity::Resilver,
            };
            wait(pool, &[activity]).await?;
        }
        Ok(())
    }
}

/// Whether a device of the pool is in use.
fn is_readable(status: &VdevStatus, guid: cenote_format::ids::Guid) -> bool {
    (status.guid == guid && status.state.is_readable()) || status.children.iter().any(|child| is_readable(child, guid))
}

/// Takes a device out of a pool: a leg of a mirror, or a side of a replacement or of a spare in use.
///
/// # Errors
/// It is no such device, or others lack what it has.
pub async fn detach_device(session: &Session, pool: &str, device: Device) -> Result<()> {
    let paths = device.paths().to_vec();
    session.carry_out(&DetachRequest { pool: pool.to_owned(), device: device.into() }).await?;
    let view = session.open_pool(pool).await?;
    let spares = view.spares().await?;
    view.close().await;
    drop(view);
    session.let_go_of_views();
    // A spare is still the pool's.
    let is_spare =
        |path: &PathBuf| spares.iter().any(|spare| spare.path.as_deref().is_some_and(|at| Path::new(at) == path));
    let gone: Vec<PathBuf> = paths.into_iter().filter(|path| !is_spare(path)).collect();
    session.devices_removed(&gone);
    CacheFile::of_user()?.update(|pools| {
        if let Some(entry) = pools.get_mut(pool) {
            entry.paths.retain(|path| !gone.contains(path));
        }
        Ok::<_, ServerError>(())
    })
}
