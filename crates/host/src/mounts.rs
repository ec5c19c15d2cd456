//! The mounted datasets and their mount points, by the system's mount table.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use cenote_dsl::name::Name;
use cenote_taskq::unescaped;

/// Types of file systems whose source is a dataset: our own mounts by fusermount3, and OpenZFS's.
const TYPES: [&str; 2] = ["fuse.cenote", "zfs"];
/// A mount that root makes directly has a type without our name: then the source has to look like a dataset.
const BARE_TYPE: &str = "fuse";

/// A mounted dataset.
#[derive(Debug)]
pub struct Mounted {
    /// Its name.
    pub dataset: String,
    /// Its mount point.
    pub at: PathBuf,
    kind: String,
    options: Vec<String>,
}

impl Mounted {
    /// A process of Cenote serves it, not the kernel module.
    pub fn is_ours(&self) -> bool {
        self.kind != "zfs"
    }

    /// It is mounted read-write.
    pub fn is_writable(&self) -> bool {
        self.options.iter().any(|option| option == "rw")
    }
}

/// The name that a mounted dataset has now, and the one that it had when it was mounted, which the system's table keeps.
#[derive(Clone, Debug)]
pub struct Renamed {
    /// The name in the table.
    pub before: String,
    /// The name now.
    pub now: String,
    /// The mount point.
    pub at: PathBuf,
}

/// Mounted datasets.
#[derive(Debug, Default)]
pub struct Mounts(Vec<Mounted>);

impl Mounts {
    /// Reads the mount table; nothing is mounted where there is none.
    pub fn read() -> Self {
        Self::parse(&std::fs::read("/proc/self/mounts").unwrap_or_default())
    }

    /// Mount points need not be UTF-8.
    fn parse(table: &[u8]) -> Self {
        let mounted = |line: &[u8]| {
            let mut fields = line.split(|byte| *byte == b' ');
            let (dataset, at) = (unescaped(fields.next()?), unescaped(fields.next()?));
            let (kind, options) = (std::str::from_utf8(fields.next()?).ok()?, String::from_utf8_lossy(fields.next()?));
            let dataset = dataset.to_string_lossy().into_owned();
            let is_ours = TYPES.contains(&kind) || kind == BARE_TYPE && Name::parse(&dataset).is_ok();
            is_ours.then(|| Mounted {
                dataset,
                at,
                kind: kind.to_owned(),
                options: options.split(',').map(str::to_owned).collect(),
            })
        };
        Self(table.split(|byte| *byte == b'\n').filter_map(mounted).collect())
    }

    /// With datasets that a process of ours shows nested in others. They have no mount options of their own: each obeys its properties.
    pub fn with_nested(mut self, nested: Vec<(String, PathBuf)>) -> Self {
        for (dataset, at) in nested {
            let around = self.0.iter().filter(|mounted| mounted.is_ours() && at.starts_with(&mounted.at));
            let Some(around) = around.max_by_key(|mounted| mounted.at.as_os_str().len()) else { continue };
            let kind = around.kind.clone();
            self.0.push(Mounted { dataset, at, kind, options: Vec::new() });
        }
        self
    }

    /// With the names that datasets have now.
    pub fn renamed(mut self, names: &[Renamed]) -> Self {
        for Renamed { before, now, at } in names.iter().filter(|name| name.before != name.now) {
            let is_it = |mounted: &&mut Mounted| mounted.is_ours() && mounted.dataset == *before && mounted.at == *at;
            if let Some(mounted) = self.0.iter_mut().rev().find(is_it) {
                mounted.dataset.clone_from(now);
            }
        }
        self
    }

    /// The options with which a dataset is mounted; `None` where it is not.
    pub fn options(&self, dataset: &str) -> Option<&[String]> {
        self.0.iter().find(|mounted| mounted.dataset == dataset).map(|mounted| &*mounted.options)
    }

    /// Every mounted dataset and where it is.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.0.iter().map(|mounted| (&*mounted.dataset, &*mounted.at))
    }

    /// Those that processes of ours serve.
    pub fn ours(&self) -> impl Iterator<Item = &Mounted> {
        self.0.iter().filter(|mounted| mounted.is_ours())
    }

    /// As [`Mounts::ours`], for whoever keeps one.
    pub fn into_ours(self) -> impl Iterator<Item = Mounted> {
        self.0.into_iter().filter(Mounted::is_ours)
    }

    /// Whether a process of ours serves a dataset at a place.
    pub fn has(&self, dataset: &str, at: &Path) -> bool {
        self.ours().any(|mounted| mounted.dataset == dataset && mounted.at == at)
    }

    /// The mount of a dataset of this name, or at this path; of several the last, which is on top.
    pub fn find(&self, target: impl AsRef<OsStr>) -> Option<&Mounted> {
        let target = target.as_ref();
        let last = |is_meant: &dyn Fn(&&Mounted) -> bool| self.0.iter().rev().find(is_meant);
        let is_path = Path::new(target).is_absolute();
        let named = if is_path { None } else { last(&|mounted| *mounted.dataset == *target) };
        named.or_else(|| {
            let path = placed(Path::new(target))?;
            last(&|mounted| mounted.at == path)
        })
    }

    /// The dataset that a path is in.
    pub fn dataset_at(&self, path: &Path) -> Option<&str> {
        let path = std::fs::canonicalize(path).ok()?;
        let within = self.0.iter().filter(|mounted| path.starts_with(&mounted.at));
        within.max_by_key(|mounted| mounted.at.as_os_str().len()).map(|mounted| &*mounted.dataset)
    }
}

/// A path as the table of mounts has it. Its last part is not looked at: the process that served it may be gone.
fn placed(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) => Some(std::fs::canonicalize(dir).ok()?.join(name)),
        _ => Some(path),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn only_datasets_count_and_escapes_are_undone() {
        let mounts = Mounts::parse(
            b"tmpfs /tmp tmpfs rw 0 0\ntank/a\\040b /mnt/x fuse.cenote ro,nosuid 0 0\ntank /tank zfs rw,xattr 0 0\n\
             tank/b /mnt/y fuse ro 0 0\n/dev/fuse /run/doc fuse rw 0 0\ntank/c /mnt/\xff fuse.cenote rw 0 0\n",
        );
        assert_eq!(mounts.options("tank/a b"), Some(&["ro".to_owned(), "nosuid".to_owned()][..]));
        assert!(mounts.options("tank").is_some());
        assert!(mounts.options("tank/b").is_some());
        assert_eq!(
            mounts.ours().map(|mounted| &*mounted.dataset).collect::<Vec<_>>(),
            ["tank/a b", "tank/b", "tank/c"]
        );
        assert_eq!(mounts.ours().last().map(|mounted| mounted.at.as_os_str().as_bytes()), Some(&b"/mnt/\xff"[..]));
        assert!(mounts.find("tank").is_some_and(|mounted| mounted.is_writable() && !mounted.is_ours()));
        let renamed = Renamed { before: "tank/b".into(), now: "tank/new".into(), at: "/mnt/y".into() };
        let other = Renamed { at: "/mnt/x".into(), ..renamed.clone() };
        for (target, dataset) in [("/tank", Some("tank")), ("tank/b", Some("tank/b")), ("/tank/b", None), ("b", None)] {
            assert_eq!(mounts.find(target).map(|mounted| &*mounted.dataset), dataset, "{target}");
        }
        let mounts = mounts.renamed(&[other, renamed]);
        assert_eq!(mounts.find("tank/new").map(|mounted| &*mounted.at), Some(Path::new("/mnt/y")));
        assert!(mounts.find("tank/b").is_none() && mounts.find("tank/a b").is_some());
        assert!(mounts.options("tmpfs").is_none() && mounts.options("/dev/fuse").is_none());
    }
}
