//! Goal: what a stream's records come to is the snapshot. Method: every snapshot of golden pools is sent, the first of each dataset whole
//! and each later one from the one before, in several forms; a receiver of a few lines, which knows nothing but objects, ranges and blocks,
//! applies the records; what it then has is compared with what is read from the pool. Clones are sent from their origins.

#![allow(clippy::disallowed_methods)]

use crate::support;

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use cenote_format::stream::Body;
use cenote_replicas::records::{Model, apply, difference};
use cenote_send::sender::{Base, ResumePoint, SendFlags, SendProgress, SendRequest, send};
use cenote_send::{Checks, StreamReader};
use cenote_spa::View;
use support::with_pool;

const FORMS: [SendFlags; 4] = [
    SendFlags { large_blocks: false, embedded: false, compressed: false, raw: false },
    SendFlags { large_blocks: true, embedded: true, compressed: true, raw: false },
    SendFlags { large_blocks: false, embedded: true, compressed: true, raw: false },
    SendFlags { large_blocks: true, embedded: false, compressed: false, raw: false },
];

async fn check(pool: &View, flags: SendFlags) -> Result<(usize, Vec<String>)> {
    let dsl = pool.dsl();
    let mut models: BTreeMap<u64, Model> = BTreeMap::new();
    let mut differences = Vec::new();
    // By txg, so that origins come before their clones.
    let mut snapshots = Vec::new();
    for dir in dsl.tree(dsl.root_dir().await?, false).await? {
        let Some(head) = dsl.head(&dir).await? else { continue };
        let own = dsl.snapshots(&head).await?;
        let mut before = match dir.phys.origin {
            origin if origin.0 == 0 => None,
            origin => {
                let name = dsl.dataset_name(origin).await?;
                if name.contains('$') { None } else { Some(dsl.dataset(&name).await?) }
            }
        };
        // The head is sent too, as it is.
        // Unless it is half received, which nobody sends.
        for dataset in own.into_iter().chain([head].into_iter().filter(|head| !head.is_inconsistent())) {
            snapshots.push((dataset.clone(), before.replace(dataset)));
        }
    }
    // Heads last: their own txgs are old.
    snapshots.sort_by_key(|(dataset, _)| (!dataset.is_snapshot(), dataset.phys.creation_txg, dataset.object));
    let count = snapshots.len();
    for (dataset, before) in snapshots {
        let mut request = SendRequest::full(dataset.clone(), flags);
        let mut model = Model::new();
        if let Some(before) = &before {
            request.base = Some(Base::snapshot(dsl, &dataset, before).await?);
            model = models.get(&before.object.0).with_context(|| before.name())?.clone();
        }
        let mut out = Vec::new();
        let name = dataset.name();
        let sent = send(pool, &request, &mut out, &SendProgress::default()).await;
        sent.with_context(|| format!("{name} {flags:?}"))?;
        apply(&mut model, &out).with_context(|| format!("{name} {flags:?}"))?;
        if let Some(difference) = difference(dsl, &dataset, &model).await? {
            differences.push(format!("{name} {flags:?} after {:?}: {difference}", before.map(|before| before.name())));
        }
        if dataset.is_snapshot() {
            models.insert(dataset.object.0, model);
        }
    }
    Ok((count, differences))
}

#[test]
fn records_come_to_the_snapshot() -> Result<()> {
    for theme in ["snapshots", "streams", "xattrs", "acl", "recordsizes", "compression", "checksums", "brt"] {
        let Some(theme) = cenote_testkit::theme_if_present(theme) else { continue };
        for (index, flags) in FORMS.into_iter().enumerate() {
            if index > 1 && theme.name() != "snapshots" && theme.name() != "streams" {
                continue;
            }
            let (count, differences) = with_pool(&theme, true, async |pool| check(pool, flags).await)
                .with_context(|| theme.name().to_owned())?;
            ensure!(count > 0, "{} has nothing to send", theme.name());
            ensure!(differences.is_empty(), "{}: {}", theme.name(), differences.join("\n"));
        }
    }
    Ok(())
}

/// A redacted stream, and then, from its bookmark, what it had left out.
#[test]
fn what_was_redacted_comes_later() -> Result<()> {
    with_pool(&cenote_testkit::theme("streams"), false, async |pool| {
        let dsl = pool.dsl();
        let to = dsl.dataset(&format!("{}/src@three", pool.name())).await?;
        let head = dsl.head(&to.dir).await?.context("a head")?;
        let book = dsl.bookmarks(&head).await?.into_iter().find(|bookmark| bookmark.phys.redaction_list.0 != 0);
        let book = book.context("a redaction bookmark")?;
        for flags in FORMS {
            let mut request = SendRequest::full(to.clone(), flags);
            request.redact = Some(book.phys.redaction_list);
            let (mut model, mut out) = (Model::new(), Vec::new());
            send(pool, &request, &mut out, &SendProgress::default()).await?;
            apply(&mut model, &out)?;
            ensure!(model.values().filter(|object| object.is_redacted()).count() >= 3, "little was left out");
            ensure!(difference(dsl, &to, &model).await?.is_some(), "nothing was left out");

            let mut request = SendRequest::full(to.clone(), flags);
            request.base = Some(Base::bookmark(dsl, &to, &head, &book).await?);
            let mut rest = Vec::new();
            send(pool, &request, &mut rest, &SendProgress::default()).await?;
            ensure!(rest.len() < out.len(), "more was sent than was left out");
            apply(&mut model, &rest)?;
            let difference = difference(dsl, &to, &model).await?;
            ensure!(difference.is_none(), "{flags:?}: {difference:?}");
        }
        Ok(())
    })
}

/// A stream that is broken off anywhere goes on from each place that its receiver may have come to.
#[test]
fn a_stream_that_goes_on_brings_the_rest() -> Result<()> {
    with_pool(&cenote_testkit::theme("streams"), false, async |pool| {
        let dsl = pool.dsl();
        let to = dsl.dataset(&format!("{}/src@one", pool.name())).await?;
        for flags in [FORMS[0], FORMS[1]] {
            let whole = SendRequest::full(to.clone(), flags);
            let mut out = Vec::new();
            send(pool, &whole, &mut out, &SendProgress::default()).await?;
            let writes = writes(&out)?;
            ensure!(writes.len() > 20, "{} writes", writes.len());
            for (end, object, offset) in writes.iter().step_by(writes.len() / 12) {
                let mut model = Model::new();
                // All records before that one have been received, and the stream ends without END.
                apply_cut(&mut model, &out[..*end])?;
                let mut request = whole.clone();
                request.resume = Some(ResumePoint { object: *object, offset: *offset });
                let mut rest = Vec::new();
                send(pool, &request, &mut rest, &SendProgress::default()).await?;
                apply(&mut model, &rest)?;
                let difference = difference(dsl, &to, &model).await?;
                ensure!(difference.is_none(), "object {object}, offset {offset}, {flags:?}: {difference:?}");
            }
        }
        Ok(())
    })
}

/// The writes of a stream: where each begins, and what it is about.
fn writes(stream: &[u8]) -> Result<Vec<(usize, u64, u64)>> {
    let mut reader = StreamReader::new(stream, Checks::ALL);
    let mut found = Vec::new();
    while let Some(item) = reader.next_item()? {
        if let Body::Write(write) = &item.decoded.record.body {
            found.push((item.decoded.offset_bytes as usize, write.object.0, write.offset_bytes));
        }
    }
    Ok(found)
}

/// Applies a stream that was cut between two records.
fn apply_cut(model: &mut Model, stream: &[u8]) -> Result<()> {
    match apply(model, stream) {
        Err(error) if error.to_string().contains("the stream ends") => Ok(()),
        Ok(()) => bail!("a stream that was cut is whole"),
        error => error,
    }
}
