//! Streams that go on: from a token, or of what was received in part.

use cenote_dsl::name::parent_of;
use cenote_dsl::{Dataset, Dsl, DslError};
use cenote_format::dsl::dataset_field;
use cenote_format::ids::{Guid, ObjectId};
use cenote_send::print_nvlist;
use cenote_send::receiver::receive_resume_token;
use cenote_send::sender::{Base, ResumePoint, ResumeToken, Saved, SendFlags, SendRequest, SenderError};
use cenote_spa::{Refusal, View};

use super::error::SOURCE_KEY;
use super::one::is_complete;
use super::options::parse_token;
use super::{SendError, Sending};

/// Goes on where a receiver stopped.
pub(super) async fn resumed(sending: &Sending<'_>, token: &str) -> Result<bool, SendError> {
    let token = parse_token(token)?;
    print_token(sending, &token)?;
    let dsl = sending.pool.dsl();
    let Some(to) = by_guid(dsl, &token.to_name, token.to_guid).await? else {
        let name = &token.to_name;
        let why = match dsl.dataset(name).await {
            Ok(_) => "is no longer the same snapshot used in the initial send",
            Err(_) => "used in the initial send no longer exists",
        };
        return Err(refused(Refusal::NotThere, &format!("'{name}' {why}")));
    };
    let mut request = SendRequest::full(to, with(sending.options.flags, token.flags));
    request.resume = Some(token.point).filter(|point| *point != ResumePoint { object: 0, offset: 0 });
    finish(sending, &token, request).await
}

/// Sends what a dataset has of a stream that was received in part.
pub(super) async fn saved(sending: &Sending<'_>, name: &str, token: Option<&str>) -> Result<bool, SendError> {
    let dsl = sending.pool.dsl();
    let head = dsl.dataset(name).await?;
    let wrong = |what: &str| SendError::refused(Refusal::Invalid, format!("saved send failed: {what}"));
    let Some(own) = receive_resume_token(dsl, &head).await? else {
        return Err(wrong(&format!("'{name}' has no partially-received state")));
    };
    let mut own = ResumeToken::parse(&own).map_err(|error| wrong(&error.to_string()))?;
    let mut point = ResumePoint { object: 0, offset: 0 };
    own.bytes = 0;
    if let Some(token) = token {
        let token = ResumeToken::parse(token).map_err(|error| wrong(&error.to_string()))?;
        if token.to_guid != own.to_guid {
            return Err(wrong("provided resume token does not match dataset"));
        }
        (point, own.bytes) = (token.point, token.bytes);
    }
    // The list is told as it is used.
    for (entry, value) in [("object", point.object), ("offset", point.offset), ("bytes", own.bytes)] {
        own.list.remove(entry);
        own.list.push(entry, value);
    }
    own.list.remove("toname");
    own.list.push("toname", name);
    print_token(sending, &own)?;
    let partial = match dsl.child(&head.dir, "%recv").await? {
        Some(clone) => dsl.head(&clone).await?.ok_or_else(|| DslError::NoSuchDataset(format!("{name}/%recv")))?,
        None => head,
    };
    let field = dsl.dataset_value(&partial, dataset_field::RESUME_TO_NAME).await?;
    let to_name = field.as_ref().and_then(|value| value.as_text()).ok_or_else(|| wrong("resume token is corrupt"))?;
    let mut request = SendRequest::full(partial, own.flags);
    request.saved = Some(Saved { guid: own.to_guid, name: to_name.to_owned() });
    request.resume = Some(point).filter(|point| *point != ResumePoint { object: 0, offset: 0 });
    own.to_name = name.to_owned();
    finish(sending, &own, request).await
}

/// Finds what the stream builds on, and sends it.
async fn finish(sending: &Sending<'_>, token: &ResumeToken, mut request: SendRequest) -> Result<bool, SendError> {
    let pool = sending.pool;
    let mut from_name = None;
    if let Some(guid) = token.from_guid {
        let Some((mut base, name)) = source(pool, token, guid, &request.to).await? else {
            let what = format!("incremental source {:#x} no longer exists", guid.0);
            return Err(refused(Refusal::NotThere, &what));
        };
        // The hidden clone of what is received is of another directory than the snapshot that it builds on.
        base.is_elsewhere &= request.saved.is_none();
        request.base = Some(base);
        from_name = Some(name);
    }
    if let Some(guids) = &token.redact_snapshots
        && request.saved.is_none()
    {
        request.redact = Some(redaction_list(pool, &token.to_name, guids).await?);
    }
    sending.tell_only(&request, from_name.as_deref(), token.bytes, SOURCE_KEY).await?;
    if !sending.options.dryrun {
        sending.stream(&request, SOURCE_KEY).await?;
    }
    Ok(true)
}

fn refused(why: Refusal, what: &str) -> SendError {
    SendError::refused(why, format!("cannot resume send: {what}"))
}

fn print_token(sending: &Sending<'_>, token: &ResumeToken) -> Result<(), SendError> {
    if sending.options.verbosity == 0 {
        return Ok(());
    }
    let mut text = Vec::new();
    print_nvlist(&token.list, &mut text)?;
    let text = String::from_utf8_lossy(&text);
    Ok(sending.tell(format!("resume token contents:\n{}", text.trim_end_matches('\n')))?)
}

const fn with(one: SendFlags, other: SendFlags) -> SendFlags {
    SendFlags {
        large_blocks: one.large_blocks || other.large_blocks,
        embedded: one.embedded || other.embedded,
        compressed: one.compressed || other.compressed,
        raw: one.raw || other.raw,
    }
}

/// The snapshot of a guid, or the head whose contents a stream has as those of a snapshot: by the name that it had, else in the same dataset, else in ever larger parts of the pool.
async fn by_guid(dsl: &Dsl, name: &str, guid: Guid) -> Result<Option<Dataset>, DslError> {
    if let Ok(found) = dsl.dataset(name).await
        && found.phys.guid == guid
    {
        return Ok(Some(found));
    }
    let mut top = name.split(['@', '#']).next().unwrap_or(name);
    loop {
        if let Some(dir) = dsl.find_dir(top).await? {
            for dir in dsl.tree(dir, false).await? {
                let Some(head) = dsl.head(&dir).await? else { continue };
                if head.phys.guid == guid {
                    return Ok(Some(head));
                }
                if let Some(found) = dsl.snapshots(&head).await?.into_iter().find(|found| found.phys.guid == guid) {
                    return Ok(Some(found));
                }
            }
        }
        let Some(above) = parent_of(top) else { return Ok(None) };
        top = above;
    }
}

/// The incremental source of a guid: a snapshot, or a bookmark; if the stream was incremental from a redaction bookmark, that.
async fn source(
    pool: &View,
    token: &ResumeToken,
    guid: Guid,
    to: &Dataset,
) -> Result<Option<(Base, String)>, SendError> {
    let dsl = pool.dsl();
    let name = to.name();
    let failed = |error: SenderError| SendError::stream(&name, SOURCE_KEY, error);
    if token.from_redact_snapshots.is_none()
        && let Some(from) = by_guid(dsl, &token.to_name, guid).await?
    {
        return Ok(Some((Base::snapshot(dsl, to, &from).await.map_err(failed)?, from.name())));
    }
    let dir = token.to_name.split(['@', '#']).next().unwrap_or_default();
    let Some(dir) = dsl.find_dir(dir).await? else { return Ok(None) };
    let Some(head) = dsl.head(&dir).await? else { return Ok(None) };
    for bookmark in dsl.bookmarks(&head).await? {
        if bookmark.phys.guid != guid {
            continue;
        }
        let redaction = dsl.bookmark_redaction(&bookmark).await?;
        if are_same(redaction.as_deref(), token.from_redact_snapshots.as_deref()) {
            let base = Base::bookmark(dsl, to, &head, &bookmark).await.map_err(failed)?;
            return Ok(Some((base, bookmark.name)));
        }
    }
    Ok(None)
}

/// The list of the redaction bookmark that is about just these snapshots.
async fn redaction_list(pool: &View, to_name: &str, guids: &[u64]) -> Result<ObjectId, SendError> {
    let dsl = pool.dsl();
    let dir = to_name.split('@').next().unwrap_or_default();
    let head = dsl.dataset(dir).await.map_err(|_| refused(Refusal::NotThere, "dataset to be sent no longer exists"))?;
    for bookmark in dsl.bookmarks(&head).await? {
        let redaction = dsl.bookmark_redaction(&bookmark).await?;
        if redaction.is_some() && are_same(redaction.as_deref(), Some(guids)) {
            let list = bookmark.phys.redaction_list;
            if !is_complete(pool, list).await? {
                return Err(refused(Refusal::Invalid, "incomplete redaction bookmark provided"));
            }
            return Ok(list);
        }
    }
    Err(refused(Refusal::NotThere, "no appropriate redaction bookmark exists"))
}

/// True if both are none, or have the same guids.
fn are_same(one: Option<&[u64]>, other: Option<&[u64]>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => one.len() == other.len() && one.iter().all(|guid| other.contains(guid)),
        _ => false,
    }
}
