//! The sink of a walk that verifies: space, shared blocks, features and faults.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_dmu::DmuError;
use cenote_format::blkptr::Blkptr;
use cenote_format::ids::{ObjectId, VdevId};
use cenote_metaslab::PoolSpace;
use cenote_spa::{SpaError, View};
use cenote_zio::Bookmark;

use super::findings::{BadBlock, Findings, REPORTS_MAX};
use super::options::VerifyOptions;
use super::report::VerifyReport;
use crate::account::{Account, Claim, Misuse, MisuseKind};
use crate::error::{ReadError, VisitError};
use crate::features::FeatureUse;
use crate::freeing::{self, LivelistPart, PointerLists};
use crate::refcounts::{Reference, SharedBlocks};
use crate::roots::{self, Listing, Tree};
use crate::visit::{Item, Visited, claim_of_copy, claims_of, is_read_again, is_tree};
use crate::walk::{Cursor, Sink};

/// The state of a verify: all that it has found so far.
pub(super) struct Verifier {
    space: Option<Arc<PoolSpace>>,
    account: Option<Account>,
    shared: SharedBlocks,
    /// The places of blocks with pointers that were visited.
    trees: BTreeSet<(VdevId, u64)>,
    /// Features that blocks need.
    features: FeatureUse,
    report: VerifyReport,
    /// Of the steps that are done.
    pub(super) kept: Findings,
    /// All findings of the earlier part of the walk, while the blocks of that part are gone through once more: until then `kept` lacks what they
    /// show again, and a walk that ends there, or goes on in another view, does not meet it.
    known: Option<Findings>,
    /// Of the step that the walk is in.
    fresh: Findings,
    /// The pool has gone on since the walk began.
    has_moved: bool,
}

impl Verifier {
    /// With the findings of an earlier part of the walk.
    pub(super) fn new(kept: Findings, has_moved: bool) -> Self {
        Self {
            space: None,
            account: None,
            shared: SharedBlocks::default(),
            trees: BTreeSet::new(),
            features: FeatureUse::default(),
            report: VerifyReport::default(),
            kept,
            known: None,
            fresh: Findings::default(),
            has_moved,
        }
    }

    /// With the findings of an earlier part of the walk, whose blocks are gone through once more.
    pub(super) fn going_through_known(found: Findings) -> Self {
        let kept = found.clone().of_data();
        Self { known: Some(found), ..Self::new(kept, false) }
    }

    /// The walk ends or goes on elsewhere: what an earlier part found is kept if it was not met again up to its place.
    fn keep_known(&mut self) {
        if let Some(known) = self.known.take() {
            self.kept = known;
        }
    }

    /// Loads what blocks are compared with, and visits those that no tree has. The trees of the view.
    pub(super) async fn begin(&mut self, view: &View, options: VerifyOptions) -> Result<Vec<Tree>, SpaError> {
        let mut problems = Vec::new();
        if options.space {
            let loaded = view.space().await?;
            problems.extend(loaded.problems.iter().map(ToString::to_string));
            let figures = loaded.sum(|_| true);
            self.report.allocated_bytes = figures.allocated_bytes;
            self.report.statistics.checkpoint_bytes = figures.checkpoint_bytes;
            self.account = Some(Account::new(&loaded));
            self.space = Some(Arc::new(loaded));
            self.shared = SharedBlocks::load(view).await;
            problems.append(&mut self.shared.problems);
        }
        self.report.problems = problems;
        self.freed(view).await;
        self.deleted_clones(view).await;
        self.removing(view).await;
        self.unreferenced(view).await;
        let destroyed = freeing::destroyed(view, &mut self.report.problems).await;
        let Listing { mut trees, problems, cut_off, .. } = roots::objsets(view).await;
        self.report.problems.extend(problems);
        self.report.problems.extend(cut_off);
        for head in trees.iter().filter(|tree| tree.has_log) {
            for pointer in roots::intent_log(view, head).await {
                self.loose_block(view, &pointer, false).await;
            }
        }
        trees.extend(destroyed);
        assert_eq!(self.account.is_some(), options.space, "space is accounted for where it is asked for");
        Ok(trees)
    }

    /// Claims a block's ranges. `false` if the account does not allow them, or if the block was visited before.
    async fn claim(&mut self, view: &View, bp: &Blkptr, bookmark: Bookmark, mut claims: Vec<Claim>) -> bool {
        let Some(account) = &mut self.account else { return true };
        let is_unclaimed = claims.first().is_some_and(|first| account.is_unclaimed(first));
        let asize = bp.asize_bytes();
        let statistics = &mut self.report.statistics;
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
                    claims.extend(claim_of_copy(view, dva).await.unwrap_or_default());
                }
            }
        }
        let mut is_allowed = true;
        for claim in claims {
            if let Err(kind) = account.claim(&claim) {
                is_allowed &= kind != MisuseKind::Twice;
                self.fresh.misuse(Misuse { bookmark, vdev: claim.vdev, range: claim.range, kind });
            }
        }
        is_allowed
    }

    fn error(&mut self, why: &VisitError) {
        self.fresh.error(BadBlock::loose(why));
    }

    /// Visits blocks that are freed but not yet returned: they are allocated still.
    async fn freed(&mut self, view: &View) {
        if self.account.is_none() {
            return;
        }
        for name in freeing::LISTS {
            if let Err(error) = self.freed_list(view, name).await {
                self.report.problems.push(format!("{name}: {error}"));
            }
        }
    }

    async fn freed_list(&mut self, view: &View, name: &str) -> Result<(), ReadError> {
        let list = view.directory_object(name).await?;
        let Some(list) = list else { return Ok(()) };
        let mut lists = PointerLists::open(view, list).await?;
        while let Some(batch) = lists.next().await? {
            for bp in batch {
                self.loose_block(view, &bp, true).await;
            }
        }
        Ok(())
    }

    /// Visits the blocks left of destroyed clones.
    async fn deleted_clones(&mut self, view: &View) {
        if self.account.is_none() {
            return;
        }
        for part in freeing::deleted_clones(view, &mut self.report.problems).await {
            if let Err(error) = self.livelist_part(view, part).await {
                self.report.problems.push(format!("deleted clones: {error}"));
            }
        }
    }

    async fn livelist_part(&mut self, view: &View, part: ObjectId) -> Result<(), DmuError> {
        let mut part = LivelistPart::open(view, part).await?;
        while let Some(batch) = part.next().await? {
            for bp in batch {
                self.loose_block(view, &bp, true).await;
            }
        }
        Ok(())
    }

    /// Counts and claims a block that is not read.
    async fn loose_block(&mut self, view: &View, bp: &Blkptr, is_deferred: bool) {
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
        match claims_of(view, bp).await {
            Ok(claims) => drop(self.claim(view, bp, roots::loose(Bookmark::LEVEL_ZIL), claims).await),
            Err(error) => self.error(&error),
        }
    }

    /// Deduplicated blocks that only the dedup log knows of any more.
    async fn unreferenced(&mut self, view: &View) {
        for dva in self.shared.unreferenced() {
            self.report.statistics.total.asize_bytes += dva.asize_bytes;
            match claim_of_copy(view, dva).await {
                Ok(claims) => claims.into_iter().for_each(|claim| self.claim_range(claim)),
                Err(error) => self.error(&error),
            }
        }
    }

    /// Claims a range that no pointer leads to.
    fn claim_range(&mut self, claim: Claim) {
        let Some(account) = &mut self.account else { return };
        if let Err(kind) = account.claim(&claim) {
            self.fresh.misuse(Misuse { bookmark: roots::loose(0), vdev: claim.vdev, range: claim.range, kind });
        }
    }

    /// A removal in progress has copied part of the vdev's blocks: the copies are allocated, and referred to by the mapping
    /// alone.
    async fn removing(&mut self, view: &View) {
        let Some(space) = self.space.clone() else { return };
        match view.removing().await {
            Ok(None) => {}
            Ok(Some((vdev, mapped_bytes))) => {
                let Some(source) = space.vdev(vdev) else { return };
                for range in source.allocated.iter().filter(|range| range.start < mapped_bytes) {
                    let end = range.end.min(mapped_bytes);
                    self.copied(view, vdev, range.start, end - range.start).await;
                }
            }
            Err(error) => self.report.problems.push(error.to_string()),
        }
    }

    async fn copied(&mut self, view: &View, vdev: VdevId, offset_bytes: u64, size_bytes: u64) {
        self.report.statistics.removing_bytes += size_bytes;
        match view.mapped(vdev, offset_bytes, size_bytes).await {
            Ok(ranges) => {
                for (vdev, range) in ranges {
                    self.claim_range(Claim { vdev, range });
                }
            }
            Err(error) => self.error(&error.into()),
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
        let range = dva.offset_bytes..dva.offset_bytes.saturating_add(dva.asize_bytes);
        self.fresh.misuse(Misuse { bookmark: item.bookmark, vdev: dva.vdev, range, kind: MisuseKind::Twice });
        true
    }

    /// The features that the blocks need and that are not told of, or counted wrongly.
    pub(super) async fn feature_problems(&mut self, view: &View) -> Vec<String> {
        std::mem::take(&mut self.features).problems(view).await
    }

    /// The report. `is_whole`: all was visited.
    pub(super) fn finish(mut self, is_whole: bool, cursor: &Cursor) -> VerifyReport {
        assert!(self.fresh.count() == 0, "what was found since the last step is kept or forgotten");
        assert!(self.known.is_none(), "the known part was gone through, or given up with all that is known of it");
        let mut report = self.report;
        report.moved = self.has_moved.then_some((cursor.first_txg, cursor.txg));
        let mut found = self.kept;
        if let Some(account) = &self.account {
            assert!(!self.has_moved, "space is accounted for in one txg");
            if is_whole {
                if found.errors.count == 0 && found.misuses.count == 0 {
                    report.problems.extend(self.shared.unexplained().take(REPORTS_MAX));
                }
                (report.leaked_bytes, report.leaks) = account.leaks(REPORTS_MAX);
            } else {
                report.problems.push("ended early: no verdict on leaks".into());
            }
        }
        found.errors.first.sort_by_key(|block| block.bookmark);
        found.bad_copies.first.sort_by_key(|block| block.bookmark);
        (report.error_count, report.errors) = (found.errors.count, found.errors.first);
        (report.bad_copy_count, report.bad_copies) = (found.bad_copies.count, found.bad_copies.first);
        (report.misuse_count, report.misuses) = (found.misuses.count, found.misuses.first);
        report.space = self.space.take();
        report
    }
}

impl Sink for Verifier {
    async fn take(&mut self, view: &View, item: &Item, visited: Visited) -> bool {
        let Visited { error, bad_copies, claims, children, needs, scanned: _, is_refused: _ } = visited;
        debug_assert!(children.is_empty(), "the walk has the children");
        if item.is_known && !item.origin.keeps_known {
            // On the way to the cursor: it was taken before. It has become bad since, or an error was found in a part of it and is told of already;
            // what other parts lead to is to be visited all the same.
            let is_told = self.kept.has_error(item.bookmark) || self.fresh.has_error(item.bookmark);
            if let Some(error) = error.filter(|_| !is_told) {
                self.fresh.error(BadBlock::new(item.bookmark, &error));
            }
            return true;
        }
        self.report.statistics.add(&item.bp);
        let is_readable = !matches!(error, Some(VisitError::Pointer(_)));
        if is_readable {
            self.features.note_pointer(item.bookmark, &item.bp);
        }
        if is_readable && (item.bp.is_embedded() || self.is_tree_again(item)) {
            return false;
        }
        self.features.note(item.bookmark, needs);
        // Faults of data that was read in an earlier part of the walk are among those that are kept.
        if !item.is_known || is_read_again(&item.bookmark) {
            if let Some(error) = error {
                self.fresh.error(BadBlock::new(item.bookmark, &error));
            }
            for bad in bad_copies {
                self.fresh.bad_copy(BadBlock::new(item.bookmark, &bad));
            }
        }
        is_readable && self.claim(view, &item.bp, item.bookmark, claims).await
    }

    async fn step(&mut self, cursor: &Cursor) {
        assert_eq!(cursor.has_moved(), self.has_moved, "the sink knows that the pool has gone on");
        // A step ends past the known part only: all of that was met again.
        self.known = None;
        self.kept.absorb(std::mem::take(&mut self.fresh));
    }

    fn forget(&mut self) {
        self.fresh = Findings::default();
        self.keep_known();
    }

    /// Space and features are compared with what one txg says of them, and places that were freed may have other blocks now.
    fn moved(&mut self) {
        self.has_moved = true;
        self.keep_known();
        (self.space, self.account) = (None, None);
        assert_eq!(self.fresh.count(), 0, "a view that was left has nothing that is neither kept nor forgotten");
        self.shared = SharedBlocks::default();
        self.trees.clear();
    }

    /// Each is told of once, however many views have it.
    fn problems(&mut self, problems: Vec<String>) {
        for problem in problems {
            if !self.report.problems.contains(&problem) {
                self.report.problems.push(problem);
            }
        }
    }

    fn figures(&self) -> (u64, u64) {
        (self.report.allocated_bytes, self.kept.count().saturating_add(self.fresh.count()))
    }
}

#[cfg(test)]
mod tests {
    use cenote_format::ids::{BlockId, ObjsetId};
    use cenote_sim::{Machine, SINGLE};
    use cenote_spa::ImportOptions;
    use cenote_taskq::Runtime;
    use cenote_taskq::sim::disk::SimDiskOptions;

    use super::*;
    use crate::visit::{Origin, Start};

    /// With a view of a small pool.
    fn with_view(test: impl AsyncFnOnce(View)) {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        let machine = Machine::new(&runtime, 1, &SimDiskOptions { size_bytes: 80 << 20, ..SimDiskOptions::default() });
        runtime.block_on(async {
            let tops = machine.tops(&handle, SINGLE).await.unwrap();
            let pool = cenote_sim::new_pool(&handle, cenote_sim::options("pool", tops, 9)).await.unwrap();
            test(pool.view(&ImportOptions::default()).await.unwrap()).await;
        });
    }

    fn at(object: u64, level: i8, block: u64) -> Bookmark {
        Bookmark { objset: ObjsetId(54), object: ObjectId(object), level, block: BlockId(block) }
    }

    /// A known block at this place.
    fn known(view: &View, bookmark: Bookmark, keeps_known: bool) -> Item {
        let origin = Origin {
            tree: 1,
            objset: bookmark.objset,
            key: None,
            min_txg: cenote_format::ids::Txg(0),
            max_txg: None,
            resume: None,
            start: Start::Done,
            keeps_known,
            has_stops: true,
        };
        Item { bookmark, ..Item::root(view.mos().root(), origin) }
    }

    fn bad() -> Visited {
        Visited::unread(Some(VisitError::NoSuchVdev { vdev: VdevId(9) }))
    }

    /// In a block of dnodes one is not valid: the others' data is still to be visited in a later view, and the block is told of once.
    #[test]
    fn a_known_block_with_an_error_is_told_of_once_and_gone_below() {
        with_view(async |view| {
            let mut found = Findings::default();
            found.error(BadBlock::new(at(0, 0, 3), &"a dnode"));
            let mut sink = Verifier::new(found, true);
            assert!(sink.take(&view, &known(&view, at(0, 0, 3), false), bad()).await);
            assert_eq!(sink.fresh.count(), 0, "it was told of before");
            for _ in 0..2 {
                assert!(sink.take(&view, &known(&view, at(0, 0, 4), false), bad()).await);
                assert_eq!(sink.fresh.count(), 1, "it has become bad");
            }
            sink.kept.absorb(std::mem::take(&mut sink.fresh));
            assert!(sink.take(&view, &known(&view, at(0, 0, 4), false), bad()).await);
            assert_eq!((sink.fresh.count(), sink.kept.count()), (0, 2));
        });
    }

    /// Pointers with wrong levels: a fault that is left out of what is kept of a stop is one that is met again, and the other way round.
    #[test]
    fn faults_of_pointers_with_wrong_levels_count_once() {
        with_view(async |view| {
            for (object, bookmark_level, level) in [(7, 1, 0), (7, 0, 1), (7, 0, 0), (7, 2, 2), (0, 0, 0), (0, 1, 0)] {
                let mut item = known(&view, at(object, bookmark_level, 3), true);
                item.bp.set_level(level);
                let fault = BadBlock::new(item.bookmark, &"bad");
                let mut found = Findings::default();
                found.error(fault.clone());
                found.bad_copy(fault);
                let mut sink = Verifier::going_through_known(found.clone());
                let visited = Visited { bad_copies: vec!["bad".into()], ..bad() };
                sink.take(&view, &item, visited).await;
                sink.kept.absorb(std::mem::take(&mut sink.fresh));
                let counts = |found: &Findings| (found.errors.count, found.bad_copies.count);
                assert_eq!(counts(&sink.kept), counts(&found), "{} of level {level}", item.bookmark);
                // A block that is to be met again is read again, and one that is not read is not to be met.
                assert!(!is_read_again(&item.bookmark) || crate::visit::is_read(&item, true));
            }
        });
    }
}
