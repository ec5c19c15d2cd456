//! Random changes of a dataset's objects, with a plain model of what it has.

use std::collections::BTreeMap;

use cenote_admin::create_filesystem;
use cenote_dmu::{ObjectSpec, Objset};
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::bonus_capacity_bytes;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::ObjectId;
use cenote_spa::Pool;
use cenote_taskq::Rng;
use cenote_taskq::buf::Block;

/// Objects of a new file system have no higher numbers: no other gets a lower one.
pub const OWN_MAX: u64 = 63;

/// An object as it is to be.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Thing {
    /// Its bytes, up to the last that was written.
    pub bytes: Vec<u8>,
    /// Its bonus.
    pub bonus: Vec<u8>,
    /// Its spill block.
    pub spill: Option<Vec<u8>>,
}

/// Objects by number.
pub type Contents = BTreeMap<u64, Thing>;

/// Attributes of a file with this generation, which a receiver tells files apart by.
#[must_use]
pub fn attributes(generation: u64, len: usize) -> Vec<u8> {
    let mut bonus = vec![0; 72];
    bonus[..4].copy_from_slice(&0x002f_505a_u32.to_le_bytes());
    bonus[4..6].copy_from_slice(&((1_u16 << 10) | 2).to_le_bytes());
    bonus[24..32].copy_from_slice(&generation.to_le_bytes());
    bonus.resize(len.max(72), 0);
    bonus
}

/// A number for a new object: often among a few, which are used again for objects of other sizes, else among a few hundred.
///
/// # Panics
/// The objset cannot be read.
pub async fn free_number(objset: &Objset, slots: u8, rng: &mut Rng) -> u64 {
    loop {
        let among = if rng.chance(1, 2) { 24 } else { 400 };
        let id = OWN_MAX + 1 + rng.below(among);
        if id % 32 + u64::from(slots) <= 32 && objset.is_free(ObjectId(id), slots).await.unwrap() {
            return id;
        }
    }
}

/// A dataset to be sent.
///
/// # Panics
/// It cannot be made.
pub async fn source_head(source: &Pool, kind: ObjsetType) -> Objset {
    match kind {
        ObjsetType::Zfs => drop(create_filesystem(source, "written/v", Vec::new(), false).await.unwrap()),
        _ => {
            let head = source.create_dataset("written/v", kind).await.unwrap();
            // As a volume's: they are there as long as it is.
            head.objset.create_at(source.txg(), ObjectId(1), &ObjectSpec::new(DmuType::ZVOL, 8192)).unwrap();
        }
    }
    source.sync().await.unwrap();
    source.open_head("written/v").await.unwrap().head().objset.clone()
}

/// Changes the dataset at random, and the model with it.
///
/// # Panics
/// A change is refused.
pub async fn change(objset: &Objset, pool: &Pool, model: &mut Contents, next: &mut u64, rng: &mut Rng) {
    let txg = pool.txg();
    for _ in 0..1 + rng.below(12) {
        let ids: Vec<u64> = model.keys().copied().collect();
        let object = (!ids.is_empty()).then(|| ids[rng.below(ids.len() as u64) as usize]);
        match (rng.below(12), object) {
            (0..=2, _) | (_, None) => {
                *next += 1;
                let kinds = [DmuType::PLAIN_FILE_CONTENTS, DmuType::UINT8_DATA, DmuType::UINT64_METADATA];
                let kind = kinds[rng.below(3) as usize];
                let slots = [1, 1, 1, 2, 4][rng.below(5) as usize];
                let room = bonus_capacity_bytes(usize::from(slots)) - 128;
                let len = rng.below(room as u64) as usize & !7;
                let (bonus_kind, bonus) = match kind == DmuType::PLAIN_FILE_CONTENTS {
                    true => (DmuType::SA, attributes(*next, len)),
                    false if len == 0 => (DmuType::NONE, Vec::new()),
                    false => (DmuType::UINT64_METADATA, vec![*next as u8; len]),
                };
                // Of objects, only files and volumes have blocks above 128 KiB.
                let sizes = if kind == DmuType::PLAIN_FILE_CONTENTS { 12 } else { 9 };
                let spec = ObjectSpec { slots, ..ObjectSpec::new(kind, 512 << rng.below(sizes)) };
                let spec = spec.with_bonus(bonus_kind, bonus.clone());
                let id = free_number(objset, slots, rng).await;
                objset.create_at(txg, ObjectId(id), &spec).unwrap();
                model.insert(id, Thing { bonus, ..Thing::default() });
            }
            (3, Some(id)) => {
                objset.object(ObjectId(id)).await.unwrap().free(txg);
                model.remove(&id);
            }
            (4, Some(id)) => {
                let object = objset.object(ObjectId(id)).await.unwrap();
                let thing = model.get_mut(&id).unwrap();
                let kept = rng.below(object.last_block().0 + 2);
                object.shrink(txg, kept);
                let end = (kept * object.block_bytes()).min(thing.bytes.len() as u64) as usize;
                thing.bytes.truncate(end);
            }
            (5, Some(id)) => {
                let object = objset.object(ObjectId(id)).await.unwrap();
                let thing = model.get_mut(&id).unwrap();
                let first = rng.below(object.last_block().0 + 1);
                let blocks = first..first + 1 + rng.below(4);
                object.free_blocks(txg, blocks.clone());
                let of = |block: u64| ((block * object.block_bytes()) as usize).min(thing.bytes.len());
                let (start, end) = (of(blocks.start), of(blocks.end));
                thing.bytes[start..end].fill(0);
            }
            (6, Some(id)) => {
                let object = objset.object(ObjectId(id)).await.unwrap();
                let thing = model.get_mut(&id).unwrap();
                if object.phys().bonus_type == DmuType::SA {
                    let generation = u64::from_le_bytes(*thing.bonus[24..].first_chunk().unwrap());
                    let room = bonus_capacity_bytes(object.phys().slots()) - 128;
                    thing.bonus = attributes(generation, rng.below(room as u64) as usize & !7);
                    object.set_bonus(txg, &thing.bonus).unwrap();
                }
            }
            (7, Some(id)) => {
                let object = objset.object(ObjectId(id)).await.unwrap();
                let thing = model.get_mut(&id).unwrap();
                if object.phys().bonus_type == DmuType::SA {
                    let mut spill = vec![0; 512 << rng.below(3)];
                    rng.fill(&mut spill);
                    let spill = rng.chance(2, 3).then_some(spill);
                    object.set_spill(txg, spill.as_ref().map(|spill| Block::copied_from(spill)));
                    thing.spill = spill;
                }
            }
            (_, Some(id)) => {
                let object = objset.object(ObjectId(id)).await.unwrap();
                let thing = model.get_mut(&id).unwrap();
                let reach = 8 + rng.below(11);
                let at = rng.below(1 << reach) as usize;
                let mut new = vec![0; 1 + rng.below(40_000) as usize];
                match rng.below(4) {
                    0 => {}
                    1 => new.fill(rng.below(256) as u8),
                    _ => rng.fill(&mut new),
                }
                thing.bytes.resize(thing.bytes.len().max(at + new.len()), 0);
                thing.bytes[at..at + new.len()].copy_from_slice(&new);
                object.write(txg, at as u64, &new).await.unwrap();
            }
        }
    }
    pool.sync().await.unwrap();
}

/// A dataset has what the model says, and nothing more.
///
/// # Panics
/// It has something else, or cannot be read.
pub async fn compare(objset: &Objset, model: &Contents, what: &str) {
    let mut from = ObjectId(1);
    let mut found = Vec::new();
    while let Some(next) = objset.next_objects(from).await.unwrap() {
        found.extend(next.objects.into_iter().map(|(id, _)| id.0));
        from = next.next;
    }
    // It has objects of its own, none of which is changed here.
    found.retain(|id| *id > OWN_MAX);
    assert_eq!(found, model.keys().copied().collect::<Vec<_>>(), "{what}: objects");
    for (id, thing) in model {
        let object = objset.object(ObjectId(*id)).await.unwrap();
        let bytes = object.read(0, thing.bytes.len()).await.unwrap();
        // Bytes behind the end of an object read as nothing.
        let mut bytes = bytes.to_vec();
        bytes.resize(thing.bytes.len(), 0);
        let differs = bytes.iter().zip(&thing.bytes).position(|(found, wanted)| found != wanted);
        let (size, last) = (object.block_bytes(), object.last_block());
        assert_eq!(differs, None, "{what}: object {id} of {} bytes in blocks of {size}, the last {last}", bytes.len());
        assert_eq!(*object.phys().bonus, *thing.bonus, "{what}: bonus of object {id}");
        let spill = object.spill().await.unwrap().map(|(block, _)| block.to_vec());
        assert!(spill == thing.spill, "{what}: spill block of object {id}");
    }
}
