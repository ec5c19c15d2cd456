//! The places of datasets below the mounted one.
//!
//! A mount shows the tree that `zfs mount -a` would have made: a dataset stands where its `mountpoint` puts it relative
//! to the mounted one's, if it may be mounted (`canmount=on`, its key loaded). Where the mounted dataset has no
//! mountpoint (`none`, `legacy`), or on request, datasets stand by their names instead.
//!
//! The places form a trie of directory names. A node of it is the root of a dataset, or a directory on the way to one;
//! the latter lies over the directory of that name in the dataset around it, or is made where that has none:
//! ```text
//!   tank            mountpoint=/tank        (root)
//!   tank/home       mountpoint=/tank/home   ├── home            dataset: hides what tank has there
//!   tank/srv/www    mountpoint=/tank/a/www  └── a               on the way: tank's own directory `a`, or a made one
//!                                               └── www         dataset
//! ```

use std::collections::BTreeMap;

use cenote_dsl::name::is_at_or_below;
use cenote_dsl::property::Value;
use cenote_dsl::{Dataset, Dir, Dsl, DslError};
use cenote_format::enums::ObjsetType;
use cenote_zpl::Properties;

/// The name of a dataset's control directory.
pub(crate) const CONTROL_NAME: &[u8] = b".zfs";
/// Datasets that a remark names at most.
const NAMED_MAX: usize = 8;
/// Datasets shown in one mount at most.
const DATASETS_MAX: usize = 1 << 14;

/// Which datasets a mount shows besides the mounted one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// The datasets whose `mountpoint` is below the mounted one's, at that place. By names if the mounted dataset has no mountpoint.
    #[default]
    Mountpoints,
    /// All file systems below it, by their names.
    Names,
    /// None.
    Alone,
}

/// A dataset and the directory names that lead to it from the mount's root.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) dataset: Dataset,
    pub(crate) path: Vec<Vec<u8>>,
    pub(crate) properties: Properties,
}

/// The part of the mounted dataset's tree that is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of it.
    All,
    /// Datasets by their names, with those below them.
    Below(Vec<String>),
}

impl Part {
    /// Datasets with those below them, each once.
    pub(crate) fn below(names: &[String]) -> Self {
        let mut outermost: Vec<String> = Vec::new();
        let mut names = names.to_vec();
        names.sort();
        for name in names {
            if !outermost.iter().any(|outer| is_at_or_below(&name, outer)) {
                outermost.push(name);
            }
        }
        Self::Below(outermost)
    }

    /// Whether a dataset is in it.
    pub(crate) fn has(&self, dataset: &str) -> bool {
        match self {
            Self::All => true,
            Self::Below(names) => names.iter().any(|name| is_at_or_below(dataset, name)),
        }
    }
}

/// The datasets of a part that are to be shown below `top`. Remarks on those left out go to `note`.
pub(crate) async fn placed(
    dsl: &Dsl,
    top: &Dir,
    layout: Layout,
    part: &Part,
    mut note: impl FnMut(String),
) -> Result<Vec<Placed>, DslError> {
    let mut found: Vec<Placed> = Vec::new();
    if layout == Layout::Alone {
        return Ok(found);
    }
    let base = match layout {
        Layout::Mountpoints => mountpoint(dsl, top).await?,
        Layout::Names | Layout::Alone => None,
    };
    let mut roots = Vec::new();
    let mut elsewhere = Vec::new();
    match part {
        Part::All => roots.push(top.clone()),
        Part::Below(names) => {
            for name in names.iter().filter(|name| *name != &top.name && is_at_or_below(name, &top.name)) {
                match dsl.dir(name).await {
                    Ok(dir) => roots.push(dir),
                    // It was destroyed, or is called otherwise now.
                    Err(DslError::NoSuchDataset(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
    for root in roots {
        for dir in dsl.tree(root, false).await?.into_iter().filter(|dir| dir.object != top.object) {
            let path = match &base {
                Some(base) => {
                    // `canmount` is not inherited; 1 is `on`, which is the default.
                    let can_mount = dsl.property(&dir, "canmount", false).await?.and_then(|found| found.value.number());
                    if can_mount.unwrap_or(1) != 1 {
                        continue;
                    }
                    mountpoint(dsl, &dir).await?.and_then(|at| below(base, &at))
                }
                None => dir.name.strip_prefix(&top.name).and_then(|rest| below("/", rest)),
            };
            let Some(path) = path else {
                // One without a mount point is not missed. A `%` names what an interrupted receive has left.
                if base.is_some() && !dir.name.contains('%') && mountpoint(dsl, &dir).await?.is_some() {
                    elsewhere.push(dir);
                }
                continue;
            };
            if path.iter().any(|part| part == CONTROL_NAME) {
                note(format!("'{}' is left out: '.zfs' is the directory of a dataset's snapshots", dir.name));
                continue;
            }
            let Some(dataset) = dsl.head(&dir).await? else { continue };
            let name = &dir.name;
            if dsl.kind(&dataset).await? != ObjsetType::Zfs || dataset.is_inconsistent() {
                continue;
            }
            if dsl.encryption(&dir).await?.is_some_and(|encryption| !encryption.is_loaded) {
                note(format!("'{name}' is left out: its key is not loaded"));
            } else if found.len() > DATASETS_MAX {
                return Ok(found);
            } else {
                found.push(Placed { dataset, path, properties: Properties::read(dsl, &dir).await? });
            }
        }
    }
    // When all are looked at, at the beginning: later a command that moves one says so.
    if *part == Part::All {
        let mut names = Vec::new();
        for dir in elsewhere {
            if let Some(head) = dsl.head(&dir).await?
                && dsl.kind(&head).await? == ObjsetType::Zfs
            {
                names.push(dir.name);
            }
        }
        if let Some(text) = elsewhere_note(&top.name, &names) {
            note(text);
        }
    }
    Ok(found)
}

/// The remark on datasets that a mount does not show since their mount points lie elsewhere.
fn elsewhere_note(top: &str, names: &[String]) -> Option<String> {
    let first = names.first()?;
    let (shown, more) = (names.len().min(NAMED_MAX), names.len().saturating_sub(NAMED_MAX));
    let named = names[..shown].iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!(
        "not shown in the mount of '{top}', since their mountpoint lies elsewhere: {named}{rest} ('-o layout=names' shows all by their \
         names; 'cenote mount {first} FOLDER' mounts one by itself)"
    ))
}

/// Datasets in the order in which they are shown, outer ones first: one at each place, and not too many. Remarks on those left out go to
/// `note`.
pub(crate) fn arranged(mut found: Vec<Placed>, mut note: impl FnMut(String)) -> Vec<Placed> {
    if found.len() > DATASETS_MAX {
        found.sort_by(|a, b| a.dataset.dir.name.cmp(&b.dataset.dir.name));
        let name = &found[DATASETS_MAX].dataset.dir.name;
        note(format!("'{name}' and those after it are left out: more than {DATASETS_MAX} datasets"));
        found.truncate(DATASETS_MAX);
    }
    found.sort_by(|a, b| {
        (a.path.len(), &a.path, &a.dataset.dir.name).cmp(&(b.path.len(), &b.path, &b.dataset.dir.name))
    });
    found.dedup_by(|later, earlier| {
        let is_same = later.path == earlier.path;
        if is_same {
            note(format!("'{}' is left out: '{}' has its place", later.dataset.name(), earlier.dataset.name()));
        }
        is_same
    });
    found
}

/// The directory that the property `mountpoint` names; `None` for `none` and `legacy`.
async fn mountpoint(dsl: &Dsl, dir: &Dir) -> Result<Option<String>, DslError> {
    let mut at = dir.clone();
    let mut tail = String::new();
    loop {
        let own = dsl.property(&at, "mountpoint", false).await?;
        if let Some(Value::Text(text)) = own.map(|own| own.value) {
            let is_path = text.starts_with('/');
            return Ok(is_path.then(|| format!("{}{tail}", text.trim_end_matches('/'))));
        }
        let last = at.name.rsplit('/').next().unwrap_or_default();
        tail = format!("/{last}{tail}");
        match dsl.parent(&at).await? {
            Some(parent) => at = parent,
            // The root dataset's default is the pool's name at the top.
            None => return Ok(Some(tail)),
        }
    }
}

/// The parts of `path` below `base`; `None` if it is not below, or has a part that is no name.
fn below(base: &str, path: &str) -> Option<Vec<Vec<u8>>> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    for part in base.split('/').filter(|part| !part.is_empty()) {
        if parts.next() != Some(part) {
            return None;
        }
    }
    let rest: Vec<Vec<u8>> = parts.map(|part| part.as_bytes().to_vec()).collect();
    let is_name = |part: &Vec<u8>| part != b"." && part != b".." && part.len() <= 255 && !part.contains(&0);
    (!rest.is_empty() && rest.iter().all(is_name)).then_some(rest)
}

/// A directory of the trie.
#[derive(Debug, Default)]
pub(crate) struct TrieNode {
    pub(crate) parent: u32,
    pub(crate) name: Vec<u8>,
    pub(crate) children: BTreeMap<Vec<u8>, u32>,
    /// The dataset whose root it is, as an index into the list that the trie was made from.
    pub(crate) dataset: Option<usize>,
}

/// The places of datasets; node 0 is the mount's root.
#[derive(Debug)]
pub(crate) struct Trie {
    pub(crate) nodes: Vec<TrieNode>,
}

impl Trie {
    pub(crate) fn new(placed: &[Placed]) -> Self {
        let mut nodes = vec![TrieNode::default()];
        for (dataset, place) in placed.iter().enumerate() {
            let mut at = 0_u32;
            for part in &place.path {
                at = match nodes[at as usize].children.get(part) {
                    Some(&child) => child,
                    None => {
                        let child = nodes.len() as u32;
                        nodes.push(TrieNode { parent: at, name: part.clone(), ..TrieNode::default() });
                        nodes[at as usize].children.insert(part.clone(), child);
                        child
                    }
                };
            }
            nodes[at as usize].dataset = Some(dataset);
        }
        Self { nodes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(path: Option<Vec<Vec<u8>>>) -> Option<String> {
        path.map(|parts| parts.iter().map(|part| String::from_utf8_lossy(part)).collect::<Vec<_>>().join("/"))
    }

    #[test]
    fn a_part_has_each_dataset_once() {
        let part = Part::below(&["t/a/b", "t/a", "t/a-b", "t/a", "t/ab"].map(str::to_owned));
        assert_eq!(part, Part::Below(["t/a", "t/a-b", "t/ab"].map(str::to_owned).to_vec()));
        assert!(part.has("t/a/b/c") && part.has("t/ab") && !part.has("t/abc") && !part.has("t"));
        assert!(!Part::below(&[]).has("t") && Part::All.has("t"));
    }

    #[test]
    fn a_path_is_below_another_by_whole_parts() {
        assert_eq!(parts(below("/tank", "/tank/a/b")).as_deref(), Some("a/b"));
        assert_eq!(parts(below("/", "/tank//a/")).as_deref(), Some("tank/a"));
        for other in ["/tank", "/tanks/a", "/", "/srv/tank/a"] {
            assert_eq!(below("/tank", other), None, "{other}");
        }
    }

    #[test]
    fn paths_that_would_leave_the_mount_are_refused() {
        assert_eq!(below("/tank", "/tank/../etc"), None);
        assert_eq!(below("/tank", "/tank/a/./b"), None);
        assert_eq!(below("/tank", "/tank/a\0"), None);
        assert_eq!(below("/tank", &format!("/tank/{}", "x".repeat(256))), None);
    }
}
