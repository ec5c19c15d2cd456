//! Making volumes, and changing their size and what is reserved for them.

use anyhow::{Result, anyhow, bail};
use cenote_dsl::Dsl;
use cenote_format::enums::ObjsetType;
use cenote_spa::{PropertyValue, Syncer};
use cenote_zvol::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Volume, VolumeSpec};

use crate::args::parse_size;
use crate::values::AUTO;
use crate::volumes::OpenVolumes;
use crate::writing::Writing;

/// What is asked for.
pub(crate) struct Wish<'a> {
    /// `-V`.
    pub(crate) size: &'a str,
    /// `-b`.
    pub(crate) block_size: Option<&'a str>,
    /// `-s`: nothing is reserved.
    pub(crate) sparse: bool,
    /// `-o`, all but the block size.
    pub(crate) settings: &'a [(String, PropertyValue)],
}

/// Makes a volume in the open txg, with all that belongs to it.
pub(crate) async fn make(pool: &mut Syncer, name: &str, wish: &Wish<'_>) -> Result<()> {
    let cannot = |why: String| anyhow!("cannot create '{name}': {why}");
    let size = parse_size(wish.size).map_err(|_| anyhow!("bad volume size '{}'", wish.size))?;
    let block_bytes = match wish.block_size {
        None => pool.default_volume_block_bytes(),
        Some(text) => parse_size(text).map_err(|_| anyhow!("bad volume block size '{text}'"))?,
    };
    let is_block = block_bytes.is_power_of_two()
        && (u64::from(BLOCK_BYTES_MIN)..=u64::from(BLOCK_BYTES_MAX)).contains(&block_bytes);
    let block_bytes = match u32::try_from(block_bytes) {
        Ok(bytes) if is_block => bytes,
        _ => return Err(cannot("'volblocksize' must be power of 2 from 512B to 16M".to_owned())),
    };
    // As OpenZFS does it: up to whole blocks.
    let size_bytes = size.checked_next_multiple_of(u64::from(block_bytes)).unwrap_or(0);
    if size_bytes == 0 {
        return Err(cannot("volume size cannot be zero".to_owned()));
    }
    let spec = VolumeSpec { size_bytes, block_bytes };
    spec.check().map_err(|error| cannot(error.to_string()))?;
    let asked = wish.settings.iter().find(|(property, _)| property == "refreservation");
    let usual = pool.volume_reservation_bytes(size_bytes, u64::from(block_bytes));
    let reserved = match asked {
        Some((_, PropertyValue::Number(bytes))) if *bytes == AUTO => usual,
        Some((_, PropertyValue::Number(bytes))) => *bytes,
        _ if wish.sparse => 0,
        _ => usual,
    };
    let view = pool.dsl().clone();
    // Where there is nothing above, making it says so.
    if let Some((above, _)) = name.rsplit_once('/')
        && let Ok(dir) = view.dir(above).await
        && reserved > pool.available_bytes(&view, &dir).await?
    {
        return Err(cannot("out of space".to_owned()));
    }

    // Its feature is used once a block is written, but it has to be there.
    let block = PropertyValue::Number(u64::from(block_bytes));
    pool.check_property("volblocksize", &block).map_err(|error| cannot(error.to_string()))?;
    let head = pool.create_dataset(name, ObjsetType::Zvol).await?;
    Volume::create(&head.objset, pool.txg(), &spec).await?;
    for (property, value) in wish.settings.iter().filter(|(property, _)| property != "refreservation") {
        pool.set_property(&head, property, value).await?;
    }
    if reserved != 0 || asked.is_some() {
        pool.set_property(&head, "refreservation", &PropertyValue::Number(reserved)).await?;
    }
    Ok(())
}

/// What of a volume counts for what is reserved.
struct Existing {
    volume: Volume,
    reserved_bytes: u64,
    unique_bytes: u64,
}

impl Existing {
    async fn open(pool: &mut Syncer, view: &Dsl, name: &str) -> Result<Self> {
        let dataset = view.dataset(name).await?;
        if view.kind(&dataset).await? != ObjsetType::Zvol {
            bail!("'{name}' is no volume");
        }
        let reserved = view.property(&dataset.dir, "refreservation", false).await?;
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

/// Reserves so much for a dataset, or as much as a volume needs ([`AUTO`]), if there is so much.
pub(crate) async fn reserve(pool: &mut Syncer, name: &str, bytes: u64) -> Result<()> {
    let view = pool.dsl().clone();
    let dataset = view.dataset(name).await?;
    let before = view.property(&dataset.dir, "refreservation", false).await?;
    let before = before.and_then(|found| found.value.number()).unwrap_or(0);
    let bytes = match bytes {
        AUTO => {
            let existing = Existing::open(pool, &view, name).await?;
            existing.usual_bytes(pool, existing.volume.size_bytes())
        }
        bytes => bytes,
    };
    let available = pool.available_bytes(&view, &dataset.dir).await?;
    check_room(name, before, bytes, dataset.phys.unique_bytes, available)?;
    Ok(pool.change_property(name, "refreservation", Some(&PropertyValue::Number(bytes))).await?)
}

fn check_room(name: &str, before: u64, after: u64, unique: u64, available: u64) -> Result<()> {
    if after.max(unique).saturating_sub(before.max(unique)) > available {
        return Err(cannot_set(name, "size is greater than available space"));
    }
    Ok(())
}

/// A size that a volume can be given, and what is reserved for it then: as much as its size needs, where that was so before.
struct Resize {
    volume: Volume,
    /// What is reserved before and after, if it follows.
    reserved_bytes: Option<(u64, u64)>,
}

impl Resize {
    /// Finds out what it comes to, and whether there is room for it.
    async fn plan(pool: &mut Syncer, name: &str, size_bytes: u64) -> Result<Self> {
        let view = pool.dsl().clone();
        let existing = Existing::open(pool, &view, name).await?;
        let dir = view.dir(name).await?;
        if view.property(&dir, "readonly", true).await?.and_then(|found| found.value.number()) == Some(1) {
            return Err(cannot_set(name, "the volume is read-only ('readonly=on')"));
        }
        let block_bytes = existing.volume.block_size_bytes();
        if size_bytes == 0 || !size_bytes.is_multiple_of(block_bytes) {
            let why = format!("'volsize' must be a multiple of volume block size ({block_bytes})");
            return Err(cannot_set(name, why));
        }
        let before = existing.usual_bytes(pool, existing.volume.size_bytes());
        let after = existing.usual_bytes(pool, size_bytes);
        let follows = existing.reserved_bytes == before;
        if follows {
            let available = pool.available_bytes(&view, &dir).await?;
            check_room(name, before, after, existing.unique_bytes, available)?;
        }
        Ok(Self { volume: existing.volume, reserved_bytes: follows.then_some((before, after)) })
    }
}

fn cannot_set(name: &str, why: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot set property for '{name}': {why}")
}

async fn set_reserved(pool: &mut Syncer, name: &str, bytes: u64) -> Result<()> {
    Ok(pool.change_property(name, "refreservation", Some(&PropertyValue::Number(bytes))).await?)
}

/// Gives a volume another size. What is reserved for it follows where it was what its size needs.
pub(crate) async fn resize(pool: &mut Syncer, name: &str, size_bytes: u64) -> Result<()> {
    let plan = Resize::plan(pool, name, size_bytes).await?;
    let mut claim = plan.volume.claim_all().await;
    claim.resize(pool.txg(), size_bytes).await.map_err(|error| cannot_set(name, error))?;
    drop(claim);
    if let Some((_, after)) = plan.reserved_bytes {
        set_reserved(pool, name, after).await?;
    }
    Ok(())
}

/// As [`resize`], of a volume that clients may be writing: its size changes in an open txg, like all that they change. Space is
/// reserved before it grows, and no longer reserved after it has shrunk; if the process ends in between, more is reserved than needed.
pub(crate) async fn resize_served(
    pool: &mut Writing,
    volumes: &OpenVolumes,
    name: &str,
    size_bytes: u64,
) -> Result<()> {
    let mut volumes = volumes.lock().await;
    let planned = name.to_owned();
    let reserved = pool.step(move |writer| {
        Box::pin(async move {
            let plan = Resize::plan(writer, &planned, size_bytes).await?;
            if let Some((before, after)) = plan.reserved_bytes
                && after > before
            {
                set_reserved(writer, &planned, after).await?;
            }
            Ok(plan.reserved_bytes)
        })
    });
    let reserved = reserved.await?;
    volumes.resize(name, size_bytes).await.map_err(|error| cannot_set(name, error))?;
    if let Some((before, after)) = reserved
        && after < before
    {
        let name = name.to_owned();
        pool.step(move |writer| Box::pin(async move { set_reserved(writer, &name, after).await })).await?;
    }
    Ok(())
}
