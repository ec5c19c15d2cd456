//! Hooks: executables of a folder that run when something happens to a pool, as OpenZFS's daemon `zed` runs its scripts.
//!
//! ```text
//! folder: all-*               run for each event
//!         CLASS-*             ereport.fs.zfs.checksum-mail.sh
//!         SUBCLASS-*          scrub_finish-notify.sh: the class without ereport.fs.zfs.
//! environment: ZEVENT_*       the members of the event, in the form that zed gives them
//!              ZED_*          this process, and the folder
//! ```
//! **Life of an event.** One thread for each pool reads the pool's events in order, and runs the hooks of one event after the other, by name. A
//! hook that takes longer than [`PATIENCE`] is left to itself; so many of these at most. The end of a pool waits for its last events' hooks.
//!
//! **Invariants.** 1. Only files that this user or root owns, and nobody else may write, are run. 2. A hook gets no more of this process's
//! environment than its time zone.
//!
//! **Rejected.** *A daemon beside the server*: events are in the server's memory.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cenote_format::nvlist::{NvList, NvValue};
use cenote_spa::{Event, Pool};

use crate::error::{Context as _, Result, refused};

/// How long a hook is waited for before the next one is run.
const PATIENCE: Duration = Duration::from_secs(10);
/// Hooks that are left to themselves at most.
const LEFT_MAX: usize = 16;
/// How often it is looked at.
const POLL: Duration = Duration::from_millis(10);
/// The folders of programs.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";
/// Write permission for a file's group and for all users, and the permission to run it for its owner.
const OTHERS_WRITE: u32 = 0o022;
const OWNER_RUNS: u32 = 0o100;

/// Formats a time: seconds since 1970, and a format of `strftime`.
type TimeText = fn(u64, &str) -> String;

/// Reports a line to the person that the process works for.
type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// A folder of hooks.
#[derive(Clone, Debug)]
pub struct Hooks {
    /// The folder.
    pub folder: PathBuf,
    /// Formats times, in the local time zone.
    pub time: TimeText,
}

impl Hooks {
    /// Refuses a folder that does not exist.
    pub(crate) fn check(&self) -> Result<()> {
        match self.folder.is_dir() {
            true => Ok(()),
            false => Err(refused(format!("--hooks {}: this is no folder", self.folder.display()))),
        }
    }

    /// Runs hooks for the events of a pool from now on, until it is closed.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn watch(&self, warn: Warn, pool: &Pool) -> Result<Running> {
        let (hooks, warn, handle, events) = (self.clone(), warn, pool.handle().clone(), pool.events().clone());
        let thread = std::thread::Builder::new().name("hooks".into()).spawn(move || {
            let (mut last, mut left) = (0, Vec::new());
            loop {
                let new = handle.block_on(events.wait_after(last));
                if new.dropped > 0 {
                    warn(&format!("hooks of {} events were not run: they came too fast", new.dropped));
                }
                let Some(newest) = new.events.last() else { return };
                last = newest.eid;
                for event in &new.events {
                    hooks.run(&warn, event, &mut left);
                }
            }
        });
        Ok(Running(thread.context("cannot run hooks")?))
    }

    fn run(&self, warn: &Warn, event: &Event, left: &mut Vec<Child>) {
        let class = event.list.str("class").unwrap_or_default();
        let files = match self.of_class(class) {
            Ok(files) => files,
            Err(error) => return warn(&format!("hooks in {}: {error}", self.folder.display())),
        };
        for path in files {
            let mut command = Command::new(&path);
            command.env_clear().envs(self.environment(&event.list)).current_dir("/");
            let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            match child {
                Ok(child) => wait(child, left),
                Err(error) => warn(&format!("hook {}: {error}", path.display())),
            }
        }
    }

    /// The hooks of a class, by name.
    fn of_class(&self, class: &str) -> std::io::Result<Vec<PathBuf>> {
        let subclass = class.splitn(4, '.').nth(3).unwrap_or(class);
        let is_meant = |name: &str| {
            [class, subclass, "all"].iter().any(|prefix| {
                let rest = name.strip_prefix(prefix).filter(|_| !prefix.is_empty());
                rest.is_some_and(|rest| !rest.starts_with(|letter: char| letter.is_ascii_alphabetic()))
            })
        };
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if is_meant(name) && is_trusted(&path) {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    /// The environment of a hook.
    fn environment(&self, event: &NvList) -> Vec<(String, String)> {
        let mut all = Vec::new();
        let mut set = |name: &str, value: String| all.push((name.to_owned(), value));
        for (name, value) in event.iter() {
            let name = name.to_string();
            let variable = format!("ZEVENT_{}", variable(&name));
            if let ("vdev_state" | "vdev_laststate", NvValue::Uint64(state)) = (&*name, value) {
                set(&format!("{variable}_STR"), cenote_spa::state_name(*state).to_owned());
            }
            if let ("pool_state", NvValue::Uint64(0)) = (&*name, value) {
                set(&format!("{variable}_STR"), "ACTIVE".to_owned());
            }
            set(&variable, shown(value, name.ends_with("_guid") || name.ends_with("_guids")));
        }
        let class = event.str("class").unwrap_or_default();
        set("ZEVENT_SUBCLASS", class.splitn(4, '.').nth(3).unwrap_or(class).to_owned());
        if let Some(NvValue::Int64Array(time)) = event.value("time")
            && let [seconds, nanoseconds] = time[..]
        {
            set("ZEVENT_TIME_SECS", seconds.to_string());
            set("ZEVENT_TIME_NSECS", nanoseconds.to_string());
            set("ZEVENT_TIME_STRING", (self.time)(u64::try_from(seconds).unwrap_or(0), "%Y-%m-%d %H:%M:%S%z"));
        }
        set("ZED_PID", std::process::id().to_string());
        set("ZED_ZEDLET_DIR", self.folder.display().to_string());
        set("PATH", PATH.to_owned());
        set("IFS", " \t\n".to_owned());
        let programs = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_owned));
        for (name, program) in [("ZPOOL", "zpool"), ("ZFS", "zfs"), ("ZDB", "zdb")] {
            // The program is called by these names where it is installed so.
            let own = programs.as_ref().map(|folder| folder.join(program)).filter(|path| path.exists());
            set(name, own.map_or_else(|| program.to_owned(), |path| path.display().to_string()));
        }
        set("ZFS_ALIAS", format!("cenote-{}", env!("CARGO_PKG_VERSION")));
        if let Ok(zone) = std::env::var("TZ") {
            set("TZ", zone);
        }
        all
    }
}

/// The hooks of a pool, which run.
pub(crate) struct Running(JoinHandle<()>);

impl Running {
    /// Waits for the hooks of the last events of a pool that is closed.
    pub(crate) fn finish(self) {
        let until = Instant::now() + PATIENCE;
        while !self.0.is_finished() && Instant::now() < until {
            std::thread::sleep(POLL);
        }
    }
}

/// Waits for a hook, and leaves it to itself if it takes long.
fn wait(mut child: Child, left: &mut Vec<Child>) {
    let until = Instant::now() + PATIENCE;
    left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until || left.len() >= LEFT_MAX => std::thread::sleep(POLL),
            Ok(None) => return left.push(child),
            _ => return,
        }
        left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

/// True of a file that may be run: nobody but this user and root can have put it there.
fn is_trusted(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    std::fs::metadata(path).is_ok_and(|file| {
        let mode = file.permissions().mode();
        file.is_file() && [0, own].contains(&file.uid()) && mode & OTHERS_WRITE == 0 && mode & OWNER_RUNS != 0
    })
}

/// A member's name as a variable's.
fn variable(name: &str) -> String {
    name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' }).collect()
}

/// A value, in the form in which zed gives it.
fn shown(value: &NvValue, is_hex: bool) -> String {
    fn each<T>(values: &[T], show: impl Fn(&T) -> String) -> String {
        values.iter().map(show).collect::<Vec<_>>().join(" ")
    }
    let number = |number: &u64| if is_hex { format!("0x{number:016X}") } else { number.to_string() };
    match value {
        NvValue::Boolean => "1".to_owned(),
        NvValue::BooleanValue(value) => u8::from(*value).to_string(),
        NvValue::Byte(value) | NvValue::Uint8(value) => value.to_string(),
        NvValue::Int8(value) => value.to_string(),
        NvValue::Int16(value) => value.to_string(),
        NvValue::Uint16(value) => value.to_string(),
        NvValue::Int32(value) => value.to_string(),
        NvValue::Uint32(value) => value.to_string(),
        NvValue::Int64(value) | NvValue::Hrtime(value) => value.to_string(),
        NvValue::Uint64(value) => number(value),
        NvValue::String(value) => value.to_string(),
        NvValue::Int8Array(values) => each(values, i8::to_string),
        NvValue::Uint8Array(values) => each(values, u8::to_string),
        NvValue::Int16Array(values) => each(values, i16::to_string),
        NvValue::Uint16Array(values) => each(values, u16::to_string),
        NvValue::Int32Array(values) => each(values, i32::to_string),
        NvValue::Uint32Array(values) => each(values, u32::to_string),
        NvValue::Int64Array(values) => each(values, i64::to_string),
        NvValue::Uint64Array(values) => each(values, number),
        NvValue::StringArray(values) => each(values, ToString::to_string),
        NvValue::Nvlist(_)
        | NvValue::NvlistArray(_)
        | NvValue::BooleanArray(_)
        | NvValue::ByteArray(_)
        | NvValue::Double(_) => "_NOT_IMPLEMENTED_".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hooks(folder: &Path) -> Hooks {
        Hooks { folder: folder.to_owned(), time: |seconds, _| format!("@{seconds}") }
    }

    fn event() -> NvList {
        let mut event = NvList::new();
        event.push("class", "ereport.fs.zfs.probe_failure");
        event.push("pool", "tank");
        event.push("pool_guid", 255_u64);
        event.push("vdev_state", 6_u64);
        event.push("vdev_spare_guids", NvValue::Uint64Array(vec![1, 2]));
        event.push("zio_err", NvValue::Int32(-5));
        event.push("detector", NvList::new());
        event.push("time", NvValue::Int64Array(vec![7, 9]));
        event.push("eid", 3_u64);
        event
    }

    #[test]
    fn a_hook_gets_the_environment_that_zed_gives() {
        let all = hooks(Path::new("/hooks")).environment(&event());
        let of = |name: &str| all.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
        for (name, value) in [
            ("ZEVENT_CLASS", "ereport.fs.zfs.probe_failure"),
            ("ZEVENT_SUBCLASS", "probe_failure"),
            ("ZEVENT_POOL", "tank"),
            ("ZEVENT_POOL_GUID", "0x00000000000000FF"),
            ("ZEVENT_VDEV_STATE", "6"),
            ("ZEVENT_VDEV_STATE_STR", "DEGRADED"),
            ("ZEVENT_VDEV_SPARE_GUIDS", "0x0000000000000001 0x0000000000000002"),
            ("ZEVENT_ZIO_ERR", "-5"),
            ("ZEVENT_DETECTOR", "_NOT_IMPLEMENTED_"),
            ("ZEVENT_TIME", "7 9"),
            ("ZEVENT_TIME_SECS", "7"),
            ("ZEVENT_TIME_NSECS", "9"),
            ("ZEVENT_TIME_STRING", "@7"),
            ("ZEVENT_EID", "3"),
            ("ZED_ZEDLET_DIR", "/hooks"),
        ] {
            assert_eq!(of(name), Some(value), "{name}");
        }
        assert_eq!(of("HOME"), None);
    }

    #[test]
    fn hooks_are_found_by_class_and_only_trusted_files_are_run() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, mode: u32| {
            let path = folder.path().join(name);
            std::fs::write(&path, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for name in ["all-log", "io-mail.sh", "ioctl-x", "ereport.fs.zfs.io-x", "scrub_finish-x", "allow-x"] {
            file(name, 0o755);
        }
        file("all-written", 0o777);
        file("all-text", 0o644);
        let names = |class: &str| {
            let found = hooks(folder.path()).of_class(class).unwrap();
            found.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names("ereport.fs.zfs.io"), ["all-log", "ereport.fs.zfs.io-x", "io-mail.sh"]);
        assert_eq!(names("sysevent.fs.zfs.scrub_finish"), ["all-log", "scrub_finish-x"]);
    }
}
