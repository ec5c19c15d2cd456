//! `cenote mount --rw` and `cenote serve --rw --mount` as processes.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::images::Images;

/// Whether file systems can be mounted here; in CI that they cannot is an error.
pub(crate) fn can_mount() -> bool {
    let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/fuse") else { return true };
    assert!(std::env::var_os("CI").is_none(), "/dev/fuse: {error}");
    eprintln!("left out: /dev/fuse: {error}");
    false
}

/// A file system that is mounted for writing. Killed and unmounted when dropped.
pub(crate) struct Mounted {
    child: Child,
    folder: tempfile::TempDir,
}

impl Mounted {
    pub(crate) fn new(images: &Images, dataset: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = images.command("mount", &["--rw", dataset]);
        command.arg(folder.path());
        Self::start(command, folder)
    }

    /// By a command that mounts at this folder.
    pub(crate) fn start(mut command: Command, folder: tempfile::TempDir) -> Self {
        let before = std::fs::metadata(folder.path()).unwrap().dev();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut mounted = Self { child, folder };
        let deadline = Instant::now() + Duration::from_secs(120);
        while std::fs::metadata(mounted.at()).is_ok_and(|found| found.dev() == before) {
            if let Some(status) = mounted.child.try_wait().unwrap() {
                panic!("it ended with {status}: {}", mounted.said());
            }
            assert!(Instant::now() < deadline, "nothing is mounted after two minutes");
            std::thread::sleep(Duration::from_millis(20));
        }
        mounted
    }

    pub(crate) fn at(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.at().join(below)
    }

    fn said(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// Unmounts it, as anybody would, or ends the process with a signal. Returns when the pool is exported.
    pub(crate) fn end(self, how: End) {
        let mut command = match how {
            End::Unmount => {
                let mut command = Command::new("fusermount3");
                command.arg("-u").arg(self.at());
                command
            }
            End::Signal(signal) => {
                let mut command = Command::new("kill");
                command.arg(signal).arg(self.child.id().to_string());
                command
            }
        };
        // A process that looks at all mounts (another test's `df`, say) has this one in use for a moment.
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            let output = command.output().unwrap();
            if output.status.success() {
                break;
            }
            let said = super::said(&output);
            assert!(said.contains("busy") && Instant::now() < until, "{command:?}: {said}");
            std::thread::sleep(Duration::from_millis(100));
        }
        self.wait();
    }

    /// Whether its process runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The time that its process has used of processors, in programs and in the kernel.
    pub(crate) fn processor_time(&self) -> Duration {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The program's name, in brackets, may hold anything.
        let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Sends its process a signal.
    pub(crate) fn signal(&self, signal: &str) {
        super::good(Command::new("kill").arg(signal).arg(self.child.id().to_string()));
    }

    /// Waits until its process says this.
    pub(crate) fn says(&mut self, what: &str) {
        let from = self.child.stderr.as_mut().unwrap();
        let (mut text, mut byte) = (Vec::new(), [0]);
        while from.read(&mut byte).unwrap() > 0 {
            text.push(byte[0]);
            if text.ends_with(what.as_bytes()) {
                return;
            }
        }
        panic!("it ended without saying '{what}': {}", String::from_utf8_lossy(&text));
    }

    /// Waits until its process has ended, in whatever way. Its mount may be there still.
    pub(crate) fn wait_whatever_it_says(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    /// Waits until it has ended, well, by what somebody else has done.
    pub(crate) fn wait(mut self) {
        let status = self.child.wait().unwrap();
        let said = self.said();
        assert!(status.success(), "it ended with {status}: {said}");
        // Nothing was reported but where it is mounted, what of it is shown read-only, where commands are taken, what is served still, and that the one before was killed.
        let usual = [
            "mounted at",
            "is shown read-only",
            "serving",
            "commands for",
            "which had it, is gone",
            "volumes are still served",
            "is left out",
            "still shown in another mount namespace",
            "since their mountpoint lies elsewhere",
        ];
        assert!(said.lines().all(|line| usual.iter().any(|part| line.contains(part))), "{said}");
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// How a mount is ended.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Unmount,
    Signal(&'static str),
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The mount that a killed process has left; a process that ended well leaves none.
        let mut unmount = Command::new("fusermount3");
        let _ = unmount.args(["-u", "-z"]).arg(self.folder.path()).stderr(Stdio::null()).status();
    }
}
