//! `zpool add`.

use std::path::{Path, PathBuf};

use cenote_admin::Line;
use cenote_admin::values::parse_ashift;
use cenote_host::inuse::refuse_used;
use cenote_host::layout::{Layout, Top, parse_layout_in};
use cenote_host::{CacheFile, HostError, refuse_mismatch};
use cenote_props::WrongUse;
use cenote_spa::{AddOptions, SpaError, TopKind};
use cenote_taskq::Class;
use cenote_vdev::config::{VdevConfig, VdevKind};

use crate::error::{Result, ServerError, refused};
use crate::writing::Writing;
use crate::{ImageFiles, Session};

/// Vdevs, spares and cache devices to add to a pool.
#[derive(Clone, Debug, Default)]
pub struct AddRequest {
    /// The pool.
    pub pool: String,
    /// The vdevs, in the syntax of `zpool create`.
    pub vdevs: Vec<String>,
    /// The folder in which the command was given.
    pub folder: PathBuf,
    /// Settings of the new vdevs: `ashift=N`.
    pub properties: Vec<String>,
    /// The size of missing files, which are created, in bytes.
    pub size_bytes: Option<u64>,
    /// Devices of other pools may be used.
    pub allow_in_use: bool,
    /// Vdevs may be less redundant than the rest.
    pub allow_replication_mismatch: bool,
    /// Vdevs may have another ashift than the rest.
    pub allow_ashift_mismatch: bool,
}

/// The configuration of the pool before.
struct Before {
    vdevs: VdevConfig,
    caches: Vec<VdevConfig>,
    spares: Vec<VdevConfig>,
    ashift: Option<u32>,
}

/// A request to which nothing in the present pool is an obstacle.
struct Checked {
    layout: Layout,
    before: Before,
    ashift: Option<u32>,
}

impl AddRequest {
    /// The vdevs that the pool would have, as `zpool add -n` shows them. `name` gives the name of an existing device.
    pub async fn describe(&self, session: &Session, name: &dyn Fn(&VdevConfig) -> String) -> Result<String> {
        let Checked { layout, before, .. } = self.checked(session).await?;
        Ok(together(&before, layout, name).describe())
    }

    /// Adds them, and records them wherever the pool's devices are recorded.
    ///
    /// # Errors
    /// The words name no vdevs, a device is in use, the vdevs differ from the rest and that is not allowed, or they cannot be written.
    pub async fn add(self, session: &Session) -> Result<()> {
        let Checked { layout, before, ashift } = self.checked(session).await?;
        let made = ImageFiles::here(&layout, self.size_bytes)?;
        let ashift = ashift.or(before.ashift);
        let (tops, auxiliaries) = layout.open(session.handle(), &Path::to_owned, ashift).await?;
        let allow_other_ashift = self.allow_ashift_mismatch;
        let options = AddOptions { tops, auxiliaries, ashift, allow_other_ashift, seed: None };
        let paths = layout.paths().map(Path::to_owned).collect();
        let adding = Box::pin(add(session.clone(), self, options, made, paths));
        match session.served() {
            // A suspended pool answers its client at once, and adds when its devices are back. The task continues even if this future is
            // dropped.
            Some(_) => session.handle().spawn(Class::Issue, adding).await?,
            None => adding.await,
        }
    }

    /// The command for the history.
    fn line(&self) -> Line {
        let flags = [
            (self.allow_in_use, "--allow-in-use"),
            (self.allow_replication_mismatch, "--allow-replication-mismatch"),
            (self.allow_ashift_mismatch, "--allow-ashift-mismatch"),
        ];
        let line = Line::new("zpool add");
        let line = match flags.iter().all(|(is_set, _)| *is_set) {
            true => line.word("-f"),
            false => flags.iter().fold(line, |line, (is_set, flag)| line.flag(*is_set, flag)),
        };
        line.option("-o", &self.properties).word(&self.pool).words(&self.vdevs)
    }

    async fn checked(&self, session: &Session) -> Result<Checked> {
        let layout = parse_layout_in(&self.folder, &self.vdevs)?;
        let mut ashift = None;
        for setting in &self.properties {
            match setting.split_once('=') {
                Some(("ashift", value)) => ashift = parse_ashift(value)?,
                Some((name, _)) => {
                    return Err(refused(format!("property '{name}' cannot be set while vdevs are added")));
                }
                None => return Err(WrongUse::new("missing value in -o PROPERTY=VALUE").into()),
            }
        }
        let before = before(session, &self.pool).await?;
        refuse_own(&before, &layout)?;
        refuse_used(session.handle(), &layout, self.allow_in_use).await?;
        if !self.allow_replication_mismatch {
            refuse_mismatch(Some(&before.vdevs), &layout)?;
        }
        Ok(Checked { layout, before, ashift })
    }
}

async fn add(
    session: Session,
    request: AddRequest,
    options: AddOptions,
    made: ImageFiles,
    paths: Vec<PathBuf>,
) -> Result<()> {
    let work = async |writing: &mut Writing| {
        writing.record(&request.line());
        let added = writing.pool().add_vdevs(options).await;
        // Refused vdevs are in no pool. After any other failure the pool on disk may name the files.
        if !matches!(added, Err(SpaError::Refused { .. })) {
            made.keep()?;
        }
        added.map_err(|error| refused(format!("cannot add to '{}': {error}", request.pool)))?;
        Ok::<_, ServerError>(writing.pool().guid())
    };
    let guid = Writing::run(&session, &request.pool, work).await?;
    session.devices_added(&paths);
    CacheFile::of_user()?.update(|pools| {
        if let Some(entry) = pools.get_mut(&request.pool) {
            let new = paths.iter().filter(|path| !entry.paths.contains(path)).cloned().collect::<Vec<_>>();
            entry.paths.extend(new);
        }
        Ok::<_, ServerError>(())
    })?;
    session.keep_config(guid).await
}

async fn before(session: &Session, name: &str) -> Result<Before> {
    let pool = session.open_pool(name).await?;
    let ashift = pool.properties().await?.get("ashift").and_then(cenote_dsl::property::Value::number);
    let ashift = ashift.and_then(|ashift| u32::try_from(ashift).ok()).filter(|ashift| *ashift != 0);
    let (caches, spares) = (pool.cache_devices().await?, pool.spares().await?);
    let vdevs = pool.vdevs().clone();
    // Its devices are opened for writing next, unless a server has them.
    pool.close().await;
    Ok(Before { vdevs, caches, spares, ashift })
}

/// Refuses devices that the pool already has, which cannot be overridden.
fn refuse_own(before: &Before, layout: &Layout) -> Result<(), HostError> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let leaves = before.vdevs.leaves().into_iter().chain(&before.caches).chain(&before.spares);
    let own: Vec<PathBuf> = leaves.filter_map(|leaf| Some(real(Path::new(leaf.path.as_deref()?)))).collect();
    match layout.paths().find(|path| own.contains(&real(path))) {
        Some(path) => {
            let what = format!("invalid vdev specification\n{} is part of this pool", path.display());
            Err(HostError::InUse(what))
        }
        None => Ok(()),
    }
}

/// The layout that the pool would have.
fn together(before: &Before, new: Layout, name: &dyn Fn(&VdevConfig) -> String) -> Layout {
    let path = |leaf: &VdevConfig| PathBuf::from(name(leaf));
    let mut all = Layout::default();
    for top in &before.vdevs.children {
        let kind = match top.kind {
            VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect(_) => continue,
            VdevKind::Raidz { parity, .. } => TopKind::Raidz { parity },
            VdevKind::Draid { parity, data, spares, .. } => TopKind::Draid { parity, data: Some(data), spares },
            VdevKind::Disk | VdevKind::File => TopKind::Single,
            _ => TopKind::Mirror,
        };
        let paths = top.leaves().into_iter().map(path).collect();
        all.tops.push(Top { kind, class: top.class, paths });
    }
    all.caches = before.caches.iter().map(path).collect();
    all.spares = before.spares.iter().map(path).collect();
    all.tops.extend(new.tops);
    all.caches.extend(new.caches);
    all.spares.extend(new.spares);
    all
}
