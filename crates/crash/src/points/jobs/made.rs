//! Pools that jobs begin on: what is there at first.

use cenote_dmu::ObjectSpec;
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::ObjsetType;
use cenote_sim::{Machine, disk};
use cenote_spa::{AddOptions, AuxSpec, Offline};
use cenote_taskq::sim::disk::Image;
use cenote_taskq::{Handle, Rng, Runtime};

use super::super::base::{Opened, fill};
use super::case::{Case, GOING, Work};
use super::drive::Driver;
use crate::life::run;
use crate::model::{FileChange, Files};
use crate::stage::words;

const GOING_BYTES: usize = 600_000;
/// Pages of a disk that are damaged before a scrub.
const DAMAGED: usize = 6;
/// Where metaslabs begin on a disk.
const DATA_BYTES: u64 = 4 << 20;

impl Case {
    /// Disks of a pool with all that is there at first, exported.
    ///
    /// # Errors
    /// That failed.
    pub(super) fn base(&self) -> Result<Vec<Image>, String> {
        let runtime = Runtime::simulated(1);
        let machine = self.machine(&runtime, &[]);
        let handle = runtime.handle();
        run(&runtime, self.make(&handle, &machine))?;
        let mut images = machine.images();
        if self.work == Work::Scrub {
            damage(&mut images[1]);
        }
        Ok(images)
    }

    async fn make(&self, handle: &Handle, machine: &Machine) -> Result<(), String> {
        let tops = cenote_sim::tops(handle, self.layout, &machine.paths).await.map_err(words)?;
        let options = cenote_sim::options("written", tops, 12);
        let pool = cenote_sim::new_pool(handle, options).await.map_err(words)?;
        let gone = pool.create_dataset(GOING, ObjsetType::Zfs).await.map_err(words)?;
        let object = gone.objset.create_object(pool.txg(), &ObjectSpec::new(DmuType::UINT8_DATA, 16 << 10));
        let mut bytes = vec![0; GOING_BYTES];
        Rng::new(9).fill(&mut bytes);
        object.map_err(words)?.write(pool.txg(), 0, &bytes).await.map_err(words)?;
        drop(gone);
        pool.sync().await.map_err(words)?;
        let Opened { pool, files, volume } = fill(pool, false).await?;
        for change in more() {
            files.make_noted(&change).await?;
        }
        pool.sync().await.map_err(words)?;
        let driver = Driver { handle, machine, case: self, pool: &pool };
        match self.work {
            Work::Resilver => {
                let away = driver.device(1).await?;
                pool.offline_device(away, Offline::default()).await.map_err(words)?;
                for at in 0..4 {
                    let change = FileChange::Write { name: (1, 4), offset: at * 70_000, len: 60_000, seed: 77 };
                    files.make_noted(&change).await?;
                    pool.sync().await.map_err(words)?;
                }
            }
            Work::Spare => {
                let spares = vec![disk(handle, &machine.paths[self.new_disk()]).await.map_err(words)?];
                let auxiliaries = AuxSpec { spares, caches: Vec::new() };
                let added = pool.add_vdevs(AddOptions { auxiliaries, ..AddOptions::default() });
                added.await.map_err(words)?;
            }
            Work::Condensing => {
                driver.remove_first().await?;
                while driver.removal_state().await? == Some(1) {
                    pool.sync().await.map_err(words)?;
                }
            }
            Work::Discard => {
                pool.take_checkpoint().await.map_err(words)?;
                for at in 0..3 {
                    let change = FileChange::Write { name: (1, 4), offset: at * 70_000, len: 60_000, seed: 77 };
                    files.make_noted(&change).await?;
                    pool.sync().await.map_err(words)?;
                }
            }
            _ => {}
        }
        drop((files, volume));
        pool.export().await.map_err(words)
    }
}

/// Files beside those of scripts, so that there is something to do.
fn more() -> Vec<FileChange> {
    let write = |name, len, seed| [FileChange::Create(name), FileChange::Write { name, offset: 0, len, seed }];
    [write((0, 4), 300_000, 12), write((1, 4), 280_000, 13)].concat()
}

/// The files at first.
pub(super) fn files(work: Work) -> Files {
    use crate::model::State as _;
    let mut files = super::super::base::files();
    more().iter().for_each(|change| files.apply(change));
    let rounds = match work {
        Work::Resilver => 4,
        Work::Discard => 3,
        _ => 0,
    };
    for at in 0..rounds {
        files.apply(&FileChange::Write { name: (1, 4), offset: at * 70_000, len: 60_000, seed: 77 });
    }
    files
}

/// Some pages have noise: fewer than a disk may have before it counts as degraded.
fn damage(image: &mut Image) {
    let pages: Vec<u64> = image.pages().map(|(offset, _)| offset).filter(|offset| *offset > DATA_BYTES).collect();
    let end = pages.last().copied().unwrap_or(0).saturating_sub(512 << 10);
    let pages: Vec<u64> = pages.into_iter().filter(|offset| *offset < end).collect();
    let mut noise = vec![0; 4096];
    for (seed, offset) in (1..).zip(pages.iter().step_by((pages.len() / DAMAGED).max(1)).take(DAMAGED)) {
        Rng::new(seed).fill(&mut noise);
        image.write(*offset, &noise);
    }
}
