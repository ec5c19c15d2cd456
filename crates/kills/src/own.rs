//! Writers of our own: blocks of a file, blocks of a volume, and files that are made, renamed and removed.
//!
//! They work on one served pool at once and sync now and then. After each kill `cenote verify` has to find the pool whole, every tenth
//! time `zdb -bcc` too, and when it is served again all is compared with what the writers know: what was synced is there, what is there
//! was written, and no block is torn. The pool is kept across kills, so what a kill leaves is what the next one meets; now and then
//! datasets and properties are changed in between, and after some kills another layout's turn comes.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::blocks::{BLOCK_BYTES, Blocks};
use super::place::ZDB_EVERY;
use super::place::{Layout, Place, Server};
use crate::numbers::Numbers;
use crate::tally::Tally;

/// Kills before another layout's turn.
const KILLS_OF_LAYOUT: u64 = 25;
/// Layouts of pools.
const LAYOUTS: [Layout; 5] = [("", 1), ("mirror", 2), ("raidz1", 3), ("", 2), ("draid1:2d", 4)];
/// The power goes at latest this long after the writers began, in milliseconds.
const LOAD_MS_MAX: u64 = 1200;
const FILE_BLOCKS: usize = 256;
const VOLUME_BLOCKS: usize = 1024;

/// After so many that others do, so many kills, from a seed on. Each counts.
pub(super) fn campaign(cenote: &Path, (before, count): (u64, u64), seed: u64) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut sums = Sums::default();
    let started = Instant::now();
    let mut pool: Option<Pool> = None;
    for kill in before..before + count {
        let result = (|| {
            if pool.is_none() || kill % KILLS_OF_LAYOUT == 0 {
                // In a short run each kill is of another layout.
                let at = if count < KILLS_OF_LAYOUT { kill } else { kill / KILLS_OF_LAYOUT };
                pool = Some(Pool::make(cenote, LAYOUTS[at as usize % LAYOUTS.len()], seed.wrapping_add(kill))?);
            }
            let pool = pool.as_mut().context("a pool")?;
            pool.kill(kill, &mut sums).with_context(|| format!("layout {:?}", pool.place.layout))
        })();
        if let Err(error) = &result {
            println!("FAILED kill {kill}: {error:#}");
            if let Some(pool) = pool.take() {
                println!("the pool is kept in {}", pool.place.dir.keep().display());
            }
        }
        if count < KILLS_OF_LAYOUT {
            pool = None;
        }
        tally.count(result.is_ok());
        if (kill + 1) % 25 == 0 {
            println!("{} kills in {} s, {} failed", kill + 1, started.elapsed().as_secs(), tally.failed);
        }
    }
    println!(
        "{count} kills from seed {seed} in {:.0} s: {} failed; {} writes and {} syncs before them, {} judgements of zdb",
        started.elapsed().as_secs_f64(),
        tally.failed,
        sums.writes,
        sums.syncs,
        sums.zdb
    );
    Ok(tally)
}

#[derive(Default)]
struct Sums {
    writes: u64,
    syncs: u64,
    zdb: u64,
}

/// The content of a block as the write numbered `sequence` leaves it; 0 stands for no write.
fn content(sequence: u64) -> Vec<u8> {
    if sequence == 0 {
        return vec![0; BLOCK_BYTES];
    }
    let mut numbers = Numbers(sequence);
    let mut bytes = sequence.to_le_bytes().to_vec();
    // Half of it can be compressed.
    while bytes.len() < BLOCK_BYTES / 2 {
        bytes.extend(numbers.below(u64::MAX).to_le_bytes());
    }
    bytes.resize(BLOCK_BYTES, sequence as u8);
    bytes
}

/// The sequence number of a block; none if it is not what was written under any.
fn sequence_of(block: &[u8]) -> Option<u64> {
    let sequence = u64::from_le_bytes(*block.first_chunk::<8>()?);
    (content(sequence) == block).then_some(sequence)
}

/// Of a block: the last write that was synced, and the last that was begun.
type Known = (u64, u64);

/// The writers' model of blocks and names.
#[derive(Default)]
struct Model {
    blocks: Vec<Known>,
    names: BTreeMap<u64, Named>,
    sequence: u64,
    writes: u64,
    syncs: u64,
}

/// A file that comes and goes: where it may be, and whether its content is synced.
#[derive(Clone, Debug)]
struct Named {
    places: Vec<Option<String>>,
    has_content: bool,
}

type Shared = Arc<Mutex<Model>>;

fn lock(model: &Shared) -> MutexGuard<'_, Model> {
    model.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shared(blocks: usize) -> Shared {
    Arc::new(Mutex::new(Model { blocks: vec![(0, 0); blocks], ..Model::default() }))
}

/// Every block is one that was written, and not one before the last that was synced.
fn check_blocks(what: &str, blocks: &mut dyn Blocks, model: &Shared) -> Result<()> {
    let mut model = lock(model);
    for at in 0..model.blocks.len() {
        let (synced, begun) = model.blocks[at];
        let found = sequence_of(&blocks.read(at)?);
        let found = found.with_context(|| format!("{what}: block {at} holds what was never written"))?;
        ensure!(
            (synced..=begun).contains(&found),
            "{what}: block {at} holds write {found}; {synced} was synced, {begun} is the last"
        );
        model.blocks[at] = (found, found);
    }
    Ok(())
}

/// Writes blocks until that is no longer possible.
fn write_blocks(mut blocks: impl Blocks, model: &Shared, mut numbers: Numbers) -> Result<()> {
    loop {
        for _ in 0..1 + numbers.below(24) {
            let (at, sequence) = {
                let mut model = lock(model);
                model.sequence += 1;
                model.writes += 1;
                let at = numbers.below(model.blocks.len() as u64) as usize;
                model.blocks[at].1 = model.sequence;
                (at, model.sequence)
            };
            blocks.write(at, &content(sequence))?;
        }
        let begun: Vec<u64> = lock(model).blocks.iter().map(|known| known.1).collect();
        blocks.sync()?;
        let mut model = lock(model);
        model.syncs += 1;
        model.blocks.iter_mut().zip(begun).for_each(|(known, begun)| known.0 = begun);
    }
}

/// Makes, renames and removes files until that is no longer possible.
fn write_names(dir: &Path, model: &Shared, mut numbers: Numbers) -> Result<()> {
    let handle = File::open(dir)?;
    loop {
        let ids: Vec<u64> = lock(model).names.keys().copied().collect();
        let id = ids.get(numbers.below(ids.len() as u64) as usize).copied();
        let choice = if ids.len() > 40 { 5 } else { numbers.below(6) };
        match (choice, id) {
            (0..=2, _) | (_, None) => {
                let id = {
                    let mut model = lock(model);
                    model.sequence += 1;
                    let id = model.sequence;
                    let name = format!("f{id}");
                    model.names.insert(id, Named { places: vec![None, Some(name)], has_content: false });
                    id
                };
                let mut file =
                    OpenOptions::new().read(true).write(true).create_new(true).open(dir.join(format!("f{id}")))?;
                for block in 0..1 + id as usize % 4 {
                    Blocks::write(&mut file, block, &content(id))?;
                }
                file.sync_all()?;
                handle.sync_all()?;
                settle(model, id, true);
            }
            (3 | 4, Some(id)) => {
                let (from, to) = {
                    let mut model = lock(model);
                    model.sequence += 1;
                    let to = format!("r{}", model.sequence);
                    let Some(named) = model.names.get_mut(&id) else { continue };
                    let from = named.places.last().cloned().flatten().context("a file without a name")?;
                    named.places.push(Some(to.clone()));
                    (from, to)
                };
                fs::rename(dir.join(from), dir.join(to))?;
                handle.sync_all()?;
                settle(model, id, false);
            }
            (_, Some(id)) => {
                let from = {
                    let mut model = lock(model);
                    let Some(named) = model.names.get_mut(&id) else { continue };
                    let from = named.places.last().cloned().flatten().context("a file without a name")?;
                    named.places.push(None);
                    from
                };
                fs::remove_file(dir.join(from))?;
                handle.sync_all()?;
                lock(model).names.remove(&id);
            }
        }
        let mut model = lock(model);
        (model.writes, model.syncs) = (model.writes + 1, model.syncs + 1);
    }
}

/// The newest place of a file is its only one now.
fn settle(model: &Shared, id: u64, has_content: bool) {
    if let Some(named) = lock(model).names.get_mut(&id) {
        named.places.drain(..named.places.len() - 1);
        named.has_content |= has_content;
    }
}

fn check_names(dir: &Path, model: &Shared) -> Result<()> {
    let mut there: Vec<String> = Vec::new();
    for entry in fs::read_dir(dir)? {
        there.push(entry?.file_name().to_string_lossy().into_owned());
    }
    let mut model = lock(model);
    let mut gone = Vec::new();
    for (id, named) in &mut model.names {
        let found: Vec<String> =
            there.iter().filter(|name| named.places.contains(&Some((*name).clone()))).cloned().collect();
        ensure!(found.len() <= 1, "file {id} is in two places: {found:?}");
        let found = found.into_iter().next();
        ensure!(named.places.contains(&found), "file {id} is at {found:?}, not in any of {:?}", named.places);
        match &found {
            Some(name) => {
                there.retain(|other| other != name);
                if named.has_content {
                    let bytes = fs::read(dir.join(name))?;
                    ensure!(
                        bytes == content(*id).repeat(1 + *id as usize % 4),
                        "{name} has other content than file {id}"
                    );
                }
                named.places = vec![found];
            }
            None => gone.push(*id),
        }
    }
    ensure!(there.is_empty(), "nobody made {there:?}, or it was removed");
    for id in gone {
        model.names.remove(&id);
    }
    Ok(())
}

/// A pool that lives through kills.
struct Pool {
    place: Place,
    numbers: Numbers,
    file: Shared,
    volume: Shared,
    names: Shared,
    extra: Option<u64>,
}

impl Pool {
    fn make(cenote: &Path, layout: Layout, seed: u64) -> Result<Self> {
        let place = Place::make(cenote, layout, "128M", &[])?;
        place.run("zfs", &["create", "-V", "4M", "-b", "8K", "kills/v"])?;
        Ok(Self {
            place,
            numbers: Numbers(seed),
            file: shared(FILE_BLOCKS),
            volume: shared(VOLUME_BLOCKS),
            names: shared(0),
            extra: None,
        })
    }

    /// Serves, compares, writes, kills and judges, once.
    fn kill(&mut self, kill: u64, sums: &mut Sums) -> Result<()> {
        let mut server = Server::start(&self.place, "")?;
        let checked = self.check();
        let written = checked.and_then(|()| self.write_for_a_while(&mut server));
        server.kill();
        let (writes, syncs) = written?;
        (sums.writes, sums.syncs) = (sums.writes + writes, sums.syncs + syncs);
        self.place.verify()?;
        if kill.is_multiple_of(ZDB_EVERY) {
            self.place.zdb()?;
            sums.zdb += 1;
        }
        self.administer()
    }

    fn file(&self) -> Result<File> {
        let path = self.place.mount().join("blocks");
        Ok(OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?)
    }

    fn names_dir(&self) -> PathBuf {
        self.place.mount().join("names")
    }

    fn check(&self) -> Result<()> {
        check_blocks("the file", &mut self.file()?, &self.file)?;
        check_blocks("the volume", &mut self.place.nbd()?, &self.volume)?;
        fs::create_dir_all(self.names_dir())?;
        check_names(&self.names_dir(), &self.names)
    }

    /// Writers work for a while, and then the server is killed. How much they did.
    fn write_for_a_while(&mut self, server: &mut Server) -> Result<(u64, u64)> {
        let counts = |pool: &Self| {
            let models = [&pool.file, &pool.volume, &pool.names].map(lock);
            (models.iter().map(|model| model.writes).sum::<u64>(), models.iter().map(|model| model.syncs).sum::<u64>())
        };
        let before = counts(self);
        let mut writers: Vec<JoinHandle<Result<()>>> = Vec::new();
        let (file, model, numbers) = (self.file()?, self.file.clone(), Numbers(self.numbers.below(u64::MAX)));
        // The name has to be there before what is written can be.
        file.sync_all()?;
        File::open(self.place.mount())?.sync_all()?;
        writers.push(std::thread::spawn(move || write_blocks(file, &model, numbers)));
        let (nbd, model, numbers) = (self.place.nbd()?, self.volume.clone(), Numbers(self.numbers.below(u64::MAX)));
        writers.push(std::thread::spawn(move || write_blocks(nbd, &model, numbers)));
        let (dir, model, numbers) = (self.names_dir(), self.names.clone(), Numbers(self.numbers.below(u64::MAX)));
        writers.push(std::thread::spawn(move || write_names(&dir, &model, numbers)));
        std::thread::sleep(Duration::from_millis(1 + self.numbers.below(LOAD_MS_MAX)));
        let early = writers.iter().position(JoinHandle::is_finished);
        server.kill();
        let ended: Vec<_> = writers.into_iter().map(JoinHandle::join).collect();
        if let Some(at) = early {
            let why = match &ended[at] {
                Ok(Err(error)) => format!("{error:#}"),
                _ => "a panic".to_owned(),
            };
            bail!("writer {at} failed before the kill: {why}; the server said: {}", server.said());
        }
        let after = counts(self);
        Ok((after.0 - before.0, after.1 - before.1))
    }

    /// Now and then something else is changed while nobody serves the pool.
    fn administer(&mut self) -> Result<()> {
        match self.numbers.below(12) {
            0 => self.place.run("zfs", &["set", "compression=off", "kills"]),
            1 => self.place.run("zfs", &["set", "compression=zstd", "kills"]),
            2 => self.place.run("zfs", &["set", "recordsize=16K", "kills"]),
            3 => match self.extra.take() {
                Some(number) => self.place.run("zfs", &["destroy", &format!("kills/extra{number}")]),
                None => {
                    let number = self.numbers.below(1000);
                    self.extra = Some(number);
                    self.place.run("zfs", &["create", &format!("kills/extra{number}")])
                }
            },
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_block_is_nobodys() {
        let (first, second) = (content(7), content(8));
        assert_eq!(sequence_of(&first), Some(7));
        assert_eq!(sequence_of(&content(0)), Some(0));
        let mut torn = first[..512].to_vec();
        torn.extend(&second[512..]);
        assert_eq!(sequence_of(&torn), None);
    }

    struct Memory(Vec<Vec<u8>>);

    impl Blocks for Memory {
        fn write(&mut self, block: usize, bytes: &[u8]) -> Result<()> {
            self.0[block] = bytes.to_vec();
            Ok(())
        }

        fn read(&mut self, block: usize) -> Result<Vec<u8>> {
            Ok(self.0[block].clone())
        }

        fn sync(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_block_from_before_its_last_sync_is_found_out() {
        let model = shared(1);
        lock(&model).blocks[0] = (5, 9);
        for (sequence, is_good) in [(5, true), (9, true), (4, false), (10, false), (0, false)] {
            lock(&model).blocks[0] = (5, 9);
            let checked = check_blocks("test", &mut Memory(vec![content(sequence)]), &model);
            assert_eq!(checked.is_ok(), is_good, "{sequence}");
        }
    }
}
