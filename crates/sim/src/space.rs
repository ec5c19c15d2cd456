//! The space that datasets take, counted anew from their trees.
//!
//! `verify` sees that each block is allocated once; that says nothing of whose it is. Here every dataset's tree is walked, and what the MOS
//! says of its space is compared with that.
//! ```text
//! referenced   all blocks of the tree                  unique      those that neither neighbour has
//! deadlist     blocks of the one before that it has not            head, snapshots (of a directory)   see `audit_dir`
//! written since a bookmark   those that were born after it
//! livelist     those of a clone that were born after its origin
//! ```
//! Memory is that of all pointers: for small pools.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use cenote_dmu::Zap;
use cenote_dsl::{Dataset, Dir, Sizes};
use cenote_format::blkptr::Blkptr;
use cenote_format::bpobj::BpobjPhys;
use cenote_format::dnode::{DnodePhys, dnodes_in_block};
use cenote_format::dsl::{BookmarkFlags, DeadlistPhys, dir_field};
use cenote_format::ids::{ObjectId, ObjsetId, Txg};
use cenote_format::objset::ObjsetPhys;
use cenote_format::zap::int_key;
use cenote_spa::View;
use cenote_taskq::BoxFuture;
use cenote_zio::{Bookmark, ReadContext};

/// A block by its first place and its birth, and its bytes as they count.
type Blocks = BTreeMap<Place, (Txg, u64)>;
type Place = (u32, u64, u64);

/// Lists of a livelist at most.
const ENTRIES_MAX: usize = 1 << 16;

/// Compares the accounts of all datasets with their trees.
///
/// # Errors
/// An account is wrong: which, and by how much; or a block cannot be read.
pub fn audit_space(view: &View) -> BoxFuture<'_, Result<()>> {
    Box::pin(async move {
        let dsl = view.dsl();
        let mut known = BTreeMap::new();
        for dir in dsl.tree(dsl.root_dir().await?, false).await? {
            let Some(head) = dsl.head(&dir).await? else { continue };
            let mut chain = dsl.snapshots(&head).await?;
            chain.push(head);
            for dataset in &chain {
                known.insert(dataset.object, blocks_of(view, dataset).await?);
            }
        }
        for dir in dsl.tree(dsl.root_dir().await?, false).await? {
            audit_dir(view, &dir, &known).await.with_context(|| dir.name.clone())?;
        }
        Ok(())
    })
}

async fn audit_dir(view: &View, dir: &Dir, known: &BTreeMap<ObjectId, Blocks>) -> Result<()> {
    let dsl = view.dsl();
    let Some(head) = dsl.head(dir).await? else { return Ok(()) };
    let mut chain = dsl.snapshots(&head).await?;
    chain.push(head.clone());
    let none = Blocks::new();
    for (at, dataset) in chain.iter().enumerate() {
        let name = dataset.name();
        let own = &known[&dataset.object];
        let sum = |blocks: &Blocks, is_in: &dyn Fn(&(u32, u64, u64)) -> bool| {
            blocks.iter().filter(|(place, _)| is_in(place)).map(|(_, (_, bytes))| bytes).sum::<u64>()
        };
        let phys = &dataset.phys;
        let referenced = sum(own, &|_| true);
        ensure!(phys.referenced_bytes == referenced, "{name}: refers to {referenced}, says {}", phys.referenced_bytes);
        // The pool's own origin has no blocks.
        let before = known.get(&phys.prev_snapshot).unwrap_or(&none);
        let after = chain.get(at + 1).map_or(&none, |next| &known[&next.object]);
        let unique = sum(own, &|place| !before.contains_key(place) && !after.contains_key(place));
        ensure!(phys.unique_bytes == unique, "{name}: has {unique} alone, says {}", phys.unique_bytes);
        let dead = sum(before, &|place| !own.contains_key(place));
        let deadlist = view.mos().object(phys.deadlist).await?;
        let deadlist = deadlist.bonus(DeadlistPhys::parse)?;
        ensure!(deadlist.used_bytes == dead, "{name}: {dead} are dead, its list says {}", deadlist.used_bytes);
    }
    let since = match dir.phys.origin.0 {
        0 => Txg(0),
        _ => dsl.dataset_phys(dir.phys.origin).await?.creation_txg,
    };
    for bookmark in dsl.bookmarks(&head).await? {
        let (name, made) = (&bookmark.name, bookmark.phys.creation_txg);
        // One of the time before the dataset was cloned counts what was freed in the other's line, as OpenZFS has it.
        if !bookmark.has_sizes() || made <= since {
            continue;
        }
        let snapshot = chain[..chain.len() - 1].iter().find(|snapshot| snapshot.phys.creation_txg == made);
        let is_there = bookmark.phys.flags.contains(BookmarkFlags::SNAPSHOT_EXISTS);
        ensure!(is_there == snapshot.is_some(), "{name}: says of its snapshot that it is there: {is_there}");
        if let Some(snapshot) = snapshot {
            let sizes = Sizes::referenced_by_bookmark(&bookmark.phys);
            ensure!(sizes == Sizes::referenced_by(snapshot), "{name}: its snapshot refers to other than {sizes:?}");
        }
        for dataset in chain.iter().filter(|dataset| !dataset.is_snapshot() || dataset.phys.creation_txg > made) {
            let own = known[&dataset.object].values();
            let written = own.filter(|(birth, _)| *birth > made).map(|(_, bytes)| bytes).sum::<u64>();
            let told = dsl.written_since_bookmark_bytes(dataset, &bookmark).await?;
            ensure!(told == written, "{}: {written} were written since {name}, it says {told}", dataset.name());
        }
    }
    let at_head = &known[&head.object];
    let own_head = at_head.values().filter(|(birth, _)| *birth > since).map(|(_, bytes)| bytes).sum::<u64>();
    let mut past = Blocks::new();
    for snapshot in &chain[..chain.len() - 1] {
        past.extend(known[&snapshot.object].iter().filter(|(place, _)| !at_head.contains_key(place)));
    }
    let in_past = past.values().filter(|(birth, _)| *birth > since).map(|(_, bytes)| bytes).sum::<u64>();
    let [head_bytes, snapshot_bytes, ..] = dir.phys.used_breakdown_bytes;
    ensure!(head_bytes == own_head, "the head uses {own_head}, its directory says {head_bytes}");
    ensure!(snapshot_bytes == in_past, "the snapshots use {in_past}, their directory says {snapshot_bytes}");
    let Some(livelist) = dsl.dir_field(dir, dir_field::LIVELIST).await? else { return Ok(()) };
    let listed = listed_in(view, ObjectId(livelist)).await?;
    let own: BTreeSet<_> = at_head.iter().filter(|(_, (birth, _))| *birth > since).map(|(place, _)| *place).collect();
    let (more, less) = (listed.difference(&own).count(), own.difference(&listed).count());
    ensure!(listed == own, "its livelist has {more} blocks that are not its own, and lacks {less}");
    Ok(())
}

/// The remaining blocks of a livelist, list by list: entries of blocks that went cancel those before them.
async fn listed_in(view: &View, livelist: ObjectId) -> Result<BTreeSet<Place>> {
    let mut left = BTreeSet::new();
    for entry in Zap::open(view.mos().object(livelist).await?).await?.entries(ENTRIES_MAX).await? {
        let list = view.mos().object(ObjectId(entry.value.as_u64().context("an entry without a list")?)).await?;
        let first = int_key(entry.name()).context("an entry without a txg")?;
        let phys = list.bonus(BpobjPhys::parse)?;
        let bytes = list.read(0, phys.blkptr_count as usize * Blkptr::SIZE).await?;
        let (mut gone, mut gone_count): (BTreeMap<_, u64>, u64) = (BTreeMap::new(), 0);
        for bp in Blkptr::array(&bytes, cenote_dmu::ORDER).rev() {
            let place = place(&bp).context("an entry without a place")?;
            ensure!(bp.logical_birth().0 > first, "a livelist's entry is older than its list");
            let before = gone.entry(place).or_default();
            match bp.is_livelist_free() {
                true => (*before, gone_count) = (*before + 1, gone_count + 1),
                false if *before > 0 => *before -= 1,
                false => ensure!(left.insert(place), "a livelist has a block twice"),
            }
        }
        ensure!(gone.values().all(|count| *count == 0), "of a livelist something went that had not come");
        ensure!(phys.freed_count.unwrap_or(0) == gone_count, "a list of a livelist counts what went");
    }
    Ok(left)
}

fn place(bp: &Blkptr) -> Option<Place> {
    let first = bp.dvas().next().filter(|_| !bp.is_embedded())?;
    Some((first.vdev.0, first.offset_bytes, bp.birth().0))
}

async fn blocks_of(view: &View, dataset: &Dataset) -> Result<Blocks> {
    let mut blocks = Blocks::new();
    let root = dataset.phys.bp;
    if root.is_hole() {
        return Ok(blocks);
    }
    add(view, &mut blocks, &root);
    let bytes = read(view, &root).await?;
    let phys = ObjsetPhys::parse(&bytes, root.byte_order())?;
    let owners = [&phys.userused_dnode, &phys.groupused_dnode, &phys.projectused_dnode];
    let mut left: Vec<(Blkptr, bool)> = pointers(&phys.meta_dnode).map(|bp| (bp, true)).collect();
    left.extend(owners.into_iter().flatten().flat_map(pointers).map(|bp| (bp, false)));
    while let Some((bp, has_dnodes)) = left.pop() {
        if bp.is_hole() || bp.is_redacted() {
            continue;
        }
        add(view, &mut blocks, &bp);
        if bp.level() > 0 {
            let bytes = read(view, &bp).await?;
            left.extend(Blkptr::array(&bytes, bp.byte_order()).map(|below| (below, has_dnodes)));
        } else if has_dnodes {
            for (_, dnode) in dnodes_in_block(&read(view, &bp).await?, bp.byte_order()) {
                left.extend(pointers(&dnode?.to_value()).map(|below| (below, false)));
            }
        }
    }
    Ok(blocks)
}

fn pointers(dnode: &DnodePhys) -> impl Iterator<Item = Blkptr> + '_ {
    dnode.blkptrs().iter().copied().chain(dnode.spill)
}

async fn read(view: &View, bp: &Blkptr) -> Result<cenote_taskq::buf::Block> {
    Ok(view.dmu().read_structure(bp, ReadContext::new(Bookmark::objset(ObjsetId(0)), None)).await?)
}

fn add(view: &View, blocks: &mut Blocks, bp: &Blkptr) {
    let Some(place) = place(bp) else { return };
    let bytes = bp.dvas().map(|dva| view.deflated_bytes(dva.vdev, dva.asize_bytes)).sum();
    blocks.insert(place, (bp.logical_birth(), bytes));
}
