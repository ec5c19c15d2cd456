//! DSL directories: the tree of names.

use std::collections::{BTreeMap, BTreeSet};

use cenote_dmu::Zap;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{DslDirPhys, dir_field};
use cenote_format::ids::ObjectId;
use cenote_taskq::boxed;

use crate::name::{Name, Tail, parent_and_last};
use crate::{DEPTH_MAX, Dsl, DslError};

/// Children of one directory at most, as a bound on memory.
const CHILDREN_MAX: usize = 1 << 22;

/// Children read at most in one search for names. No real pool has more directories; a hostile one must not make Cenote read the same long list
/// for ever.
const LOOKED_THROUGH_MAX: usize = CHILDREN_MAX;

/// A DSL directory: a node in the tree of names, along which properties are inherited.
#[derive(Clone, Debug)]
pub struct Dir {
    /// Its object in the MOS.
    pub object: ObjectId,
    /// Its full name.
    pub name: String,
    /// Its fields.
    pub phys: DslDirPhys,
}

impl Dir {
    /// The last part of its name, under which the directory above lists it.
    #[must_use]
    pub fn last_name(&self) -> &str {
        parent_and_last(&self.name).map_or(self.name.as_str(), |(_, last)| last)
    }
}

impl Dsl {
    /// The pool's root directory.
    #[boxed]
    pub async fn root_dir(&self) -> Result<Dir, DslError> {
        self.dir_object(self.shared.root, self.pool().to_owned()).await
    }

    /// Reads the directory in `object`, whose full name is `name`.
    #[boxed]
    pub async fn dir_object(&self, object: ObjectId, name: String) -> Result<Dir, DslError> {
        let dnode = self.mos_object(object).await?;
        if dnode.phys().bonus_type != DmuType::DSL_DIR {
            return Err(DslError::Corrupt { object: object.0, what: format!("'{name}' is not a DSL directory") });
        }
        let phys = dnode.bonus(DslDirPhys::parse).map_err(|error| DslError::Format { object: object.0, error })?;
        Ok(Dir { object, name, phys })
    }

    /// The directory with this full name, even if the rules for new names forbid a delimiter in it.
    #[boxed]
    pub async fn dir(&self, name: &str) -> Result<Dir, DslError> {
        // The name of a directory may look like a snapshot's or bookmark's, or be illegal.
        let problem = match Name::parse(name) {
            Ok(_) => DslError::NoSuchDataset(name.into()),
            Err(error) => error,
        };
        self.find_dir(name).await?.ok_or(problem)
    }

    /// The directory with exactly this path of names; no rules for names are applied.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn find_dir(&self, name: &str) -> Result<Option<Dir>, DslError> {
        let mut parts = name.split('/');
        if parts.next() != Some(self.pool()) {
            return Ok(None);
        }
        let mut dir = self.root_dir().await?;
        for (depth, part) in parts.enumerate() {
            match self.child(&dir, part).await? {
                Some(child) if depth < DEPTH_MAX => dir = child,
                _ => return Ok(None),
            }
        }
        debug_assert_eq!(dir.name, name, "a directory is found by its own path");
        Ok(Some(dir))
    }

    /// The child `part` of a directory, if there is one.
    #[boxed]
    pub async fn child(&self, dir: &Dir, part: &str) -> Result<Option<Dir>, DslError> {
        if dir.phys.child_dirs.0 == 0 {
            return Ok(None);
        }
        let zap = Zap::open(self.mos_object(dir.phys.child_dirs).await?).await?;
        match zap.find_u64(part).await? {
            Some(object) => {
                let child = self.dir_object(ObjectId(object), format!("{}/{part}", dir.name)).await?;
                self.check_parent(dir, child).map(Some)
            }
            None => Ok(None),
        }
    }

    fn check_parent(&self, dir: &Dir, child: Dir) -> Result<Dir, DslError> {
        if child.phys.parent != dir.object {
            let what = format!("'{}' does not name '{}' as its parent", child.name, dir.name);
            return Err(DslError::Corrupt { object: child.object.0, what });
        }
        Ok(child)
    }

    /// The children of a directory with their objects, sorted by name. Those of the pool itself (`$MOS`, `$ORIGIN`, ...) and half-received ones
    /// (`%recv`) are included only if `hidden`.
    #[boxed]
    pub async fn children(&self, dir: &Dir, hidden: bool) -> Result<Vec<(String, ObjectId)>, DslError> {
        if dir.phys.child_dirs.0 == 0 {
            return Ok(Vec::new());
        }
        let zap = Zap::open(self.mos_object(dir.phys.child_dirs).await?).await?;
        let mut children = Vec::new();
        for entry in zap.entries(CHILDREN_MAX).await? {
            let Some(object) = entry.value.as_u64() else { continue };
            let name = String::from_utf8_lossy(entry.name()).into_owned();
            if hidden || !(name.starts_with('$') || name.starts_with('%')) {
                children.push((name, ObjectId(object)));
            }
        }
        children.sort();
        Ok(children)
    }

    /// `dir` and all directories below it, parents first and siblings by name.
    #[boxed]
    pub async fn tree(&self, dir: Dir, hidden: bool) -> Result<Vec<Dir>, DslError> {
        let mut found = Vec::new();
        // Each directory names one parent, but a hostile parent can list a child many times, and so can this child; the walk would take
        // exponential time.
        let mut seen = BTreeSet::from([dir.object]);
        let mut pending = vec![(dir, 0)];
        while let Some((dir, depth)) = pending.pop() {
            if depth > DEPTH_MAX {
                let what = format!("'{}' is deeper than {DEPTH_MAX} levels", dir.name);
                return Err(DslError::Corrupt { object: dir.object.0, what });
            }
            for (name, object) in self.children(&dir, hidden).await?.into_iter().rev() {
                let child = self.dir_object(object, format!("{}/{name}", dir.name)).await?;
                if !seen.insert(object) {
                    let what = format!("'{}' is listed twice", child.name);
                    return Err(DslError::Corrupt { object: object.0, what });
                }
                pending.push((self.check_parent(&dir, child)?, depth + 1));
            }
            found.push(dir);
        }
        assert_eq!(found.len(), seen.len(), "every directory that was seen is listed");
        Ok(found)
    }

    /// The directory above, `None` for the root.
    #[boxed]
    pub async fn parent(&self, dir: &Dir) -> Result<Option<Dir>, DslError> {
        match parent_and_last(&dir.name) {
            Some((name, _)) if dir.phys.parent.0 != 0 => {
                Ok(Some(self.dir_object(dir.phys.parent, name.to_owned()).await?))
            }
            _ => Ok(None),
        }
    }

    /// A numeric field of a zapified directory.
    #[boxed]
    pub async fn dir_field(&self, dir: &Dir, field: &str) -> Result<Option<u64>, DslError> {
        self.object_field(dir.object, field).await
    }

    pub(crate) async fn object_field(&self, object: ObjectId, field: &str) -> Result<Option<u64>, DslError> {
        let dnode = self.mos_object(object).await?;
        // Directories and datasets are bonus-only objects until a feature needs more fields, which makes them ZAPs.
        if !dnode.phys().object_type.is_zap() {
            return Ok(None);
        }
        Ok(Zap::open(dnode).await?.find_u64(field).await?)
    }

    pub(crate) async fn key_object(&self, dir: &Dir) -> Result<Option<ObjectId>, DslError> {
        Ok(self.dir_field(dir, dir_field::CRYPTO_KEY_OBJECT).await?.map(ObjectId))
    }

    /// The full name of the directory in `object`, found by walking up. To find many names at once use `Names`.
    #[boxed]
    pub async fn dir_name(&self, object: ObjectId) -> Result<String, DslError> {
        Names::default().dir_name(self, object).await
    }

    /// The full name of the directory in `object`, which is likely to be `dir` or one above it.
    pub(crate) async fn name_of_ancestor(&self, dir: &Dir, object: ObjectId) -> Result<String, DslError> {
        if dir.object == object {
            return Ok(dir.name.clone());
        }
        let mut at = dir.clone();
        for _ in 0..DEPTH_MAX {
            match self.parent(&at).await? {
                Some(parent) if parent.object == object => return Ok(parent.name),
                Some(parent) => at = parent,
                None => break,
            }
        }
        self.dir_name(object).await
    }

    /// Resolves a full name: its directory and the rest, parsed.
    #[boxed]
    pub(crate) async fn resolve<'a>(&self, name: &'a str) -> Result<(Dir, Tail<'a>), DslError> {
        let parsed = Name::parse(name)?;
        Ok((self.dir(parsed.dir).await?, parsed.tail))
    }
}

/// Finds the names of many directories. A directory does not store its name; its parent's list of children does. Each list is read only once,
/// even if many of its children are asked for.
#[derive(Default)]
pub(crate) struct Names {
    /// The names of directories' children, by parent.
    children: BTreeMap<ObjectId, BTreeMap<ObjectId, String>>,
    /// Children read so far.
    looked_through: usize,
}

impl Names {
    /// The full name of the directory in `object`.
    pub(crate) async fn dir_name(&mut self, dsl: &Dsl, object: ObjectId) -> Result<String, DslError> {
        let mut parts: Vec<String> = Vec::new();
        let mut at = object;
        for _ in 0..DEPTH_MAX {
            if at == dsl.shared.root {
                parts.push(dsl.pool().to_owned());
                parts.reverse();
                return Ok(parts.join("/"));
            }
            let dir = dsl.dir_object(at, String::new()).await?;
            let parent = dir.phys.parent;
            if !self.children.contains_key(&parent) {
                let listed = dsl.children(&dsl.dir_object(parent, String::new()).await?, true).await?;
                self.looked_through += listed.len();
                if self.looked_through > LOOKED_THROUGH_MAX {
                    let what = format!("more than {LOOKED_THROUGH_MAX} directories beside it and above it");
                    return Err(DslError::Corrupt { object: object.0, what });
                }
                // If one child has several names, the first counts.
                let by_object = listed.into_iter().rev().map(|(name, child)| (child, name)).collect();
                self.children.insert(parent, by_object);
            }
            let Some(name) = self.children.get(&parent).and_then(|children| children.get(&at)) else {
                return Err(DslError::Corrupt { object: at.0, what: "its parent does not list it".into() });
            };
            parts.push(name.clone());
            at = parent;
        }
        Err(DslError::Corrupt { object: object.0, what: "its parents form a cycle".into() })
    }
}
