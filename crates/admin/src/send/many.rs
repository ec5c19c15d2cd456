//! Packages: a tree of datasets, or all snapshots between two.

use cenote_send::package::{self, PackageRequest, Plan, Planned, gather, plan};
use cenote_send::sender::{Base, SendRequest};
use cenote_spa::Refusal;

use super::error::SOURCE_KEY;
use super::words::{stream_line, total_line};
use super::{SendError, Sending};

pub(super) async fn run(sending: &Sending<'_>, name: &str) -> Result<bool, SendError> {
    let Sending { pool, options, .. } = sending;
    let Some((dataset, to)) = name.split_once('@') else {
        return Err(SendError::refused(Refusal::Invalid, "Error: Unsupported flag with filesystem or bookmark."));
    };
    let mut request = PackageRequest {
        dataset: dataset.into(),
        to: to.into(),
        replicate: options.replicate,
        do_all: options.all_from.is_some(),
        props: options.props,
        holds: options.holds,
        backup: options.backup,
        skip_missing: options.skip_missing,
        without_encryption: options.no_preserve_encryption,
        raw: options.flags.raw,
        excludes: options.exclude.clone(),
        is_verbose: options.verbosity > 0,
        ..PackageRequest::default()
    };
    let head = pool.dsl().dataset(dataset).await?;
    if let Some(from) = options.incremental() {
        let origin = match head.dir.phys.origin {
            origin if origin.0 == 0 => None,
            origin => Some(pool.dsl().dataset_name(origin).await?),
        };
        match from.split_once('@') {
            _ if origin.as_deref() == Some(from.as_str()) => request.from_origin = true,
            Some((of, short)) => {
                if !of.is_empty() && of != dataset {
                    return Err(SendError::wrong("incremental source must be in same filesystem"));
                }
                if short.contains(['@', '/']) {
                    return Err(SendError::wrong("invalid incremental source"));
                }
                request.from = Some(short.into());
            }
            None => request.from = Some(from.clone()),
        }
    }
    request.do_all |= request.replicate && request.from.is_none();
    if let Some(from) = &request.from {
        if from.is_empty() {
            let what = format!("cannot send '{dataset}': zero-length incremental source");
            return Err(SendError::refused(Refusal::Invalid, what));
        }
        pool.dsl().dataset(&format!("{dataset}@{from}")).await?;
    }
    pool.dsl().dataset(name).await?;

    let failed = |error| SendError::package(name, error);
    let mut warn = |text: String| sending.warn(text);
    let list = match request.has_list() {
        true => Some(gather(pool, &request, &mut warn).await.map_err(failed)?),
        false => None,
    };
    let Plan { streams, has_failed, has_to } = plan(pool, &request, list.as_ref(), &mut warn).await.map_err(failed)?;
    let is_whole = has_to && !has_failed;
    if options.verbosity > 0 {
        estimate(sending, &streams).await?;
    }
    if options.dryrun {
        return Ok(is_whole);
    }
    package::begin(&request, list.as_ref(), &mut *sending.caller.out()).map_err(failed)?;
    for planned in &streams {
        sending.stream(&self::request(sending, planned).await?, SOURCE_KEY).await?;
    }
    package::end(&mut *sending.caller.out())?;
    Ok(is_whole)
}

async fn request(sending: &Sending<'_>, planned: &Planned) -> Result<SendRequest, SendError> {
    let mut request = SendRequest::full(planned.to.clone(), sending.options.flags);
    if let Some(from) = &planned.from {
        let base = Base::snapshot(sending.pool.dsl(), &planned.to, from).await;
        request.base = Some(base.map_err(|error| SendError::stream(&planned.to.name(), SOURCE_KEY, error))?);
    }
    Ok(request)
}

/// Tells what is to be sent, and how long it is likely to be.
async fn estimate(sending: &Sending<'_>, streams: &[Planned]) -> Result<(), SendError> {
    let exact = sending.options.parsable;
    let mut total = 0_u64;
    for planned in streams {
        let mut wanted = request(sending, planned).await?;
        if !planned.is_from_told {
            // As OpenZFS counts a clone's first stream.
            wanted.base = None;
        }
        let from = planned.from.as_ref().filter(|_| planned.is_from_told).and_then(|from| from.snapshot.as_deref());
        match sending.estimate(&wanted, 0, SOURCE_KEY).await {
            Ok(bytes) => {
                sending.tell(stream_line(exact, &planned.to.name(), from, bytes))?;
                total = total.wrapping_add(bytes);
            }
            Err(error) => sending.warn(error.to_string()),
        }
    }
    Ok(sending.tell(total_line(exact, total, false))?)
}
