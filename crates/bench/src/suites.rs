//! The suites of `cenote bench`: which there are, and how each is measured.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use cenote_kstat::Settings;
use serde::{Deserialize, Serialize};

use crate::report::{Report, Suite};
use crate::whole::{self, Part};
use crate::{codec, machine, mirror, mounted, roots, send, taskq, writing, zil};

/// Declares the suites: the documentation of each is its line in the program's help, too.
macro_rules! suites {
    ($(#[doc = $about:literal] $suite:ident = $name:literal,)*) => {
        /// A suite.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Which {
            $(#[doc = $about] $suite,)*
        }

        impl Which {
            /// All suites, in the order of the help.
            pub const ALL: &[Self] = &[$(Self::$suite),*];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$suite => $name,)*
                }
            }

            /// Its subject: a line of help.
            #[must_use]
            pub fn about(self) -> &'static str {
                let about = match self {
                    $(Self::$suite => $about,)*
                };
                about.trim().trim_end_matches('.')
            }
        }
    };
}

suites! {
    /// The task queue, and its history.
    Taskq = "taskq",
    /// Account of detached I/O.
    Roots = "roots",
    /// Which child of a mirror is read, on modelled disks.
    Mirror = "mirror",
    /// Checksums and parity.
    Codec = "codec",
    /// All layers, on a pool that OpenZFS made.
    Pool = "pool",
    /// Writing, all layers, on pools made for it.
    Write = "write",
    /// Synchronous writes through the intent log.
    Zil = "zil",
    /// Streams and snapshots, on pools made for it.
    Send = "send",
    /// A mount beside bindfs and ext4. Takes root.
    Mount = "mount",
}

/// The suites to be measured, and how.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The suites; if none is named those that need nothing else.
    pub suites: Vec<Which>,
    /// Within a minute, and less exact.
    pub quick: bool,
    /// The image for [`Which::Pool`].
    pub image: Option<PathBuf>,
    /// Programs that measure other queues.
    pub peers: Vec<PathBuf>,
    /// A program with OpenZFS's code in userspace.
    pub peer_pool: Option<PathBuf>,
    /// The folder that files are made in, if not that of temporary files.
    pub folder: Option<PathBuf>,
    /// The program that mounts, or lists snapshots, if not this one.
    pub program: Option<PathBuf>,
    /// Only these parts of suites that have some.
    pub only: Vec<String>,
    /// Rounds of each part.
    pub rounds: Option<u32>,
    /// Seconds of a round.
    pub seconds: Option<f64>,
    /// Reads under way in `memory-random`; 1 at least.
    pub tasks: u64,
    /// Worker threads; 1 at least.
    pub workers: usize,
}

/// The names of all parts that suites have.
#[must_use]
pub fn parts() -> Vec<&'static str> {
    let mut known: Vec<_> = Part::ALL.map(|(name, _)| name).into();
    known.extend(writing::PARTS);
    known.extend(mounted::PARTS);
    known.extend(send::PARTS);
    // Some have a name that a part of another suite has too.
    let more: Vec<_> = zil::PARTS.into_iter().filter(|name| !known.contains(name)).collect();
    known.extend(more);
    known
}

impl Which {
    /// The suite of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|which| which.name() == name)
    }
}

impl Request {
    /// Measures. `date` stands in the report; `begins` is told the name of each suite.
    ///
    /// # Errors
    /// [`Which::Pool`] has no pool to read, or a suite fails.
    pub fn measure(&self, settings: &Settings, date: String, begins: &dyn Fn(&str)) -> Result<Report> {
        let mut suites = self.suites.clone();
        let has_pool = self.image.is_some() || self.peer_pool.is_some();
        if suites.is_empty() {
            suites = vec![Which::Taskq, Which::Roots, Which::Mirror, Which::Codec];
            suites.extend(has_pool.then_some(Which::Pool));
        }
        if suites.contains(&Which::Pool) && !has_pool {
            bail!(cenote_props::WrongUse::new(
                "pool wants --image FILE (crates/bench/make-pool makes one) or --peer-pool PROGRAM, which makes one itself",
            ));
        }
        let machine = machine(self.image.as_deref());
        let mut report = Report { command: self.command(), date, machine, suites: Vec::new() };
        for which in suites {
            begins(which.name());
            report.suites.push(self.suite(which, settings)?);
        }
        Ok(report)
    }

    /// Measures a suite, on a thread of its own: suites start runtimes, and block.
    fn suite(&self, which: Which, settings: &Settings) -> Result<Suite> {
        let (request, settings) = (self.clone(), settings.clone());
        let thread = std::thread::spawn(move || request.run(which, &settings));
        thread.join().map_err(|_| anyhow!("{} panicked", which.name()))?
    }

    fn run(self, which: Which, settings: &Settings) -> Result<Suite> {
        let (quick, peer) = (self.quick, self.peer_pool);
        let rounds = self.rounds.unwrap_or(if quick { 1 } else { 3 });
        let seconds = |brief: f64, full: f64| self.seconds.unwrap_or(if quick { brief } else { full });
        // Goes when the suite has ended.
        let made = match which {
            Which::Mount | Which::Write | Which::Zil | Which::Send => Some(scratch(self.folder.as_deref())?),
            Which::Pool => Some(scratch(None)?),
            _ => None,
        };
        let folder = made.as_ref().map(|made| made.path().to_owned()).unwrap_or_default();
        match which {
            Which::Taskq => taskq::run(quick, &self.peers),
            Which::Roots => roots::run(quick),
            Which::Mirror => mirror::run(quick, settings),
            Which::Codec => codec::run(quick),
            Which::Mount => {
                let program = self.program.map_or_else(std::env::current_exe, Ok)?;
                let seconds = seconds(2.0, 6.0);
                mounted::run(&mounted::Options { folder, program, rounds, seconds, quick, only: self.only })
            }
            Which::Write => {
                let seconds = seconds(3.0, 8.0);
                writing::run(&writing::Options { folder, peer, rounds, seconds, quick, only: self.only })
            }
            Which::Send => {
                let program = self.program;
                send::run(&send::Options { folder, peer, program, rounds, quick, only: self.only })
            }
            Which::Zil => {
                let seconds = seconds(1.0, 4.0);
                zil::run(&zil::Options { folder, peer, rounds, seconds, quick, only: self.only })
            }
            Which::Pool => {
                let parts = Part::ALL.iter().filter(|(name, _)| self.only.iter().any(|only| only == name));
                whole::run(&whole::Options {
                    image: self.image,
                    peer,
                    folder,
                    parts: parts.map(|part| part.1).collect(),
                    quick,
                    rounds: self.rounds,
                    seconds: self.seconds,
                    tasks: self.tasks.max(1),
                    workers: self.workers.max(1),
                })
            }
        }
    }

    /// The command that makes such a report, as one would type it; paths by what they are.
    fn command(&self) -> String {
        let mut words = vec!["cenote bench".to_owned()];
        words.extend(self.suites.iter().map(|which| which.name().to_owned()));
        words.extend(self.quick.then(|| "--quick".to_owned()));
        words.extend(self.image.as_ref().map(|_| "--image IMAGE".to_owned()));
        words.extend(self.peer_pool.as_ref().map(|_| "--peer-pool PROGRAM".to_owned()));
        words.extend(self.program.as_ref().map(|_| "--program PROGRAM".to_owned()));
        words.extend(self.peers.iter().map(|_| "--peer PROGRAM".to_owned()));
        if !self.only.is_empty() {
            words.push(format!("--only {}", self.only.join(",")));
        }
        words.extend(self.rounds.map(|rounds| format!("--rounds {rounds}")));
        words.extend(self.seconds.map(|seconds| format!("--seconds {seconds}")));
        words.extend((self.tasks > 1).then(|| format!("--tasks {}", self.tasks)));
        words.extend((self.workers > 1).then(|| format!("--workers {}", self.workers)));
        words.join(" ")
    }
}

/// A folder for files that are made, in the one named or where temporary files go.
fn scratch(folder: Option<&Path>) -> std::io::Result<tempfile::TempDir> {
    folder.map_or_else(tempfile::tempdir, tempfile::tempdir_in)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_one_name_and_the_command_is_one_that_can_be_typed() {
        let parts = parts();
        assert!(parts.iter().all(|name| parts.iter().filter(|other| other == &name).count() == 1), "{parts:?}");
        let request = Request {
            suites: vec![Which::Write, Which::Zil],
            quick: true,
            only: vec!["a".into(), "b".into()],
            tasks: 4,
            workers: 1,
            ..Request::default()
        };
        assert_eq!(request.command(), "cenote bench write zil --quick --only a,b --tasks 4");
    }
}
