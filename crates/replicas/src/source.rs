//! Datasets that are sent: each is changed together with its model, and has snapshots whose contents are known.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cenote_admin::values::{When, dataset_setting};
use cenote_admin::{Setting, VolumeShape, clone_dataset, create_filesystem, create_volume, take_snapshots};
use cenote_dmu::Objset;
use cenote_dmu::tx::SyncMode;
use cenote_dsl::Dataset;
use cenote_format::enums::ObjsetType;
use cenote_props::Types;
use cenote_sim::tree::{Sparse, Tree, look};
use cenote_spa::{Pool, View};
use cenote_taskq::Rng;
use cenote_zpl::{FileSystem, FileSystemOptions};
use cenote_zvol::Volume;
use cenote_zvol::live::{Clear, LiveVolume};

use crate::objects::{self, Contents};
use crate::tree::{Files, content, reach};

/// Bytes of a volume read at once.
const READ_BYTES: u64 = 1 << 20;

/// The kind of a dataset's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file system, changed by the operations that a mount makes.
    Files,
    /// A file system whose objects are changed one by one, beside its files: numbers, dnode sizes, kinds and spill blocks at random.
    Objects,
    /// A volume.
    Volume,
}

impl Kind {
    /// Draws one.
    #[must_use]
    pub fn draw(rng: &mut Rng) -> Self {
        match rng.below(9) {
            0 | 1 => Self::Volume,
            2..=4 => Self::Objects,
            _ => Self::Files,
        }
    }
}

/// Contents as they are to be.
#[derive(Clone)]
pub enum State {
    /// Of a file system.
    Files(Tree),
    /// Of a file system's objects.
    Objects(Contents),
    /// Of a volume.
    Volume(Sparse),
}

enum Live {
    Files(Files),
    Objects(Objset, Contents, u64),
    Volume(LiveVolume, Sparse),
}

/// A dataset that is changed.
pub struct Source {
    /// Its name.
    pub name: String,
    /// The kind of its contents.
    pub kind: Kind,
    live: Live,
    /// Its snapshots, with what each has.
    pub snapshots: Vec<(String, State)>,
}

/// A setting of a file system or volume that is made.
pub(crate) fn setting(text: &str) -> Result<Setting> {
    dataset_setting(text, When::Later, Types::FILESYSTEM | Types::VOLUME)?.context("a property that is kept")
}

fn settings(rng: &mut Rng) -> Result<Vec<Setting>> {
    let mut settings = Vec::new();
    let words = ["off", "lz4", "lz4", "zstd", "gzip-1", "zle", "lzjb"];
    settings.push(setting(&format!("compression={}", words[rng.below(words.len() as u64) as usize]))?);
    if rng.chance(1, 3) {
        let words = ["sha256", "fletcher2", "skein", "blake3", "edonr", "sha512"];
        settings.push(setting(&format!("checksum={}", words[rng.below(words.len() as u64) as usize]))?);
    }
    if rng.chance(1, 6) {
        settings.push(setting("copies=2")?);
    }
    Ok(settings)
}

impl Source {
    /// Makes a dataset.
    ///
    /// # Errors
    /// It is refused.
    pub async fn create(pool: &Pool, name: &str, kind: Kind, rng: &mut Rng) -> Result<Self> {
        let mut settings = settings(rng)?;
        match kind {
            Kind::Volume => {
                let block_bytes = 512 << rng.below(12);
                let size_bytes = block_bytes.max((16 << 10) << rng.below(8));
                let shape = VolumeShape { size_bytes, block_bytes: Some(block_bytes), sparse: true };
                create_volume(pool, name, shape, settings, true).await?;
            }
            Kind::Files | Kind::Objects => {
                settings.push(setting(&format!("recordsize={}", 512 << rng.below(12)))?);
                create_filesystem(pool, name, settings, true).await?;
            }
        }
        pool.sync().await?;
        Self::open(pool, name, kind, Contents::new(), 0, rng).await
    }

    /// Opens one with what it has. `contents` and `next`: of its objects, and the last generation.
    async fn open(pool: &Pool, name: &str, kind: Kind, contents: Contents, next: u64, rng: &mut Rng) -> Result<Self> {
        let head = pool.open_head(name).await?;
        let live = match kind {
            Kind::Objects => Live::Objects(head.head().objset.clone(), contents, next),
            Kind::Files => {
                let options = FileSystemOptions {
                    record_bytes: 512 << rng.below(12),
                    dnode_slots: [1, 1, 2, 4][rng.below(4) as usize],
                    ..FileSystemOptions::default()
                };
                let fs = FileSystem::open_head(head.objset(), Arc::new(head.clone()), options).await?;
                Live::Files(Files::new(fs).await?)
            }
            Kind::Volume => {
                let volume = LiveVolume::open(head.objset(), head.log(SyncMode::Standard)).await?;
                volume.replay().await?;
                let bytes = bytes(volume.volume()).await?;
                Live::Volume(volume, bytes)
            }
        };
        Ok(Self { name: name.to_owned(), kind, live, snapshots: Vec::new() })
    }

    /// Makes a clone of one of its snapshots.
    ///
    /// # Errors
    /// It is refused.
    pub async fn clone_of(&self, pool: &Pool, snapshot: &str, name: &str, rng: &mut Rng) -> Result<Self> {
        let found = self.snapshots.iter().find(|(name, _)| name == snapshot);
        let (_, state) = found.context("one of its snapshots")?;
        clone_dataset(pool, &format!("{}@{snapshot}", self.name), name, Vec::new()).await?;
        pool.sync().await?;
        let (contents, next) = match (state, &self.live) {
            (State::Objects(contents), Live::Objects(_, _, next)) => (contents.clone(), next + 1000),
            _ => (Contents::new(), 0),
        };
        let clone = Self::open(pool, name, self.kind, contents, next, rng).await?;
        let there = clone.state();
        ensure!(
            difference(state, &there).is_none(),
            "a new clone has what its origin has: {:?}",
            difference(state, &there)
        );
        Ok(clone)
    }

    fn state(&self) -> State {
        match &self.live {
            Live::Files(files) => State::Files(files.tree.clone()),
            Live::Objects(_, contents, _) => State::Objects(contents.clone()),
            Live::Volume(_, bytes) => State::Volume(bytes.clone()),
        }
    }

    /// Some changes at random, on disk when this is done.
    ///
    /// # Errors
    /// One is refused.
    pub async fn change(&mut self, pool: &Pool, rng: &mut Rng) -> Result<()> {
        match &mut self.live {
            Live::Files(files) => files.change(rng).await?,
            Live::Objects(objset, contents, next) => objects::change(objset, pool, contents, next, rng).await,
            Live::Volume(volume, bytes) => {
                for _ in 0..1 + rng.below(10) {
                    change_volume(volume, bytes, rng).await?;
                }
            }
        }
        pool.sync().await?;
        Ok(())
    }

    /// Takes a snapshot.
    ///
    /// # Errors
    /// It is refused.
    pub async fn snapshot(&mut self, pool: &Pool, short: &str) -> Result<String> {
        let name = format!("{}@{short}", self.name);
        take_snapshots(pool, std::slice::from_ref(&name), &[]).await?;
        self.note(short);
        Ok(name)
    }

    /// Notes a snapshot that was taken with others.
    pub fn note(&mut self, short: &str) {
        let state = self.state();
        self.snapshots.push((short.to_owned(), state));
    }

    /// The contents of one of its snapshots.
    ///
    /// # Panics
    /// It has no such snapshot.
    #[must_use]
    pub fn at(&self, short: &str) -> &State {
        let found = self.snapshots.iter().find(|(name, _)| name == short);
        &found.unwrap_or_else(|| panic!("{}@{short}", self.name)).1
    }
}

async fn change_volume(volume: &LiveVolume, bytes: &mut Sparse, rng: &mut Rng) -> Result<()> {
    let size = bytes.size_bytes();
    if rng.chance(1, 12) {
        let block = volume.volume().block_size_bytes();
        let size = block * (1 + rng.below(2 * size / block));
        volume.resize(size).await?;
        bytes.resize(size);
        return Ok(());
    }
    let (at, len) = reach(size, rng);
    let at = at % size;
    let len = (len as u64).min(size - at) as usize;
    match rng.below(6) {
        0 => {
            let how = if rng.chance(1, 2) { Clear::Freed } else { Clear::Written };
            volume.clear(at, len as u64, how).await?;
            bytes.clear(at..at + len as u64);
        }
        _ => {
            let data = content(len, rng);
            volume.write(at, &data).await?;
            bytes.write(at, &data);
        }
    }
    Ok(())
}

async fn bytes(volume: &Volume) -> Result<Sparse> {
    let size = volume.size_bytes();
    let mut bytes = Sparse::zeros(size);
    let mut at = 0;
    while let Some(data) = volume.next_data(at).await?.filter(|data| *data < size) {
        let len = READ_BYTES.min(size - data);
        bytes.write(data, &volume.read(data, len as usize).await?);
        at = data + len;
    }
    Ok(bytes)
}

/// The first difference of what there is from what is to be.
fn difference(wanted: &State, there: &State) -> Option<String> {
    match (wanted, there) {
        (State::Files(wanted), State::Files(there)) => wanted.difference(there),
        (State::Volume(wanted), State::Volume(there)) => wanted
            .first_difference(there)
            .map(|at| format!("byte {at} of {} and {} bytes", wanted.size_bytes(), there.size_bytes())),
        (State::Objects(_), State::Objects(_)) => None,
        _ => Some("it is of another kind".to_owned()),
    }
}

/// Compares a snapshot, or a dataset as it is now, with what it is to have.
///
/// # Errors
/// It has something else: what, or it cannot be read.
pub async fn compare(view: &View, dataset: &Dataset, wanted: &State) -> Result<()> {
    let name = dataset.name();
    let objset = view.dsl().open(dataset).await?.with_context(|| format!("{name} has no contents"))?;
    let is_volume = objset.phys().objset_type() == Some(ObjsetType::Zvol);
    let there = match wanted {
        State::Objects(contents) => {
            objects::compare(&objset, contents, &name).await;
            return Ok(());
        }
        State::Files(_) if !is_volume => {
            let fs = FileSystem::open(objset).await.with_context(|| name.clone())?;
            State::Files(look(&fs).await.with_context(|| name.clone())?)
        }
        State::Volume(_) if is_volume => State::Volume(bytes(&Volume::open(&objset).await?).await?),
        _ => anyhow::bail!("{name} is of another kind"),
    };
    match difference(wanted, &there) {
        None => Ok(()),
        Some(what) => anyhow::bail!("{name}: {what}"),
    }
}
