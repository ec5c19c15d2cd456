//! Objects of blocks whose contents follow from a seed, and what each txg left in them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::tx::Cost;
use cenote_dmu::{DmuError, Object, ObjectSpec};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{BlockId, ObjectId, Txg};
use cenote_spa::{Head, LiveHead, Pool, create_with_metaslabs};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Handle, Rng};
use cenote_zpl::bulk::{BulkWriter, NodeSpec};

use super::{options, small};
use crate::{Machine, SINGLE};

/// Objects that [`filled`] makes.
const OBJECTS: u64 = 4;

/// The size of these objects' blocks in bytes.
pub const BLOCK_BYTES: u64 = 16 << 10;

/// Makes objects of a dataset in use, of blocks of [`BLOCK_BYTES`].
pub async fn make_objects(head: &LiveHead, count: usize) -> Vec<Object> {
    let tx = head.begin(Cost::objects(count as u64)).await.unwrap();
    let spec = ObjectSpec::new(DmuType::UINT8_DATA, BLOCK_BYTES as u32);
    (0..count).map(|_| head.objset().create_object(tx.txg(), &spec).unwrap()).collect()
}

/// A writer's record of its object: for each block, the seeds that it was written with, by txg.
pub type Written = BTreeMap<u64, Vec<(Txg, u64)>>;

/// The content of a block that was written with this seed.
pub fn content(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// Writes `count` blocks of an object, or fewer if the pool takes no more, and records each with its txg.
pub async fn write_blocks(head: LiveHead, object: Object, seed: u64, count: u64, written: Arc<Mutex<Written>>) {
    let mut rng = Rng::new(seed);
    for index in 0..count {
        let block = rng.below(40);
        let Ok(tx) = head.begin(Cost::write(block * BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES)).await else { return };
        let fresh = seed << 32 | (index + 1);
        if object.write(tx.txg(), block * BLOCK_BYTES, &content(fresh)).await.is_err() {
            return;
        }
        written.lock().entry(block).or_default().push((tx.txg(), fresh));
        drop(tx);
        if rng.chance(1, 30) && head.pool().sync().await.is_err() {
            return;
        }
    }
}

/// Asserts that each block of the object is as the last write up to the txg left it.
pub async fn check_blocks(object: &Object, written: &Written, txg: Txg, what: &str) {
    for (block, writes) in written {
        let expected = writes.iter().rev().find(|(at, _)| *at <= txg);
        let found = object.block(BlockId(*block)).await.unwrap().map(|(block, _)| block);
        let expected = expected.map(|(_, seed)| content(*seed));
        assert!(
            found.as_deref() == expected.as_deref(),
            "{what}: block {block} of object {} is not as of {txg}: {writes:?}",
            object.id()
        );
    }
}

/// Makes, writes, cuts and frees objects of the root dataset at random, in the open txg.
pub async fn change(pool: &Pool, objects: &mut Vec<Object>, rng: &mut Rng) -> Result<(), DmuError> {
    let root = pool.root().unwrap().objset.clone();
    let txg = pool.txg();
    for _ in 0..1 + rng.below(4) {
        match rng.below(6) {
            0 | 1 => {
                let block = 512 << rng.below(9);
                let spec = ObjectSpec::new(DmuType::UINT8_DATA, block);
                objects.push(root.create_object(txg, &spec)?);
            }
            2 if !objects.is_empty() => {
                let object = objects.swap_remove(rng.below(objects.len() as u64) as usize);
                object.free(txg);
            }
            3 if !objects.is_empty() => {
                let object = &objects[rng.below(objects.len() as u64) as usize];
                let from = rng.below(64);
                object.free_blocks(txg, from..from + rng.below(2000));
            }
            _ if !objects.is_empty() => {
                let object = &objects[rng.below(objects.len() as u64) as usize];
                let mut bytes = vec![0; rng.below(200_000) as usize];
                if rng.chance(2, 3) {
                    rng.fill(&mut bytes);
                }
                let offset = if rng.chance(1, 8) { rng.below(1 << 34) } else { rng.below(1 << 20) };
                object.write(txg, offset, &bytes).await?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes, writes, cuts and frees objects 100 to 199 of a head at random, in the open txg, those of earlier txgs included.
pub async fn change_head(pool: &Pool, head: &Head, rng: &mut Rng) -> Result<(), DmuError> {
    let (txg, mut objects) = (pool.txg(), Vec::new());
    let mut ids = Vec::new();
    for id in 100..200 {
        if let Ok(object) = head.objset.object(ObjectId(id)).await {
            ids.push(id);
            objects.push(object);
        }
    }
    let mut free = (100..200).filter(|id| !ids.contains(id));
    for _ in 0..1 + rng.below(5) {
        let pick = |objects: &Vec<Object>, rng: &mut Rng| rng.below(objects.len() as u64) as usize;
        match rng.below(7) {
            0 | 1 => {
                let spec = ObjectSpec::new(DmuType::UINT8_DATA, 512 << rng.below(9));
                let Some(id) = free.next() else { continue };
                objects.push(head.objset.create_at(txg, ObjectId(id), &spec)?);
            }
            2 if objects.len() > 1 => {
                let at = pick(&objects, rng);
                objects.swap_remove(at).free(txg);
            }
            3 if !objects.is_empty() => {
                let from = rng.below(64);
                objects[pick(&objects, rng)].free_blocks(txg, from..from + rng.below(2000));
            }
            _ if !objects.is_empty() => {
                let mut bytes = vec![0; rng.below(200_000) as usize];
                if rng.chance(2, 3) {
                    rng.fill(&mut bytes);
                }
                objects[pick(&objects, rng)].write(txg, rng.below(1 << 20), &bytes).await?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes a pool of few metaslabs on one disk, each with its own space map; returns the ids of its objects.
pub async fn filled(handle: &Handle, machine: &Machine, metaslabs: u64, ashift: u32) -> Vec<ObjectId> {
    let options = options(machine.tops(handle, SINGLE).await.unwrap(), ashift);
    let pool = create_with_metaslabs(handle, options, metaslabs).await.unwrap();
    let root = pool.root().unwrap().objset.clone();
    BulkWriter::create(&root, pool.txg(), &NodeSpec { mode: 0o755, ..NodeSpec::default() }).await.unwrap();
    pool.sync().await.unwrap();
    let pool = pool.start(small()).await;
    let head = pool.open_head("written").await.unwrap();
    let objects = make_objects(&head, OBJECTS as usize).await;
    let mut rng = Rng::new(1);
    for _ in 0..12 {
        write_some(&head, &objects, &mut rng).await;
        pool.sync().await.unwrap();
    }
    drop(head);
    pool.export().await.unwrap();
    objects.iter().map(Object::id).collect()
}

/// Writes 20 blocks of noise into objects that [`filled`] has made.
pub async fn write_some(head: &LiveHead, objects: &[Object], rng: &mut Rng) {
    for _ in 0..20 {
        let (object, block) = (&objects[rng.below(OBJECTS) as usize], rng.below(60));
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        rng.fill(&mut bytes);
        let tx = head.begin(Cost::write(block * BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES)).await.unwrap();
        object.write(tx.txg(), block * BLOCK_BYTES, &bytes).await.unwrap();
    }
}
