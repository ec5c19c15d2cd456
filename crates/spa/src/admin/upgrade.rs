//! Enabling features of a pool that exists.
//!
//! A feature that is enabled changes nothing on disk until it is used, with two exceptions: those that are in use from then on,
//! since what is written next may depend on them, and error logs, which one of them wants in another form.

use cenote_dmu::{ObjsetPolicy, Zap};
use cenote_format::dsl::pool_directory;
use cenote_format::enums::Compress;
use cenote_format::ids::ObjectId;
use cenote_taskq::boxed;

use crate::features::{FEATURES, Feature, by_name, with_needs};
use crate::sync::Syncer;
use crate::sync::features::obeying;
use crate::{Refusal, SpaError};

impl Syncer {
    /// Features that OpenZFS 2.3 has and the pool has not.
    #[must_use]
    pub fn missing_features(&self) -> Vec<&'static Feature> {
        FEATURES.iter().filter(|feature| !feature.is_newer() && !self.mos.features.has(feature.name)).collect()
    }

    /// Enables features, and those that they need, in the open txg. Returns those that were not enabled before.
    ///
    /// # Errors
    /// There is no such feature; what it wants changed cannot be changed yet; the MOS cannot be changed.
    #[boxed]
    pub async fn enable_features(&mut self, names: &[&str]) -> Result<Vec<&'static Feature>, SpaError> {
        let mut wanted = Vec::new();
        for name in names {
            let unknown = || SpaError::refused(Refusal::Invalid, format!("feature '{name}' is not known"));
            wanted.push(by_name(name).ok_or_else(unknown)?);
        }
        let mut wanted = with_needs(&wanted);
        wanted.retain(|feature| !self.mos.features.has(feature.name));
        let mut directory = Zap::open(self.mos.directory.clone()).await?;
        if wanted.iter().any(|feature| feature.name == "head_errlog") {
            self.check_error_logs(&mut directory).await?;
        }
        // In OpenZFS's order: each notes the txg of its enabling if that is noted by then, so those before `enabled_txg` do not.
        for feature in &wanted {
            self.mos.features.enable(&self.mos.objset, &mut directory, feature, self.txg).await?;
        }
        debug_assert!(
            with_needs(&wanted).iter().all(|feature| self.mos.features.has(feature.name)),
            "what a feature needs is enabled with it"
        );
        if !wanted.is_empty() {
            self.obey_features().await?;
        }
        // Labels name some of them.
        self.devices.config_changed |= !wanted.is_empty();
        for feature in &wanted {
            self.record_event("set", &format!("feature@{}=enabled", feature.name), None).await?;
        }
        Ok(wanted)
    }

    /// Has the pool's own blocks and those of open datasets written as the features have it that are enabled now.
    async fn obey_features(&mut self) -> Result<(), SpaError> {
        let view = self.dsl().clone();
        let heads = self.mos.dsl.heads();
        let names = view.head_names(&heads.iter().map(|head| head.dataset).collect::<Vec<_>>()).await;
        self.mos.objset.set_policy(obeying(|name| self.mos.features.has(name), self.mos.objset.policy()));
        for head in heads {
            let (before, mut policy) = (head.objset.policy(), self.mos.objset.policy());
            (policy.compress, policy.compress_level) = (before.compress, before.compress_level);
            // `on` has another meaning now. One that has no name by now is written no more.
            let dir = match names.get(&head.dataset) {
                Some(name) => view.dir(name).await?,
                None => continue,
            };
            let set = view.property(&dir, "compression", true).await?;
            let number = set.and_then(|set| set.value.number()).unwrap_or(u64::from(Compress::On.number()));
            self.apply(&mut policy, "compression", number)?;
            head.objset.set_policy(ObjsetPolicy {
                compress: policy.compress,
                compress_level: policy.compress_level,
                metadata_compress: policy.metadata_compress,
                may_embed: policy.may_embed,
                holes_have_births: policy.holes_have_births,
                ..before
            });
        }
        Ok(())
    }

    /// Refuses to change the form of error logs that have something.
    async fn check_error_logs(&self, directory: &mut Zap) -> Result<(), SpaError> {
        for name in [pool_directory::ERRLOG_LAST, pool_directory::ERRLOG_SCRUB] {
            let found = directory.lookup(name.as_bytes()).await?;
            let Some(object) = found.and_then(|value| value.as_u64()).filter(|object| *object != 0) else { continue };
            let object = self.mos.objset.object(ObjectId(object)).await?;
            let log = Zap::open(object).await?;
            let is_empty = log.entries(1).await.is_ok_and(|entries| entries.is_empty());
            if !is_empty {
                let what =
                    "enabling head_errlog in a pool with logged errors: run 'zpool clear', and upgrade with OpenZFS if some stay".to_owned();
                return Err(SpaError::unsupported(what));
            }
        }
        Ok(())
    }
}
