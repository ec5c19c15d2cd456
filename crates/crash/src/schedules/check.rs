//! The word of an exported pool on its leaves, compared with their bytes.

use cenote_scan::{VerifyOptions, verify};
use cenote_spa::import;

use super::client::import_options;
use super::world::{Leaf, World, leaves_of};
use crate::judge::found;
use crate::stage::words;

impl World {
    /// Reads each copy and column of an exported pool: all can be read, and a leaf that is sound has no wrong bytes.
    pub(super) async fn check(&mut self) -> Result<(), String> {
        let found = found(&self.handle, &self.machine.paths).await?;
        let view = import(&self.handle, found, &import_options()).await;
        let view = view.map_err(|error| format!("not imported: {error}"))?;
        let report = verify(&self.handle, &view, VerifyOptions::default(), &mut |_| true).await.map_err(words)?;
        if report.error_count > 0 || report.misuse_count > 0 || report.leaked_bytes > 0 {
            return Err(format!("exported: {report}"));
        }
        let status = view.tree().status();
        let leaves = leaves_of(&status);
        // Wrong bytes of a distributed spare that is not whole are counted on the disks below it.
        let is_told_apart =
            |top: usize| !leaves.iter().any(|leaf| leaf.top == top && leaf.is_distributed() && !self.is_sound(leaf));
        let is_wrong = |leaf: &&Leaf| {
            let status = status.leaves().into_iter().find(|status| status.guid == leaf.guid);
            status.is_some_and(|status| status.errors.checksum > 0)
        };
        let liar = leaves.iter().filter(is_wrong).find(|leaf| self.is_sound(leaf) && is_told_apart(leaf.top));
        if let Some(liar) = liar {
            return Err(format!("the pool says that {} lacks nothing: {report}", liar.name));
        }
        self.done.checked += 1;
        view.close().await;
        Ok(())
    }
}
