//! `mount.cenote` and `umount.cenote`: the programs that `mount(8)` and `umount(8)` call for our type of file system.
//!
//! # Theory
//!
//! **Need.** `mount -t cenote tank/home /home`, and a line of `/etc/fstab`, should do what they do for any type of file system. For a
//! type that it does not know, `mount(8)` calls `/sbin/mount.TYPE SOURCE FOLDER [-sfnv] [-o OPTIONS]`, and `umount(8)` calls
//! `/sbin/umount.TYPE FOLDER`. Links of these names to this program make it the helper, for the types `cenote` and `fuse.cenote` (that
//! of our mounts in the system's table, so `umount` finds it too, and waits until everything is on disk). Where OpenZFS is not installed,
//! a link `mount.zfs` has lines for its type work too.
//!
//! **Shape.** A helper's command line is translated into one of ours:
//! ```text
//! mount.cenote tank/home /home -o rw,noatime,dir=/dev/disk/by-id   cenote mount --background --rw -d /dev/disk/by-id
//!                                                            ──►          -o dev,suid,allow_other,noatime tank/home /home
//! umount.cenote /home -l                                     ──►   cenote unmount -f /home
//! ```
//! Several lines for one pool are carried out by the process of the first of them (`cenote_server::Delegated`).
//!
//! **Options** mean what `mount(8)` says of them: a mount is read-write, has devices and set-user-id, and lets all users in, unless it is
//! said otherwise, for `mount(8)` passes on only what differs from that. The dataset's properties count all the same. Users who are not
//! root get a mount of their own. Words that are for `mount(8)` alone are left out.
//!
//! **Rejected.** *A script*: it would be one more file to install, and would split options by itself.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Types of file systems that this program is a helper for, as parts of its names.
const TYPES: [&str; 4] = ["cenote", "fuse.cenote", "fuse3.cenote", "zfs"];
/// Options that only `mount(8)` or systemd obey, and those that ask for nothing that is not so.
const NOT_OURS: [&str; 23] = [
    // By which OpenZFS tells its own mounts from those of other programs.
    "zfsutil",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "defaults",
    "nofail",
    "_netdev",
    "iversion",
    "noiversion",
    "silent",
    "loud",
    "mand",
    "nomand",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "norelatime",
    "nostrictatime",
];
const NOT_OURS_BEGIN: [&str; 6] = ["x-", "X-", "comment=", "user=", "fsname=", "subtype="];

/// The helper that the program is called as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Helper {
    Mount,
    Unmount,
}

/// A helper's command line that means nothing here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountLineError {
    /// A flag that takes a value is the last word.
    #[error("option -{0} takes a value")]
    NoValue(char),
    /// The value of a flag cannot be read.
    #[error("options are not UTF-8")]
    NotUtf8,
    /// There is no such flag.
    #[error("option -{0} is not known")]
    Unknown(char),
    /// The words are not a dataset and a folder.
    #[error("usage: mount.cenote DATASET FOLDER [-o OPTIONS]")]
    MountUsage,
    /// The words are not a folder.
    #[error("usage: umount.cenote FOLDER [-fl]")]
    UnmountUsage,
    /// A snapshot is to be mounted for writing.
    #[error("'{0}' is a snapshot: mount it with -o ro")]
    Snapshot(String),
}

fn helper(name: &OsStr) -> Option<Helper> {
    let name = Path::new(name).file_name()?.to_str()?;
    let (verb, of_type) = name.split_once('.')?;
    match (verb, TYPES.contains(&of_type)) {
        ("mount", true) => Some(Helper::Mount),
        ("umount", true) => Some(Helper::Unmount),
        _ => None,
    }
}

/// The command line of ours that a helper's means; `None` where the program is not called as a helper, or there is nothing to do.
pub fn translated(argv: &[OsString], is_root: bool) -> Result<Option<Vec<OsString>>, MountLineError> {
    let Some((name, words)) = argv.split_first() else { return Ok(None) };
    match helper(name) {
        None => Ok(None),
        Some(Helper::Mount) => mount(words, is_root).map(Some),
        Some(Helper::Unmount) => unmount(words).map(Some),
    }
}

/// A command line's flags, values of flags that have one, and other words.
struct Words {
    flags: Vec<char>,
    options: Vec<String>,
    others: Vec<OsString>,
}

fn words(words: &[OsString], known: &str, with_value: &str) -> Result<Words, MountLineError> {
    let mut found = Words { flags: Vec::new(), options: Vec::new(), others: Vec::new() };
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let Some(letters) = word.to_str().and_then(|word| word.strip_prefix('-')).filter(|letters| !letters.is_empty())
        else {
            found.others.push(word.clone());
            continue;
        };
        let mut letters = letters.chars();
        while let Some(letter) = letters.next() {
            if with_value.contains(letter) {
                let attached: String = letters.by_ref().collect();
                let value = match attached.is_empty() {
                    false => attached,
                    true => {
                        let next = rest.next().ok_or(MountLineError::NoValue(letter))?;
                        next.to_str().ok_or(MountLineError::NotUtf8)?.to_owned()
                    }
                };
                if letter == 'o' {
                    found.options.extend(value.split(',').filter(|word| !word.is_empty()).map(str::to_owned));
                }
            } else if known.contains(letter) {
                found.flags.push(letter);
            } else {
                return Err(MountLineError::Unknown(letter));
            }
        }
    }
    Ok(found)
}

fn mount(argv: &[OsString], is_root: bool) -> Result<Vec<OsString>, MountLineError> {
    let Words { flags, options, others } = words(argv, "sfnv", "oNt")?;
    let [dataset, at] = others.as_slice() else {
        return Err(MountLineError::MountUsage);
    };
    if flags.contains(&'f') {
        return Ok(command(&["version"]));
    }
    let is_snapshot = dataset.to_string_lossy().contains('@');
    let mut is_written = !is_snapshot;
    let mut line = command(&["mount"]);
    let mut ours: Vec<&str> = if is_root { vec!["dev", "suid", "allow_other"] } else { Vec::new() };
    for word in &options {
        match word.split_once('=').unwrap_or((word, "")) {
            ("ro", "") => is_written = false,
            ("rw", "") if is_snapshot => {
                return Err(MountLineError::Snapshot(dataset.to_string_lossy().into_owned()));
            }
            ("rw", "") => is_written = true,
            ("remount", "") => line.push("--remount".into()),
            ("force", "") => line.push("-f".into()),
            ("dir", place) if !place.is_empty() => line.extend(["-d".into(), place.into()]),
            // Root's mounts are for all users unless it is said that they are not.
            ("owner_only", "") => {
                ours.retain(|word| *word != "allow_other");
                ours.push("noallow_other");
            }
            _ if NOT_OURS.contains(&word.as_str()) => {}
            _ if NOT_OURS_BEGIN.iter().any(|begin| word.starts_with(begin)) => {}
            _ => ours.push(word),
        }
    }
    if is_written {
        line.push("--rw".into());
    }
    line.push("--background".into());
    if !flags.contains(&'v') {
        line.push("--quiet".into());
    }
    if !ours.is_empty() {
        line.extend(["-o".into(), ours.join(",").into()]);
    }
    line.extend(["--".into(), dataset.clone(), at.clone()]);
    Ok(line)
}

fn unmount(argv: &[OsString]) -> Result<Vec<OsString>, MountLineError> {
    let Words { flags, others, .. } = words(argv, "nflvri", "oNt")?;
    let [at] = others.as_slice() else { return Err(MountLineError::UnmountUsage) };
    let mut line = command(&["unmount"]);
    if flags.iter().any(|flag| matches!(flag, 'f' | 'l')) {
        line.push("--force".into());
    }
    line.extend(["--".into(), at.clone()]);
    Ok(line)
}

fn command(words: &[&str]) -> Vec<OsString> {
    std::iter::once("cenote").chain(words.iter().copied()).map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str, is_root: bool) -> Result<Option<String>, MountLineError> {
        let argv: Vec<OsString> = text.split(' ').map(OsString::from).collect();
        let line = translated(&argv, is_root)?;
        Ok(line.map(|line| line.join(OsStr::new(" ")).into_string().unwrap()))
    }

    #[test]
    fn a_helper_s_command_line_is_one_of_ours() {
        for (given, meant) in [
            (
                "/sbin/mount.cenote tank/a /mnt -o rw",
                "mount --rw --background --quiet -o dev,suid,allow_other -- tank/a /mnt",
            ),
            ("mount.fuse.cenote tank /mnt", "mount --rw --background --quiet -o dev,suid,allow_other -- tank /mnt"),
            (
                "mount.cenote tank /mnt -n -o ro,noatime,nosuid,x-systemd.automount,_netdev,user=me",
                "mount --background --quiet -o dev,suid,allow_other,noatime,nosuid -- tank /mnt",
            ),
            (
                "mount.cenote tank@s /mnt -sv -odir=/a,dir=/b,force",
                "mount -d /a -d /b -f --background -o dev,suid,allow_other -- tank@s /mnt",
            ),
            (
                "mount.zfs tank /mnt -o ro,noatime,nosuid,zfsutil",
                "mount --background --quiet -o dev,suid,allow_other,noatime,nosuid -- tank /mnt",
            ),
            (
                "mount.cenote tank /mnt -t fuse.cenote -o ro,remount",
                "mount --remount --background --quiet -o dev,suid,allow_other -- tank /mnt",
            ),
            (
                "mount.cenote tank /mnt -o owner_only",
                "mount --rw --background --quiet -o dev,suid,noallow_other -- tank /mnt",
            ),
            ("umount.fuse.cenote /mnt -n", "unmount -- /mnt"),
            ("umount.cenote -lr /mnt", "unmount --force -- /mnt"),
        ] {
            assert_eq!(line(given, true), Ok(Some(format!("cenote {meant}"))), "{given}");
        }
        let own = line("mount.cenote tank /mnt -o nodev", false);
        assert_eq!(own, Ok(Some("cenote mount --rw --background --quiet -o nodev -- tank /mnt".into())));
    }

    #[test]
    fn another_name_is_no_helper_and_a_wrong_line_is_refused() {
        for name in ["cenote mount tank /mnt", "mount.fuse tank /mnt", "mount tank /mnt", "cenote.mount a b"] {
            assert_eq!(line(name, true), Ok(None), "{name}");
        }
        for wrong in [
            "mount.cenote tank",
            "mount.cenote a b c",
            "mount.cenote a /b -o",
            "mount.cenote a /b -q",
            "mount.cenote a@s /b -o rw",
            "umount.cenote",
        ] {
            assert!(line(wrong, true).is_err(), "{wrong}");
        }
    }
}
