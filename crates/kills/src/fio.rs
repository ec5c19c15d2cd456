//! fio as a client: writes at random places, each made stable in one of the ways that there are, in files or in a volume over NBD.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cenote_testkit::zdb::program;

use super::account::Compared;
use super::blocks::{BLOCK_BYTES, Blocks};
use super::client::Client;
use super::fio_blocks::{Answers, compare, writes};
use super::place::Place;
use crate::numbers::Numbers;

const LOAD_MS_MAX: u64 = 2500;
/// Blocks of a job.
const BLOCKS: usize = 2048;
const END_TIME_MAX: Duration = Duration::from_secs(60);

/// A job's name, and how it makes its writes stable.
type Job = (&'static str, &'static [&'static str]);

const FILES: [Job; 4] = [
    ("fsync", &["--fsync=1"]),
    ("some", &["--fsync=7"]),
    ("direct", &["--direct=1", "--fdatasync=1"]),
    (DSYNC, &["--sync=dsync"]),
];
const VOLUME: [Job; 2] = [("first", &["--fsync=1"]), ("second", &["--fsync=5"])];
/// The job in which every write is stable when it is answered.
const DSYNC: &str = "dsync";

/// fio with jobs in files of their own, or in parts of a volume.
pub(super) struct Fio {
    jobs: &'static [Job],
    is_volume: bool,
    /// The known content of each job's blocks.
    known: Vec<Vec<Vec<u8>>>,
    child: Option<Child>,
    logs: PathBuf,
}

impl Fio {
    pub(super) fn files() -> Self {
        Self::new(&FILES, false)
    }

    pub(super) fn volume() -> Self {
        Self::new(&VOLUME, true)
    }

    fn new(jobs: &'static [Job], is_volume: bool) -> Self {
        let known = vec![vec![vec![0; BLOCK_BYTES]; BLOCKS]; jobs.len()];
        Self { jobs, is_volume, known, child: None, logs: PathBuf::new() }
    }

    /// The first block of a job.
    fn first(&self, job: usize) -> usize {
        if self.is_volume { job * BLOCKS } else { 0 }
    }
}

fn name(job: &str) -> String {
    format!("fio-{job}")
}

fn file(place: &Place, job: &str) -> PathBuf {
    place.mount().join(name(job))
}

impl Client for Fio {
    fn load_ms_max(&self) -> u64 {
        LOAD_MS_MAX
    }

    fn prepare(&mut self, place: &Place) -> Result<()> {
        self.logs = place.dir.path().join("fio");
        fs::create_dir(&self.logs)?;
        if !self.is_volume {
            for (job, _) in self.jobs {
                // A file that is not as long as the job wants would be made anew by fio, and what is known of it lost.
                let file = File::create(file(place, job))?;
                file.set_len((BLOCKS * BLOCK_BYTES) as u64)?;
                file.sync_all()?;
            }
            File::open(place.mount())?.sync_all()?;
        }
        Ok(())
    }

    fn start(&mut self, place: &Place, numbers: &mut Numbers) -> Result<()> {
        let mut command = Command::new("fio");
        // One request at a time, so that what follows a request tells that it was answered.
        command.args(["--rw=randwrite", "--bsrange=4k-32k", "--iodepth=1", "--norandommap=1", "--fallocate=none"]);
        command.args(["--verify=crc32c", "--verify_interval=4096", "--do_verify=0", "--verify_state_save=0"]);
        command.args(["--time_based", "--runtime=600", "--randrepeat=0", "--thread"]);
        command.arg(format!("--randseed={}", numbers.below(u64::from(u32::MAX))));
        command.arg(format!("--size={}", BLOCKS * BLOCK_BYTES));
        if self.is_volume {
            command.arg("--ioengine=nbd").arg(format!("--uri=nbd+unix:///kills/v?socket={}", place.socket().display()));
        } else {
            command.arg("--ioengine=psync");
        }
        for (index, (job, options)) in self.jobs.iter().enumerate() {
            let log = self.logs.join(job);
            match fs::remove_file(&log) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
            command.arg(format!("--name={job}")).arg(format!("--write_iolog={}", log.display())).args(*options);
            if self.is_volume {
                command.arg(format!("--offset={}", self.first(index) * BLOCK_BYTES));
            } else {
                command.arg(format!("--filename={}", name(job)));
            }
        }
        let said = File::create(self.logs.join("said"))?;
        // Names stand for files of this mount and never for some in the folder below it, which fio would make.
        command.current_dir(place.mount()).stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
        self.child = Some(command.spawn().context("cannot start fio")?);
        Ok(())
    }

    fn ended(&mut self) -> Result<Option<String>> {
        let ended = self.child.as_mut().context("fio")?.try_wait()?;
        let said = || fs::read_to_string(self.logs.join("said")).unwrap_or_default();
        Ok(ended.map(|status| format!("fio: {status}: {}", said())))
    }

    fn end(&mut self) -> Result<()> {
        let mut child = self.child.take().context("fio")?;
        let deadline = Instant::now() + END_TIME_MAX;
        // It ends by itself, with its logs written, since its files fail.
        while child.try_wait()?.is_none() {
            if Instant::now() >= deadline {
                child.kill()?;
                child.wait()?;
                bail!("fio goes on without the server");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn check(&mut self, place: &Place, _: bool) -> Result<Compared> {
        let mut sum = Compared::default();
        for (index, (job, _)) in self.jobs.iter().enumerate() {
            let first = self.first(index);
            // A kill may come before a job has begun.
            let log = fs::read_to_string(self.logs.join(job)).unwrap_or_default();
            let answers = match (self.is_volume, *job) {
                (true, _) => Answers::WritesAfterSyncs,
                (false, DSYNC) => Answers::Writes,
                (false, _) => Answers::Syncs,
            };
            let writes = writes(&log, answers)?;
            let mut blocks: Box<dyn Blocks> =
                if self.is_volume { Box::new(place.nbd()?) } else { Box::new(File::open(file(place, job))?) };
            let compared = compare(blocks.as_mut(), first, &mut self.known[index], &writes);
            let compared = compared.with_context(|| format!("job {job} of {} writes", writes.len()))?;
            sum.acknowledged += compared.acknowledged;
            sum.checked += compared.checked;
            sum.unacknowledged += compared.unacknowledged;
        }
        ensure!(sum.acknowledged == 0 || sum.checked > 0, "writes were acknowledged, and none was for a block");
        Ok(sum)
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // One that has ended cannot be killed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(super) fn missing() -> Option<String> {
    program("fio").is_none().then(|| "fio is not installed (Debian package fio)".to_owned())
}
