//! The blocks that a walk has still to come to, in its order, with those that are being read.
//!
//! ```text
//! top                                                                   bottom
//! landed | reading | landed | reading | waiting | waiting | reading | waiting | ...
//! ^ comes next        <---------------- the window ---------------->
//! ```
//! A slot keeps its index until it is taken off, since slots come and go at the top alone: so the index is the read's *ticket*.
//!
//! **Memory.** What waits for its turn holds its children, and a block of 16 MiB may hold 131,072 of them. So the children of all that is read
//! ahead are counted, those of reads under way at the most that they can be, and nothing is read ahead above [`AHEAD_MAX`]. The top alone is always
//! read, so that the walk goes on.

use cenote_format::blkptr::Blkptr;

use crate::visit::{Item, Visited, is_tree};

/// Slots from the top that may be read ahead: so many results wait at most for one that is slow, on each level of a tree.
const WINDOW: usize = 256;

/// Children at most of all blocks read ahead: those of a window of indirect blocks of 128 KiB.
const AHEAD_MAX: usize = 256 << 10;
/// Children of one block at most: pointers in the largest size that a pointer can tell of.
const CHILDREN_MAX: usize = (32 << 20) / Blkptr::SIZE;

enum State {
    Waiting,
    /// With the children that it can have.
    Reading(usize),
    Landed(Box<Visited>),
}

/// Children that a block can have.
fn children_max(item: &Item) -> usize {
    if item.bp.is_embedded() || !is_tree(item) {
        return 0;
    }
    let bytes = item.bp.lsize_bytes().max(item.bp.psize_bytes());
    usize::try_from(bytes).map_or(CHILDREN_MAX, |bytes| (bytes / Blkptr::SIZE).min(CHILDREN_MAX))
}

struct Slot {
    item: Item,
    state: State,
}

/// The stack.
pub(super) struct Stack {
    slots: Vec<Slot>,
    /// No slot from this index on is waiting.
    waiting_end: usize,
    /// Children of all that is being read or has landed.
    ahead: usize,
}

impl Stack {
    /// Of these roots, the first of which comes first.
    pub(super) fn new(roots: Vec<Item>) -> Self {
        let mut stack = Self { slots: Vec::new(), waiting_end: 0, ahead: 0 };
        stack.push(roots);
        stack
    }

    /// Puts blocks before all others, the first of them first.
    pub(super) fn push(&mut self, items: Vec<Item>) {
        self.slots.extend(items.into_iter().rev().map(|item| Slot { item, state: State::Waiting }));
        self.waiting_end = self.slots.len();
    }

    /// The block that comes next.
    pub(super) fn next(&self) -> Option<&Item> {
        self.slots.last().map(|slot| &slot.item)
    }

    /// The next block in the window that waits, which is now being read, and its ticket. None, too, while enough children wait.
    pub(super) fn issue(&mut self) -> Option<(usize, Item)> {
        let floor = self.slots.len().saturating_sub(WINDOW);
        assert!(self.waiting_end <= self.slots.len(), "no slot is above the top");
        while self.waiting_end > floor {
            let (ticket, is_top) = (self.waiting_end - 1, self.waiting_end == self.slots.len());
            let slot = &mut self.slots[ticket];
            if matches!(slot.state, State::Waiting) {
                let children = children_max(&slot.item);
                if !is_top && self.ahead + children > AHEAD_MAX {
                    return None;
                }
                slot.state = State::Reading(children);
                self.ahead += children;
                self.waiting_end = ticket;
                assert!(self.ahead <= AHEAD_MAX + CHILDREN_MAX, "children that wait are bounded");
                return Some((ticket, slot.item.clone()));
            }
            self.waiting_end = ticket;
        }
        None
    }

    /// A read is done.
    ///
    /// # Panics
    /// There is none with this ticket.
    pub(super) fn land(&mut self, ticket: usize, visited: Visited) {
        let slot = &mut self.slots[ticket];
        let State::Reading(children) = slot.state else { unreachable!("a read lands once") };
        self.ahead = self.ahead - children + visited.children.len();
        slot.state = State::Landed(Box::new(visited));
    }

    /// Takes the next block off, if its read is done.
    pub(super) fn take(&mut self) -> Option<(Item, Visited)> {
        let Slot { item, state } = self.slots.pop_if(|slot| matches!(slot.state, State::Landed(_)))?;
        self.waiting_end = self.waiting_end.min(self.slots.len());
        match state {
            State::Landed(visited) => {
                self.ahead -= visited.children.len();
                Some((item, *visited))
            }
            State::Waiting | State::Reading(_) => unreachable!("a slot that was taken off has landed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use cenote_format::blkptr::Blkptr;
    use cenote_format::ids::{BlockId, ObjsetId, Txg};
    use cenote_zio::ORDER;
    use proptest::prelude::*;

    use super::*;
    use crate::visit::{Origin, Start};

    /// A tree by numbers: a block and those below it.
    #[derive(Clone, Debug)]
    struct Node(Vec<Node>);

    fn nodes() -> impl Strategy<Value = Vec<Node>> {
        let leaf = Just(Node(Vec::new()));
        let tree = leaf.prop_recursive(4, 600, 40, |inner| prop::collection::vec(inner, 0..40).prop_map(Node));
        prop::collection::vec(tree, 0..5)
    }

    fn in_order(nodes: &[Node], from: &mut u64, order: &mut Vec<u64>, below: &mut Vec<Vec<u64>>) -> Vec<u64> {
        let mut numbers = Vec::new();
        for Node(children) in nodes {
            let number = *from;
            *from += 1;
            numbers.push(number);
            order.push(number);
            below.push(Vec::new());
            below[number as usize] = in_order(children, from, order, below);
        }
        numbers
    }

    fn item(number: u64) -> Item {
        let origin = Origin {
            tree: 0,
            objset: ObjsetId(1),
            key: None,
            min_txg: Txg(0),
            max_txg: None,
            resume: None,
            start: Start::Fresh,
            keeps_known: false,
            has_stops: true,
        };
        let mut item = Item::root(Blkptr::from_array(&[0; Blkptr::SIZE], ORDER), origin);
        item.bookmark.block = BlockId(number);
        item
    }

    /// A hostile pool's indirect blocks of 16 MiB, full of pointers: of a window of them few are read before their turn, and the walk goes on.
    #[test]
    fn children_that_wait_are_bounded() {
        let full = (16 << 20) / Blkptr::SIZE;
        let large = |number| {
            let mut item = item(number);
            item.bp.set_lsize_bytes(16 << 20);
            item.bp.set_level(1);
            item.bookmark.level = 1;
            item
        };
        let mut stack = Stack::new((0..WINDOW as u64).map(large).collect());
        let (mut came, mut most) = (0, 0);
        while stack.next().is_some() {
            let mut reading = Vec::new();
            while let Some((ticket, _)) = stack.issue() {
                reading.push(ticket);
            }
            for ticket in reading {
                let mut visited = Visited::unread(None);
                visited.children = vec![item(0); full];
                stack.land(ticket, visited);
            }
            let landed = stack.slots.iter().map(|slot| match &slot.state {
                State::Landed(visited) => visited.children.len(),
                State::Waiting | State::Reading(_) => 0,
            });
            let landed: usize = landed.sum();
            assert_eq!(landed, stack.ahead, "all are counted");
            most = most.max(landed);
            while stack.take().is_some() {
                came += 1;
            }
        }
        assert_eq!((came, stack.ahead), (WINDOW, 0), "each came");
        assert!(most >= full && most <= AHEAD_MAX + full, "{most} children waited");
    }

    proptest! {
        /// In whatever order reads land, blocks come in the order of the walk, each once.
        #[test]
        fn blocks_come_in_order(nodes in nodes(), picks in prop::collection::vec(any::<prop::sample::Index>(), 1..50)) {
            let (mut order, mut below) = (Vec::new(), Vec::new());
            let roots = in_order(&nodes, &mut 0, &mut order, &mut below);
            let mut stack = Stack::new(roots.into_iter().map(item).collect());
            let (mut reading, mut came) = (Vec::new(), Vec::new());
            let mut picks = picks.iter().cycle();
            loop {
                while reading.len() < 7 && let Some(read) = stack.issue() {
                    reading.push(read);
                }
                let Some(pick) = picks.next().filter(|_| !reading.is_empty()) else { break };
                let (ticket, read) = reading.swap_remove(pick.index(reading.len()));
                let mut visited = Visited::unread(None);
                visited.children = below[read.bookmark.block.0 as usize].iter().copied().map(item).collect();
                stack.land(ticket, visited);
                while let Some((item, visited)) = stack.take() {
                    came.push(item.bookmark.block.0);
                    stack.push(visited.children);
                }
            }
            prop_assert!(stack.next().is_none());
            prop_assert_eq!(came, order);
        }
    }
}
