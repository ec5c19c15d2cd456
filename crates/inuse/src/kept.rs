//! Files that users of a file system have open, which stay open over a suspension.
//!
//! An object is the same file if it has the same generation. When a file system was opened again, the files that are still the same are opened
//! again, before the delete queue is freed. The others are *orphans* (OpenZFS's stale znodes): each use of one fails, and its release releases no other file.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_format::ids::ObjectId;
use cenote_taskq::sync::Mutex;
use cenote_zpl::{File, FileSystem};

/// A file that was open when its file system was suspended.
#[derive(Clone, Copy, Debug)]
pub struct KeptFile<K> {
    key: K,
    object: ObjectId,
    /// Distinguishes the file from others that have had the same object number; 0 for one that matches none.
    generation: u64,
    /// The number of opens that are still to be released.
    count: u64,
}

/// Open files by a key of their users, each with the number of its opens.
pub struct KeptFiles<K> {
    open: Mutex<BTreeMap<K, (Arc<File>, u64)>>,
    /// Files that a rollback has removed: the opens of each that are still to be released.
    orphans: Mutex<BTreeMap<K, (ObjectId, u64)>>,
}

impl<K: Ord + Copy> Default for KeptFiles<K> {
    fn default() -> Self {
        Self { open: Mutex::default(), orphans: Mutex::default() }
    }
}

impl<K: Ord + Copy> KeptFiles<K> {
    /// Counts one more open of a file.
    pub fn keep(&self, key: K, file: File) {
        self.open.lock().entry(key).or_insert_with(|| (Arc::new(file), 0)).1 += 1;
    }

    /// The file of a key, if it is open.
    pub fn get(&self, key: K) -> Option<Arc<File>> {
        self.open.lock().get(&key).map(|(file, _)| file.clone())
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.open.lock().is_empty()
    }

    /// One open less. Returns the file if that was the last.
    pub fn release(&self, key: K) -> Option<Arc<File>> {
        {
            let mut orphans = self.orphans.lock();
            if let Some((_, count)) = orphans.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    orphans.remove(&key);
                }
                return None;
            }
        }
        let mut open = self.open.lock();
        match open.get_mut(&key) {
            Some((_, count)) if *count > 1 => {
                *count -= 1;
                None
            }
            Some(_) => open.remove(&key).map(|(file, _)| file),
            None => None,
        }
    }

    /// Closes all of them. Returns what [`Self::reopen`] needs.
    pub fn close(&self) -> Vec<KeptFile<K>> {
        let open = std::mem::take(&mut *self.open.lock());
        // A file that cannot be read counts as gone.
        let generation = |file: &File| file.attributes().map_or(0, |found| found.generation);
        let kept = |(key, (file, count)): (K, (Arc<File>, u64))| {
            let (object, generation) = (file.id(), generation(&file));
            KeptFile { key, object, generation, count }
        };
        let orphans = std::mem::take(&mut *self.orphans.lock()).into_iter();
        let orphans = orphans.map(|(key, (object, count))| KeptFile { key, object, generation: 0, count });
        open.into_iter().map(kept).chain(orphans).collect()
    }

    /// Opens files again that are still the same. The others are orphans.
    pub async fn reopen(&self, filesystem: &FileSystem, kept: &[KeptFile<K>]) {
        for KeptFile { key, object, generation, count } in kept {
            let found = filesystem.attributes(*object).await;
            let is_same = *generation != 0 && found.is_ok_and(|found| found.generation == *generation);
            if is_same && let Ok(opened) = filesystem.open_file(*object).await {
                self.open.lock().insert(*key, (Arc::new(opened), *count));
                continue;
            }
            self.orphans.lock().entry(*key).or_insert((*object, 0)).1 += count;
        }
    }
}
