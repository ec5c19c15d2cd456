//! Packages: a tree of datasets, or all snapshots between two.

use anyhow::{Result, bail};
use cenote_send::package::{self, PackageRequest, Plan, Planned, gather, plan};
use cenote_send::sender::{Base, SendRequest};

use super::Args;
use super::job::{Job, Out, failed, package_failed};
use super::report::{say, stream_line, total_line};
use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};

/// The words for a key that is missing.
const KEY_WORDS: &str = "source key must be loaded";

pub(super) async fn run(context: &Context, args: &Args, name: &str) -> Result<Outcome> {
    if args.incremental().is_some_and(|from| from.contains('#')) {
        bail!("Error: multiple snapshots cannot be sent from a bookmark.");
    }
    if args.redact.is_some() {
        bail!("Error: multiple snapshots cannot be sent redacted.");
    }
    let Some((dataset, to)) = name.split_once('@') else {
        bail!("Error: Unsupported flag with filesystem or bookmark.");
    };
    let pool = context.open_pool(pool_of(name)).await?;
    let job = Job { context, args, pool: &pool, key_words: KEY_WORDS };
    let mut request = PackageRequest {
        dataset: dataset.into(),
        to: to.into(),
        replicate: args.replicate,
        do_all: args.all_from.is_some(),
        props: args.props,
        holds: args.holds,
        backup: args.backup,
        skip_missing: args.skip_missing,
        without_encryption: args.no_preserve_encryption,
        raw: args.raw,
        excludes: args.exclude.clone(),
        is_verbose: args.verbosity() > 0,
        ..PackageRequest::default()
    };
    let head = pool.dsl().dataset(dataset).await?;
    if let Some(from) = args.incremental() {
        let origin = match head.dir.phys.origin {
            origin if origin.0 == 0 => None,
            origin => Some(pool.dsl().dataset_name(origin).await?),
        };
        match from.split_once('@') {
            _ if origin.as_deref() == Some(from.as_str()) => request.from_origin = true,
            Some((of, short)) => {
                if !of.is_empty() && of != dataset {
                    return Err(usage("incremental source must be in same filesystem"));
                }
                if short.contains(['@', '/']) {
                    return Err(usage("invalid incremental source"));
                }
                request.from = Some(short.into());
            }
            None => request.from = Some(from.clone()),
        }
    }
    request.do_all |= request.replicate && request.from.is_none();
    if let Some(from) = &request.from {
        if from.is_empty() {
            bail!("cannot send '{dataset}': zero-length incremental source");
        }
        pool.dsl().dataset(&format!("{dataset}@{from}")).await?;
    }
    pool.dsl().dataset(name).await?;

    let mut tell = |text: String| context.err(text);
    let list = if request.has_list() {
        let list = gather(&pool, &request, &mut tell).await;
        Some(list.map_err(|error| package_failed(name, error))?)
    } else {
        None
    };
    let planned = plan(&pool, &request, list.as_ref(), &mut tell).await;
    let Plan { streams, has_failed, has_to } = planned.map_err(|error| package_failed(name, error))?;
    if args.verbosity() > 0 {
        estimate(&job, &streams).await?;
    }
    if args.dryrun {
        return Ok(Outcome::unless(has_failed || !has_to));
    }
    let mut out = Out(context.output());
    package::begin(&request, list.as_ref(), &mut out).map_err(|error| package_failed(name, error))?;
    for planned in &streams {
        job.send(&self::request(&job, planned).await?).await?;
    }
    package::end(&mut out)?;
    Ok(Outcome::unless(has_failed || !has_to))
}

async fn request(job: &Job<'_>, planned: &Planned) -> Result<SendRequest> {
    let mut request = SendRequest::full(planned.to.clone(), job.args.flags());
    if let Some(from) = &planned.from {
        let base = Base::snapshot(job.pool.dsl(), &planned.to, from).await;
        request.base = Some(base.map_err(|error| failed(&planned.to.name(), KEY_WORDS, error))?);
    }
    Ok(request)
}

/// Says what is to be sent, and how long it is likely to be.
async fn estimate(job: &Job<'_>, streams: &[Planned]) -> Result<()> {
    let mut total = 0_u64;
    for planned in streams {
        let mut wanted = request(job, planned).await?;
        if !planned.is_from_told {
            // As OpenZFS counts a clone's first stream.
            wanted.base = None;
        }
        let from = planned.from.as_ref().filter(|_| planned.is_from_told).and_then(|from| from.snapshot.as_deref());
        match job.estimate(&wanted, 0).await {
            Ok(bytes) => {
                say(job.context, job.args, &stream_line(job.args, &planned.to.name(), from, bytes))?;
                total = total.wrapping_add(bytes);
            }
            Err(error) => job.context.err(format!("{error:#}")),
        }
    }
    say(job.context, job.args, &total_line(job.args, total, false))
}
