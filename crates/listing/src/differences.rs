//! The lines of `zfs diff`: one for each file that changed from a snapshot to a later one, or to the present.
//!
//! The later side may be the file system itself: it is read as of the txg at which the pool is opened, where OpenZFS takes a temporary snapshot.

use std::io;

use cenote_dsl::property::Source;
use cenote_dsl::{Dataset, DslError};
use cenote_props::WrongUse;
use cenote_spa::View;
use cenote_zpl::{Changed, Differences, FileKind, FileSystem, ZplError, diff};
use thiserror::Error;

/// The kind of a change, which determines its line's colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Contents, attributes or the number of links changed.
    Modified,
    /// New.
    Added,
    /// Removed.
    Removed,
    /// Its path changed.
    Renamed,
}

/// The form of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiffForm {
    /// Show the kind of file (`-F`).
    pub is_classified: bool,
    /// Tabs instead of arrows (`-H`).
    pub is_scripted: bool,
    /// Each line begins with the time of the change (`-t`).
    pub has_times: bool,
    /// Names without escapes (`-h`).
    pub is_raw: bool,
}

/// Prints the lines.
pub trait DiffLines {
    /// Prints a line, without its end.
    ///
    /// # Errors
    /// It cannot be printed: the comparison ends.
    fn line(&mut self, change: Change, line: Vec<u8>) -> io::Result<()>;

    /// Reports files that could not be compared.
    fn unreadable(&mut self, what: &str);
}

/// The reason why two states are not compared.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DiffError {
    /// The earlier side is not an earlier snapshot of the same file system or of its origin.
    #[error("Unable to obtain diffs: \n   Not an earlier snapshot from the same fs")]
    NotEarlier,
    /// A line cannot be printed.
    #[error("{0}")]
    Output(#[from] io::Error),
    /// A dataset cannot be read.
    #[error(transparent)]
    Dsl(#[from] DslError),
    /// A file system cannot be read at all.
    #[error(transparent)]
    Zpl(#[from] ZplError),
}

/// The full names of the earlier and the later side. The later one may leave out the file system, or be left out.
///
/// # Errors
/// They do not name two sides.
pub fn diff_names(from: &str, to: Option<&str>) -> Result<(String, String), WrongUse> {
    let bad = || {
        let text = "Unable to determine which snapshots to compare: give a snapshot, then a later one or a file system";
        WrongUse::new(text)
    };
    let (from_dir, from_tail) = from.split_once('@').ok_or_else(bad)?;
    let to = to.unwrap_or(from_dir);
    let (to_dir, to_tail) = to.split_once('@').map_or((to, None), |(dir, tail)| (dir, Some(tail)));
    let is_empty = from_tail.is_empty() || to_tail == Some("") || from_dir.is_empty() && to_dir.is_empty();
    if is_empty {
        return Err(bad());
    }
    let from = format!("{}@{from_tail}", if from_dir.is_empty() { to_dir } else { from_dir });
    let to_dir = if to_dir.is_empty() { from_dir } else { to_dir };
    Ok((from, to_tail.map_or_else(|| to_dir.to_owned(), |tail| format!("{to_dir}@{tail}"))))
}

/// Compares two states of a file system, each given with its files.
///
/// # Errors
/// The first is not earlier, a state cannot be read at all, or a line cannot be printed.
pub async fn differences(
    pool: &View,
    (from, earlier): (&Dataset, &FileSystem),
    (to, later): (&Dataset, &FileSystem),
    form: DiffForm,
    lines: &mut dyn DiffLines,
) -> Result<(), DiffError> {
    if !pool.dsl().is_before(from, to).await? {
        return Err(DiffError::NotEarlier);
    }
    let mut found = Found { form, prefix: prefix(pool, to).await?, lines };
    diff((from.name(), earlier), (to.name(), later), from.phys.creation_txg, &mut found).await
}

/// The prefix of each path: the mount point that the file system would have; empty if it has none.
async fn prefix(pool: &View, dataset: &Dataset) -> Result<String, DslError> {
    let dir = &dataset.dir;
    let property = pool.dsl().property(dir, "mountpoint", true).await?;
    let mountpoint = match property.as_ref().map(|property| (property.value.text(), &property.source)) {
        None => format!("/{}", dir.name),
        Some((Some(path), _)) if !path.starts_with('/') => return Ok(String::new()),
        Some((Some(path), Source::Inherited(from))) => {
            let below = dir.name.strip_prefix(from.as_str()).unwrap_or_default();
            format!("{}{below}", path.trim_end_matches('/'))
        }
        Some((Some(path), _)) => path.to_owned(),
        Some((None, _)) => return Ok(String::new()),
    };
    let root = pool.altroot().unwrap_or_default().trim_end_matches('/');
    Ok(format!("{root}{}", mountpoint.trim_end_matches('/')))
}

/// Makes lines from the differences found.
struct Found<'a> {
    form: DiffForm,
    prefix: String,
    lines: &'a mut dyn DiffLines,
}

impl Differences for Found<'_> {
    type Error = DiffError;

    fn changed(&mut self, changed: &Changed<'_>) -> Result<(), DiffError> {
        use cenote_zpl::Change as Kind;
        let (letter, change) = match changed.change {
            Kind::Modified | Kind::Links(_) => ('M', Change::Modified),
            Kind::Added => ('+', Change::Added),
            Kind::Removed => ('-', Change::Removed),
            Kind::Renamed(_) => ('R', Change::Renamed),
        };
        let mut line = self.lead(letter, changed).into_bytes();
        line.extend(self.shown(changed.path));
        match changed.change {
            Kind::Renamed(to) => {
                line.extend_from_slice(if self.form.is_scripted { b"\t" } else { b" -> " });
                line.extend(self.shown(to));
            }
            Kind::Links(change) => line.extend_from_slice(format!("\t({change:+})").as_bytes()),
            _ => {}
        }
        Ok(self.lines.line(change, line)?)
    }

    fn unreadable(&mut self, what: String) {
        self.lines.unreadable(&what);
    }
}

impl Found<'_> {
    fn lead(&self, letter: char, changed: &Changed<'_>) -> String {
        let mut line = String::new();
        if self.form.has_times {
            line.push_str(&format!("{:>10}.{:09}\t", changed.at.seconds, changed.at.nanoseconds));
        }
        line.push(letter);
        line.push('\t');
        if self.form.is_classified {
            line.push(match changed.kind {
                FileKind::File => 'F',
                FileKind::Directory => '/',
                FileKind::Symlink => '@',
                FileKind::Pipe => '|',
                FileKind::Socket => '=',
                FileKind::CharDevice => 'C',
                FileKind::BlockDevice => 'B',
            });
            line.push('\t');
        }
        line
    }

    fn shown(&self, path: &[u8]) -> Vec<u8> {
        let full = [self.prefix.as_bytes(), path].concat();
        if self.form.is_raw { full } else { escaped(&full) }
    }
}

/// Replaces blanks, backslashes and bytes other than printable ASCII by a backslash and four octal digits.
fn escaped(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len());
    for byte in bytes {
        if *byte > b' ' && *byte != b'\\' && *byte < 0x7f {
            text.push(*byte);
        } else {
            text.extend_from_slice(format!("\\{byte:04o}").as_bytes());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_be_left_to_the_other() {
        let pair = |from, to| diff_names(from, to).map_err(|error| error.to_string());
        let both = |from: &str, to: &str| Ok((from.to_owned(), to.to_owned()));
        assert_eq!(pair("a/b@1", None), both("a/b@1", "a/b"));
        assert_eq!(pair("a@1", Some("a@2")), both("a@1", "a@2"));
        assert_eq!(pair("a@1", Some("@2")), both("a@1", "a@2"));
        assert_eq!(pair("@1", Some("a@2")), both("a@1", "a@2"));
        assert_eq!(pair("@1", Some("a")), both("a@1", "a"));
        assert_eq!(pair("a@1", Some("clone@2")), both("a@1", "clone@2"));
        for (from, to) in [("a", None), ("@1", None), ("@1", Some("@2")), ("a@", Some("a@2")), ("a@1", Some("a@"))] {
            assert!(diff_names(from, to).is_err(), "{from} {to:?}");
        }
    }

    #[test]
    fn names_are_escaped_as_openzfs_does() {
        assert_eq!(escaped(b"/a b\\\xff~\n"), b"/a\\0040b\\0134\\0377~\\0012");
    }
}
