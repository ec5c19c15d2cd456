//! Pools on simulated disks, changes at random, and the judge.

use std::path::PathBuf;

use cenote_dmu::{DmuError, Object, ObjectSpec};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::Txg;
use cenote_scan::VerifyReport;
use cenote_sim::Machine;
use cenote_spa::{CreateOptions, Pool, TopSpec};
use cenote_taskq::sim::disk::{Latency, SimDiskOptions};
use cenote_taskq::{Handle, Rng, Runtime};

pub(crate) use cenote_sim::{LAYOUTS, Layout, SINGLE, slow};

pub(crate) const DISK_BYTES: u64 = 80 << 20;

pub(crate) fn machine_of(runtime: &Runtime, count: usize, latency: Latency) -> Machine {
    Machine::new(runtime, count, &SimDiskOptions { size_bytes: DISK_BYTES, latency, ..SimDiskOptions::default() })
}

pub(crate) fn options(tops: Vec<TopSpec>, ashift: u32) -> CreateOptions {
    cenote_sim::options("written", tops, ashift)
}

pub(crate) async fn make(handle: &Handle, options: CreateOptions) -> Pool {
    cenote_sim::new_pool(handle, options).await.unwrap()
}

pub(crate) async fn check(handle: &Handle, paths: &[PathBuf]) -> (Txg, VerifyReport) {
    cenote_sim::check(handle, paths).await.unwrap()
}

pub(crate) fn assert_clean(report: &VerifyReport, what: &str) {
    assert!(report.is_clean(), "{what}: {report}");
}

/// Changes this and that in the open txg: objects grow, shrink, come and go.
pub(crate) async fn change(pool: &Pool, objects: &mut Vec<Object>, rng: &mut Rng) -> Result<(), DmuError> {
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
