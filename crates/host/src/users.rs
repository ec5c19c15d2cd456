//! Processes that use a mount, as far as `/proc` tells this user.

use std::fmt;
use std::path::Path;

/// Processes that are told at most.
const USERS_MAX: usize = 5;

/// A process that uses a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its number.
    pub pid: u32,
    /// The name of its program.
    pub program: String,
    /// Its working directory is in the mount; otherwise it has a file open there, or mapped.
    pub is_inside: bool,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, program, is_inside } = self;
        let how = if *is_inside { "works in a folder of it" } else { "has a file of it open" };
        write!(f, "process {pid} ({program}) {how}")
    }
}

/// The first processes that use what is mounted at a path. Nothing of the mount itself is looked at: the process that serves it may not
/// answer. Processes of other users are seen by root alone.
pub fn users_of(at: &Path) -> Vec<User> {
    let mut users = Vec::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let folder = process.path();
        let leads_in = |link: &Path| std::fs::read_link(link).is_ok_and(|to| to.starts_with(at));
        let is_inside = leads_in(&folder.join("cwd")) || leads_in(&folder.join("root"));
        if !is_inside && !leads_in(&folder.join("exe")) && !has_open(&folder, at) {
            continue;
        }
        let program = std::fs::read_to_string(folder.join("comm")).unwrap_or_default().trim().to_owned();
        users.push(User { pid, program, is_inside });
        if users.len() == USERS_MAX {
            break;
        }
    }
    users
}

fn has_open(folder: &Path, at: &Path) -> bool {
    let links = std::fs::read_dir(folder.join("fd")).into_iter().flatten().flatten();
    if links.map(|link| link.path()).any(|link| std::fs::read_link(link).is_ok_and(|to| to.starts_with(at))) {
        return true;
    }
    // address, rights, offset, device, inode, path
    let maps = std::fs::read_to_string(folder.join("maps")).unwrap_or_default();
    maps.lines().any(|line| line.find('/').is_some_and(|from| Path::new(&line[from..]).starts_with(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_a_folder_in_which_it_has_a_file_open() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().canonicalize().unwrap();
        assert_eq!(users_of(&at), []);
        let file = std::fs::File::create(at.join("open")).unwrap();
        let users = users_of(&at);
        assert_eq!(users.iter().map(|user| user.pid).collect::<Vec<_>>(), [std::process::id()]);
        assert!(users[0].to_string().contains("has a file of it open"), "{}", users[0]);
        drop(file);
    }
}
