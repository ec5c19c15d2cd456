//! A txg's sync: the theory is in the module above.

use cenote_dmu::write::SpaceDelta;
use cenote_dsl::write::UsedBy;
use cenote_format::ids::Txg;
use cenote_format::uberblock::Uberblock;
use cenote_vdev::commit::commit;

use super::PoolWriter;
use super::config::VERSION;
use crate::SpaError;

/// Passes at most. Four are usual; that many mean that they do not converge.
const PASSES_MAX: u32 = 64;

impl PoolWriter {
    fn dmu_error(&self, error: cenote_dmu::DmuError) -> SpaError {
        SpaError::Dmu { pool: self.name.clone(), error }
    }

    fn dsl_error(&self, error: cenote_dsl::DslError) -> SpaError {
        self.fail(error)
    }

    /// Makes all changes of the open txg durable, and opens the next. Nobody changes anything meanwhile.
    ///
    /// # Errors
    /// No space, or devices failed: the pool on disk is as of the txg before, whole. This value cannot be used further.
    pub async fn sync(&mut self) -> Result<Txg, SpaError> {
        let txg = self.txg;
        self.sync_datasets(txg).await?;
        if self.config_changed {
            self.write_config(txg).await?;
        }
        self.features.flush(txg).await.map_err(|error| self.dmu_error(error))?;
        let mut pass = 0;
        loop {
            pass += 1;
            if pass > PASSES_MAX {
                return Err(self.fail(format!("txg {txg} does not converge")));
            }
            self.sync_mos(txg, pass).await?;
            self.sync_space(txg, pass).await?;
            self.features.flush(txg).await.map_err(|error| self.dmu_error(error))?;
            if !self.mos.is_dirty(txg) && self.mos_delta.is_zero() {
                break;
            }
        }
        self.passes = pass;
        self.close_space(txg).await?;
        if self.mos.is_dirty(txg) {
            return Err(self.fail(format!("txg {txg} changed after its last pass")));
        }
        self.commit(txg).await?;
        self.space.sync_done(txg).map_err(|error| self.fail(error))?;
        self.config_changed = false;
        self.txg = Txg(txg.0 + 1);
        Ok(txg)
    }

    /// Writes the datasets that have changed, and enters their roots into the MOS.
    async fn sync_datasets(&mut self, txg: Txg) -> Result<(), SpaError> {
        let dirty: Vec<_> = self.datasets.iter().filter(|head| head.objset.is_dirty(txg)).cloned().collect();
        let objsets: Vec<_> = dirty.iter().map(|head| head.objset.clone()).collect();
        let synced = self.writer.sync(&objsets, txg, 1).await.map_err(|error| self.dmu_error(error))?;
        for (head, synced) in dirty.iter().zip(synced) {
            let freed = self.dsl.synced(txg, head.dataset, synced).await.map_err(|error| self.dsl_error(error))?;
            self.free_blocks(txg, &freed).await?;
        }
        Ok(())
    }

    /// Writes the MOS. What that changes in its own space is counted in the next pass.
    async fn sync_mos(&mut self, txg: Txg, pass: u32) -> Result<(), SpaError> {
        let delta = std::mem::take(&mut self.mos_delta);
        let charged = self.dsl.charge(txg, self.dsl.mos_dir, UsedBy::Head, delta).await;
        charged.map_err(|error| self.dsl_error(error))?;
        let objsets = [self.mos.clone()];
        let synced = self.writer.sync(&objsets, txg, pass).await.map_err(|error| self.dmu_error(error))?;
        for synced in synced {
            let mut delta: SpaceDelta = synced.born;
            synced.killed.iter().for_each(|bp| delta.add(self.writer.space_of(bp).negated()));
            self.mos_delta.add(delta);
            self.free_blocks(txg, &synced.killed).await?;
        }
        Ok(())
    }

    /// Makes what was written stable, and the pool.
    async fn commit(&mut self, txg: Txg) -> Result<(), SpaError> {
        let failed = self.tree.flush().await;
        if failed.len() >= self.vdevs.leaves().count() {
            return Err(self.fail("no device could be flushed"));
        }
        let uberblock = Uberblock {
            endian: cenote_zio::ORDER,
            version: VERSION,
            txg,
            guid_sum: self.vdevs.guid_sum(self.guid),
            timestamp_s: self.time_s(),
            rootbp: self.mos.root(),
            software_version: VERSION,
            mmp: Some(cenote_format::uberblock::Mmp { delay_ns: 0, config: 0 }),
            checkpoint_txg: Txg(0),
            raidz_reflow: 0,
        };
        let leaves = self.leaf_commits(txg, self.config_changed);
        commit(&leaves, &uberblock, false).await.map_err(|error| self.fail(error))?;
        Ok(())
    }
}
