//! The first part of the sequence, which both kinds share: a dataset is looked at and taken, between two changes of its pool.

use cenote_dmu::Objset;
use cenote_dsl::{Dataset, Dir, Dsl, DslError};
use cenote_format::enums::ObjsetType;
use cenote_format::ids::ObjectId;
use cenote_spa::{FileSizes, LiveHead, Pool, PoolError, SpaError, Syncer};
use cenote_taskq::boxed;
use cenote_zpl::Properties;

use crate::error::{OpenError, Why};
use crate::{Frozen, Source, Use};

/// A dataset that was taken.
pub(crate) enum Taken {
    Head(LiveHead),
    Frozen(Frozen<Objset>),
}

/// Looks at a dataset that a user has found, and takes it. With `why` it is taken as it is on disk, for that reason.
pub(crate) async fn take(
    source: Source<'_>,
    wanted: &Dataset,
    kind: ObjsetType,
    how: &Use,
    why: Option<String>,
) -> Result<(Taken, Properties), OpenError> {
    let pool = match source {
        Source::Pool(pool) => pool,
        Source::View(view) => {
            check(view.dsl(), wanted, kind).await?;
            let frozen = Frozen { contents: objset(view.dsl(), wanted).await?, hold: None, why };
            return Ok((Taken::Frozen(frozen), Properties::read(view.dsl(), &wanted.dir).await?));
        }
    };
    let (this, wanted, how) = (pool.clone(), wanted.clone(), how.clone());
    let taken =
        pool.look(move |syncer| Box::pin(async move { take_in(&this, syncer, &wanted, kind, &how, why).await }));
    taken.await
}

async fn take_in(
    pool: &Pool,
    syncer: &mut Syncer,
    wanted: &Dataset,
    kind: ObjsetType,
    how: &Use,
    mut why: Option<String>,
) -> Result<(Taken, Properties), OpenError> {
    let dsl = syncer.dsl().clone();
    let dataset = same(&dsl, wanted).await?;
    let name = dataset.name();
    check(&dsl, &dataset, kind).await?;
    let properties = properties(syncer, &dsl, &dataset.dir).await?;
    let refused = |why| Err(OpenError::Refused(name.clone(), why));
    if dataset.is_snapshot() && how.is_for_changes {
        return refused(Why::Snapshot);
    }
    if !dataset.is_snapshot() && why.is_none() {
        if let Some(user) = pool.user(dataset.object) {
            return refused(Why::InUse(user));
        }
        if how.is_for_changes && properties.forbidden.write {
            return refused(Why::ReadOnly);
        }
        match syncer.open_head(&name).await {
            Ok(head) => return Ok((Taken::Head(pool.adopt(syncer, &name, head, how.user).await?), properties)),
            Err(SpaError::Pool { error: reason @ PoolError::Unsupported(_), .. }) if !how.is_for_changes => {
                why = Some(reason.to_string());
            }
            Err(error) => return Err(error.into()),
        }
    }
    let hold = Some(syncer.long_hold(dataset.object, how.user));
    Ok((Taken::Frozen(Frozen { contents: objset(&dsl, &dataset).await?, hold, why }), properties))
}

async fn objset(dsl: &Dsl, dataset: &Dataset) -> Result<Objset, OpenError> {
    let objset = dsl.open_for_clients(dataset).await?;
    objset.ok_or_else(|| OpenError::Refused(dataset.name(), Why::Empty))
}

/// The dataset that a user has found, if it exists and still has that name.
async fn same(dsl: &Dsl, wanted: &Dataset) -> Result<Dataset, OpenError> {
    let found = match &wanted.snapshot {
        // Its name may be unknown: to find it takes a walk over all snapshots.
        Some(snapshot) => dsl.dataset_object(wanted.object, wanted.dir.clone(), Some(snapshot.clone())).await.ok(),
        None => Some(dsl.dataset(&wanted.name()).await?),
    };
    let is_same = |found: &Dataset| found.object == wanted.object && found.phys.guid == wanted.phys.guid;
    found.filter(is_same).ok_or_else(|| DslError::NoSuchDataset(wanted.name()).into())
}

/// Refuses a dataset that is not whole, not of this kind, or encrypted with a key that is not loaded.
async fn check(dsl: &Dsl, dataset: &Dataset, kind: ObjsetType) -> Result<(), OpenError> {
    let refused = |why| Err(OpenError::Refused(dataset.name(), why));
    if dataset.is_inconsistent() {
        return refused(Why::Inconsistent);
    }
    match dsl.kind(dataset).await? {
        found if found == kind => {}
        ObjsetType::Zvol => return refused(Why::IsVolume),
        ObjsetType::Zfs => return refused(Why::IsFileSystem),
        _ => return refused(Why::Empty),
    }
    match dsl.encryption(&dataset.dir).await? {
        Some(encryption) if !encryption.is_loaded => refused(Why::KeyNotLoaded),
        _ => Ok(()),
    }
}

/// Sets the sizes of new files' blocks and dnodes that the pool's features allow, in properties that were read from this directory of datasets.
///
/// # Errors
/// They cannot be read.
#[boxed]
pub async fn allow_sizes(syncer: &Syncer, dsl: &Dsl, dir: &Dir, properties: &mut Properties) -> Result<(), SpaError> {
    let FileSizes { record_bytes, dnode_slots } = syncer.file_sizes(dsl, dir).await?;
    (properties.files.record_bytes, properties.files.dnode_slots) = (record_bytes, dnode_slots);
    Ok(())
}

async fn properties(syncer: &Syncer, dsl: &Dsl, dir: &Dir) -> Result<Properties, SpaError> {
    let mut properties = Properties::read(dsl, dir).await?;
    allow_sizes(syncer, dsl, dir, &mut properties).await?;
    Ok(properties)
}

/// The present properties of datasets in use, in this order.
///
/// # Errors
/// They cannot be read; or as [`Pool::look`].
#[boxed]
pub async fn properties_of(pool: &Pool, datasets: Vec<ObjectId>) -> Result<Vec<Properties>, SpaError> {
    if datasets.is_empty() {
        return Ok(Vec::new());
    }
    let read = pool.look(move |syncer| {
        Box::pin(async move {
            let dsl = syncer.dsl().clone();
            let mut found = Vec::new();
            for dataset in datasets {
                let dir = dsl.dataset_phys(dataset).await?.dir;
                let dir = dsl.dir_object(dir, dsl.dir_name(dir).await?).await?;
                found.push(properties(syncer, &dsl, &dir).await?);
            }
            Ok::<_, SpaError>(found)
        })
    });
    read.await
}

/// True if datasets in use obey one of these properties. An empty list stands for all.
#[must_use]
pub fn is_obeyed(changed: &[String]) -> bool {
    let names = |name: &String| Properties::NAMES.contains(&name.as_str());
    changed.is_empty() || changed.iter().any(names)
}
