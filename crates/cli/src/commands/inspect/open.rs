//! Opening what is to be inspected, however damaged: a file, a pool's devices, a pool.
//!
//! An inspection only looks, so it goes where an import would not: into pools that another system has open or that were
//! destroyed, without devices that are missing, and back to an older root where the newest does not hold. What it took
//! to get there is said in the report.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use cenote_dmu::Dmu;
use cenote_inspect::Report;
use cenote_spa::{FoundPool, ImportOptions, Rewind, SpaError, View, find};
use cenote_taskq::OpenOptions;
use cenote_vdev::leaf::{LabelReport, probe, probe_device};

use super::report::{Common, Shown};
use crate::args::Search;
use crate::context::Context;
use crate::files::pool_of;
use cenote_host::CacheFile;
use cenote_server::choose;
use cenote_server::no_label;

/// The context of an inspection.
pub(crate) fn context_of(context: &Context, common: &Common) -> Context {
    context.with(&Search { force: true, ..common.search.clone() })
}

/// What most inspections begin with: the context, an empty report, and the pool as [`pool`] opens it.
pub(crate) async fn opened(context: &Context, common: &Common, name: &str) -> Result<(Context, Shown, View)> {
    let context = context_of(context, common);
    let mut report = common.report();
    let pool = pool(&context, &mut report, name).await?;
    Ok((context, report, pool))
}

/// Whether `source` names a file or device rather than a pool.
pub(crate) fn is_file(source: &str) -> bool {
    source.contains('/') && Path::new(source).exists() || Path::new(source).is_file()
}

/// The labels of a file or device (with those of its partitions), or of all devices of a pool that can be found.
pub(crate) async fn label_reports(context: &Context, source: &str) -> Result<Vec<LabelReport>> {
    if is_file(source) {
        let options = OpenOptions::default();
        let device = context.handle().open(Path::new(source), options).await;
        let device = device.with_context(|| format!("cannot open '{source}'"))?;
        let report = probe_device(&device).await;
        let mut reports: Vec<LabelReport> = report.labelled().cloned().collect();
        if reports.is_empty() {
            // Nothing valid anywhere: what is wrong with the whole device's labels is the finding.
            reports.push(report.whole);
        }
        return Ok(reports);
    }
    let found = found_pool(context, source).await?;
    let mut reports = Vec::new();
    for leaf in found.leaves.values() {
        reports.push(probe(&leaf.disk).await);
    }
    Ok(reports)
}

/// Opens a pool (or the pool that a file or device is part of, with that alone), as far back as it takes. Notes of the
/// import go into the report as problems.
pub(crate) async fn pool(context: &Context, report: &mut Report, name: &str) -> Result<View> {
    let found = found_pool(context, name).await?;
    let options = ImportOptions {
        force: true,
        destroyed: true,
        missing_log: true,
        missing_tops: true,
        skip_activity_check: true,
        ..context.import_options()
    };
    let opened = match context.import(found.clone(), &options).await {
        Err(SpaError::NoRoot { last, .. }) if options.rewind == Rewind::None => {
            report.problem(format_args!("the newest root cannot be read ({last}); trying older ones"));
            context.import(found, &ImportOptions { rewind: Rewind::Extreme, ..options }).await
        }
        opened => opened,
    };
    let pool = opened.context("the pool cannot be opened; 'cenote inspect labels', 'uberblocks' and 'bp' need less")?;
    for note in pool.notes() {
        report.problem(note);
    }
    if let Err(error) = context.load_keys(&pool).await {
        report.problem(error.chain());
    }
    Ok(pool)
}

/// The devices of a pool: of the one file or device that `name` names, else as the cache file has them, else found.
pub(crate) async fn found_pool(context: &Context, name: &str) -> Result<FoundPool> {
    if is_file(name) {
        let (pools, _) = find(context.handle(), &[PathBuf::from(name)]).await;
        return match pools.into_iter().next() {
            Some(found) => Ok(found),
            None => bail!("'{name}' is not part of a pool\n{}", no_label(context.handle(), Path::new(name)).await),
        };
    }
    if name.starts_with(['/', '.']) {
        // No pool is called that.
        bail!("cannot open '{name}': no such file or directory");
    }
    let name = pool_of(name);
    if context.options().paths.is_empty() {
        let pools = CacheFile::of_user()?.pools()?;
        let entry = pools.iter().find(|(own, entry)| *own == name || name.parse() == Ok(entry.guid));
        if let Some((_, entry)) = entry {
            let (pools, _) = find(context.handle(), &entry.paths).await;
            if let Some(found) = pools.into_iter().find(|found| found.guid.0 == entry.guid) {
                return Ok(found);
            }
        }
    }
    Ok(choose(context.find_pools().await?, name)?)
}

/// A way to the blocks of a pool that needs no more than labels.
pub(crate) fn dmu_of_labels(context: &Context, found: &FoundPool) -> Result<Dmu> {
    Ok(cenote_inspect::dmu_of_labels(context.handle(), found, context.import_options().cache_bytes)?)
}
