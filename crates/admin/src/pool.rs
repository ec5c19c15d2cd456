//! Verbs of a pool itself: its properties, its features, and its log of errors.

use cenote_dsl::name::pool_of;
use cenote_format::ids::Guid;
use cenote_spa::features::Feature;
use cenote_spa::{ImportOptions, Pool, PropertyValue, SpaError};
use cenote_taskq::boxed;

use crate::compatibility::Lists;
use crate::error::{AdminError, Reason, Verb};
use crate::request::{Line, Request, Users};
use crate::values::{pool_setting, stored_of_pool, vdev_setting};

/// A property of a pool to be set, or a feature to be enabled: `zpool set`.
#[derive(Clone, Debug, Default)]
pub struct SetPoolRequest {
    /// `PROPERTY=VALUE`, or `feature@NAME=enabled`.
    pub setting: String,
    /// The pool.
    pub pool: String,
    /// Reads the lists that a value of `compatibility` names.
    pub lists: Lists,
}

impl SetPoolRequest {
    /// The feature that it enables, and the word for its new state.
    fn feature(&self) -> Option<(&str, &str)> {
        self.setting.strip_prefix("feature@")?.split_once('=')
    }

    fn refused(&self, reason: Reason) -> AdminError {
        AdminError::refused(Verb::SetProperty, &self.pool, reason)
    }
}

impl Request for SetPoolRequest {
    type Made = ();

    fn subject(&self) -> &str {
        &self.pool
    }

    fn check(&self) -> Result<(), AdminError> {
        match self.feature() {
            Some((_, "enabled")) => Ok(()),
            Some((feature, _)) => {
                let why = format!("property 'feature@{feature}' can only be set to 'enabled'");
                Err(self.refused(Reason::Said(why)))
            }
            None => {
                let checked = pool_setting(&self.setting).map_err(|error| self.refused(Reason::Setting(error)))?;
                match checked {
                    (name, Some(PropertyValue::Text(lists))) if name == "compatibility" => self.lists.check(&lists),
                    _ => Ok(()),
                }
            }
        }
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<(), AdminError> {
        self.check()?;
        if let Some((feature, _)) = self.feature() {
            pool.enable_features(&[feature]).await?;
            return Ok(());
        }
        let (name, value) = pool_setting(&self.setting)?;
        pool.set_pool_property(&name, value.as_ref()).await?;
        stored_of_pool(&name, value.as_ref()).iter().for_each(|note| users.tell(note));
        Ok(())
    }

    fn history_line(&self) -> Option<Line> {
        Some(Line::new("zpool set").words([&self.setting, &self.pool]))
    }

    fn changes_config(&self) -> bool {
        true
    }
}

/// A property of a vdev to be set: `zpool set PROPERTY=VALUE POOL VDEV`.
#[derive(Clone, Debug, Default)]
pub struct SetVdevRequest {
    /// `PROPERTY=VALUE`.
    pub setting: String,
    /// The pool.
    pub pool: String,
    /// The vdev: a path, a device's file name, a name as `mirror-0` or `root-0`, or a guid.
    pub vdev: String,
}

impl SetVdevRequest {
    fn refused(&self, why: impl Into<String>) -> AdminError {
        AdminError::refused(Verb::SetProperty, &self.vdev, Reason::Said(why.into()))
    }

    /// The vdev of a pool that it names.
    async fn vdev_of(&self, pool: &Pool) -> Result<Guid, AdminError> {
        let (mut found, mut shown) = (Vec::new(), Vec::new());
        let view = pool.view(&ImportOptions::default()).await?;
        let root = view.vdevs();
        root.walk(&mut |vdev| {
            let is_at = |path: &str| path == self.vdev || path.rsplit('/').next() == Some(self.vdev.as_str());
            // The path at which it was found, as it is shown: the recorded one may be another.
            let leaf = view.found().leaves.get(&vdev.guid);
            if leaf.is_some_and(|leaf| is_at(leaf.disk.path().as_ref())) {
                shown.push(vdev.guid);
            }
            let is_it = match vdev.guid == root.guid {
                true => self.vdev == "root-0",
                false => vdev.display_name() == self.vdev || vdev.path.as_deref().is_some_and(is_at),
            };
            if is_it || self.vdev.parse() == Ok(vdev.guid.0) {
                found.push(vdev.guid);
            }
        });
        match if shown.is_empty() { &found[..] } else { &shown[..] } {
            [guid] => Ok(*guid),
            [] => Err(self.refused(format!("no such vdev in pool '{}'", self.pool))),
            _ => Err(self.refused("several vdevs have this name: use a guid")),
        }
    }
}

impl Request for SetVdevRequest {
    type Made = ();

    fn subject(&self) -> &str {
        &self.pool
    }

    fn check(&self) -> Result<(), AdminError> {
        vdev_setting(&self.setting)
            .map(drop)
            .map_err(|error| AdminError::refused(Verb::SetProperty, &self.vdev, Reason::Setting(error)))
    }

    #[boxed]
    async fn run(&self, pool: &Pool, _: &dyn Users) -> Result<(), AdminError> {
        self.check()?;
        let (name, value) = vdev_setting(&self.setting)?;
        let vdev = self.vdev_of(pool).await?;
        match pool.set_vdev_property(vdev, &name, value.as_ref()).await {
            Err(SpaError::Refused { what, .. }) => Err(self.refused(what)),
            set => Ok(set?),
        }
    }

    fn history_line(&self) -> Option<Line> {
        Some(Line::new("zpool set").words([&self.setting, &self.pool, &self.vdev]))
    }
}

/// Features to be enabled: `zpool upgrade`.
#[derive(Clone, Debug, Default)]
pub struct UpgradeRequest {
    /// The pool.
    pub pool: String,
    /// The features ([`lacking_features`](crate::lacking_features)).
    pub features: Vec<&'static str>,
}

impl Request for UpgradeRequest {
    /// Those that it did not have.
    type Made = Vec<&'static Feature>;

    fn subject(&self) -> &str {
        &self.pool
    }

    #[boxed]
    async fn run(&self, pool: &Pool, _: &dyn Users) -> Result<Self::Made, AdminError> {
        Ok(pool.enable_features(&self.features).await?)
    }

    fn history_line(&self) -> Option<Line> {
        Some(Line::new("zpool upgrade").word(&self.pool))
    }
}

/// Devices of a pool that failed, to be used again, and blocks of its log of errors, to be read again: `zpool clear`.
#[derive(Clone, Debug, Default)]
pub struct ClearRequest(pub String);

impl Request for ClearRequest {
    type Made = ();

    fn subject(&self) -> &str {
        pool_of(&self.0)
    }

    #[boxed]
    async fn run(&self, pool: &Pool, _: &dyn Users) -> Result<(), AdminError> {
        pool.pardon(None).await?;
        pool.use_faulted_again().await?;
        Ok(pool.check_errors_again().await.map(drop)?)
    }

    fn history_line(&self) -> Option<Line> {
        Some(Line::new("zpool clear").word(&self.0))
    }
}
