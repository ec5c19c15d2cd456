//! A pool of mirrors that is split into two: `zpool split`.

use cenote_format::ids::Guid;
use cenote_spa::{ImportOptions, Pool, SpaError, SplitOptions};
use cenote_taskq::boxed;

use crate::device::NamedDevice;
use crate::error::AdminError;
use crate::request::{Line, Request, Users};
use crate::values::pool_setting;

/// A pool of mirrors, of which one leg each is to be a pool of its own.
#[derive(Clone, Debug, Default)]
pub struct SplitRequest {
    /// The pool.
    pub pool: String,
    /// The new pool's name.
    pub new_name: String,
    /// Legs that it gets; the last one of each mirror that none of them is of.
    pub devices: Vec<NamedDevice>,
    /// Properties of the new pool, each `PROPERTY=VALUE`.
    pub settings: Vec<String>,
    /// The alternate root that it is imported with afterwards, for the history.
    pub altroot: Option<String>,
    /// Limits with which the new pool is opened to be written.
    pub import: ImportOptions,
}

impl Request for SplitRequest {
    type Made = Vec<Guid>;

    fn subject(&self) -> &str {
        &self.pool
    }

    fn check(&self) -> Result<(), AdminError> {
        let said = |what: String| AdminError::Said(format!("Unable to split {}: {what}", self.pool));
        cenote_dsl::name::check_new_pool(&self.new_name).map_err(|reason| said(reason.to_string()))?;
        self.settings.iter().try_for_each(|setting| match pool_setting(setting) {
            Ok(_) => Ok(()),
            Err(error) => Err(said(error.to_string())),
        })
    }

    #[boxed]
    async fn run(&self, pool: &Pool, _: &dyn Users) -> Result<Vec<Guid>, AdminError> {
        self.check()?;
        let mut properties = Vec::new();
        for setting in &self.settings {
            let (name, value) = pool_setting(setting)?;
            properties.extend(value.map(|value| (name, value)));
        }
        let options = SplitOptions {
            name: self.new_name.clone(),
            legs: self.devices.iter().map(|device| device.guid).collect(),
            properties,
            import: self.import.clone(),
            seed: None,
        };
        pool.split(options).await.map_err(|error| match error {
            SpaError::Refused { what, .. } => AdminError::Said(format!("Unable to split {}: {what}", self.pool)),
            error => error.into(),
        })
    }

    fn history_line(&self) -> Option<Line> {
        let line = Line::new("zpool split").option("-R", self.altroot.iter()).option("-o", &self.settings);
        let line = line.words([&self.pool, &self.new_name]);
        Some(line.words(self.devices.iter().map(|device| &device.word)))
    }

    fn is_long(&self) -> bool {
        true
    }

    fn changes_config(&self) -> bool {
        true
    }
}
