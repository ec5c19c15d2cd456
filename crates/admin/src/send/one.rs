//! One stream: of a snapshot or a dataset, whole or from a snapshot or bookmark.

use cenote_dsl::{Bookmark, Dataset, DslError};
use cenote_format::ids::ObjectId;
use cenote_send::package::{self, PackageRequest, gather};
use cenote_send::sender::{Base, SendRequest, SenderError};
use cenote_spa::{Refusal, View};

use super::{SendError, SendOptions, Sending};

/// The words for a key that is missing.
const KEY_WORDS: &str = "dataset key must be loaded";

pub(super) async fn run(sending: &Sending<'_>, name: &str) -> Result<bool, SendError> {
    let Sending { pool, options, .. } = sending;
    let to = pool.dsl().dataset(name).await?;
    if to.is_inconsistent() {
        let why = "target is busy; if a filesystem, it must not be mounted";
        return Err(SendError::refused(Refusal::Busy, format!("warning: cannot send '{name}': {why}")));
    }
    let mut request = SendRequest::full(to.clone(), options.flags);
    let from = options.from.as_deref().map(|from| full_source(sending, name, from));
    if let Some(from) = &from {
        request.base = Some(base(pool, &to, from).await?);
    }
    if let Some(redact) = &options.redact {
        request.redact = Some(redaction_list(pool, &to, redact).await?);
    }
    let failed = |error| SendError::package(name, error);
    let package = options.has_list().then(|| package_request(options, &to));
    let list = match &package {
        Some(package) => Some(gather(pool, package, &mut |text| sending.warn(text)).await.map_err(failed)?),
        None => None,
    };
    sending.tell_only(&request, from.as_deref(), 0, KEY_WORDS).await?;
    if options.dryrun {
        return Ok(true);
    }
    if let Some(package) = &package {
        package::begin(package, list.as_ref(), &mut *sending.caller.out()).map_err(failed)?;
    }
    sending.stream(&request, KEY_WORDS).await?;
    if package.is_some() {
        package::end(&mut *sending.caller.out())?;
    }
    Ok(true)
}

/// The full name of an incremental source, which may be left to the target's.
fn full_source(sending: &Sending<'_>, to: &str, from: &str) -> String {
    let mut from = from.to_owned();
    if !from.contains(['@', '#']) {
        let text = "Warning: incremental source didn't specify type, assuming snapshot. Use '@' or '#' prefix to avoid ambiguity.";
        sending.warn(text.to_owned());
        from.insert(0, '@');
    }
    if from.starts_with(['@', '#']) {
        from.insert_str(0, to.split('@').next().unwrap_or(to));
    }
    from
}

/// The dataset that the list of a stream with properties is about.
fn package_request(options: &SendOptions, to: &Dataset) -> PackageRequest {
    PackageRequest {
        dataset: to.dir.name.clone(),
        to: to.snapshot.clone().unwrap_or_default(),
        props: options.props,
        holds: options.holds,
        backup: options.backup,
        raw: options.flags.raw,
        without_encryption: options.no_preserve_encryption,
        is_verbose: options.verbosity > 0,
        ..PackageRequest::default()
    }
}

/// A snapshot or bookmark as incremental source.
async fn base(pool: &View, to: &Dataset, from: &str) -> Result<Base, SendError> {
    let name = to.name();
    let failed = |error: SenderError| SendError::stream(&name, KEY_WORDS, error);
    if from.contains('@') {
        let from = pool.dsl().dataset(from).await?;
        return Base::snapshot(pool.dsl(), to, &from).await.map_err(failed);
    }
    let Some((head, bookmark)) = find_bookmark(pool, from).await? else {
        let why = format!("incremental source ({from}) does not exist");
        return Err(SendError::refused(Refusal::NotThere, format!("warning: cannot send '{name}': {why}")));
    };
    Base::bookmark(pool.dsl(), to, &head, &bookmark).await.map_err(failed)
}

/// The bookmark of a full name, with its head.
async fn find_bookmark(pool: &View, name: &str) -> Result<Option<(Dataset, Bookmark)>, SendError> {
    let Some((dir, _)) = name.split_once('#') else {
        return Err(SendError::refused(Refusal::Invalid, format!("'{name}' is not a bookmark")));
    };
    let head = match pool.dsl().dataset(dir).await {
        Err(DslError::NoSuchDataset(_)) => return Ok(None),
        found => found?,
    };
    let found = pool.dsl().bookmarks(&head).await?.into_iter().find(|bookmark| bookmark.name == name);
    Ok(found.map(|bookmark| (head, bookmark)))
}

/// The list of the bookmark by which a snapshot is redacted.
async fn redaction_list(pool: &View, to: &Dataset, redact: &str) -> Result<ObjectId, SendError> {
    let name = to.name();
    let refused = |why: &str| {
        let what = format!("warning: cannot send '{name}': {why}");
        SendError::refused(Refusal::Invalid, what)
    };
    if !to.is_snapshot() {
        return Err(refused("cannot do a redacted send to a filesystem"));
    }
    let short = redact.split_once('#').map_or(redact, |(_, short)| short);
    let full = format!("{}#{short}", to.dir.name);
    let Some((_, bookmark)) = find_bookmark(pool, &full).await? else {
        let what = format!("cannot open '{full}': dataset does not exist");
        return Err(SendError::refused(Refusal::NotThere, what));
    };
    let list = bookmark.phys.redaction_list;
    if list.0 == 0 {
        return Err(refused("not a redaction bookmark"));
    }
    if !is_complete(pool, list).await? {
        return Err(refused("incomplete redaction bookmark provided"));
    }
    Ok(list)
}

/// True if a redaction list was written to its end.
pub(super) async fn is_complete(pool: &View, list: ObjectId) -> Result<bool, DslError> {
    let phys = pool.dsl().redaction_list(list).await?;
    Ok(phys.last_object == u64::MAX && phys.last_block == u64::MAX)
}
