//! OpenZFS's side: golden pools on simulated disks, and golden streams.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cenote_admin::receive::ReceiveRequest;
use cenote_dsl::{Dataset, Secret};
use cenote_format::enums::ObjsetType;
use cenote_format::stream::{Begin, Body, Features, HeaderKind};
use cenote_send::sender::{Base, SendFlags, SendRequest};
use cenote_send::{Checks, StreamReader};
use cenote_spa::{ImportOptions, View, find, import};
use cenote_taskq::buf::Block;
use cenote_taskq::sim::disk::SimDiskOptions;
use cenote_taskq::{Rng, Runtime};
use cenote_testkit::Golden;

use crate::records::{Model, apply};
use crate::streams::{deliver, deliver_bytes, draw_flags};
use crate::trees::by_guid;
use crate::world::{Expected, World};

/// Themes whose datasets are sent; others differ in what streams do not have, or are large.
const THEMES: [&str; 8] = ["snapshots", "streams", "xattrs", "acl", "basic", "encryption_small", "checksums", "brt"];
const PAGE_BYTES: usize = 4096;
/// The replica of everything here.
const TARGET: &str = "replica/of";

/// A stream that OpenZFS has sent.
struct Sent {
    name: String,
    begin: Begin,
    bytes: Vec<u8>,
}

/// A golden pool in memory.
struct Pool {
    name: String,
    images: Vec<(PathBuf, Block)>,
    keys: Vec<(String, Vec<u8>)>,
    /// Single streams of its datasets.
    streams: Vec<Sent>,
}

/// Golden pools in memory.
pub struct Pools(Vec<Pool>);

/// Reads a file. Pages of zeros are not touched, so they take no memory.
fn content(path: &Path) -> Result<Block> {
    let mut file = File::open(path).with_context(|| path.display().to_string())?;
    let mut content = vec![0; usize::try_from(file.metadata()?.len())?];
    let mut page = vec![0; PAGE_BYTES];
    for target in content.chunks_mut(PAGE_BYTES) {
        let page = &mut page[..target.len()];
        file.read_exact(page)?;
        if page.iter().any(|byte| *byte != 0) {
            target.copy_from_slice(page);
        }
    }
    Ok(Block::from(content))
}

/// BEGIN of a single stream; none if it is a package, or is only the rest of one.
fn begin_of(bytes: &[u8]) -> Result<Option<Begin>> {
    let mut reader = StreamReader::new(bytes, Checks::ALL);
    let item = reader.next_item()?.context("a stream without records")?;
    let Body::Begin(begin) = &item.decoded.record.body else { return Ok(None) };
    let is_single = begin.header == HeaderKind::Substream && !begin.features.contains(Features::RESUMING);
    Ok(is_single.then(|| begin.clone()))
}

impl Pools {
    /// Loads those that are at hand.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn load() -> Result<Self> {
        let golden = Golden::find()?;
        let mut pools = Vec::new();
        for name in THEMES {
            let Ok(theme) = golden.theme(name) else { continue };
            let mut images = Vec::new();
            for path in theme.unpacked()?.images {
                let file = path.file_name().unwrap_or_default();
                images.push((Path::new("/").join(name).join(file), content(&path)?));
            }
            let manifest = theme.manifest()?;
            let keys = manifest.keys.iter().map(|(name, key)| (name.clone(), key.bytes())).collect();
            let mut streams = Vec::new();
            for file in theme.streams()? {
                let bytes = theme.stream_bytes(&file.file)?;
                if let Some(begin) = begin_of(&bytes)?
                    && !file.file.starts_with("partial")
                {
                    streams.push(Sent { name: file.file, begin, bytes });
                }
            }
            pools.push(Pool { name: name.to_owned(), images, keys, streams });
        }
        ensure!(!pools.is_empty(), "no golden pools");
        Ok(Self(pools))
    }

    /// A dataset of one of them, sent snapshot by snapshot.
    pub(crate) async fn pools(&self, runtime: &Runtime, world: &mut World, rng: &mut Rng) -> Result<()> {
        let pool = &self.0[rng.below(self.0.len() as u64) as usize];
        let view = pool.view(runtime, world).await?;
        let mut heads = Vec::new();
        for dir in view.dsl().tree(view.dsl().root_dir().await?, false).await? {
            let Some(head) = view.dsl().head(&dir).await?.filter(|head| !head.is_inconsistent()) else { continue };
            let mut chain = view.dsl().snapshots(&head).await?;
            let kind = view.dsl().open(&head).await?.and_then(|objset| objset.phys().objset_type());
            if kind.is_some_and(|kind| matches!(kind, ObjsetType::Zfs | ObjsetType::Zvol)) {
                // As it is now it is sent too.
                chain.push(head.clone());
                heads.push((head, chain));
            }
        }
        let (head, chain) = heads.swap_remove(rng.below(heads.len() as u64) as usize);
        let key = pool.key_of(&view, &head).await?;
        let is_raw = key.is_some() && rng.chance(2, 3);
        let mut is_large = rng.chance(1, 2);
        let mut before: Option<Dataset> = None;
        for snapshot in chain {
            if rng.chance(1, 5) && snapshot.is_snapshot() {
                continue;
            }
            is_large |= rng.chance(1, 4);
            let flags = SendFlags { large_blocks: is_large, raw: is_raw, ..draw_flags(rng) };
            let mut request = SendRequest::full(snapshot.clone(), flags);
            if let Some(before) = &before {
                request.base = Some(Base::snapshot(view.dsl(), &snapshot, before).await?);
            }
            let short = snapshot.snapshot.clone().unwrap_or_else(|| "now".to_owned());
            let target = format!("{TARGET}@{short}");
            let asked = ReceiveRequest {
                target: target.clone(),
                is_resumable: rng.chance(2, 3),
                is_forced: before.is_some() && rng.chance(1, 4),
                is_verbose: true,
                ..ReceiveRequest::default()
            };
            let World { replica, tally, .. } = world;
            let delivered = deliver(&view, &request, replica, TARGET, &asked, rng, tally).await;
            delivered.with_context(|| format!("{}: {}, {flags:?}", pool.name, snapshot.name()))?;
            world.expect(&view, &snapshot, None, &target).await?;
            before = Some(snapshot);
        }
        if is_raw && before.is_some() {
            world.keys.extend(key.map(|key| (TARGET.to_owned(), key)));
        }
        view.close().await;
        Ok(())
    }

    /// A stream that OpenZFS has sent, and one that goes on from it.
    pub(crate) async fn streams(&self, runtime: &Runtime, world: &mut World, rng: &mut Rng) -> Result<()> {
        let with: Vec<&Pool> = self.0.iter().filter(|pool| !pool.streams.is_empty()).collect();
        if with.is_empty() {
            return Ok(());
        }
        let pool = with[rng.below(with.len() as u64) as usize];
        let view = pool.view(runtime, world).await?;
        let mut from = 0;
        // The next stream must have large blocks if the first has them, and encrypted blocks if and only if the first has them.
        let mut had = Features::empty();
        for _ in 0..2 {
            let fits = |sent: &&Sent| {
                let has = sent.begin.features;
                let is_on_top = from == 0 || has & Features::RAW == had & Features::RAW;
                sent.begin.from_guid.0 == from && is_on_top && has.contains(had & Features::LARGE_BLOCKS)
            };
            let fit: Vec<&Sent> = pool.streams.iter().filter(fits).collect();
            if fit.is_empty() {
                break;
            }
            let sent = fit[rng.below(fit.len() as u64) as usize];
            had |= sent.begin.features;
            self.one(&view, pool, sent, world, rng).await.with_context(|| sent.name.clone())?;
            from = sent.begin.to_guid.0;
            if sent.begin.features.contains(Features::REDACTED) {
                break;
            }
        }
        view.close().await;
        Ok(())
    }

    async fn one(&self, view: &View, pool: &Pool, sent: &Sent, world: &mut World, rng: &mut Rng) -> Result<()> {
        let to = by_guid(view, sent.begin.to_guid).await?;
        let is_redacted = sent.begin.features.contains(Features::REDACTED);
        let mut request = SendRequest::full(to.clone(), SendFlags::default());
        if sent.begin.from_guid.0 != 0 {
            let from = by_guid(view, sent.begin.from_guid).await?;
            request.base = Some(Base::snapshot(view.dsl(), &to, &from).await?);
        }
        let is_clone = request.base.as_ref().is_some_and(|base| base.is_elsewhere);
        let place = if is_clone { "replica/clone" } else { TARGET };
        let target = format!("{place}@{}", to.snapshot.as_deref().unwrap_or_default());
        let asked = ReceiveRequest {
            target: target.clone(),
            is_resumable: !is_redacted && rng.chance(2, 3),
            is_verbose: true,
            ..ReceiveRequest::default()
        };
        let World { replica, tally, .. } = world;
        deliver_bytes(&sent.bytes, (view, &request), replica, place, &asked, rng, tally).await?;
        if is_redacted {
            let mut model = Model::new();
            apply(&mut model, &sent.bytes)?;
            world.expected.insert(target, Expected { state: None, model });
        } else {
            world.expect(view, &to, None, &target).await?;
        }
        if sent.begin.features.contains(Features::RAW) && !world.keys.iter().any(|(name, _)| name == place) {
            let key = pool.key_of(view, &to).await?.context("the key of an encrypted dataset")?;
            world.keys.push((place.to_owned(), key));
        }
        Ok(())
    }
}

impl Pool {
    /// Imports it to be read, with its keys.
    async fn view(&self, runtime: &Runtime, world: &World) -> Result<View> {
        let sim = runtime.sim().context("a simulated runtime")?;
        let mut paths = Vec::new();
        for (path, content) in &self.images {
            let options = SimDiskOptions {
                size_bytes: content.len() as u64,
                base: Some(content.clone()),
                ..SimDiskOptions::default()
            };
            sim.add_disk(&world.handle, path, options);
            paths.push(path.clone());
        }
        let (mut found, skipped) = find(&world.handle, &paths).await;
        ensure!(found.len() == 1, "{}: {} pools, {skipped:?}", self.name, found.len());
        let options =
            ImportOptions { force: true, skip_activity_check: true, cache_bytes: 16 << 20, ..ImportOptions::default() };
        let view = import(&world.handle, found.remove(0), &options).await?;
        for (dataset, key) in &self.keys {
            view.dsl().load_key(dataset, Secret::new(key.clone())).await?;
        }
        Ok(view)
    }

    /// The key of a dataset, if it is encrypted.
    async fn key_of(&self, view: &View, dataset: &Dataset) -> Result<Option<Vec<u8>>> {
        let Some(encryption) = view.dsl().encryption(&dataset.dir).await? else { return Ok(None) };
        let key = self.keys.iter().find(|(name, _)| *name == encryption.root);
        Ok(Some(key.context("a key for each encryption root")?.1.clone()))
    }
}
