//! Where a walk is, and the trees that are left from there.

use std::collections::BTreeMap;

use cenote_format::ids::{ObjectId, Txg};
use cenote_spa::{ScanPlace, View};
use cenote_zio::Bookmark;

use crate::resume::Resume;
use crate::roots::{Tree, WalkedTree};
use crate::visit::{Item, Start};

/// Where a walk is: all that comes before has been visited, and nothing after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The txg in which the walk began: blocks that are born later need not be visited.
    pub(crate) first_txg: Txg,
    /// The txg of the view in which the trees are counted.
    pub(crate) txg: Txg,
    /// The checksum of that view's MOS, which no other state of the pool has.
    pub(crate) root: [u64; 4],
    /// The number of the tree with the next block.
    pub(crate) tree: usize,
    /// The next block: of level 0, or the root of its tree. None at the end.
    pub(crate) next: Option<Bookmark>,
    /// The tree with the next block, where it can be found again.
    pub(crate) current: Option<WalkedTree>,
    /// The datasets that were walked whole.
    pub(crate) walked: Vec<WalkedTree>,
    /// It was taken from a pool's record of a scan: trees were walked in any order, and the walk goes on as after a change of the pool.
    pub(crate) is_of_scan: bool,
}

impl Cursor {
    /// Of a walk that has visited nothing, of the trees of this view.
    pub(crate) fn at_start(view: &View, trees: &[Tree]) -> Self {
        let (txg, root) = (view.txg(), view.mos().root().checksum_words());
        let next = trees.first().map(|tree| Bookmark::objset(tree.objset));
        Self { first_txg: txg, txg, root, tree: 0, next, current: None, walked: Vec::new(), is_of_scan: false }
    }

    /// Of a scan of what was born up to `max_txg`, from this place on.
    pub(crate) fn of_scan(place: ScanPlace, max_txg: Txg) -> Self {
        let tree = usize::from(!place.is_in_mos());
        let ScanPlace { next, current, walked } = place;
        let next = Some(next);
        Self { first_txg: max_txg, txg: Txg(0), root: [0; 4], tree, next, current, walked, is_of_scan: true }
    }

    /// The same for the pool's record; none at the end.
    pub(crate) fn scan_place(&self) -> Option<ScanPlace> {
        assert!(self.is_of_scan, "the place of a scan is one of a scan");
        Some(ScanPlace { next: self.next?, current: self.current, walked: self.walked.clone() })
    }

    /// Whether a view has the state that the trees are counted in.
    pub(crate) fn is_at(&self, view: &View) -> bool {
        (self.txg, self.root) == (view.txg(), view.mos().root().checksum_words())
    }

    /// Whether the pool has gone on since the walk began.
    pub(crate) fn has_moved(&self) -> bool {
        self.is_of_scan || self.txg != self.first_txg
    }

    /// Whether the cursor can be moved to this block, of a view of its txg. It cannot where a hostile tree has blocks in another order.
    pub(super) fn can_move_to(&self, next: &Item) -> bool {
        let (at, origin) = (next.bookmark, &next.origin);
        let goes_on = match self.start_of_current() {
            Start::From(stop) if self.tree == origin.tree && !self.has_moved() => {
                at.level == 0 && !stop.is_before(at.object.0, 0, at.block.0, 0)
            }
            _ => true,
        };
        Self::is_stop(&at) && origin.has_stops && !next.is_known && goes_on
    }

    /// Whether these are the trees that it counts.
    pub(crate) fn is_of(&self, trees: &[Tree]) -> bool {
        let objset = trees.get(self.tree).map(|tree| tree.objset);
        self.next.is_some_and(|next| objset == Some(next.objset))
    }

    /// Whether a walk may stop before this block: its place stays the same in later txgs.
    pub(crate) const fn is_stop(at: &Bookmark) -> bool {
        at.level == 0 || at.level == Bookmark::LEVEL_OBJSET
    }

    fn start_of_current(&self) -> Start {
        match self.next {
            None => Start::Done,
            Some(at) if at.level == Bookmark::LEVEL_OBJSET => Start::Fresh,
            Some(at) => Start::From(Resume::before(at.object, at.block)),
        }
    }

    /// The roots of the trees of a view, from the cursor on. `keeps_known`: those before, too, as visited.
    pub(crate) fn plan(&mut self, view: &View, trees: &[Tree], keeps_known: bool) -> Vec<Item> {
        let is_same = !self.has_moved() && self.is_at(view);
        assert!(is_same || view.txg() >= self.txg, "a pool goes on, and not back");
        assert!(self.next.as_ref().is_none_or(Self::is_stop), "a walk goes on from where it may stop");
        assert!(is_same || !keeps_known, "what is known is gone through once more in its own txg");
        (self.txg, self.root) = (view.txg(), view.mos().root().checksum_words());
        if is_same { self.plan_same(trees, keeps_known) } else { self.plan_later(trees) }
    }

    fn plan_same(&self, trees: &[Tree], keeps_known: bool) -> Vec<Item> {
        let start = |number: usize| match number.cmp(&self.tree) {
            std::cmp::Ordering::Less => Start::Done,
            std::cmp::Ordering::Equal => self.start_of_current(),
            std::cmp::Ordering::Greater => Start::Fresh,
        };
        let wanted = trees.iter().enumerate().filter(|(_, tree)| tree.has_blocks());
        let roots = wanted.map(|(number, tree)| tree.item(number, start(number), None, keeps_known));
        roots.filter(|root| keeps_known || root.origin.start != Start::Done).collect()
    }

    /// In a view of a later txg than that of the beginning: trees are found again, and those that are not are walked whole. The one that the walk
    /// was in comes first, so that others do not keep it from coming to its end.
    fn plan_later(&mut self, trees: &[Tree]) -> Vec<Item> {
        let walked = std::mem::take(&mut self.walked).into_iter().map(|walked| (walked.history.deadlist, walked));
        let mut walked: BTreeMap<ObjectId, WalkedTree> = walked.collect();
        let mut roots = Vec::new();
        for (number, tree) in trees.iter().enumerate() {
            let mut max_txg = self.first_txg;
            let start = match tree.history {
                // The MOS is the first tree of every view.
                None if number == 0 && self.tree == 0 => self.start_of_current(),
                // The MOS, walked; or the rest of a destroyed dataset, to which nobody refers any more.
                None => continue,
                Some(history) => {
                    let is_current =
                        |walked: &WalkedTree| walked.is_of(&history) && walked.born_after <= tree.born_after;
                    match walked.remove(&history.deadlist).filter(|walked| walked.is_of(&history)) {
                        Some(same) if same.born_after <= tree.born_after => {
                            self.walked.push(WalkedTree { history, ..same });
                            continue;
                        }
                        // Blocks that a snapshot before it had alone are its own now, since that snapshot is gone.
                        Some(same) => {
                            max_txg = max_txg.min(same.born_after);
                            Start::Fresh
                        }
                        None if self.current.as_ref().is_some_and(is_current) => self.start_of_current(),
                        None => Start::Fresh,
                    }
                }
            };
            // All that it has of its own is younger than the walk, or it has nothing.
            let is_young = tree.born_after >= self.first_txg || !tree.has_blocks();
            if !is_young {
                roots.push(tree.item(number, start, Some(max_txg), false));
            }
        }
        // In a scan a dataset comes after the snapshot before it, as OpenZFS's record has it: the txg after which its blocks were born is later.
        let line = |root: &Item| if self.is_of_scan { root.origin.min_txg } else { Txg(0) };
        roots.sort_by_key(|root| (!matches!(root.origin.start, Start::From(_)), line(root)));
        roots
    }

    /// The walk has come to `next`, in a view with these trees, and has `finished` some of them.
    pub(super) fn advance(&mut self, next: Option<&Item>, trees: &[Tree], finished: &mut Vec<usize>) {
        assert!(
            next.is_none_or(|item| self.can_move_to(item)),
            "a walk stops where it can go on, and does not go back"
        );
        let txg = self.txg;
        let walked = |tree: &Tree| tree.history.map(|history| WalkedTree { history, born_after: tree.born_after, txg });
        self.walked.extend(finished.drain(..).filter_map(|number| walked(&trees[number])));
        if let Some(item) = next {
            let number = item.origin.tree;
            assert!(self.tree <= number || self.has_moved(), "trees come in their order");
            (self.tree, self.current) = (number, walked(&trees[number]));
        }
        self.next = next.map(|item| item.bookmark);
    }
}
