//! Suites: which there are, and how each is measured.
//!
//! `cenote bench` has those that tell people about their own pools and disks. The laboratory, a program of its own, has those that compare
//! a mechanism with what came before it. Both are a [`Choice`] each, and one [`Request`] measures either.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use cenote_kstat::Settings;
use serde::{Deserialize, Serialize};

use crate::report::{Report, Suite};
use crate::whole::{self, Part};
use crate::{machine, mounted, redundancy, writing};

/// The suites of a program.
pub trait Choice: Copy + PartialEq + Send + Sized + 'static {
    /// The program, as one types it.
    const PROGRAM: &'static str;
    /// All suites, in the order of the help.
    const ALL: &'static [Self];

    /// Its name.
    fn name(self) -> &'static str;
    /// Its subject: a line of help.
    fn about(self) -> &'static str;
    /// The suites that run if none is named.
    fn usual(request: &Request<Self>) -> Vec<Self>;
    /// Measures it; `folder` is an empty one, which goes with its files when the suite has ended.
    ///
    /// # Errors
    /// The suite fails.
    fn run(self, request: Request<Self>, settings: &Settings, folder: PathBuf) -> Result<Suite>;

    /// The suite of this name.
    #[must_use]
    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|which| which.name() == name)
    }
}

/// A suite of `cenote bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Which {
    /// Reading, all layers, on a pool that OpenZFS made.
    Pool,
    /// Writing, all layers, on pools made for it.
    Write,
    /// A mount beside bindfs and ext4. Takes root.
    Mount,
    /// Scrub, resilver and the like, and the clients beside them.
    Redundancy,
}

/// The suites to be measured, and how.
#[derive(Clone, Debug)]
pub struct Request<W> {
    /// The suites; if none is named [`Choice::usual`].
    pub suites: Vec<W>,
    /// Within a minute, and less exact.
    pub quick: bool,
    /// The image of a pool to read.
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
    known.extend(redundancy::PARTS);
    known
}

impl Choice for Which {
    const PROGRAM: &'static str = "cenote bench";
    const ALL: &'static [Self] = &[Self::Pool, Self::Write, Self::Mount, Self::Redundancy];

    fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Write => "write",
            Self::Mount => "mount",
            Self::Redundancy => "redundancy",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Pool => "Reading, all layers, on a pool that OpenZFS made",
            Self::Write => "Writing, all layers, on pools made for it",
            Self::Mount => "A mount beside bindfs and ext4. Takes root",
            Self::Redundancy => "Scrub, resilver and the like, and the clients beside them",
        }
    }

    fn usual(request: &Request<Self>) -> Vec<Self> {
        vec![if request.has_pool() { Self::Pool } else { Self::Write }]
    }

    fn run(self, request: Request<Self>, _settings: &Settings, folder: PathBuf) -> Result<Suite> {
        let rounds = request.rounds();
        match self {
            Self::Mount => {
                let seconds = request.seconds(2.0, 6.0);
                let program = request.program.map_or_else(std::env::current_exe, Ok)?;
                let quick = request.quick;
                mounted::run(&mounted::Options { folder, program, rounds, seconds, quick, only: request.only })
            }
            Self::Write => {
                let seconds = request.seconds(3.0, 8.0);
                let (peer, quick) = (request.peer_pool, request.quick);
                writing::run(&writing::Options { folder, peer, rounds, seconds, quick, only: request.only })
            }
            Self::Redundancy => {
                let (peer, quick) = (request.peer_pool, request.quick);
                redundancy::run(&redundancy::Options { folder, peer, rounds, quick, only: request.only })
            }
            Self::Pool => {
                if !request.has_pool() {
                    bail!(cenote_props::WrongUse::new(
                        "pool wants --image FILE (crates/bench/make-pool makes one) or --peer-pool PROGRAM, which makes one itself",
                    ));
                }
                let parts = Part::ALL.iter().filter(|(name, _)| request.only.iter().any(|only| only == name));
                whole::run(&whole::Options {
                    image: request.image,
                    peer: request.peer_pool,
                    folder,
                    parts: parts.map(|part| part.1).collect(),
                    quick: request.quick,
                    rounds: request.rounds,
                    seconds: request.seconds,
                    tasks: request.tasks.max(1),
                    workers: request.workers.max(1),
                })
            }
        }
    }
}

impl<W: Choice> Request<W> {
    /// A request for these suites, whole.
    #[must_use]
    pub const fn new(suites: Vec<W>) -> Self {
        Self {
            suites,
            quick: false,
            image: None,
            peers: Vec::new(),
            peer_pool: None,
            folder: None,
            program: None,
            only: Vec::new(),
            rounds: None,
            seconds: None,
            tasks: 1,
            workers: 1,
        }
    }

    /// There is a pool to read, or a program that makes one.
    #[must_use]
    pub const fn has_pool(&self) -> bool {
        self.image.is_some() || self.peer_pool.is_some()
    }

    /// Rounds of each part.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// Seconds of a round, of a suite that takes so many in brief and so many in full.
    #[must_use]
    pub fn seconds(&self, brief: f64, full: f64) -> f64 {
        self.seconds.unwrap_or(if self.quick { brief } else { full })
    }

    /// Measures. `date` stands in the report; `begins` is told the name of each suite.
    ///
    /// # Errors
    /// A suite lacks what it needs, or fails.
    pub fn measure(&self, settings: &Settings, date: String, begins: &dyn Fn(&str)) -> Result<Report> {
        let suites = if self.suites.is_empty() { W::usual(self) } else { self.suites.clone() };
        let machine = machine(self.image.as_deref());
        let mut report = Report { command: self.command(), date, machine, suites: Vec::new() };
        for which in suites {
            begins(which.name());
            report.suites.push(self.suite(which, settings)?);
        }
        Ok(report)
    }

    /// Measures a suite, on a thread of its own: suites start runtimes, and block.
    fn suite(&self, which: W, settings: &Settings) -> Result<Suite> {
        let (request, settings) = (self.clone(), settings.clone());
        let thread = std::thread::spawn(move || {
            let made = scratch(request.folder.as_deref())?;
            let folder = made.path().to_owned();
            which.run(request, &settings, folder)
        });
        thread.join().map_err(|_| anyhow!("{} panicked", which.name()))?
    }

    /// The command that makes such a report, as one would type it; paths by what they are.
    fn command(&self) -> String {
        let mut words = vec![W::PROGRAM.to_owned()];
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
        let mut request = Request::new(vec![Which::Write, Which::Mount]);
        request.quick = true;
        request.only = vec!["a".into(), "b".into()];
        request.tasks = 4;
        assert_eq!(request.command(), "cenote bench write mount --quick --only a,b --tasks 4");
    }
}
