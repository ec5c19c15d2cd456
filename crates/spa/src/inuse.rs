//! The datasets that this process has in use: heads that are open to be changed (OpenZFS's `ds_owner`), and datasets that are read as they are
//! on disk and must not be destroyed meanwhile (its `dsl_dataset_long_hold`).
//!
//! # Theory
//!
//! **Need.** A file system or volume that is changed has locks, a cache of nodes and an intent log in memory. Two of them over one head would not
//! know of each other, so a head has one owner. A reader of a snapshot knows its blocks by their addresses. If the snapshot were destroyed, others
//! would write there, and the reader would get their data; blocks without a checksum would not reveal it. And a destroy, a rollback and a receive
//! must know both: they change what an owner has in memory and a reader on disk.
//!
//! **In memory.** An entry for each dataset in use, by its object, which does not change with its name: the owner, with its [`User`] and the space
//! of the head as its users see it; and the users of its long holds. A key is in use as long as an entry has a dataset with it:
//! [`Pool::unload_key`](crate::Pool::unload_key) reports who that is.
//!
//! **Life.** [`Pool::adopt`](crate::Pool::adopt) makes the owner of a head, which lives as long as a clone of its
//! [`LiveHead`](crate::LiveHead). [`Syncer::long_hold`](crate::Syncer::long_hold) adds a hold, which lives as long as the [`LongHold`]. The last of them removes the entry.
//!
//! **Invariants.** 1. An entry has an owner or a hold. 2. An owner and a hold are made with the slot, which a task has from its check to its
//! change: no user begins to use a dataset that a task is about to destroy, or whose key it unloads. 3. A task that would destroy a held dataset
//! is refused in its check.
//!
//! **Rejected.** *A table for owners, one for holds, and one for the space of heads*: their keys had to agree. *The users' own tables alone*
//! (mounts, exports, handles of a program): a verb had to ask each of them. *The kind and the key of a dataset in its entry*: both are on disk,
//! and a rename or `change-key` gives it another key's root.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use cenote_format::ids::ObjectId;
use cenote_taskq::sync::Mutex;

/// The kind of user that has a dataset in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// A mount.
    Mount,
    /// Clients of a volume.
    Export,
    /// A program that uses the library.
    Library,
    /// A command, a receive for example.
    Command,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mount => "it is mounted already",
            Self::Export => "clients have it as a volume",
            Self::Library => "the program has it open",
            Self::Command => "a command uses it",
        })
    }
}

/// The space that a dataset uses and may still use, as its users see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadSpace {
    /// Bytes that it refers to.
    pub referenced_bytes: u64,
    /// Bytes that it may use beyond those.
    pub available_bytes: u64,
    /// Objects in it.
    pub objects: u64,
}

/// See the module comment.
#[derive(Default)]
pub(crate) struct InUse(Mutex<BTreeMap<ObjectId, Entry>>);

#[derive(Default)]
struct Entry {
    owner: Option<Owner>,
    holds: Vec<User>,
}

impl Entry {
    fn owner(&self) -> Option<User> {
        // An owner that ends just now has no clone any more, and its head may be gone with the next change.
        self.owner.as_ref().filter(|owner| owner.owned.strong_count() > 0).map(|owner| owner.user)
    }
}

struct Owner {
    user: User,
    owned: Weak<Owned>,
    space: HeadSpace,
}

impl InUse {
    /// Makes the owner of a head, or shares it.
    pub(crate) fn own(self: &Arc<Self>, dataset: ObjectId, user: User) -> Arc<Owned> {
        let mut all = self.0.lock();
        let entry = all.entry(dataset).or_default();
        if let Some(owned) = entry.owner.as_ref().and_then(|owner| owner.owned.upgrade()) {
            return owned;
        }
        let owned = Arc::new(Owned { dataset, all: self.clone() });
        entry.owner = Some(Owner { user, owned: Arc::downgrade(&owned), space: HeadSpace::default() });
        owned
    }

    /// The user of a head that is open to be changed.
    pub(crate) fn owner(&self, dataset: ObjectId) -> Option<User> {
        self.0.lock().get(&dataset)?.owner()
    }

    /// The heads that are open to be changed.
    pub(crate) fn owned(&self) -> Vec<ObjectId> {
        self.0.lock().iter().filter(|(_, entry)| entry.owner().is_some()).map(|(dataset, _)| *dataset).collect()
    }

    /// All datasets in use, each with one of its users: the owner, if there is one.
    pub(crate) fn users(&self) -> Vec<(ObjectId, User)> {
        let user = |entry: &Entry| entry.owner().or_else(|| entry.holds.first().copied());
        self.0.lock().iter().filter_map(|(dataset, entry)| Some((*dataset, user(entry)?))).collect()
    }

    /// The space of a head as of the last sync.
    pub(crate) fn space(&self, dataset: ObjectId) -> HeadSpace {
        let all = self.0.lock();
        all.get(&dataset).and_then(|entry| entry.owner.as_ref()).map_or_else(HeadSpace::default, |owner| owner.space)
    }

    /// Records the space of a head, if it still has an owner.
    pub(crate) fn set_space(&self, dataset: ObjectId, space: HeadSpace) {
        if let Some(owner) = self.0.lock().get_mut(&dataset).and_then(|entry| entry.owner.as_mut()) {
            owner.space = space;
        }
    }

    /// True if a dataset is held.
    pub(crate) fn is_held(&self, dataset: ObjectId) -> bool {
        self.0.lock().get(&dataset).is_some_and(|entry| !entry.holds.is_empty())
    }

    /// The datasets that are held.
    pub(crate) fn held(&self) -> Vec<ObjectId> {
        self.0.lock().iter().filter(|(_, entry)| !entry.holds.is_empty()).map(|(dataset, _)| *dataset).collect()
    }

    pub(crate) fn hold(self: &Arc<Self>, dataset: ObjectId, user: User) -> LongHold {
        self.0.lock().entry(dataset).or_default().holds.push(user);
        LongHold { dataset, user, all: self.clone() }
    }

    /// Changes an entry, and removes it if it has neither an owner nor a hold after that. Nothing happens if there is none.
    fn release(&self, dataset: ObjectId, change: impl FnOnce(&mut Entry)) {
        let mut all = self.0.lock();
        let Some(entry) = all.get_mut(&dataset) else { return };
        change(entry);
        if entry.owner.is_none() && entry.holds.is_empty() {
            all.remove(&dataset);
        }
    }
}

/// Has a head be open to be changed, for as long as this lives.
pub(crate) struct Owned {
    dataset: ObjectId,
    all: Arc<InUse>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.all.release(self.dataset, |entry| {
            // The head may have the next owner already, or had it, whose end removed the entry.
            if entry.owner.as_ref().is_some_and(|owner| owner.owned.strong_count() == 0) {
                entry.owner = None;
            }
        });
    }
}

/// Keeps a dataset from being destroyed, until it is dropped.
pub struct LongHold {
    dataset: ObjectId,
    user: User,
    all: Arc<InUse>,
}

impl Drop for LongHold {
    fn drop(&mut self) {
        let mut is_counted = false;
        self.all.release(self.dataset, |entry| {
            let counted = entry.holds.iter().position(|user| *user == self.user);
            is_counted = counted.map(|at| entry.holds.remove(at)).is_some();
        });
        assert!(is_counted, "a hold that is released was counted");
    }
}

impl fmt::Debug for LongHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LongHold of dataset {}", self.dataset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_lasts_as_long_as_its_owner_or_its_last_hold() {
        let (all, one) = (Arc::new(InUse::default()), ObjectId(7));
        let owned = all.own(one, User::Mount);
        let shared = all.own(one, User::Library);
        assert_eq!(all.owner(one), Some(User::Mount), "the first owner is the owner");
        let space = HeadSpace { referenced_bytes: 1, available_bytes: 2, objects: 3 };
        all.set_space(one, space);
        let holds = [all.hold(one, User::Mount), all.hold(one, User::Export)];
        drop(owned);
        assert_eq!((all.owner(one), all.space(one), all.held()), (Some(User::Mount), space, vec![one]));
        drop(shared);
        assert_eq!((all.owner(one), all.space(one), all.owned()), (None, HeadSpace::default(), vec![]));
        let [first, second] = holds;
        assert_eq!(all.users(), [(one, User::Mount)]);
        drop(first);
        assert!(all.is_held(one));
        assert_eq!(all.users(), [(one, User::Export)], "the hold of the other user is left");
        let next = all.own(one, User::Export);
        drop(second);
        assert_eq!((all.owner(one), all.is_held(one)), (Some(User::Export), false));
        drop(next);
        assert!(all.0.lock().is_empty());
        all.set_space(one, space);
        assert_eq!(all.space(one), HeadSpace::default(), "a head without an owner has no entry");
    }

    /// The last clone of an owner has gone, and its end comes after that of the next owner.
    #[test]
    fn an_owner_that_ends_late_is_none_any_more_and_takes_nothing_from_the_next() {
        let (all, one) = (Arc::new(InUse::default()), ObjectId(7));
        let late = Arc::into_inner(all.own(one, User::Mount)).expect("it is the only one");
        assert_eq!((all.owner(one), all.owned()), (None, vec![]));
        let next = all.own(one, User::Export);
        assert_eq!(all.owned(), [one]);
        let later = Arc::into_inner(next).expect("it is the only one");
        drop(later);
        let hold = all.hold(one, User::Command);
        drop(late);
        assert_eq!((all.owner(one), all.is_held(one)), (None, true));
        drop(hold);
        assert!(all.0.lock().is_empty());
        drop(Arc::into_inner(all.own(one, User::Mount)));
        assert!(all.0.lock().is_empty());
    }
}
