//! The traversal: stack, visits in flight, space accounting.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_dmu::DmuError;
use cenote_format::blkptr::Blkptr;
use cenote_format::ids::{ObjectId, VdevId};
use cenote_metaslab::PoolSpace;
use cenote_spa::{SpaError, View};
use cenote_taskq::{BoxFuture, Class, Handle, JoinSet};
use cenote_zio::Bookmark;
use thiserror::Error;

use crate::account::{Account, Claim, Leak, Misuse, MisuseKind};
use crate::error::{PointerError, ReadError};
use crate::features::FeatureUse;
use crate::freeing::{self, LivelistPart, PointerLists};
use crate::refcounts::{Reference, SharedBlocks};
use crate::roots;
use crate::stats::BlockStatistics;
use crate::visit::{Item, Visited, claim_of_copy, claims_of, is_tree, visit};

/// Reports kept of each kind; counts go on.
const REPORTS_MAX: usize = 1000;
/// Visits in flight at most.
const VISITS_MAX: usize = 64;
/// Bytes of blocks in flight at most, before decompression.
const VISIT_BYTES_MAX: u64 = 64 << 20;

/// The checks to make.
#[derive(Clone, Copy, Debug)]
pub struct VerifyOptions {
    /// Read all data, not only what leads to it.
    pub data: bool,
    /// Account for space: load space maps, find leaks and double references.
    pub space: bool,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self { data: true, space: true }
    }
}

/// How far a walk is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Bytes of blocks visited, all copies.
    pub done_bytes: u64,
    /// Bytes allocated in all.
    pub total_bytes: u64,
    /// Blocks visited.
    pub blocks: u64,
    /// Errors so far.
    pub errors: u64,
}

/// Why a walk could not begin.
#[derive(Debug, Error)]
pub enum VerifyError {
    /// The pool cannot be read far enough.
    #[error("{0}")]
    View(#[from] SpaError),
}

/// A block that is bad, or that has bad copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBlock {
    /// The block; none where no object leads to it.
    pub bookmark: Option<Bookmark>,
    /// Why.
    pub why: String,
}

impl BadBlock {
    fn new(bookmark: Bookmark, why: &impl std::fmt::Display) -> Self {
        let why = why.to_string();
        // Errors of reads name their block themselves.
        let why = why.strip_prefix(&format!("{bookmark}: ")).map_or_else(|| why.clone(), str::to_owned);
        Self { bookmark: Some(bookmark), why }
    }
}

impl std::fmt::Display for BadBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.bookmark {
            Some(bookmark) => write!(f, "{bookmark}: {}", self.why),
            None => f.write_str(&self.why),
        }
    }
}

/// The findings of a walk.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Counts of blocks.
    pub statistics: BlockStatistics,
    /// Blocks that could not be read, or whose contents are not what they should be.
    pub error_count: u64,
    /// The first of them.
    pub errors: Vec<BadBlock>,
    /// Copies or columns that were bad though their block could be read.
    pub bad_copy_count: u64,
    /// The first of them.
    pub bad_copies: Vec<BadBlock>,
    /// Blocks whose place the account does not allow.
    pub misuse_count: u64,
    /// The first of them.
    pub misuses: Vec<Misuse>,
    /// Bytes that are allocated and that nothing refers to.
    pub leaked_bytes: u64,
    /// The first such ranges.
    pub leaks: Vec<Leak>,
    /// Bytes allocated, according to the space maps, all classes.
    pub allocated_bytes: u64,
    /// Space maps that contradict themselves, tables that cannot be read, features that are needed and not counted or counted wrongly,
    /// and what is not supported yet.
    pub problems: Vec<String>,
    /// The space that was loaded, if space was to be accounted for.
    pub space: Option<Arc<PoolSpace>>,
}

impl VerifyReport {
    /// Whether everything is readable in every copy and the account adds up.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.error_count == 0
            && self.bad_copy_count == 0
            && self.misuse_count == 0
            && self.leaked_bytes == 0
            && self.problems.is_empty()
            && (self.space.is_none() || self.statistics.accounted_bytes() == self.allocated_bytes)
    }
}

/// The faults, in one line for a developer; `clean` if there are none.
impl std::fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_clean() {
            return f.write_str("clean");
        }
        let texts = |of: &[BadBlock]| of.iter().map(ToString::to_string).collect::<Vec<_>>();
        write!(
            f,
            "errors {:?} bad {:?} misuses {:?} leaked {} {:?} problems {:?} accounted {} allocated {}",
            texts(&self.errors),
            texts(&self.bad_copies),
            self.misuses,
            self.leaked_bytes,
            self.leaks,
            self.problems,
            self.statistics.accounted_bytes(),
            self.allocated_bytes,
        )
    }
}

fn keep<T>(list: &mut Vec<T>, item: T) {
    if list.len() < REPORTS_MAX {
        list.push(item);
    }
}

/// Walks the whole pool. `progress` is called every so many blocks; returning `false` from it ends the walk early (the
/// report then covers what was visited, without a verdict on leaks).
pub fn verify<'a>(
    handle: &'a Handle,
    pool: &'a View,
    options: VerifyOptions,
    progress: &'a mut (dyn FnMut(Progress) -> bool + Send),
) -> BoxFuture<'a, Result<VerifyReport, VerifyError>> {
    Box::pin(async move {
        let mut walk = Walk::new(pool, options).await?;
        walk.freed().await;
        walk.deleted_clones().await;
        walk.removing().await;
        walk.unreferenced().await;
        let mut problems = std::mem::take(&mut walk.report.problems);
        let mut stack = freeing::destroyed(pool, &mut problems).await;
        let objsets = roots::objsets(pool, &mut problems).await;
        walk.report.problems = problems;
        walk.intent_logs(&objsets).await;
        stack.extend(objsets.into_iter().rev().filter(|root| root.has_blocks).map(|root| root.item));
        let is_complete = walk.run(handle, stack, progress).await;
        if is_complete {
            let features = std::mem::take(&mut walk.features);
            walk.report.problems.extend(features.problems(pool).await);
        }
        Ok(walk.finish(is_complete))
    })
}

struct Walk<'a> {
    pool: &'a View,
    options: VerifyOptions,
    space: Option<Arc<PoolSpace>>,
    account: Option<Account>,
    shared: SharedBlocks,
    /// The places of blocks with pointers that were visited.
    trees: BTreeSet<(VdevId, u64)>,
    /// Features that blocks need.
    features: FeatureUse,
    report: VerifyReport,
}

impl<'a> Walk<'a> {
    async fn new(pool: &'a View, options: VerifyOptions) -> Result<Self, VerifyError> {
        let mut report = VerifyReport::default();
        let (mut space, mut account, mut shared) = (None, None, SharedBlocks::default());
        if options.space {
            let loaded = pool.space().await?;
            report.problems.extend(loaded.problems.iter().map(ToString::to_string));
            let figures = loaded.sum(|_| true);
            report.allocated_bytes = figures.allocated_bytes;
            report.statistics.checkpoint_bytes = figures.checkpoint_bytes;
            account = Some(Account::new(&loaded));
            space = Some(Arc::new(loaded));
            shared = SharedBlocks::load(pool).await;
            report.problems.append(&mut shared.problems);
        }
        let (trees, features) = (BTreeSet::new(), FeatureUse::default());
        Ok(Self { pool, options, space, account, shared, trees, features, report })
    }

    /// Claims a block's ranges. `false` if the account does not allow them, or if the block was visited before.
    async fn claim(&mut self, bp: &Blkptr, bookmark: Bookmark, claims: Vec<Claim>) -> bool {
        let Some(account) = &mut self.account else { return true };
        let is_unclaimed = claims.first().is_some_and(|first| account.is_unclaimed(first));
        let asize = bp.asize_bytes();
        let statistics = &mut self.report.statistics;
        let mut claims = claims;
        match self.shared.refer(bp, is_unclaimed) {
            Reference::Deduped => {
                statistics.dedup_bytes += asize;
                statistics.dedup_count += 1;
                return false;
            }
            Reference::Cloned => {
                statistics.clone_bytes += asize;
                statistics.clone_count += 1;
                return false;
            }
            Reference::First(dvas) => {
                let own = bp.dvas().count();
                for dva in dvas.into_iter().skip(own) {
                    statistics.total.asize_bytes += dva.asize_bytes;
                    claims.extend(claim_of_copy(self.pool, dva).await.unwrap_or_default());
                }
            }
        }
        let mut is_allowed = true;
        for claim in claims {
            if let Err(kind) = account.claim(&claim) {
                is_allowed &= kind != MisuseKind::Twice;
                self.report.misuse_count += 1;
                keep(&mut self.report.misuses, Misuse { bookmark, vdev: claim.vdev, range: claim.range, kind });
            }
        }
        is_allowed
    }

    fn error(&mut self, why: String) {
        self.bad(BadBlock { bookmark: None, why });
    }

    fn bad(&mut self, block: BadBlock) {
        self.report.error_count += 1;
        keep(&mut self.report.errors, block);
    }

    /// Visits blocks that are freed but not yet returned: they are allocated still.
    async fn freed(&mut self) {
        if self.account.is_none() {
            return;
        }
        for name in freeing::LISTS {
            if let Err(error) = self.freed_list(name).await {
                self.report.problems.push(format!("{name}: {error}"));
            }
        }
    }

    async fn freed_list(&mut self, name: &str) -> Result<(), ReadError> {
        let list = self.pool.directory_object(name).await?;
        let Some(list) = list else { return Ok(()) };
        let mut lists = PointerLists::open(self.pool, list).await?;
        while let Some(batch) = lists.next().await? {
            for bp in batch {
                self.loose_block(&bp, true).await;
            }
        }
        Ok(())
    }

    /// Visits the blocks left of destroyed clones.
    async fn deleted_clones(&mut self) {
        if self.account.is_none() {
            return;
        }
        for part in freeing::deleted_clones(self.pool, &mut self.report.problems).await {
            if let Err(error) = self.livelist_part(part).await {
                self.report.problems.push(format!("deleted clones: {error}"));
            }
        }
    }

    async fn livelist_part(&mut self, part: ObjectId) -> Result<(), DmuError> {
        let mut part = LivelistPart::open(self.pool, part).await?;
        while let Some(batch) = part.next().await? {
            for bp in batch {
                self.loose_block(&bp, true).await;
            }
        }
        Ok(())
    }

    /// Counts and claims a block that is not read.
    async fn loose_block(&mut self, bp: &Blkptr, is_deferred: bool) {
        if bp.is_hole() || bp.is_redacted() {
            return;
        }
        if is_deferred {
            self.report.statistics.add_deferred(bp);
        } else {
            self.report.statistics.add(bp);
        }
        if bp.is_embedded() {
            return;
        }
        match claims_of(self.pool, bp).await {
            Ok(claims) => drop(self.claim(bp, roots::loose(Bookmark::LEVEL_ZIL), claims).await),
            Err(error) => self.error(error.to_string()),
        }
    }

    /// Deduplicated blocks that only the dedup log knows of any more.
    async fn unreferenced(&mut self) {
        for dva in self.shared.unreferenced() {
            self.report.statistics.total.asize_bytes += dva.asize_bytes;
            match claim_of_copy(self.pool, dva).await {
                Ok(claims) => claims.into_iter().for_each(|claim| self.claim_range(claim)),
                Err(error) => self.error(error.to_string()),
            }
        }
    }

    /// Claims a range that no pointer leads to.
    fn claim_range(&mut self, claim: Claim) {
        let Some(account) = &mut self.account else { return };
        if let Err(kind) = account.claim(&claim) {
            self.report.misuse_count += 1;
            let bookmark = roots::loose(0);
            keep(&mut self.report.misuses, Misuse { bookmark, vdev: claim.vdev, range: claim.range, kind });
        }
    }

    /// A removal in progress has copied part of the vdev's blocks: the copies are allocated, and referred to by the mapping
    /// alone.
    async fn removing(&mut self) {
        let Some(space) = self.space.clone() else { return };
        match self.pool.removing().await {
            Ok(None) => {}
            Ok(Some((vdev, mapped_bytes))) => {
                let Some(source) = space.vdev(vdev) else { return };
                for range in source.allocated.iter().filter(|range| range.start < mapped_bytes) {
                    let end = range.end.min(mapped_bytes);
                    self.copied(vdev, range.start, end - range.start).await;
                }
            }
            Err(error) => self.report.problems.push(error.to_string()),
        }
    }

    async fn copied(&mut self, vdev: VdevId, offset_bytes: u64, size_bytes: u64) {
        self.report.statistics.removing_bytes += size_bytes;
        match self.pool.mapped(vdev, offset_bytes, size_bytes).await {
            Ok(ranges) => {
                for (vdev, range) in ranges {
                    self.claim_range(Claim { vdev, range });
                }
            }
            Err(error) => self.error(error.to_string()),
        }
    }

    async fn intent_logs(&mut self, objsets: &[roots::Root]) {
        for root in objsets.iter().filter(|root| root.has_log) {
            for pointer in roots::intent_log(self.pool, &root.item).await {
                self.loose_block(&pointer, false).await;
            }
        }
    }

    async fn run(
        &mut self,
        handle: &Handle,
        mut stack: Vec<Item>,
        progress: &mut (dyn FnMut(Progress) -> bool + Send),
    ) -> bool {
        let mut visits: JoinSet<Visited> = JoinSet::new();
        let mut bytes_in_flight = 0;
        let mut done_bytes = 0;
        let mut blocks: u64 = 0;
        loop {
            while visits.len() < VISITS_MAX && (bytes_in_flight < VISIT_BYTES_MAX || visits.is_empty()) {
                let Some(item) = stack.pop() else { break };
                self.report.statistics.add(&item.bp);
                if let Err(error) = check_pointer(&item) {
                    self.bad(BadBlock::new(item.bookmark, &error));
                    continue;
                }
                self.features.note_pointer(item.bookmark, &item.bp);
                if item.bp.is_embedded() || self.is_tree_again(&item) {
                    continue;
                }
                bytes_in_flight += item.bp.psize_bytes();
                let (pool, data) = (self.pool.clone(), self.options.data);
                visits.push(handle.spawn(Class::Background, visit(pool, item, data)));
            }
            let Some(visited) = visits.next().await else { return true };
            let visited = match visited {
                Ok(visited) => visited,
                Err(error) => {
                    self.error(error.to_string());
                    continue;
                }
            };
            bytes_in_flight -= visited.item.bp.psize_bytes();
            done_bytes += visited.item.bp.asize_bytes();
            blocks += 1;
            self.take(visited, &mut stack).await;
            if blocks.is_multiple_of(256) {
                let total_bytes = self.report.allocated_bytes.max(done_bytes);
                let errors = self.report.error_count + self.report.bad_copy_count + self.report.misuse_count;
                if !progress(Progress { done_bytes, total_bytes, blocks, errors }) {
                    return false;
                }
            }
        }
    }

    /// Whether the block holds pointers and was visited before, in any of its copies. A sound pool refers to such a block
    /// once; in a hostile one indirect blocks that all point to each other, in places that are free or where no account is
    /// kept, could be walked for ever.
    fn is_tree_again(&mut self, item: &Item) -> bool {
        if !is_tree(item) {
            return false;
        }
        let mut again = None;
        for dva in item.bp.dvas() {
            if !self.trees.insert((dva.vdev, dva.offset_bytes)) {
                again = Some(dva);
            }
        }
        let Some(dva) = again else { return false };
        self.report.misuse_count += 1;
        let range = dva.offset_bytes..dva.offset_bytes.saturating_add(dva.asize_bytes);
        let misuse = Misuse { bookmark: item.bookmark, vdev: dva.vdev, range, kind: MisuseKind::Twice };
        keep(&mut self.report.misuses, misuse);
        true
    }

    async fn take(&mut self, visited: Visited, stack: &mut Vec<Item>) {
        let Visited { item, error, bad_copies, claims, children, needs } = visited;
        self.features.note(item.bookmark, needs);
        if let Some(error) = error {
            self.bad(BadBlock::new(item.bookmark, &error));
        }
        for bad in bad_copies {
            self.report.bad_copy_count += 1;
            keep(&mut self.report.bad_copies, BadBlock::new(item.bookmark, &bad));
        }
        if self.claim(&item.bp, item.bookmark, claims).await {
            stack.extend(children.into_iter().rev());
        }
    }

    fn finish(mut self, is_complete: bool) -> VerifyReport {
        if let Some(account) = &self.account {
            if is_complete {
                if self.report.error_count + self.report.misuse_count == 0 {
                    self.report.problems.extend(self.shared.unexplained().take(REPORTS_MAX));
                }
                (self.report.leaked_bytes, self.report.leaks) = account.leaks(REPORTS_MAX);
            } else {
                self.report.problems.push("ended early: no verdict on leaks".into());
            }
        }
        self.report.space = self.space;
        self.report
    }
}

/// Whether a pointer fits the place where it stands: known algorithms, sane sizes, the level that its parent implies.
fn check_pointer(item: &Item) -> Result<(), PointerError> {
    item.bp.verify()?;
    let expected = item.bookmark.level.max(0);
    let level = item.bp.level();
    if i8::try_from(level) != Ok(expected) {
        return Err(PointerError::Level { level, expected });
    }
    Ok(())
}
