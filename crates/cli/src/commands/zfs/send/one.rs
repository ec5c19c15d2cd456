//! One stream: of a snapshot or a dataset, whole or from a snapshot or bookmark.

use anyhow::{Result, anyhow, bail};
use cenote_dsl::{Bookmark, Dataset, DslError};
use cenote_format::ids::ObjectId;
use cenote_send::package::{self, PackageRequest, gather};
use cenote_send::sender::{Base, SendRequest, SenderError};
use cenote_spa::View;

use super::Args;
use super::job::{Job, Out, failed, package_failed};
use super::report::{say, stream_line, total_line};
use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::Outcome;

/// The words for a key that is missing.
const KEY_WORDS: &str = "dataset key must be loaded";

pub(super) async fn run(context: &Context, args: &Args, name: &str) -> Result<Outcome> {
    let pool = context.open_pool(pool_of(name)).await?;
    let job = Job { context, args, pool: &pool, key_words: KEY_WORDS };
    let to = pool.dsl().dataset(name).await?;
    if to.is_inconsistent() {
        bail!("warning: cannot send '{name}': target is busy; if a filesystem, it must not be mounted");
    }
    let mut request = SendRequest::full(to.clone(), args.flags());
    let from = args.from.as_deref().map(|from| full_source(context, name, from));
    if let Some(from) = &from {
        request.base = Some(base(&pool, &to, from).await?);
    }
    if let Some(redact) = &args.redact {
        request.redact = Some(redaction_list(&pool, &to, redact).await?);
    }
    let package = args.has_list().then(|| package_request(args, &to));
    let list = match &package {
        Some(package) => {
            let mut say = |text: String| context.err(text);
            let list = gather(&pool, package, &mut say).await;
            Some(list.map_err(|error| package_failed(name, error))?)
        }
        None => None,
    };
    if args.verbosity() > 0 {
        let bytes = job.estimate(&request, 0).await?;
        say(context, args, &stream_line(args, name, from.as_deref(), bytes))?;
        say(context, args, &total_line(args, bytes, true))?;
    }
    if args.dryrun {
        return Ok(Outcome::Good);
    }
    let mut out = Out(context.output());
    if let Some(package) = &package {
        package::begin(package, list.as_ref(), &mut out).map_err(|error| package_failed(name, error))?;
    }
    job.send(&request).await?;
    if package.is_some() {
        package::end(&mut out)?;
    }
    Ok(Outcome::Good)
}

/// The full name of an incremental source, which may be left to the target's.
fn full_source(context: &Context, to: &str, from: &str) -> String {
    let mut from = from.to_owned();
    if !from.contains(['@', '#']) {
        context.err(
            "Warning: incremental source didn't specify type, assuming snapshot. Use '@' or '#' prefix to avoid ambiguity.",
        );
        from.insert(0, '@');
    }
    if from.starts_with(['@', '#']) {
        from.insert_str(0, to.split('@').next().unwrap_or(to));
    }
    from
}

/// The dataset that the list of a stream with properties is about.
fn package_request(args: &Args, to: &Dataset) -> PackageRequest {
    PackageRequest {
        dataset: to.dir.name.clone(),
        to: to.snapshot.clone().unwrap_or_default(),
        props: args.props,
        holds: args.holds,
        backup: args.backup,
        raw: args.raw,
        without_encryption: args.no_preserve_encryption,
        is_verbose: args.verbosity() > 0,
        ..PackageRequest::default()
    }
}

/// A snapshot or bookmark as incremental source.
async fn base(pool: &View, to: &Dataset, from: &str) -> Result<Base> {
    let name = to.name();
    let failed = |error: SenderError| failed(&name, KEY_WORDS, error);
    if from.contains('@') {
        let from = pool.dsl().dataset(from).await?;
        return Base::snapshot(pool.dsl(), to, &from).await.map_err(failed);
    }
    let Some((head, bookmark)) = find_bookmark(pool, from).await? else {
        bail!("warning: cannot send '{name}': incremental source ({from}) does not exist");
    };
    Base::bookmark(pool.dsl(), to, &head, &bookmark).await.map_err(failed)
}

/// The bookmark of a full name, with its head.
pub(super) async fn find_bookmark(pool: &View, name: &str) -> Result<Option<(Dataset, Bookmark)>> {
    let (dir, _) = name.split_once('#').ok_or_else(|| anyhow!("'{name}' is not a bookmark"))?;
    let head = match pool.dsl().dataset(dir).await {
        Err(DslError::NoSuchDataset(_)) => return Ok(None),
        found => found?,
    };
    let found = pool.dsl().bookmarks(&head).await?.into_iter().find(|bookmark| bookmark.name == name);
    Ok(found.map(|bookmark| (head, bookmark)))
}

/// The list of the bookmark by which a snapshot is redacted.
async fn redaction_list(pool: &View, to: &Dataset, redact: &str) -> Result<ObjectId> {
    let name = to.name();
    if !to.is_snapshot() {
        bail!("warning: cannot send '{name}': cannot do a redacted send to a filesystem");
    }
    let short = redact.split_once('#').map_or(redact, |(_, short)| short);
    let full = format!("{}#{short}", to.dir.name);
    let Some((_, bookmark)) = find_bookmark(pool, &full).await? else {
        bail!("cannot open '{full}': dataset does not exist");
    };
    let list = bookmark.phys.redaction_list;
    if list.0 == 0 {
        bail!("warning: cannot send '{name}': not a redaction bookmark");
    }
    if !is_complete(pool, list).await? {
        bail!("warning: cannot send '{name}': incomplete redaction bookmark provided");
    }
    Ok(list)
}

/// True if a redaction list was written to its end.
pub(super) async fn is_complete(pool: &View, list: ObjectId) -> Result<bool> {
    let phys = pool.dsl().redaction_list(list).await?;
    Ok(phys.last_object == u64::MAX && phys.last_block == u64::MAX)
}
