//! The datasets that a command selects, and their order.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use cenote_dsl::name::{Name, NameError, Tail, pool_of};
use cenote_dsl::{Bookmark, Dataset, DslError};
use cenote_host::Mounts;
use cenote_props::Types;
use cenote_spa::View;

use super::{Column, Item, PoolView, Raw, type_of};
use crate::TimeText;
use crate::error::ListError;

/// The pools to select from.
pub trait PoolSource {
    /// The reason that a pool cannot be opened.
    type Error: From<ListError>;

    /// All pools; and true if one could not be opened, which was reported.
    fn all(&self) -> impl Future<Output = Result<(Vec<View>, bool), Self::Error>>;

    /// The pool with this name.
    fn open(&self, name: &str) -> impl Future<Output = Result<View, Self::Error>>;

    /// True if an error says that there is no such pool.
    fn is_missing(error: &Self::Error) -> bool;

    /// True if an error says that another process has the pool and must be asked.
    fn is_elsewhere(error: &Self::Error) -> bool;

    /// An error with its causes.
    fn text(error: &Self::Error) -> String;

    /// Reports something that could not be opened.
    fn report(&self, text: &str);
}

/// The datasets to list.
pub struct Selection {
    /// Names of datasets, or paths in mounted ones; if empty, all pools.
    pub names: Vec<String>,
    /// Types to show.
    pub types: Types,
    /// Also show snapshots if the pool's `listsnapshots` says so.
    pub may_list_snapshots: bool,
    /// The number of levels to descend from the names; `None` for none.
    pub depth: Option<u64>,
}

/// A property to sort by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// The property.
    pub column: Column,
    /// The largest value first.
    pub is_descending: bool,
}

struct Walk<'a, S> {
    source: &'a S,
    selection: &'a Selection,
    items: Vec<Item>,
    names: BTreeSet<String>,
    failed: bool,
}

/// The selected items, sorted; and true if something could not be opened, which was reported.
///
/// # Errors
/// Another process must be asked, or a pool's own data cannot be read.
pub async fn select<S: PoolSource>(
    source: &S,
    mounts: Arc<Mounts>,
    time: TimeText,
    mut selection: Selection,
    keys: &[SortKey],
) -> Result<(Vec<Item>, bool), S::Error> {
    let is_all = selection.names.is_empty();
    if is_all {
        selection.depth = selection.depth.or(Some(u64::MAX));
    }
    let selection = &selection;
    let mut walk = Walk { source, selection, items: Vec::new(), names: BTreeSet::new(), failed: false };
    if is_all {
        let (pools, failed) = source.all().await?;
        walk.failed = failed;
        for pool in pools {
            let view = Arc::new(PoolView::new(pool, mounts.clone(), time).await?);
            let name = view.pool().name().to_owned();
            walk.argument(&view, &name, Types::all()).await?;
        }
    }
    let is_one_pool = selection.names.iter().all(|name| pool_of(name) == pool_of(&selection.names[0]));
    // A pool is opened only once for all arguments that are in it.
    let mut views: Vec<Arc<PoolView>> = Vec::new();
    for argument in &selection.names {
        let name = match named(argument, &mounts) {
            Ok(name) => name,
            Err(error) => {
                walk.report(&error.to_string());
                continue;
            }
        };
        let types = selection.argument_types();
        if let Err(reason) = check_name(&name, types) {
            walk.report(&format!("cannot open '{name}': {reason}"));
            continue;
        }
        let pool_name = pool_of(&name);
        let view = match views.iter().find(|view| view.pool().name() == pool_name) {
            Some(view) => view.clone(),
            None => match source.open(pool_name).await {
                Ok(pool) => {
                    let view = Arc::new(PoolView::new(pool, mounts.clone(), time).await?);
                    views.push(view.clone());
                    view
                }
                Err(error) if S::is_missing(&error) => {
                    walk.report(&format!("cannot open '{name}': dataset does not exist"));
                    continue;
                }
                // Only its server has everything about the pool.
                Err(error) if S::is_elsewhere(&error) && is_one_pool => return Err(error),
                Err(error) => {
                    walk.report(&S::text(&error));
                    continue;
                }
            },
        };
        walk.argument(&view, &name, types).await?;
    }
    let Walk { items, failed, .. } = walk;
    Ok((sort(items, keys).await?, failed))
}

impl Selection {
    /// Types that an argument may have: a file system is always possible if the selection descends.
    fn argument_types(&self) -> Types {
        let mut types = self.types;
        if self.depth.is_some() {
            types |= Types::FILESYSTEM;
            if types.intersects(Types::SNAPSHOT | Types::BOOKMARK) {
                types |= Types::VOLUME;
            }
        }
        types
    }

    fn wants_snapshots(&self, view: &PoolView) -> bool {
        if self.may_list_snapshots { view.lists_snapshots() } else { self.types.contains(Types::SNAPSHOT) }
    }
}

/// A path in the arguments is not in a dataset.
#[derive(Debug, thiserror::Error)]
enum PathError {
    /// It does not exist, or cannot be looked up.
    #[error("cannot open '{path}': {source}")]
    Unreachable {
        /// The path.
        path: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// It is not in a mounted dataset.
    #[error("cannot open '{path}': not a ZFS filesystem")]
    NotMounted {
        /// The path.
        path: String,
    },
}

/// The dataset that an argument names. For a path, the mounted dataset that contains it.
fn named(argument: &str, mounts: &Mounts) -> Result<String, PathError> {
    if !["/", "./", "../"].iter().any(|start| argument.starts_with(start)) {
        return Ok(argument.to_owned());
    }
    if let Err(source) = std::fs::metadata(argument) {
        return Err(PathError::Unreachable { path: argument.to_owned(), source });
    }
    let dataset = mounts.dataset_at(Path::new(argument));
    dataset.map(str::to_owned).ok_or_else(|| PathError::NotMounted { path: argument.to_owned() })
}

/// A name that no dataset of the requested types can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum TypeError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("missing '@' delimiter in snapshot name, did you mean to use -r?")]
    NoSnapshot,
    #[error("missing '#' delimiter in bookmark name, did you mean to use -r?")]
    NoBookmark,
    #[error("invalid dataset name")]
    Invalid,
}

/// Checks that a name can be that of a dataset, snapshot or bookmark of these types.
fn check_name(name: &str, types: Types) -> Result<(), TypeError> {
    let parsed = match Name::parse(name) {
        Ok(parsed) => parsed,
        Err(DslError::BadName { reason, .. }) => return Err(reason.into()),
        Err(_) => return Err(TypeError::Invalid),
    };
    match parsed.tail {
        Tail::Snapshot(_) if !types.contains(Types::SNAPSHOT) => Err(NameError::SnapshotDelimiter.into()),
        Tail::Bookmark(_) if !types.contains(Types::BOOKMARK) => Err(NameError::BookmarkDelimiter.into()),
        Tail::Snapshot(_) | Tail::Bookmark(_) => Ok(()),
        Tail::Head if types == Types::SNAPSHOT => Err(TypeError::NoSnapshot),
        Tail::Head if types == Types::BOOKMARK => Err(TypeError::NoBookmark),
        Tail::Head => Ok(()),
    }
}

impl<S: PoolSource> Walk<'_, S> {
    fn report(&mut self, text: &str) {
        self.source.report(text);
        self.failed = true;
    }

    /// Reports an error about `what`.
    fn report_error(&mut self, what: &str, error: &dyn Error) {
        self.report(&format!("{what}: {}", causes(error)));
    }

    /// Selects the dataset, snapshot or bookmark that an argument names, and those below it to the requested depth.
    async fn argument(&mut self, view: &Arc<PoolView>, name: &str, types: Types) -> Result<(), ListError> {
        let dsl = view.pool().dsl();
        if let Some((head, _)) = name.split_once('#') {
            let bookmarks = async {
                let head = dsl.dataset(head).await?;
                Ok::<_, DslError>((dsl.bookmarks(&head).await?, head))
            };
            match bookmarks.await {
                Ok((bookmarks, head)) => match bookmarks.into_iter().find(|bookmark| bookmark.name == name) {
                    Some(bookmark) => self.add_bookmark(view, &head, bookmark),
                    None => self.report(&DslError::NoSuchDataset(name.to_owned()).to_string()),
                },
                Err(DslError::NoSuchDataset(_)) => self.report(&DslError::NoSuchDataset(name.to_owned()).to_string()),
                Err(error) => self.report_error(&format!("cannot open '{name}'"), &error),
            }
            return Ok(());
        }
        let dataset = match dsl.dataset(name).await {
            Ok(dataset) => dataset,
            Err(error @ DslError::NoSuchDataset(_)) => {
                self.report(&error.to_string());
                return Ok(());
            }
            Err(error) => {
                self.report_error(&format!("cannot open '{name}'"), &error);
                return Ok(());
            }
        };
        if dataset.is_snapshot() {
            if let Some(head_kind) = self.head_kind(view, &dataset).await {
                self.add(view, dataset, Types::SNAPSHOT, head_kind);
            }
            return Ok(());
        }
        let Some(kind) = self.head_kind(view, &dataset).await else { return Ok(()) };
        if !types.contains(kind) {
            self.report(&format!("cannot open '{name}': operation not applicable to datasets of this type"));
            return Ok(());
        }
        self.down(view, dataset, kind).await
    }

    /// The type of a dataset or of a snapshot's head. An error is reported.
    async fn head_kind(&mut self, view: &PoolView, dataset: &Dataset) -> Option<Types> {
        let kind = async { type_of(view.pool().dsl().kind(dataset).await?) };
        match kind.await {
            Ok(kind) => Some(kind),
            Err(error) => {
                self.report_error(&format!("cannot open '{}'", dataset.name()), &error);
                None
            }
        }
    }

    /// Adds a head and everything below it.
    async fn down(&mut self, view: &Arc<PoolView>, top: Dataset, kind: Types) -> Result<(), ListError> {
        let dsl = view.pool().dsl();
        let mut pending = vec![(top, kind, 0_u64)];
        while let Some((head, kind, depth)) = pending.pop() {
            if self.selection.types.contains(kind) {
                self.add(view, head.clone(), kind, kind);
            }
            let Some(limit) = self.selection.depth.filter(|limit| depth < *limit) else { continue };
            // At the last level, only types that are themselves shown are read.
            let is_last = depth.saturating_add(1) >= limit;
            if kind == Types::FILESYSTEM
                && (!is_last || self.selection.types.intersects(Types::FILESYSTEM | Types::VOLUME))
            {
                for (name, object) in dsl.children(&head.dir, false).await?.into_iter().rev() {
                    let name = format!("{}/{name}", head.dir.name);
                    let child = async {
                        let dir = dsl.dir_object(object, name.clone()).await?;
                        if dir.phys.parent != head.dir.object {
                            let what = format!("'{name}' has another parent");
                            return Err(DslError::Corrupt { object: object.0, what });
                        }
                        dsl.head(&dir).await
                    };
                    match child.await {
                        Ok(Some(child)) if depth < cenote_dsl::DEPTH_MAX as u64 => {
                            if let Some(kind) = self.head_kind(view, &child).await {
                                pending.push((child, kind, depth + 1));
                            }
                        }
                        Ok(_) => {}
                        Err(error) => {
                            self.report_error(&format!("cannot open '{name}'"), &error);
                        }
                    }
                }
            }
            if self.selection.wants_snapshots(view) {
                match dsl.snapshots(&head).await {
                    Ok(snapshots) => {
                        snapshots.into_iter().for_each(|snapshot| self.add(view, snapshot, Types::SNAPSHOT, kind));
                    }
                    Err(error) => {
                        let what = format!("cannot list the snapshots of '{}'", head.dir.name);
                        self.report_error(&what, &error);
                    }
                }
            }
            if self.selection.types.contains(Types::BOOKMARK) {
                match dsl.bookmarks(&head).await {
                    Ok(bookmarks) => {
                        bookmarks.into_iter().for_each(|bookmark| self.add_bookmark(view, &head, bookmark));
                    }
                    Err(error) => {
                        let what = format!("cannot list the bookmarks of '{}'", head.dir.name);
                        self.report_error(&what, &error);
                    }
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, view: &Arc<PoolView>, dataset: Dataset, kind: Types, head_kind: Types) {
        self.push(Item::of_dataset(view, dataset, kind, head_kind));
    }

    fn add_bookmark(&mut self, view: &Arc<PoolView>, head: &Dataset, bookmark: Bookmark) {
        self.push(Item::of_bookmark(view, head.clone(), bookmark));
    }

    fn push(&mut self, item: Item) {
        if self.names.insert(item.name.clone()) {
            self.items.push(item);
        }
    }
}

/// An error with its causes.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// Sorts by the keys (items without a value are last in either direction), then by name, with a head's snapshots after it by age.
async fn sort(items: Vec<Item>, keys: &[SortKey]) -> Result<Vec<Item>, ListError> {
    let mut rows = Vec::with_capacity(items.len());
    for item in items {
        let mut values = Vec::with_capacity(keys.len());
        for key in keys {
            values.push(match &key.column {
                Column::Native(property) => item.sort_value(property).await?,
                other => other.cell(&item, true).await?.map(|cell| Raw::Text(cell.text)),
            });
        }
        rows.push((values, item));
    }
    rows.sort_by(|(a_values, a), (b_values, b)| {
        let pairs = keys.iter().zip(a_values.iter().zip(b_values));
        let by_keys = pairs.map(|(key, pair)| compare(pair, key.is_descending));
        by_keys.fold(Ordering::Equal, Ordering::then).then_with(|| by_name(a, b))
    });
    Ok(rows.into_iter().map(|(_, item)| item).collect())
}

fn compare((a, b): (&Option<Raw>, &Option<Raw>), is_descending: bool) -> Ordering {
    let order = match (a, b) {
        (None, None) => return Ordering::Equal,
        (None, Some(_)) => return Ordering::Greater,
        (Some(_), None) => return Ordering::Less,
        (Some(Raw::Number(a)), Some(Raw::Number(b))) => a.cmp(b),
        (Some(Raw::Text(a)), Some(Raw::Text(b))) => a.cmp(b),
        (Some(Raw::Number(_)), Some(Raw::Text(_))) => Ordering::Less,
        (Some(Raw::Text(_)), Some(Raw::Number(_))) => Ordering::Greater,
    };
    if is_descending { order.reverse() } else { order }
}

fn by_name(a: &Item, b: &Item) -> Ordering {
    let parts = |item: &'_ Item| match item.name.split_once('@') {
        Some((head, snapshot)) => (head.to_owned(), Some((item.creation_txg(), snapshot.to_owned()))),
        None => (item.name.clone(), None),
    };
    parts(a).cmp(&parts(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_against_the_types_that_are_wanted() {
        assert_eq!(check_name("tank/a", Types::FILESYSTEM), Ok(()));
        assert_eq!(check_name("tank@s", Types::FILESYSTEM), Err(NameError::SnapshotDelimiter.into()));
        assert!(check_name("tank", Types::SNAPSHOT).is_err());
        assert!(check_name("tank//a", Types::all()).is_err());
        assert_eq!(check_name("tank#b", Types::DATASET | Types::BOOKMARK), Ok(()));
    }

    #[test]
    fn what_has_no_value_comes_last_either_way() {
        let (none, one, two) = (None, Some(Raw::Number(1)), Some(Raw::Number(2)));
        for is_descending in [false, true] {
            assert_eq!(compare((&none, &one), is_descending), Ordering::Greater);
            assert_eq!(compare((&one, &none), is_descending), Ordering::Less);
        }
        assert_eq!(compare((&one, &two), true), Ordering::Greater);
    }
}
