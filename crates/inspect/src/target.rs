//! An objset to look into.

use std::sync::Arc;

use cenote_arc::Cache;
use cenote_dmu::{Dmu, KeyAccess, Objset};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::ids::{ObjectId, ObjsetId};
use cenote_spa::{FoundPool, View};
use cenote_taskq::{Handle, boxed};
use cenote_zio::Zio;

use crate::InspectError;

/// An objset to look into.
pub struct Target {
    /// Its name in messages.
    pub name: String,
    /// The objset. Where the key of an encrypted dataset is missing, dnodes can be read, their contents not.
    pub objset: Objset,
    /// Whether contents are out of reach for want of a key.
    pub is_locked: bool,
}

impl Target {
    /// The MOS.
    pub(crate) fn mos(pool: &View) -> Self {
        Self { name: format!("{} MOS", pool.name()), objset: pool.mos().clone(), is_locked: false }
    }

    /// The objset of a dataset: by name, or by the number of its object in the MOS as `POOL/objset-NUMBER` (decimal, or
    /// hexadecimal with `0x`), which works where the tree of names is damaged. `POOL/$MOS` is the MOS.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    #[boxed]
    pub async fn find(pool: &View, name: &str) -> Result<Self, InspectError> {
        let below = name.split_once('/').map(|(_, below)| below);
        if below == Some("$MOS") {
            return Ok(Self::mos(pool));
        }
        if let Some(number) = below.and_then(|below| below.strip_prefix("objset-")) {
            let bad = || InspectError::Misuse(format!("'{number}' is not a number"));
            return Self::by_number(pool, parse_number(number).ok_or_else(bad)?).await;
        }
        let name = name.strip_suffix('/').unwrap_or(name);
        let dataset = pool.dsl().dataset(name).await?;
        let encryption = pool.dsl().encryption(&dataset.dir).await?;
        let Some(objset) = pool.dsl().open_as_is(&dataset).await? else {
            return Err(InspectError::NotThere(format!("'{name}' has no contents")));
        };
        let is_locked = encryption.is_some_and(|encryption| !encryption.is_loaded);
        let objset = if is_locked { objset.without_key() } else { objset };
        Ok(Self { name: dataset.name(), objset, is_locked })
    }

    async fn by_number(pool: &View, number: u64) -> Result<Self, InspectError> {
        if number == 0 {
            return Ok(Self::mos(pool));
        }
        let dnode = pool.mos().object(ObjectId(number)).await?;
        if dnode.phys().bonus_type != DmuType::DSL_DATASET {
            let what = format!("object {number} of the MOS is no dataset but {}", dnode.phys().object_type);
            return Err(InspectError::NotThere(what));
        }
        let phys = dnode.bonus(DslDatasetPhys::parse)?;
        if phys.bp.is_hole() {
            return Err(InspectError::NotThere(format!("dataset object {number} has no contents")));
        }
        let key = pool.dsl().loaded_key_of_dir(phys.dir).await.ok().flatten();
        let is_locked = phys.bp.uses_crypt() && key.is_none();
        let access = match key {
            Some(key) => KeyAccess::Loaded(key),
            None if is_locked => KeyAccess::Without,
            None => KeyAccess::None,
        };
        let objset = Objset::open(pool.dmu().clone(), ObjsetId(number), phys.bp, access).await?;
        Ok(Self { name: format!("{}/objset-{number}", pool.name()), objset, is_locked })
    }
}

/// A way to the blocks of a pool that needs no more than labels. `cache_bytes` is the memory of its cache.
///
/// # Errors
/// The labels describe no tree of devices.
pub fn dmu_of_labels(handle: &Handle, found: &FoundPool, cache_bytes: usize) -> Result<Dmu, InspectError> {
    let zio = Zio::new(found.tree_of_labels()?);
    Ok(Dmu::new(handle.clone(), zio, Arc::new(Cache::new(cache_bytes))))
}

/// A number, decimal or with `0x`.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
