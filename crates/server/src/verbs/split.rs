//! `zpool split`: devices that leave a pool for a new one, and the records of both.

use std::path::{Path, PathBuf};

use cenote_admin::SplitRequest;
use cenote_format::dsl::pool_directory;
use cenote_host::layout::{Layout, Top};
use cenote_host::{CacheFile, CacheSetting};
use cenote_spa::{ImportOptions, TopKind, find, legs_of};
use cenote_vdev::config::VdevConfig;

use super::remove::find_devices;
use crate::Session;
use crate::error::{Result, ServerError, refused};
use crate::importing::ImportRequest;

/// A pool of mirrors that is to be split.
#[derive(Clone, Debug, Default)]
pub struct Splitting {
    /// The pool.
    pub pool: String,
    /// The new pool's name.
    pub new_name: String,
    /// Legs that the new pool gets.
    pub devices: Vec<String>,
    /// The folder in which the command was given.
    pub folder: PathBuf,
    /// Properties of the new pool, each `PROPERTY=VALUE`.
    pub settings: Vec<String>,
    /// Import the new pool, with mount points below this folder.
    pub altroot: Option<String>,
    /// Load the keys of the new pool, which a pool without encrypted datasets has none of.
    pub loads_keys: bool,
}

/// The feature that pools with encrypted datasets count.
const ENCRYPTION: &str = "com.datto:encryption";

impl Splitting {
    fn refused(&self, what: impl std::fmt::Display) -> ServerError {
        refused(format!("Unable to split {}: {what}", self.pool))
    }

    /// The request, and the legs that it is about.
    async fn checked(&self, session: &Session) -> Result<(SplitRequest, Vec<Option<VdevConfig>>)> {
        let (devices, is_all) = find_devices(session, "split", &self.pool, &self.folder, &self.devices).await?;
        if !is_all {
            return Err(self
                .refused("Device list must include at most one disk from each mirror, and devices of the pool alone"));
        }
        if CacheFile::of_user()?.pools()?.contains_key(&self.new_name) {
            return Err(self.refused("pool already exists"));
        }
        if let Some(root) = self.altroot.as_ref().filter(|root| !root.starts_with('/')) {
            return Err(self.refused(format!("bad alternate root '{root}'")));
        }
        let ImportOptions { cache_bytes, tunables, .. } = session.import_options();
        let request = SplitRequest {
            pool: self.pool.clone(),
            new_name: self.new_name.clone(),
            devices: devices.into_iter().map(Into::into).collect(),
            settings: self.settings.clone(),
            altroot: self.altroot.clone(),
            import: ImportOptions { cache_bytes, tunables, ..ImportOptions::default() },
        };
        let view = session.open_pool(&self.pool).await?;
        let wanted: Vec<_> = request.devices.iter().map(|device| device.guid).collect();
        let legs =
            legs_of(view.vdevs(), &wanted).map(|legs| legs.into_iter().map(Option::<&VdevConfig>::cloned).collect());
        let counts = view.feature_counts(pool_directory::FEATURES_FOR_READ).await?;
        view.close().await;
        drop(view);
        session.let_go_of_views();
        if self.loads_keys && counts.get(ENCRYPTION).is_some_and(|count| *count > 0) {
            let what = "no process keeps a key after this command, as OpenZFS's kernel module does: split without -l, and give each command \
                        that needs a key '--key DATASET=FILE'";
            return Err(self.refused(what));
        }
        Ok((request, legs.map_err(|error| self.refused(error))?))
    }

    /// The vdevs that the new pool would have, as `zpool split -n` shows them. `name` gives the name of a device.
    ///
    /// # Errors
    /// The pool cannot be split so, or not be read.
    pub async fn describe(&self, session: &Session, name: &dyn Fn(&VdevConfig) -> String) -> Result<String> {
        let view = session.open_pool(&self.pool).await?;
        let classes: Vec<_> = view.vdevs().children.iter().map(|top| top.class).collect();
        view.close().await;
        drop(view);
        let (_, legs) = self.checked(session).await?;
        let mut layout = Layout::default();
        for (class, leg) in classes.into_iter().zip(&legs) {
            let Some(leg) = leg else { continue };
            layout.tops.push(Top { kind: TopKind::Single, class, paths: vec![PathBuf::from(name(leg))] });
        }
        Ok(layout.describe())
    }

    /// Carries it out, and records the pools' devices.
    ///
    /// # Errors
    /// The pool cannot be split so; or the new one cannot be imported, after it was made.
    pub async fn carry_out(self, session: &Session) -> Result<()> {
        let (request, legs) = self.checked(session).await?;
        session.carry_out(&request).await?;
        session.let_go_of_views();
        let paths = legs.iter().flatten().filter_map(|leg| leg.path.as_deref());
        let paths: Vec<PathBuf> = paths.map(|path| Path::new(path).to_owned()).collect();
        session.devices_removed(&paths);
        CacheFile::of_user()?.update(|pools| {
            if let Some(entry) = pools.get_mut(&self.pool) {
                entry.paths.retain(|path| !paths.contains(path));
            }
            Ok::<_, ServerError>(())
        })?;
        let Some(altroot) = self.altroot else { return Ok(()) };
        let (found, _) = find(session.handle(), &paths).await;
        let found = found.into_iter().find(|pool| pool.name() == self.new_name);
        let found = found.ok_or_else(|| refused(format!("'{}' was split off, and is not found", self.new_name)))?;
        let import = ImportRequest {
            cachefile: CacheSetting::of_import(None, true)?,
            altroot: Some(altroot),
            ..ImportRequest::default()
        };
        let pool = session.import_noted(found, &import).await?;
        pool.close().await;
        Ok(())
    }
}
