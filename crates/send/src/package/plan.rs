//! The streams of a package in the order in which they are sent.

use std::collections::{BTreeMap, BTreeSet};

use cenote_dsl::{Dataset, DslError};
use cenote_format::ids::{Guid, ObjectId};
use cenote_spa::View;

use super::gather::{List, origin};
use super::{PackageError, PackageRequest, snapshots};

/// A stream of a package.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The snapshot.
    pub to: Dataset,
    /// The incremental source; `None` for a full stream.
    pub from: Option<Dataset>,
    /// The source's name is reported: not for the origin of a clone.
    pub is_from_told: bool,
}

/// The streams of a package.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// In the order in which they are sent.
    pub streams: Vec<Planned>,
    /// Part of the request could not be planned; a warning said so.
    pub has_failed: bool,
    /// The requested snapshot is among them.
    pub has_to: bool,
}

/// Plans a package. `list` is the list of a package for a tree. `say` gets warnings.
///
/// # Errors
/// Something about the datasets cannot be read.
pub async fn plan(
    pool: &View,
    request: &PackageRequest,
    list: Option<&List>,
    say: &mut (dyn FnMut(String) + Send),
) -> Result<Plan, PackageError> {
    let mut plan = Plan::default();
    let Some(list) = list.filter(|_| request.replicate) else {
        let dir = pool.dsl().dir(&request.dataset).await?;
        let head = pool.dsl().head(&dir).await?.ok_or_else(|| DslError::NoSuchDataset(request.dataset.clone()))?;
        plan.dataset(pool, request, &head, &BTreeSet::new(), say).await?;
        return Ok(plan);
    };
    // The index in the list of the dataset of each snapshot.
    let mut places: BTreeMap<Guid, usize> = BTreeMap::new();
    for (place, entry) in list.entries.iter().enumerate() {
        for (_, guid) in &entry.snapshots {
            places.entry(*guid).or_insert(place);
        }
    }
    // If everything was excluded, nothing is missing.
    plan.has_to = list.entries.is_empty();
    let origins: BTreeSet<Guid> = list.entries.iter().filter_map(|entry| entry.origin).collect();
    let mut is_sent = vec![false; list.entries.len()];
    loop {
        let (mut is_left, mut has_progressed) = (false, false);
        for (place, entry) in list.entries.iter().enumerate() {
            if is_sent[place] {
                continue;
            }
            let waits = |guid: Guid| places.get(&guid).is_some_and(|other| !is_sent[*other] && *other != place);
            if waits(entry.parent_from) || entry.origin.is_some_and(waits) {
                is_left = true;
                continue;
            }
            plan.dataset(pool, request, &entry.head, &origins, say).await?;
            is_sent[place] = true;
            has_progressed = true;
        }
        if !is_left {
            assert!(is_sent.iter().all(|is_sent| *is_sent), "each dataset comes after what it needs (invariant 1)");
            return Ok(plan);
        }
        if !has_progressed {
            let what = "datasets that are each other's parents and origins".into();
            return Err(DslError::Corrupt { object: ObjectId(0).0, what }.into());
        }
    }
}

impl Plan {
    /// Adds the streams of one dataset. `origins`: the origins of the package's clones.
    async fn dataset(
        &mut self,
        pool: &View,
        request: &PackageRequest,
        head: &Dataset,
        origins: &BTreeSet<Guid>,
        say: &mut (dyn FnMut(String) + Send),
    ) -> Result<(), PackageError> {
        let name = head.name();
        let all = pool.dsl().snapshots(head).await?;
        let find = |wanted: &str| all.iter().find(|snapshot| snapshot.snapshot.as_deref() == Some(wanted));
        let Some(to) = find(&request.to) else {
            say(format!("WARNING: could not send {name}@{}: does not exist", request.to));
            self.has_failed = true;
            return Ok(());
        };
        let from = request.from.as_deref();
        // A dataset that is newer than the incremental source is sent from its beginning.
        let mut seen_from = from.is_none() || request.replicate && from.and_then(find).is_none();
        let mut seen_to = false;
        let mut before: Option<Dataset> = None;
        let listed = if request.do_all || request.replicate {
            let txg = |snapshot: &Dataset| snapshot.phys.creation_txg.0;
            let (min, max) = if request.replicate { (0, 0) } else { (from.and_then(find).map_or(0, txg), txg(to)) };
            snapshots(pool, head, min, max).await?
        } else {
            from.and_then(find).into_iter().chain([to]).cloned().collect()
        };
        for snapshot in listed {
            let short = snapshot.snapshot.as_deref().unwrap_or_default();
            let is_from = from == Some(short);
            if !seen_from && is_from {
                seen_from = true;
                before = Some(snapshot);
                continue;
            }
            if seen_to || !seen_from {
                continue;
            }
            let is_to = short == request.to;
            seen_to |= is_to;
            // For a tree, the origins of clones are sent even if they are not requested.
            let is_origin = request.replicate && origins.contains(&snapshot.phys.guid);
            let is_passed = !(request.do_all || is_from || is_to || is_origin);
            if is_passed || request.excludes(&snapshot.name()) {
                continue;
            }
            let is_from_told = before.is_some();
            let base = match &before {
                Some(before) => Some(before.clone()),
                None if request.from_origin || request.replicate => origin(pool, head).await?,
                None => None,
            };
            self.streams.push(Planned { to: snapshot.clone(), from: base, is_from_told });
            before = Some(snapshot);
        }
        let to = &request.to;
        if !seen_from {
            let from = from.unwrap_or_default();
            say(format!("WARNING: could not send {name}@{to}:\nincremental source ({name}@{from}) does not exist"));
            self.has_failed = true;
        } else if !seen_to {
            say(match from {
                Some(from) => format!(
                    "WARNING: could not send {name}@{to}:\nincremental source ({name}@{from}) is not earlier than it"
                ),
                None => format!("WARNING: could not send {name}@{to}: does not exist"),
            });
            self.has_failed = true;
        }
        // As in OpenZFS, the value for the last dataset.
        self.has_to = seen_to;
        Ok(())
    }
}
