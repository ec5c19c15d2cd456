//! Vdevs as people name them: `mirror a b raidz2 c d e f`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use cenote_spa::write::{DiskSpec, TopKind, TopSpec};
use cenote_taskq::{Handle, OpenOptions};
use cenote_vdev::disk::Disk;

use crate::outcome::usage;

/// Top-level vdevs with the paths of their disks.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) tops: Vec<Top>,
}

/// One top-level vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Top {
    kind: TopKind,
    paths: Vec<PathBuf>,
}

impl Top {
    /// As `zpool create -n` shows it.
    pub(crate) fn describe(&self) -> String {
        let name = match self.kind {
            TopKind::Single => None,
            TopKind::Mirror => Some("mirror".to_owned()),
            TopKind::Raidz { parity } => Some(format!("raidz{parity}")),
            TopKind::Draid { parity, .. } => Some(format!("draid{parity}")),
        };
        let indent = if name.is_some() { "\t    " } else { "\t  " };
        let mut text = name.map(|name| format!("\t  {name}\n")).unwrap_or_default();
        for path in &self.paths {
            let _ = writeln!(text, "{indent}{}", path.display());
        }
        text
    }
}

/// Reads the words of a command line.
pub(crate) fn parse_layout(words: &[String]) -> Result<Layout> {
    let mut tops: Vec<Top> = Vec::new();
    let mut group: Option<TopKind> = None;
    let mut children_wanted = None;
    for word in words {
        if let Some((kind, children)) = group_kind(word)? {
            check_children(tops.last(), children_wanted)?;
            group = Some(kind);
            children_wanted = children;
            tops.push(Top { kind, paths: Vec::new() });
            continue;
        }
        let path = std::path::absolute(word).with_context(|| format!("'{word}' is no path"))?;
        if tops.iter().any(|top| top.paths.contains(&path)) {
            bail!("invalid vdev specification: '{word}' is named twice");
        }
        match (&group, tops.last_mut()) {
            (Some(_), Some(top)) => top.paths.push(path),
            _ => tops.push(Top { kind: TopKind::Single, paths: vec![path] }),
        }
    }
    check_children(tops.last(), children_wanted)?;
    Ok(Layout { tops })
}

fn check_children(top: Option<&Top>, wanted: Option<usize>) -> Result<()> {
    match (top, wanted) {
        (Some(top), Some(wanted)) if top.paths.len() != wanted => {
            bail!("invalid number of dRAID children; {wanted} required but {} provided", top.paths.len())
        }
        _ => Ok(()),
    }
}

/// The kind of vdev that a word begins, and how many children it wants if it says so; nothing for a path.
fn group_kind(word: &str) -> Result<Option<(TopKind, Option<usize>)>> {
    if matches!(word, "log" | "special" | "dedup" | "cache" | "spare") {
        bail!("not supported yet: {word} devices");
    }
    let plain = |kind| Ok(Some((kind, None)));
    match word {
        "mirror" => return plain(TopKind::Mirror),
        "raidz" | "raidz1" => return plain(TopKind::Raidz { parity: 1 }),
        "raidz2" => return plain(TopKind::Raidz { parity: 2 }),
        "raidz3" => return plain(TopKind::Raidz { parity: 3 }),
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
            return Err(usage(format!("'{word}': '{part}' is no part of a draid's description")));
        }
    }
    Ok(Some((TopKind::Draid { parity, data, spares }, children)))
}

impl Layout {
    /// All disks.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.tops.iter().flat_map(|top| top.paths.iter().map(PathBuf::as_path))
    }

    /// Opens all disks for writing, for this process alone.
    pub(crate) async fn open(&self, handle: &Handle) -> Result<Vec<TopSpec>> {
        let mut tops = Vec::new();
        for top in &self.tops {
            let mut disks = Vec::new();
            for path in &top.paths {
                let options = OpenOptions { write: true, ..OpenOptions::default() };
                let device = handle.open(path, options).await;
                let device = device.with_context(|| format!("cannot open '{}'", path.display()))?;
                if !device.try_lock_exclusive()? {
                    bail!("cannot use '{}': it is in use by another process", path.display());
                }
                let is_file = std::fs::metadata(path).is_ok_and(|meta| meta.is_file());
                disks.push(DiskSpec { disk: Disk::whole(device), path: path.display().to_string(), is_file });
            }
            tops.push(TopSpec { kind: top.kind, disks });
        }
        Ok(tops)
    }
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
        assert!(layout("mirror /a /b log /c").is_err());
    }
}
