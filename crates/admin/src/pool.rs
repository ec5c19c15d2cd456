//! Verbs of a pool itself: its properties, its features, and its log of errors.

use cenote_dsl::name::pool_of;
use cenote_spa::Pool;
use cenote_spa::features::Feature;
use cenote_taskq::boxed;

use crate::error::{AdminError, Reason, Verb};
use crate::request::{Line, Request, Users};
use crate::values::{pool_setting, stored_of_pool};

/// A property of a pool to be set, or a feature to be enabled: `zpool set`.
#[derive(Clone, Debug, Default)]
pub struct SetPoolRequest {
    /// `PROPERTY=VALUE`, or `feature@NAME=enabled`.
    pub setting: String,
    /// The pool.
    pub pool: String,
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
            None => pool_setting(&self.setting).map(drop).map_err(|error| self.refused(Reason::Setting(error))),
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

/// Blocks of a pool's log of errors, to be read again: `zpool clear`.
#[derive(Clone, Debug, Default)]
pub struct ClearRequest(pub String);

impl Request for ClearRequest {
    type Made = ();

    fn subject(&self) -> &str {
        pool_of(&self.0)
    }

    #[boxed]
    async fn run(&self, pool: &Pool, _: &dyn Users) -> Result<(), AdminError> {
        Ok(pool.check_errors_again().await.map(drop)?)
    }

    fn history_line(&self) -> Option<Line> {
        Some(Line::new("zpool clear").word(&self.0))
    }
}
