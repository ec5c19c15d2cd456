//! The client of a schedule: blocks whose contents follow from a seed, and what each txg left in them.

use std::collections::BTreeMap;

use cenote_dmu::Object;
use cenote_dmu::tx::Cost;
use cenote_format::ids::{BlockId, ObjectId, Txg};
use cenote_spa::{ImportOptions, Pool, View};
use cenote_taskq::Rng;

use crate::stage::words;

/// The pool.
pub(super) const POOL: &str = "written";
/// The client's objects.
pub(super) const OBJECTS: usize = 3;
/// The block cache's limit: so little that blocks are read from the disks.
const CACHE_BYTES: usize = 64 << 10;
/// The size of their blocks in bytes.
pub(super) const BLOCK_BYTES: u64 = 16 << 10;
/// Blocks of an object.
const BLOCKS: u64 = 24;
/// The content of a block that was freed.
const FREED: u64 = 0;

/// A block: the object's number among the client's, and its own.
pub(super) type Place = (usize, u64);

/// The client's record.
pub(super) struct Client {
    objects: Vec<ObjectId>,
    /// The seeds that each block was written with, by txg.
    written: BTreeMap<Place, Vec<(Txg, u64)>>,
    last: u64,
    /// The last txg that was reported as synced.
    pub(super) acked: Txg,
}

pub(super) fn import_options() -> ImportOptions {
    let tunables = cenote_spa::tunables::settings();
    ImportOptions { cache_bytes: CACHE_BYTES, force: true, tunables, ..ImportOptions::default() }
}

/// The content of a block that was written with this seed.
fn content(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

impl Client {
    pub(super) fn new(objects: Vec<ObjectId>) -> Self {
        Self { objects, written: BTreeMap::new(), last: FREED, acked: Txg(0) }
    }

    /// Writes and frees some blocks.
    pub(super) async fn change(&mut self, pool: &Pool, rng: &mut Rng) -> Result<(), String> {
        let head = pool.open_head(POOL).await.map_err(words)?;
        for _ in 0..1 + rng.below(6) {
            let place = (rng.below(OBJECTS as u64) as usize, rng.below(BLOCKS));
            let object = head.objset().object(self.objects[place.0]).await.map_err(words)?;
            let offset = place.1 * BLOCK_BYTES;
            let tx = head.begin(Cost::write(offset, BLOCK_BYTES, BLOCK_BYTES)).await.map_err(words)?;
            let is_freed = rng.chance(1, 6);
            let seed = if is_freed { FREED } else { self.last + 1 };
            match is_freed {
                true => object.free_blocks(tx.txg(), place.1..place.1 + 1),
                false => object.write(tx.txg(), offset, &content(seed)).await.map_err(words)?,
            }
            self.last = self.last.max(seed);
            self.written.entry(place).or_default().push((tx.txg(), seed));
        }
        Ok(())
    }

    /// Overwrites blocks that are lost.
    pub(super) async fn write_again(&mut self, pool: &Pool, places: &[Place]) -> Result<(), String> {
        let head = pool.open_head(POOL).await.map_err(words)?;
        for place in places {
            let object = head.objset().object(self.objects[place.0]).await.map_err(words)?;
            let offset = place.1 * BLOCK_BYTES;
            let tx = head.begin(Cost::write(offset, BLOCK_BYTES, BLOCK_BYTES)).await.map_err(words)?;
            self.last += 1;
            object.write(tx.txg(), offset, &content(self.last)).await.map_err(words)?;
            self.written.entry(*place).or_default().push((tx.txg(), self.last));
        }
        Ok(())
    }

    /// Has all that was changed up to now on disk.
    pub(super) async fn sync(&mut self, pool: &Pool) -> Result<Txg, String> {
        let txg = pool.sync().await.map_err(words)?;
        self.acked = self.acked.max(txg);
        Ok(txg)
    }

    /// The power went, and the pool is as of this txg.
    pub(super) fn went_back(&mut self, txg: Txg) -> Result<(), String> {
        if txg < self.acked {
            return Err(format!("txg {} was reported as synced, {txg} is there", self.acked));
        }
        self.written.values_mut().for_each(|writes| writes.retain(|(at, _)| *at <= txg));
        Ok(())
    }

    /// The pool has gone back to its checkpoint of this txg.
    pub(super) fn rewound(&mut self, txg: Txg) {
        self.acked = txg;
        self.written.values_mut().for_each(|writes| writes.retain(|(at, _)| *at <= txg));
    }

    /// The object's id.
    pub(super) fn object(&self, place: Place) -> ObjectId {
        self.objects[place.0]
    }

    /// The blocks that are written and not freed.
    pub(super) fn places(&self) -> Vec<Place> {
        let is_there = |writes: &Vec<(Txg, u64)>| writes.last().is_some_and(|(_, seed)| *seed != FREED);
        self.written.iter().filter(|(_, writes)| is_there(writes)).map(|(place, _)| *place).collect()
    }

    /// Compares each block of a pool in use with the last write; those of `lost` must give errors. The number of blocks is returned.
    pub(super) async fn compare(&self, pool: &Pool, lost: &[Place]) -> Result<u64, String> {
        let head = pool.open_head(POOL).await.map_err(words)?;
        let mut objects = Vec::new();
        for id in &self.objects {
            objects.push(head.objset().object(*id).await.map_err(words)?);
        }
        self.compare_objects(&objects, lost).await
    }

    /// The same in a view.
    pub(super) async fn compare_view(&self, view: &View, lost: &[Place]) -> Result<u64, String> {
        let dataset = view.dsl().dataset(view.name()).await.map_err(words)?;
        let objset = view.dsl().open(&dataset).await.map_err(words)?.ok_or("no objset")?;
        let mut objects = Vec::new();
        for id in &self.objects {
            objects.push(objset.object(*id).await.map_err(words)?);
        }
        self.compare_objects(&objects, lost).await
    }

    async fn compare_objects(&self, objects: &[Object], lost: &[Place]) -> Result<u64, String> {
        for (place, writes) in &self.written {
            let found = objects[place.0].block(BlockId(place.1)).await;
            let about = |what: &str| format!("block {} of object {}: {what}; {writes:?}", place.1, self.object(*place));
            if lost.contains(place) {
                match found {
                    Err(_) => continue,
                    Ok(_) => return Err(about("is lost, and gives something")),
                }
            }
            let found = found.map_err(|error| about(&error.to_string()))?.map(|(block, _)| block);
            let seed = writes.last().map_or(FREED, |(_, seed)| *seed);
            let expected = (seed != FREED).then(|| content(seed));
            if found.as_deref() != expected.as_deref() {
                return Err(about("has other contents"));
            }
        }
        Ok(self.written.len() as u64)
    }
}
