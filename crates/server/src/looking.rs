//! Opening pools and devices for inspection, even damaged ones.
//!
//! An inspection only reads, so it does more than an import: it opens pools that another system has open or that were destroyed, without missing
//! devices, and at an older root if the newest is damaged. The notes of the result name these exceptions.

use std::path::{Path, PathBuf};

use cenote_dsl::name::pool_of;
use cenote_host::CacheFile;
use cenote_spa::{FoundPool, ImportOptions, Rewind, SpaError, View, find};
use cenote_taskq::{OpenOptions, boxed};
use cenote_vdev::leaf::{LabelReport, probe, probe_device};

use crate::error::{Context as _, Result, refused};
use crate::{Session, choose, no_label};

/// True if `source` names a file or device rather than a pool.
pub fn is_file(source: &str) -> bool {
    source.contains('/') && Path::new(source).exists() || Path::new(source).is_file()
}

/// The dataset that `source` names, unless it names a pool or file.
pub fn dataset_of(source: &str) -> Option<&str> {
    (source.contains(['/', '@']) && !is_file(source)).then_some(source)
}

impl Session {
    /// The labels of a file or device (with those of its partitions), or of all devices of a pool that are found.
    ///
    /// # Errors
    /// It cannot be opened, or there is no such pool.
    #[boxed]
    pub async fn label_reports(&self, source: &str) -> Result<Vec<LabelReport>> {
        if is_file(source) {
            let device = self.handle().open(Path::new(source), OpenOptions::default()).await;
            let device = device.with_context(|| format!("cannot open '{source}'"))?;
            let report = probe_device(&device).await;
            let mut reports: Vec<LabelReport> = report.labelled().cloned().collect();
            if reports.is_empty() {
                // No valid label anywhere: report the faults of the whole device's labels.
                reports.push(report.whole);
            }
            return Ok(reports);
        }
        let found = self.devices_of(source).await?;
        let mut reports = Vec::new();
        for leaf in found.leaves.values() {
            reports.push(probe(&leaf.disk).await);
        }
        Ok(reports)
    }

    /// Opens a pool (or the pool to which a file or device belongs, from that alone), with an older root if necessary. `told` gets the notes of
    /// the import, one line each.
    ///
    /// # Errors
    /// There is no such pool, or none of its roots can be read.
    #[boxed]
    pub async fn open_damaged(&self, name: &str, told: &mut (dyn FnMut(String) + Send)) -> Result<View> {
        let found = self.devices_of(name).await?;
        let options = ImportOptions {
            force: true,
            destroyed: true,
            missing_log: true,
            missing_tops: true,
            skip_activity_check: true,
            ..self.import_options()
        };
        let opened = match self.import(found.clone(), &options).await {
            Err(SpaError::NoRoot { last, .. }) if options.rewind == Rewind::None => {
                told(format!("the newest root cannot be read ({last}); trying older ones"));
                self.import(found, &ImportOptions { rewind: Rewind::Extreme, ..options }).await
            }
            opened => opened,
        };
        let pool =
            opened.context("the pool cannot be opened; 'cenote inspect labels', 'uberblocks' and 'bp' need less")?;
        pool.notes().iter().for_each(|note| told(note.clone()));
        if let Err(error) = self.load_keys(&pool).await {
            told(error.chain());
        }
        Ok(pool)
    }

    /// The devices of a pool: the one file or device that `name` names, else those in the cache file, else those found.
    ///
    /// # Errors
    /// There are none, or several pools have the name.
    #[boxed]
    pub async fn devices_of(&self, name: &str) -> Result<FoundPool> {
        if is_file(name) {
            let (pools, _) = find(self.handle(), &[PathBuf::from(name)]).await;
            return match pools.into_iter().next() {
                Some(found) => Ok(found),
                None => {
                    let held = no_label(self.handle(), Path::new(name)).await;
                    Err(refused(format!("'{name}' is not part of a pool\n{held}")))
                }
            };
        }
        if name.starts_with(['/', '.']) {
            // No pool has such a name.
            return Err(refused(format!("cannot open '{name}': no such file or directory")));
        }
        let name = pool_of(name);
        if self.options().paths.is_empty() {
            let pools = CacheFile::of_user()?.pools()?;
            let entry = pools.iter().find(|(own, entry)| *own == name || name.parse() == Ok(entry.guid));
            if let Some((_, entry)) = entry {
                let (pools, _) = find(self.handle(), &entry.paths).await;
                if let Some(found) = pools.into_iter().find(|found| found.guid.0 == entry.guid) {
                    return Ok(found);
                }
            }
        }
        choose(self.find_pools().await?, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_dataset_where_it_is_no_pool_and_no_file() {
        assert_eq!(dataset_of("tank"), None);
        assert_eq!(dataset_of("tank/a@b"), Some("tank/a@b"));
        assert_eq!(dataset_of("tank@b"), Some("tank@b"));
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(dataset_of(file.path().to_str().unwrap()), None);
    }
}
