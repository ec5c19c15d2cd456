//! The parts of a history, and their form in JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::numbers::Numbers;

/// A descriptor: the index of the operation that opened it; `None` is the folder that all share.
pub(super) type Handle = Option<usize>;

/// All that clients saw between two kills.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct History {
    /// The seed of the clients' choices.
    pub(super) seed: u64,
    /// The tree before the first call.
    pub(super) before: Tree,
    /// In the order of their calls.
    pub(super) operations: Vec<Operation>,
    /// The moment just before the server was killed, in nanoseconds as in the operations.
    pub(super) killed_ns: u64,
    /// The tree that the next server shows; `None` if no server was killed.
    pub(super) after: Option<Tree>,
}

/// Entries by their paths below the folder that all share.
pub(super) type Tree = BTreeMap<String, Entry>;

/// The kind of object at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(super) enum Entry {
    Directory { links: u64 },
    Symlink { target: String },
    File(Found),
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Found {
    /// Equal for all names of one file.
    pub(super) inode: u64,
    pub(super) links: u64,
    #[serde(with = "hex")]
    pub(super) bytes: Vec<u8>,
    /// Extended attributes of users, without their prefix.
    pub(super) attributes: BTreeMap<String, String>,
}

/// A call and its answer. Times are of one monotonic clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Operation {
    pub(super) client: usize,
    #[serde(flatten)]
    pub(super) call: Call,
    /// A moment before the call.
    pub(super) called_ns: u64,
    /// A moment after the answer.
    pub(super) answered_ns: u64,
    pub(super) answer: Answer,
}

/// A call. Paths have one component, so that the kernel looks them up in one step.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "kebab-case")]
pub(super) enum Call {
    /// `openat`, with `O_RDWR` and `O_NOFOLLOW`.
    Open {
        dir: Handle,
        name: String,
        create: bool,
        exclusive: bool,
        append: bool,
        dsync: bool,
    },
    /// `openat` with `O_DIRECTORY` and `O_NOFOLLOW`.
    OpenDirectory {
        dir: Handle,
        name: String,
    },
    MakeDirectory {
        dir: Handle,
        name: String,
    },
    RemoveDirectory {
        dir: Handle,
        name: String,
    },
    Unlink {
        dir: Handle,
        name: String,
    },
    Symlink {
        dir: Handle,
        name: String,
        target: String,
    },
    ReadLink {
        dir: Handle,
        name: String,
    },
    /// `linkat` of an open file.
    Link {
        file: usize,
        dir: Handle,
        name: String,
    },
    /// `renameat2`.
    Rename {
        dir: Handle,
        name: String,
        to_dir: Handle,
        to_name: String,
        how: How,
    },
    /// `fstatat` without following links.
    StatName {
        dir: Handle,
        name: String,
    },
    List {
        dir: Handle,
    },
    Stat {
        handle: Handle,
    },
    /// `pwrite`; the offset is ignored if the file was opened with `O_APPEND`. The bytes are made from `salt` ([`bytes_of`]).
    Write {
        file: usize,
        offset: u64,
        length: u64,
        salt: u64,
    },
    Truncate {
        file: usize,
        size: u64,
    },
    Read {
        file: usize,
        offset: u64,
        length: u64,
    },
    /// `fsetxattr`, with `XATTR_CREATE` or `XATTR_REPLACE` or neither.
    SetAttribute {
        file: usize,
        key: String,
        value: String,
        create: bool,
        replace: bool,
    },
    GetAttribute {
        file: usize,
        key: String,
    },
    RemoveAttribute {
        file: usize,
        key: String,
    },
    Sync {
        handle: Handle,
    },
    DataSync {
        file: usize,
    },
}

/// The treatment of an existing target by a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum How {
    Replace,
    NoReplace,
    Exchange,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    /// None, since the server was killed: the operation may have happened or not.
    Unknown,
    Done,
    /// The number of bytes that were written.
    Count(u64),
    Bytes(#[serde(with = "hex")] Vec<u8>),
    Stat {
        kind: Kind,
        size: u64,
        links: u64,
    },
    Names(BTreeMap<String, Kind>),
    /// A link's target, or an attribute's value.
    Text(String),
    /// The name of an error, as in `errno.h`.
    Error(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    File,
    Directory,
    Symlink,
}

impl Operation {
    /// Whether it is known to have succeeded.
    pub(super) const fn is_good(&self) -> bool {
        !matches!(self.answer, Answer::Unknown | Answer::Error(_))
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.answer == Answer::Unknown
    }

    /// The open of the file that it concerns, and the directories with the names that it concerns there.
    pub(super) fn subjects(&self) -> (Option<usize>, Vec<(Handle, &str)>) {
        match &self.call {
            Call::Open { dir, name, .. }
            | Call::OpenDirectory { dir, name }
            | Call::MakeDirectory { dir, name }
            | Call::RemoveDirectory { dir, name }
            | Call::Unlink { dir, name }
            | Call::Symlink { dir, name, .. }
            | Call::ReadLink { dir, name }
            | Call::StatName { dir, name } => (None, vec![(*dir, name)]),
            Call::Link { file, dir, name } => (Some(*file), vec![(*dir, name)]),
            Call::Rename { dir, name, to_dir, to_name, .. } => (None, vec![(*dir, name), (*to_dir, to_name)]),
            Call::List { dir } => (None, vec![(*dir, "")]),
            Call::Stat { handle } | Call::Sync { handle } => (*handle, Vec::new()),
            Call::Write { file, .. }
            | Call::Truncate { file, .. }
            | Call::Read { file, .. }
            | Call::SetAttribute { file, .. }
            | Call::GetAttribute { file, .. }
            | Call::RemoveAttribute { file, .. }
            | Call::DataSync { file } => (Some(*file), Vec::new()),
        }
    }
}

/// The bytes that a write with this salt writes: zeros, one repeated byte, or incompressible bytes.
pub(super) fn bytes_of(salt: u64, length: u64) -> Vec<u8> {
    let length = length as usize;
    match salt % 8 {
        0 => vec![0; length],
        1 => vec![(salt >> 8) as u8 | 1; length],
        _ => {
            let mut numbers = Numbers(salt);
            let mut bytes = Vec::with_capacity(length + 8);
            while bytes.len() < length {
                bytes.extend(numbers.below(u64::MAX).to_le_bytes());
            }
            bytes.truncate(length);
            bytes
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        write!(
            f,
            "{:9.3}..{:9.3} ms  client {}  {}",
            ms(self.called_ns),
            ms(self.answered_ns),
            self.client,
            self.call
        )?;
        match &self.answer {
            Answer::Bytes(bytes) => write!(f, " = {} bytes", bytes.len()),
            Answer::Names(names) => write!(f, " = {}", names.keys().cloned().collect::<Vec<_>>().join(" ")),
            Answer::Text(text) => write!(f, " = {text:?}"),
            Answer::Error(error) => write!(f, " = {error}"),
            Answer::Count(count) => write!(f, " = {count}"),
            Answer::Stat { kind, size, links } => write!(f, " = {kind:?} of {size} bytes, {links} links"),
            Answer::Done => write!(f, " = 0"),
            Answer::Unknown => write!(f, " = ?"),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |handle: &Handle| handle.map_or_else(|| "top".to_owned(), |at| format!("#{at}"));
        let flag = |has: &bool, word: &'static str| if *has { word } else { "" };
        match self {
            Self::Open { dir, name, create, exclusive, append, dsync } => write!(
                f,
                "open({}/{name}{}{}{}{})",
                at(dir),
                flag(create, ", O_CREAT"),
                flag(exclusive, ", O_EXCL"),
                flag(append, ", O_APPEND"),
                flag(dsync, ", O_DSYNC")
            ),
            Self::OpenDirectory { dir, name } => write!(f, "opendir({}/{name})", at(dir)),
            Self::MakeDirectory { dir, name } => write!(f, "mkdir({}/{name})", at(dir)),
            Self::RemoveDirectory { dir, name } => write!(f, "rmdir({}/{name})", at(dir)),
            Self::Unlink { dir, name } => write!(f, "unlink({}/{name})", at(dir)),
            Self::Symlink { dir, name, target } => write!(f, "symlink({target:?}, {}/{name})", at(dir)),
            Self::ReadLink { dir, name } => write!(f, "readlink({}/{name})", at(dir)),
            Self::Link { file, dir, name } => write!(f, "link(#{file}, {}/{name})", at(dir)),
            Self::Rename { dir, name, to_dir, to_name, how } => {
                write!(f, "rename({}/{name}, {}/{to_name}, {how:?})", at(dir), at(to_dir))
            }
            Self::StatName { dir, name } => write!(f, "stat({}/{name})", at(dir)),
            Self::List { dir } => write!(f, "readdir({})", at(dir)),
            Self::Stat { handle } => write!(f, "fstat({})", at(handle)),
            Self::Write { file, offset, length, salt } => {
                write!(f, "write(#{file}, {length} bytes at {offset}, salt {salt})")
            }
            Self::Truncate { file, size } => write!(f, "ftruncate(#{file}, {size})"),
            Self::Read { file, offset, length } => write!(f, "read(#{file}, {length} bytes at {offset})"),
            Self::SetAttribute { file, key, value, create, replace } => write!(
                f,
                "fsetxattr(#{file}, {key}, {value:?}{}{})",
                flag(create, ", XATTR_CREATE"),
                flag(replace, ", XATTR_REPLACE")
            ),
            Self::GetAttribute { file, key } => write!(f, "fgetxattr(#{file}, {key})"),
            Self::RemoveAttribute { file, key } => write!(f, "fremovexattr(#{file}, {key})"),
            Self::Sync { handle } => write!(f, "fsync({})", at(handle)),
            Self::DataSync { file } => write!(f, "fdatasync(#{file})"),
        }
    }
}

/// Bytes as hexadecimal digits.
mod hex {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        serializer.serialize_str(&digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect::<String>())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits: Option<Vec<u8>> = text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
        let digits = digits.filter(|digits| digits.len().is_multiple_of(2));
        let digits = digits.ok_or_else(|| D::Error::custom("bytes are pairs of hexadecimal digits"))?;
        Ok(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
    }
}
