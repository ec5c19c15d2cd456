//! Why something of the system could not be had.

use std::io;
use std::path::{Path, PathBuf};

use cenote_spa::SpaError;
use thiserror::Error;

/// Why something of the system could not be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// A file or folder could not be used.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Something could not be done with a device or file.
    #[error("cannot {verb} '{}': {error}", path.display())]
    Cannot {
        /// The verb: `open`, `make`, `read`.
        verb: &'static str,
        /// The device or file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file has not the content that it should have.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// A folder is one that another user could put something into.
    #[error("{}: {what}", path.display())]
    Untrusted {
        /// The folder.
        path: PathBuf,
        /// Why.
        what: String,
    },
    /// A path that was named is not there.
    #[error("cannot open '{}': no such file or directory", .0.display())]
    NoSuchPath(PathBuf),
    /// No pool of this name was found.
    #[error("cannot import '{0}': no such pool available")]
    NoSuchPool(String),
    /// A device of a new vdev is not there.
    #[error("cannot open '{}': no such device or file{}", .0.display(), meant_word(.0))]
    NoSuchDevice(PathBuf),
    /// Words that name no vdevs, or disks that cannot be put together so.
    #[error("{0}")]
    Layout(String),
    /// A device that somebody has.
    #[error("{0}")]
    InUse(String),
    /// Devices that hold something, or vdevs that differ from the others, which a caller may insist on.
    #[error("invalid vdev specification\nuse '-f' to override the following errors:\n{0}")]
    Overridable(String),
    /// A value that a property cannot have.
    #[error("{0}")]
    Setting(String),
    /// A variable of the environment is missing, or has no such value.
    #[error("{0}")]
    Variable(String),
    /// Of a pool.
    #[error(transparent)]
    Spa(Box<SpaError>),
}

/// The word of a layout that a mistyped one means. `cache1` and the like are names of files as likely.
pub(crate) fn meant_vdev_word(name: &str) -> Option<&'static str> {
    const WORDS: [&str; 13] = [
        "mirror", "raidz", "raidz1", "raidz2", "raidz3", "draid", "draid1", "draid2", "special", "spare", "cache",
        "dedup", "log",
    ];
    let name = name.to_ascii_lowercase();
    let sorted = |word: &str| {
        let mut letters: Vec<char> = word.chars().collect();
        letters.sort_unstable();
        letters
    };
    // Letters that are swapped, one that is missing or too many, or another.
    let is_slip = |word: &&&str| {
        let (a, b) = (name.as_str(), **word);
        let ahead = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
        let (rest_a, rest_b) = (&a.as_bytes()[ahead..], &b.as_bytes()[ahead..]);
        let behind = rest_a.iter().rev().zip(rest_b.iter().rev()).take_while(|(a, b)| a == b).count();
        let differing = rest_a.len().max(rest_b.len()) - behind;
        differing <= 1 || sorted(a) == sorted(b)
    };
    let is_numbered = name.ends_with(|c: char| c.is_ascii_digit());
    let is_striped = name.starts_with(['r', 'd']);
    WORDS.iter().find(is_slip).filter(|_| is_striped || !is_numbered).copied()
}

/// The way out where a device is not there: a word that was meant, or a file that is to be made.
fn meant_word(path: &Path) -> String {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match meant_vdev_word(name) {
        Some(word) => format!(" (is '{word}' meant? '--size SIZE' makes a file)"),
        None => " ('--size SIZE' makes a file of that size)".to_owned(),
    }
}

impl From<SpaError> for HostError {
    fn from(error: SpaError) -> Self {
        Self::Spa(Box::new(error))
    }
}

/// Says which file an error is about.
pub(crate) trait At<T> {
    fn at(self, path: &Path) -> Result<T, HostError>;

    /// The same with the verb that failed.
    fn when(self, verb: &'static str, path: &Path) -> Result<T, HostError>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, path: &Path) -> Result<T, HostError> {
        self.map_err(|error| HostError::Io { path: path.to_owned(), error: error.into() })
    }

    fn when(self, verb: &'static str, path: &Path) -> Result<T, HostError> {
        self.map_err(|error| HostError::Cannot { verb, path: path.to_owned(), error: error.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_word_of_a_layout_is_named() {
        let text = |name: &str| HostError::NoSuchDevice(Path::new("/x").join(name)).to_string();
        for (slip, word) in [("mirorr", "mirror"), ("miror", "mirror"), ("raidz4", "raidz"), ("spaer", "spare")] {
            assert!(text(slip).contains(&format!("is '{word}' meant?")), "{}", text(slip));
        }
        for name in ["cache1", "mirror-a", "spare0", "sdb"] {
            assert_eq!(meant_vdev_word(name), None, "{name}");
        }
        for (slip, word) in
            [("MIRROR", "mirror"), ("riadz", "raidz"), ("spares", "spare"), ("raidz9", "raidz"), ("lgo", "log")]
        {
            assert_eq!(meant_vdev_word(slip), Some(word), "{slip}");
        }
        assert_eq!(
            text("sdb"),
            "cannot open '/x/sdb': no such device or file ('--size SIZE' makes a file of that size)"
        );
    }
}
