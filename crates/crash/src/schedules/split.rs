//! A pool of mirrors is split: one leg of each becomes a pool of its own, which has all that was written.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cenote_format::ids::Guid;
use cenote_scan::{VerifyOptions, verify};
use cenote_spa::{FoundPool, Pool, SplitOptions, find, import};
use cenote_taskq::sim::disk::Image;

use super::client::import_options;
use super::tops::Kind;
use super::world::{World, leaves};
use crate::stage::words;

/// The pool that is split off.
const APART: &str = "apart";
/// The power goes amid one split of so many, after so many microseconds at most.
const CUT_IN: u64 = 3;
const CUT_US_MAX: u64 = 60_000;

impl World {
    /// Splits the pool, if it is one of mirrors and all of its leaves are sound.
    pub(super) async fn split(&mut self, pool: Pool) -> Result<Pool, String> {
        if !self.unsure.is_empty() {
            self.sync(&pool).await?;
        }
        self.look(&pool).await?;
        let all = leaves(&pool)?;
        let is_fit = all.iter().all(|leaf| leaf.kind == Kind::Mirror && self.is_sound(leaf) && !leaf.has_company);
        let mut tops: BTreeMap<usize, Vec<Guid>> = BTreeMap::new();
        all.iter().for_each(|leaf| tops.entry(leaf.top).or_default().push(leaf.guid));
        if !is_fit || tops.values().any(|legs| legs.len() < 2) || self.has_rotten() {
            return Ok(pool);
        }
        let legs: Vec<Guid> = tops.into_values().filter_map(|legs| self.pick(legs)).collect();
        self.note("split");
        let guid = pool.guid();
        let options =
            SplitOptions { name: APART.to_owned(), legs, import: import_options(), ..SplitOptions::default() };
        let asked = pool.clone();
        let work = async move { asked.split(options).await };
        let pool = if self.rng.chance(1, CUT_IN) {
            let after = Duration::from_micros(self.rng.below(CUT_US_MAX));
            self.handle.timeout(after, work).await;
            let how = self.crash();
            self.darkness(pool, how).await;
            // The opening of the pool decides where the legs belong.
            let found = self.pools().await.into_iter().find(|pool| pool.guid == guid).ok_or("the pool is gone")?;
            let pool = self.open_found(found, false).await?;
            self.sync(&pool).await?;
            pool
        } else {
            let made = self.answered("split", work).await?;
            self.count(made.map(drop))?;
            pool
        };
        for apart in self.pools().await.into_iter().filter(|pool| pool.guid != guid) {
            self.done.reshapes[2] += 1;
            self.judge_apart(apart).await.map_err(|error| format!("split off: {error}"))?;
        }
        Ok(pool)
    }

    async fn pools(&self) -> Vec<FoundPool> {
        find(&self.handle, &self.machine.paths).await.0
    }

    /// The pool that was split off is whole, and has what was written before. Its disks are blank then.
    async fn judge_apart(&mut self, apart: FoundPool) -> Result<(), String> {
        let paths: BTreeSet<String> = apart.leaves.values().map(|leaf| leaf.disk.path().to_string()).collect();
        let view = import(&self.handle, apart, &import_options()).await.map_err(words)?;
        let report = verify(&self.handle, &view, VerifyOptions::default(), &mut |_| true).await.map_err(words)?;
        if view.name() != APART || !report.is_clean() {
            return Err(format!("{}: {report}", view.name()));
        }
        self.done.compared += self.client.compare_view(&view, &[]).await?;
        view.close().await;
        for (at, path) in self.machine.paths.iter().enumerate() {
            if path.to_str().is_some_and(|path| paths.contains(path)) {
                self.machine.disks[at].restore(&Image::default());
            }
        }
        Ok(())
    }
}
