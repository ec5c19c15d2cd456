//! The typed view of a golden pool's `manifest.json`.
//!
//! Only what tests ask for by name has a field; [`crate::compare`] works on the JSON itself, so that a field added later
//! is compared without a change here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The account that OpenZFS gave of the pool(s) of one theme.
#[derive(Debug, Clone, Deserialize)]
pub struct Manifest {
    /// Version of this layout: 1.
    pub format: u64,
    /// The theme's name.
    pub theme: String,
    /// Versions of OpenZFS that wrote it.
    #[serde(default)]
    pub created_with: Vec<String>,
    /// Peculiarities, in words: resume tokens, topologies, seeds.
    #[serde(default)]
    pub notes: BTreeMap<String, String>,
    /// Names of the pools in the images; nearly always one.
    pub pools: Vec<String>,
    /// The vdevs' images.
    pub images: Vec<File>,
    /// Keys by encryption root.
    #[serde(default)]
    pub keys: BTreeMap<String, Key>,
    /// Send streams.
    #[serde(default)]
    pub streams: Vec<File>,
    /// The pool as seen in one way of importing, each.
    pub sections: Vec<Section>,
}

/// A file of the theme, as it is unpacked.
#[derive(Debug, Clone, Deserialize)]
pub struct File {
    /// Name without `.zst`.
    pub file: String,
    /// Size unpacked.
    #[serde(rename = "size")]
    pub size_bytes: u64,
    /// SHA-256 unpacked, in hex.
    pub sha256: String,
    /// For a stream: the command that made it.
    #[serde(default)]
    pub command: String,
}

/// The key of an encryption root.
#[derive(Debug, Clone, Deserialize)]
pub struct Key {
    /// `passphrase`, `hex` or `raw`.
    pub keyformat: String,
    /// The key file's bytes in hex.
    pub hex: String,
}

impl Key {
    /// The key file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        unhex(&self.hex).expect("a manifest's key is hex")
    }
}

/// The pool as OpenZFS showed it after one way of importing it.
#[derive(Debug, Clone, Deserialize)]
pub struct Section {
    /// `contents` (read-only, as it is), `after_replay`, `imported`, `rewound`.
    pub section: String,
    /// The pool's name.
    pub pool: String,
    /// `zpool get -j -p all`.
    #[serde(default)]
    pub zpool_get: Value,
    /// `zfs get -j -p -r -t all all`.
    #[serde(default)]
    pub zfs_get: Value,
    /// `zpool status -j -p -D`.
    #[serde(default)]
    pub zpool_status: Value,
    /// `zpool status -vD`.
    #[serde(default)]
    pub zpool_status_text: String,
    /// `zpool list -v`.
    #[serde(default)]
    pub zpool_list: String,
    /// File systems, snapshots, volumes and bookmarks by full name.
    pub datasets: BTreeMap<String, Dataset>,
}

/// One file system, snapshot, volume or bookmark.
#[derive(Debug, Clone, Deserialize)]
pub struct Dataset {
    /// `filesystem`, `snapshot`, `volume` or `bookmark`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The dataset's GUID.
    pub guid: u64,
    /// The transaction group that made it.
    pub createtxg: u64,
    /// Why OpenZFS did not look inside.
    pub error: Option<String>,
    /// A volume's size.
    #[serde(rename = "size")]
    pub size_bytes: Option<u64>,
    /// A volume's SHA-256.
    pub sha256: Option<String>,
    /// A file system's or snapshot's files, in the order of the walk.
    #[serde(default)]
    pub entries: Vec<Entry>,
    /// `zfs userspace`: type, name, used, quota, objects used, object quota.
    #[serde(default)]
    pub userspace: Vec<Vec<String>>,
    /// `zfs groupspace`, likewise.
    #[serde(default)]
    pub groupspace: Vec<Vec<String>>,
    /// `zfs projectspace`, likewise but without the type.
    #[serde(default)]
    pub projectspace: Vec<Vec<String>>,
}

/// One file, directory, link or node.
#[derive(Debug, Clone, Deserialize)]
pub struct Entry {
    /// Path below the dataset's root; `.` is the root itself.
    pub path: Name,
    /// `f d l p s c b`.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Object number.
    #[serde(default)]
    pub ino: u64,
    /// Permission bits, octal.
    #[serde(default)]
    pub mode: String,
    /// Owner.
    #[serde(default)]
    pub uid: u64,
    /// Group.
    #[serde(default)]
    pub gid: u64,
    /// Link count.
    #[serde(default)]
    pub nlink: u64,
    /// Size.
    #[serde(rename = "size", default)]
    pub size_bytes: u64,
    /// Space in units of 512 bytes.
    #[serde(default)]
    pub blocks: u64,
    /// Seconds and nine digits.
    #[serde(default)]
    pub mtime: String,
    /// Seconds and nine digits.
    #[serde(default)]
    pub ctime: String,
    /// A device node's major and minor number.
    pub rdev: Option<(u32, u32)>,
    /// A symbolic link's target.
    pub target: Option<Name>,
    /// SHA-256 of the content.
    pub sha256: Option<String>,
    /// For files over 64 MiB: offset, length and SHA-256 of each data segment; the rest is holes.
    pub data: Option<Vec<(u64, u64, String)>>,
    /// Extended attributes, values in hex.
    #[serde(default)]
    pub xattrs: BTreeMap<String, String>,
    /// Project id, where not 0.
    #[serde(default)]
    pub projid: u64,
    /// `chattr` bits, where not 0.
    #[serde(default)]
    pub flags: u64,
    /// The error of reading, in place of the content.
    pub error: Option<String>,
}

/// A name: text, or bytes in hex where they are not UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Name {
    /// A name in UTF-8.
    Text(String),
    /// Any other name.
    Hex {
        /// The name's bytes in hex.
        hex: String,
    },
}

impl Name {
    /// The name's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Name::Text(text) => text.clone().into_bytes(),
            Name::Hex { hex } => unhex(hex).expect("a manifest's name is hex"),
        }
    }
}

impl Manifest {
    /// The section of that name for the first pool, or the only pool.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.section == name)
    }

    /// The pool as it lies on the images, seen without writing.
    pub fn contents(&self) -> &Section {
        self.section("contents").expect("every manifest has a section 'contents'")
    }
}

impl Dataset {
    /// The entry at a path given as text.
    pub fn entry(&self, path: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| matches!(&entry.path, Name::Text(text) if text == path))
    }
}

/// Bytes from hex digits; `None` if it is not that.
pub fn unhex(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits
        .chunks_exact(2)
        .map(|pair| {
            let high = char::from(pair[0]).to_digit(16)?;
            let low = char::from(pair[1]).to_digit(16)?;
            u8::try_from(high * 16 + low).ok()
        })
        .collect()
}

/// Hex digits of bytes.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_survives_a_round_trip_and_rejects_what_is_not_hex() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&all)), Some(all));
        assert_eq!(unhex("0"), None);
        assert_eq!(unhex("0g"), None);
    }

    #[test]
    fn a_name_that_is_not_text_keeps_its_bytes() {
        let name: Name = serde_json::from_str(r#"{"hex":"ff41"}"#).unwrap();
        assert_eq!(name.bytes(), [0xff, 0x41]);
        let name: Name = serde_json::from_str(r#""ab""#).unwrap();
        assert_eq!(name.bytes(), b"ab");
    }
}
