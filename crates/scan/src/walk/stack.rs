//! The blocks that a walk has still to come to, in its order, with those that are being read.
//!
//! ```text
//! top                                                                   bottom
//! landed | reading | landed | reading | waiting | waiting | reading | waiting | ...
//! ^ comes next        <---------------- the window ---------------->
//! ```
//! A slot keeps its index until it is taken off, since slots come and go at the top alone: so the index is the read's *ticket*.

use crate::visit::{Item, Visited};

/// Slots from the top that may be read ahead: so many results wait at most for one that is slow, on each level of a tree.
const WINDOW: usize = 256;

enum State {
    Waiting,
    Reading,
    Landed(Box<Visited>),
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
}

impl Stack {
    /// Of these roots, the first of which comes first.
    pub(super) fn new(roots: Vec<Item>) -> Self {
        let mut stack = Self { slots: Vec::new(), waiting_end: 0 };
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

    /// The next block in the window that waits, which is now being read, and its ticket.
    pub(super) fn issue(&mut self) -> Option<(usize, Item)> {
        let floor = self.slots.len().saturating_sub(WINDOW);
        assert!(self.waiting_end <= self.slots.len(), "no slot is above the top");
        while self.waiting_end > floor {
            self.waiting_end -= 1;
            let slot = &mut self.slots[self.waiting_end];
            if matches!(slot.state, State::Waiting) {
                slot.state = State::Reading;
                return Some((self.waiting_end, slot.item.clone()));
            }
        }
        None
    }

    /// A read is done.
    ///
    /// # Panics
    /// There is none with this ticket.
    pub(super) fn land(&mut self, ticket: usize, visited: Visited) {
        let slot = &mut self.slots[ticket];
        assert!(matches!(slot.state, State::Reading), "a read lands once");
        slot.state = State::Landed(Box::new(visited));
    }

    /// Takes the next block off, if its read is done.
    pub(super) fn take(&mut self) -> Option<(Item, Visited)> {
        let Slot { item, state } = self.slots.pop_if(|slot| matches!(slot.state, State::Landed(_)))?;
        self.waiting_end = self.waiting_end.min(self.slots.len());
        match state {
            State::Landed(visited) => Some((item, *visited)),
            State::Waiting | State::Reading => unreachable!("a slot that was taken off has landed"),
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
