//! Vdevs as people name them: `mirror a b special mirror c d log e cache f spare g`.
//!
//! OpenZFS's grammar: a word that names a class is in force until the next; `spare` and `cache` take the paths after them, and
//! what comes behind those serves everything again.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use cenote_spa::{AuxSpec, DiskSpec, LOCK_PATIENCE, TopKind, TopSpec};
use cenote_taskq::{Handle, Identity};
use cenote_vdev::config::AllocationClass;
use cenote_vdev::disk::Disk;

use crate::HostError;
use crate::error::{At as _, meant_vdev_word};

type Result<T> = std::result::Result<T, HostError>;

/// Ends a function: the words name no vdevs.
macro_rules! bail {
    ($($what:tt)*) => {
        return Err(HostError::Layout(format!($($what)*)))
    };
}

/// Words for what follows, in the order in which layouts are shown.
const HEADINGS: [(AllocationClass, &str); 4] = [
    (AllocationClass::Normal, ""),
    (AllocationClass::Dedup, "dedup"),
    (AllocationClass::Special, "special"),
    (AllocationClass::Log, "logs"),
];
/// Devices of a raidz or draid at most.
const STRIPE_DEVICES_MAX: usize = 255;

/// Vdevs with the paths of their disks.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Top-level vdevs.
    pub tops: Vec<Top>,
    /// Spares.
    pub spares: Vec<PathBuf>,
    /// Cache devices.
    pub caches: Vec<PathBuf>,
}

/// One top-level vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top {
    /// Its redundancy.
    pub kind: TopKind,
    /// The class of its blocks.
    pub class: AllocationClass,
    /// Its disks.
    pub paths: Vec<PathBuf>,
}

impl Top {
    fn describe(&self, text: &mut String) {
        let name = match self.kind {
            TopKind::Single => None,
            TopKind::Mirror => Some("mirror".to_owned()),
            TopKind::Raidz { parity } => Some(format!("raidz{parity}")),
            TopKind::Draid { parity, .. } => Some(format!("draid{parity}")),
        };
        let indent = if name.is_some() { "\t    " } else { "\t  " };
        if let Some(name) = name {
            let _ = writeln!(text, "\t  {name}");
        }
        for path in &self.paths {
            let _ = writeln!(text, "{indent}{}", path.display());
        }
    }
}

/// The group of devices that a word begins.
enum Group {
    Top { kind: TopKind, children: Option<usize>, devices_min: usize },
    Class(AllocationClass),
    Spares,
    Caches,
}

/// Where paths go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Single,
    Group,
    Spares,
    Caches,
}

/// The words of a command line, read one after the other.
struct Reader<'a> {
    /// Paths begin there.
    folder: &'a Path,
    layout: Layout,
    class: AllocationClass,
    target: Target,
    /// The group that is open: its word, and how many devices it wants.
    open: Option<(&'a str, usize, Option<usize>)>,
    log_seen: bool,
}

/// Reads the words of a command line of this process.
///
/// # Errors
/// They name no vdevs, in OpenZFS's words.
pub fn parse_layout(words: &[String]) -> Result<Layout> {
    parse_layout_in(Path::new(""), words)
}

/// Reads the words of the command line of a process that works in a folder; this process's own is `""`.
pub fn parse_layout_in(folder: &Path, words: &[String]) -> Result<Layout> {
    let mut reader = Reader {
        folder,
        layout: Layout::default(),
        class: AllocationClass::Normal,
        target: Target::Single,
        open: None,
        log_seen: false,
    };
    for word in words {
        match group_of(word)? {
            Some(group) => {
                reader.end_group()?;
                reader.begin(word, group)?;
            }
            None => reader.path(word)?,
        }
    }
    reader.end_group()?;
    let layout = reader.layout;
    if reader.log_seen && !layout.tops.iter().any(|top| top.class == AllocationClass::Log) {
        bail!("invalid vdev specification: log requires at least 1 device");
    }
    if layout.tops.is_empty() && layout.spares.is_empty() && layout.caches.is_empty() {
        bail!("invalid vdev specification: at least one toplevel vdev must be specified");
    }
    Ok(layout)
}

impl<'a> Reader<'a> {
    fn begin(&mut self, word: &'a str, group: Group) -> Result<()> {
        let once = |is_new: bool| match is_new {
            true => Ok(()),
            false => Err(HostError::Layout(format!("invalid vdev specification: '{word}' can be specified only once"))),
        };
        match group {
            Group::Class(class) => {
                if class == AllocationClass::Log {
                    once(!std::mem::replace(&mut self.log_seen, true))?;
                }
                (self.class, self.target) = (class, Target::Single);
            }
            Group::Spares => {
                once(self.layout.spares.is_empty())?;
                (self.class, self.target, self.open) = (AllocationClass::Normal, Target::Spares, Some((word, 1, None)));
            }
            Group::Caches => {
                once(self.layout.caches.is_empty())?;
                (self.class, self.target, self.open) = (AllocationClass::Normal, Target::Caches, Some((word, 1, None)));
            }
            Group::Top { kind, children, devices_min } => {
                if self.class == AllocationClass::Log && kind != TopKind::Mirror {
                    let name = if matches!(kind, TopKind::Raidz { .. }) { "raidz" } else { "draid" };
                    bail!("invalid vdev specification: unsupported 'log' device: {name}");
                }
                self.layout.tops.push(Top { kind, class: self.class, paths: Vec::new() });
                (self.target, self.open) = (Target::Group, Some((word, devices_min, children)));
            }
        }
        Ok(())
    }

    /// The paths of the group that is open.
    fn paths(&self) -> &[PathBuf] {
        match self.target {
            Target::Single | Target::Group => self.layout.tops.last().map_or(&[], |top| &top.paths),
            Target::Spares => &self.layout.spares,
            Target::Caches => &self.layout.caches,
        }
    }

    fn end_group(&mut self) -> Result<()> {
        let Some((word, devices_min, wanted)) = self.open.take() else { return Ok(()) };
        let count = self.paths().len();
        if count < devices_min {
            bail!("invalid vdev specification: {word} requires at least {devices_min} devices");
        }
        if let Some(wanted) = wanted.filter(|wanted| *wanted != count) {
            bail!("invalid number of dRAID children; {wanted} required but {count} provided");
        }
        let is_stripe = word.starts_with("raidz") || word.starts_with("draid");
        if is_stripe && count > STRIPE_DEVICES_MAX {
            bail!("invalid vdev specification: {word} supports no more than {STRIPE_DEVICES_MAX} devices");
        }
        Ok(())
    }

    fn path(&mut self, word: &str) -> Result<()> {
        let path = self.folder.join(word);
        let path = std::path::absolute(&path).at(&path)?;
        let path = match path.exists() {
            true => path,
            // A file is not made of a slip, which would take a pool's redundancy away.
            false => match (short_name(word), meant_vdev_word(word).filter(|_| !word.contains('/'))) {
                (Some(disk), _) => disk,
                (None, Some(meant)) => bail!(
                    "invalid vdev specification: there is no device or file '{word}' (is '{meant}' meant? './{word}' is a file of that name)"
                ),
                (None, None) => path,
            },
        };
        if self.layout.paths().any(|other| other == path) {
            bail!("invalid vdev specification: '{word}' is named twice");
        }
        let layout = &mut self.layout;
        match self.target {
            Target::Spares => layout.spares.push(path),
            Target::Caches => layout.caches.push(path),
            Target::Single => layout.tops.push(Top { kind: TopKind::Single, class: self.class, paths: vec![path] }),
            Target::Group => layout.tops.last_mut().into_iter().for_each(|top| top.paths.push(path.clone())),
        }
        Ok(())
    }
}

/// The device that a word without a folder names, as OpenZFS looks for it. A file of that name in the command's folder goes first.
fn short_name(word: &str) -> Option<PathBuf> {
    const DIRS: [&str; 5] =
        ["/dev/disk/by-id", "/dev/disk/by-path", "/dev/disk/by-partlabel", "/dev/disk/by-label", "/dev"];
    let is_plain = !word.is_empty() && !word.contains('/') && word != "..";
    let paths = DIRS.iter().filter(|_| is_plain).map(|dir| Path::new(dir).join(word));
    // Nothing else in /dev is a disk.
    paths.into_iter().find(|path| {
        std::fs::metadata(path).is_ok_and(|found| std::os::unix::fs::FileTypeExt::is_block_device(&found.file_type()))
    })
}

/// The group that a word begins; nothing for a path.
fn group_of(word: &str) -> Result<Option<Group>> {
    let plain = |kind, devices_min| Ok(Some(Group::Top { kind, children: None, devices_min }));
    match word {
        "mirror" => return plain(TopKind::Mirror, 2),
        "raidz" | "raidz1" => return plain(TopKind::Raidz { parity: 1 }, 2),
        "raidz2" => return plain(TopKind::Raidz { parity: 2 }, 3),
        "raidz3" => return plain(TopKind::Raidz { parity: 3 }, 4),
        "log" => return Ok(Some(Group::Class(AllocationClass::Log))),
        "special" => return Ok(Some(Group::Class(AllocationClass::Special))),
        "dedup" => return Ok(Some(Group::Class(AllocationClass::Dedup))),
        "spare" => return Ok(Some(Group::Spares)),
        "cache" => return Ok(Some(Group::Caches)),
        _ => {}
    }
    let mut parts = word.split(':');
    let parity = match parts.next() {
        Some("draid" | "draid1") => 1,
        Some("draid2") => 2,
        Some("draid3") => 3,
        _ => return Ok(None),
    };
    let (mut data, mut children, mut spares) = (None, None, 0);
    for part in parts {
        let number = |end| part.strip_suffix(end).and_then(|digits| digits.parse::<u64>().ok());
        if let Some(number) = number('d') {
            data = Some(number);
        } else if let Some(number) = number('c') {
            children = Some(number as usize);
        } else if let Some(number) = number('s') {
            spares = number;
        } else {
            bail!("invalid dRAID syntax; expected [:<number><c|d|s>] not '{word}'");
        }
    }
    let kind = TopKind::Draid { parity, data, spares };
    Ok(Some(Group::Top { kind, children, devices_min: parity as usize + 1 }))
}

impl Layout {
    /// All disks.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let tops = self.tops.iter().flat_map(|top| &top.paths);
        tops.chain(&self.spares).chain(&self.caches).map(PathBuf::as_path)
    }

    /// As `zpool create -n` shows it.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (class, heading) in HEADINGS {
            let mut tops = self.tops.iter().filter(|top| top.class == class).peekable();
            if tops.peek().is_some() && !heading.is_empty() {
                let _ = writeln!(text, "\t{heading}");
            }
            tops.for_each(|top| top.describe(&mut text));
        }
        for (heading, paths) in [("cache", &self.caches), ("spares", &self.spares)] {
            if !paths.is_empty() {
                let _ = writeln!(text, "\t{heading}");
            }
            for path in paths {
                let _ = writeln!(text, "\t  {}", path.display());
            }
        }
        text
    }

    /// Refuses two names of one device: two nodes, hard links, an image and its loop device.
    async fn check_distinct(&self, handle: &Handle, place: &dyn Fn(&Path) -> PathBuf) -> Result<()> {
        let mut seen: Vec<(Identity, &Path)> = Vec::new();
        for path in self.paths() {
            let Some(identity) = handle.identity(&place(path)).await else { continue };
            if let Some((_, other)) = seen.iter().find(|(known, _)| *known == identity) {
                let (path, other) = (path.display(), other.display());
                bail!("invalid vdev specification: '{path}' is the same device as '{other}'");
            }
            seen.push((identity, path));
        }
        Ok(())
    }

    /// Opens all disks for writing, for this process alone. `place` says where a path's file is meanwhile; `ashift` the sectors
    /// that were asked for, if any were.
    ///
    /// # Errors
    /// Two are one device; one is in use, or cannot be opened.
    pub async fn open(
        &self,
        handle: &Handle,
        place: &dyn Fn(&Path) -> PathBuf,
        ashift: Option<u32>,
    ) -> Result<(Vec<TopSpec>, AuxSpec)> {
        self.check_distinct(handle, place).await?;
        let mut tops = Vec::new();
        for top in &self.tops {
            let disks = open_disks(handle, &top.paths, place, ashift).await?;
            tops.push(TopSpec { kind: top.kind, class: top.class, disks });
        }
        let spares = open_disks(handle, &self.spares, place, ashift).await?;
        Ok((tops, AuxSpec { spares, caches: open_disks(handle, &self.caches, place, ashift).await? }))
    }
}

async fn open_disks(
    handle: &Handle,
    paths: &[PathBuf],
    place: &dyn Fn(&Path) -> PathBuf,
    ashift: Option<u32>,
) -> Result<Vec<DiskSpec>> {
    let mut disks = Vec::new();
    for path in paths {
        let unit_bytes = ashift.map_or(0, |ashift| 1 << ashift.min(16));
        let at = place(path);
        let device = match handle.open_alone_in(&at, unit_bytes, LOCK_PATIENCE).await {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                return Err(HostError::InUse(format!("cannot use '{}': {error}", path.display())));
            }
            opened => opened.when("open", path)?,
        };
        let is_file = std::fs::metadata(&at).is_ok_and(|meta| meta.is_file());
        disks.push(DiskSpec { disk: Disk::whole(device), path: path.display().to_string(), is_file });
    }
    Ok(disks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(line: &str) -> Result<Layout> {
        parse_layout(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn vdevs_are_read_as_openzfs_reads_them() {
        let tops = layout("/a mirror /b /c raidz2 /d /e /f /g").unwrap().tops;
        let kinds: Vec<_> = tops.iter().map(|top| (top.kind, top.paths.len())).collect();
        assert_eq!(kinds, [(TopKind::Single, 1), (TopKind::Mirror, 2), (TopKind::Raidz { parity: 2 }, 4)]);
        let draid = layout("draid2:1d:4c:0s /a /b /c /d").unwrap().tops[0].kind;
        assert_eq!(draid, TopKind::Draid { parity: 2, data: Some(1), spares: 0 });
        assert!(layout("draid2:1d:5c /a /b /c /d").is_err());
        assert!(layout("/a /a").is_err());
    }

    #[test]
    fn a_short_name_means_a_disk_and_nothing_else() {
        for word in ["null", "", "../dev/null", "none", "."] {
            assert_eq!(short_name(word), None, "{word}");
        }
        let mut disks =
            std::fs::read_dir("/dev").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        if let Some(disk) = disks.find(|name| name.starts_with("loop") && name != "loop-control") {
            assert_eq!(short_name(&disk).and_then(|path| Some(path.file_name()?.to_owned())), Some(disk.into()));
        }
    }

    #[test]
    fn classes_are_in_force_until_the_next() {
        use AllocationClass::{Dedup, Log, Normal, Special};
        let all = layout("/a special /b mirror /c /d log /e mirror /f /g dedup /h cache /i /j spare /k mirror /l /m");
        let all = all.unwrap();
        let classes: Vec<_> = all.tops.iter().map(|top| (top.class, top.paths.len())).collect();
        let wanted = [(Normal, 1), (Special, 1), (Special, 2), (Log, 1), (Log, 2), (Dedup, 1), (Normal, 2)];
        assert_eq!(classes, wanted);
        assert_eq!((all.caches.len(), all.spares.len(), all.paths().count()), (2, 1, 13));
        let shown = all.describe();
        let at = |word: &str| shown.find(word).unwrap();
        assert!(at("/l") < at("dedup") && at("dedup") < at("special") && at("special") < at("logs"), "{shown}");
        assert!(at("logs") < at("cache") && at("cache") < at("spares"), "{shown}");
    }

    #[test]
    fn what_openzfs_refuses_is_refused_in_its_words() {
        for (line, why) in [
            ("/a log raidz /b /c", "unsupported 'log' device: raidz"),
            ("/a log draid1:1d /b /c", "unsupported 'log' device: draid"),
            ("/a log", "log requires at least 1 device"),
            ("/a log /b log /c", "'log' can be specified only once"),
            ("/a spare /b spare /c", "'spare' can be specified only once"),
            ("/a cache /b cache /c", "'cache' can be specified only once"),
            ("/a spare mirror /b /c", "spare requires at least 1 devices"),
            ("/a cache", "cache requires at least 1 devices"),
            ("mirror /a", "mirror requires at least 2 devices"),
            ("raidz2 /a /b", "raidz2 requires at least 3 devices"),
            ("draid1:x /a /b /c", "invalid dRAID syntax"),
            ("special", "at least one toplevel vdev"),
            ("/a spare /a", "named twice"),
        ] {
            let error = layout(line).unwrap_err().to_string();
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
