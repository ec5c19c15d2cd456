//! A volume's size and what is reserved for it.

use cenote_dsl::Dsl;
use cenote_format::enums::ObjsetType;
use cenote_spa::{Pool, PropertyValue, Syncer};
use cenote_zvol::Volume;

use crate::AUTO;
use crate::error::{AdminError, Reason, Verb};
use crate::request::Volumes;

fn refused(name: &str, reason: Reason) -> AdminError {
    AdminError::refused(Verb::SetProperty, name, reason)
}

/// A volume that is there, with the figures that its reservation depends on.
struct Existing {
    volume: Volume,
    reserved_bytes: u64,
    unique_bytes: u64,
}

impl Existing {
    async fn open(pool: &mut Syncer, dsl: &Dsl, name: &str) -> Result<Self, AdminError> {
        let dataset = dsl.dataset(name).await?;
        if dsl.kind(&dataset).await? != ObjsetType::Zvol {
            return Err(AdminError::NoVolume(name.to_owned()));
        }
        let reserved = dsl.property(&dataset.dir, "refreservation", false).await?;
        let head = pool.open_head(name).await?;
        Ok(Self {
            volume: Volume::open(&head.objset).await?,
            reserved_bytes: reserved.and_then(|found| found.value.number()).unwrap_or(0),
            unique_bytes: dataset.phys.unique_bytes,
        })
    }

    /// How much is reserved for this size.
    fn usual_bytes(&self, pool: &Syncer, size_bytes: u64) -> u64 {
        pool.volume_reservation_bytes(size_bytes, self.volume.block_size_bytes())
    }
}

/// How many bytes `refreservation` comes to ([`AUTO`]: as many as the volume needs), if there is room for them.
pub(crate) async fn check_reservation(pool: &mut Syncer, name: &str, bytes: u64) -> Result<u64, AdminError> {
    let dsl = pool.dsl().clone();
    let dataset = dsl.dataset(name).await?;
    let before = dsl.property(&dataset.dir, "refreservation", false).await?;
    let before = before.and_then(|found| found.value.number()).unwrap_or(0);
    let bytes = match bytes {
        AUTO => {
            let existing = Existing::open(pool, &dsl, name).await?;
            existing.usual_bytes(pool, existing.volume.size_bytes())
        }
        bytes => bytes,
    };
    let available = pool.available_bytes(&dsl, &dataset.dir).await?;
    check_room(name, before, bytes, dataset.phys.unique_bytes, available)?;
    pool.check_change_property(name, "refreservation", Some(&PropertyValue::Number(bytes))).await?;
    Ok(bytes)
}

fn check_room(name: &str, before: u64, after: u64, unique: u64, available: u64) -> Result<(), AdminError> {
    if after.max(unique).saturating_sub(before.max(unique)) > available {
        return Err(refused(name, Reason::NoRoom));
    }
    Ok(())
}

/// Reserves so many bytes for a dataset.
///
/// # Errors
/// There is no such dataset, or the MOS cannot be changed.
pub(crate) async fn set_reserved(pool: &mut Syncer, name: &str, bytes: u64) -> Result<(), AdminError> {
    Ok(pool.change_property(name, "refreservation", Some(&PropertyValue::Number(bytes))).await?)
}

/// A size that a volume can be given, and what is reserved for it then: as much as its size needs, where that was so before.
pub(crate) struct Resize {
    volume: Volume,
    size_bytes: u64,
    reserved_bytes: Option<(u64, u64)>,
}

impl Resize {
    /// Finds out what it comes to, and whether there is room for it.
    ///
    /// # Errors
    /// There is no such volume, it is read-only, the size is not in whole blocks, or there is no room for what would be reserved.
    pub(crate) async fn plan(pool: &mut Syncer, name: &str, size_bytes: u64) -> Result<Self, AdminError> {
        let dsl = pool.dsl().clone();
        let existing = Existing::open(pool, &dsl, name).await?;
        let dir = dsl.dir(name).await?;
        if dsl.property(&dir, "readonly", true).await?.and_then(|found| found.value.number()) == Some(1) {
            return Err(refused(name, Reason::ReadOnly));
        }
        let block_bytes = existing.volume.block_size_bytes();
        if size_bytes == 0 || !size_bytes.is_multiple_of(block_bytes) {
            return Err(refused(name, Reason::NotWholeBlocks(block_bytes)));
        }
        let before = existing.usual_bytes(pool, existing.volume.size_bytes());
        let after = existing.usual_bytes(pool, size_bytes);
        let follows = existing.reserved_bytes == before;
        if follows {
            let available = pool.available_bytes(&dsl, &dir).await?;
            check_room(name, before, after, existing.unique_bytes, available)?;
        }
        let reserved_bytes = follows.then_some((before, after));
        Ok(Self { volume: existing.volume, size_bytes, reserved_bytes })
    }

    /// Gives the volume its size in the open txg. Its reservation follows.
    pub(crate) async fn make(&self, pool: &mut Syncer, name: &str) -> Result<(), AdminError> {
        let mut claim = self.volume.claim_all().await;
        let resized = claim.resize(pool.txg(), self.size_bytes).await;
        resized.map_err(|error| refused(name, Reason::Volume(error)))?;
        drop(claim);
        if let Some((_, after)) = self.reserved_bytes {
            set_reserved(pool, name, after).await?;
        }
        Ok(())
    }
}

/// Changes the size of a volume while clients may write it: in an open txg, like the clients' changes. Space is reserved before it grows, and
/// released after it has shrunk; if the process ends in between, more is reserved than needed.
pub(crate) async fn resize_in_use(
    pool: &Pool,
    mut volumes: Box<dyn Volumes + '_>,
    name: &str,
    size_bytes: u64,
) -> Result<(), AdminError> {
    let of_plan = name.to_owned();
    let reserved = pool.change(move |syncer| {
        Box::pin(async move {
            let plan = Resize::plan(syncer, &of_plan, size_bytes).await?;
            if let Some((before, after)) = plan.reserved_bytes
                && after > before
            {
                set_reserved(syncer, &of_plan, after).await?;
            }
            Ok::<_, AdminError>(plan.reserved_bytes)
        })
    });
    let reserved = reserved.await?;
    let resized = volumes.resize(name, size_bytes).await;
    resized.map_err(|error| refused(name, Reason::Said(error.to_string())))?;
    // The new size is in a txg of the volume's changes, and is none of the pool's.
    pool.record().await?;
    if let Some((before, after)) = reserved
        && after < before
    {
        let name = name.to_owned();
        let release = pool.change(move |syncer| Box::pin(async move { set_reserved(syncer, &name, after).await }));
        release.await?;
    }
    Ok(())
}
