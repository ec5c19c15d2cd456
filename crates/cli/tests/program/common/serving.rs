//! `cenote serve` as a process, and the clients that may be installed.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cenote_testkit::zdb;

/// A server on a unix socket. Killed when dropped.
pub(crate) struct Serving(Child);

impl Serving {
    /// Starts it with these options, and waits until the socket is there.
    pub(crate) fn start(images: &Path, pool: &str, socket: &Path, options: &[&str]) -> Result<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
        command.args(["serve", "-f", "-d"]).arg(images).arg("--unix").arg(socket).args(options);
        // Its notes beside the cache file are not the user's.
        if let Some(folder) = images.parent() {
            command.env("CENOTE_CACHE", folder.join("serving/cache.json"));
        }
        let child = command.arg(pool).stderr(Stdio::piped()).spawn()?;
        let mut serving = Self(child);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !socket.exists() {
            if let Some(status) = serving.0.try_wait()? {
                let mut text = String::new();
                serving.0.stderr.take().context("stderr")?.read_to_string(&mut text)?;
                bail!("serve ended with {status}: {text}");
            }
            ensure!(Instant::now() < deadline, "no socket after a minute");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(serving)
    }

    /// Ends it as a person or an init system would.
    pub(crate) fn end(self) -> Result<()> {
        self.end_by("-TERM")
    }

    /// Ends it with a signal, after which all is in order.
    pub(crate) fn end_by(mut self, signal: &str) -> Result<()> {
        Command::new("kill").arg(signal).arg(self.0.id().to_string()).status()?;
        let status = self.0.wait()?;
        let mut text = String::new();
        self.0.stderr.take().context("stderr")?.read_to_string(&mut text)?;
        ensure!(status.success(), "serve ended with {status}: {text}");
        Ok(())
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

/// Whether a client is installed. Where it is not, says so; in CI that is an error.
pub(crate) fn has(name: &str, package: &str) -> bool {
    let is_there = zdb::program(name).is_some();
    if !is_there {
        assert!(std::env::var_os("CI").is_none(), "{name} is not installed (Debian package {package})");
        eprintln!("left out: {name} is not installed (Debian package {package})");
    }
    is_there
}

/// A Python that has libnbd's module: the system's may have it where one earlier in the path has not.
pub(crate) fn python() -> Option<&'static str> {
    let has_module = |python: &&str| {
        let probe = Command::new(python).args(["-c", "import nbd"]).output();
        probe.is_ok_and(|output| output.status.success())
    };
    let found = ["/usr/bin/python3", "python3"].into_iter().find(has_module);
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "libnbd's Python module is not installed (python3-libnbd)");
        eprintln!("left out: libnbd's Python module is not installed (Debian package python3-libnbd)");
    }
    found
}
