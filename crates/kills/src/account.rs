//! Transactions by their numbers, as clients tell of them outside the pool, and the processes that tell.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

/// Transactions that may be there, and those that have to be.
#[derive(Debug, Default)]
pub(super) struct Account {
    begun: BTreeSet<u64>,
    acknowledged: BTreeSet<u64>,
    /// How many were there at the comparison before.
    known: u64,
}

/// The counts of a comparison.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Compared {
    /// Transactions acknowledged since the comparison before.
    pub(super) acknowledged: u64,
    /// Transactions that had to be there, those of former comparisons too.
    pub(super) checked: u64,
    /// Of the transactions that nobody acknowledged, those that are there.
    pub(super) unacknowledged: u64,
}

impl Account {
    /// Takes in a line of a worker.
    fn note(&mut self, line: &str) -> Result<()> {
        let (word, number) = line.split_once(' ').with_context(|| format!("a worker says {line:?}"))?;
        let number = number.parse().with_context(|| format!("a worker says {line:?}"))?;
        match word {
            "begun" => self.begun.insert(number),
            "acknowledged" => self.acknowledged.insert(number),
            _ => bail!("a worker says {line:?}"),
        };
        Ok(())
    }

    /// Every transaction that was acknowledged is there, and none that never began. From then on what is there has to stay.
    pub(super) fn compare(&mut self, found: BTreeSet<u64>) -> Result<Compared> {
        let lost: Vec<u64> = self.acknowledged.difference(&found).copied().collect();
        ensure!(
            lost.is_empty(),
            "LOST: {} of {} acknowledged transactions: {lost:?}",
            lost.len(),
            self.acknowledged.len()
        );
        let strange: Vec<u64> = found.difference(&self.begun).copied().collect();
        ensure!(strange.is_empty(), "transactions that never began are there: {strange:?}");
        let compared = Compared {
            acknowledged: self.acknowledged.len() as u64 - self.known,
            checked: self.acknowledged.len() as u64,
            unacknowledged: (found.len() - self.acknowledged.len()) as u64,
        };
        self.known = found.len() as u64;
        self.begun.clone_from(&found);
        self.acknowledged = found;
        Ok(compared)
    }

    /// A number beyond all that were begun.
    pub(super) fn next(&self) -> u64 {
        self.begun.last().map_or(1, |last| last + 1)
    }
}

/// Processes that tell of transactions on their standard output until the pool is gone.
pub(super) struct Workers {
    workers: Vec<Worker>,
    acknowledged: Arc<AtomicBool>,
}

struct Worker {
    child: Child,
    lines: Option<JoinHandle<Vec<String>>>,
    stderr: PathBuf,
}

impl Workers {
    /// Starts workers; what they complain of goes to files in a folder.
    pub(super) fn start(commands: impl IntoIterator<Item = Command>, dir: &Path) -> Result<Self> {
        let mut workers = Vec::new();
        let acknowledged = Arc::new(AtomicBool::new(false));
        for (index, mut command) in commands.into_iter().enumerate() {
            let stderr = dir.join(format!("worker{index}"));
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&stderr)?);
            let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
            let stdout = child.stdout.take().context("stdout is piped")?;
            let acknowledged = acknowledged.clone();
            let lines = std::thread::spawn(move || {
                let lines = BufReader::new(stdout).lines().map_while(Result::ok);
                lines
                    .inspect(|line| {
                        acknowledged.fetch_or(line.starts_with("acknowledged "), Relaxed);
                    })
                    .collect()
            });
            workers.push(Worker { child, lines: Some(lines), stderr });
        }
        Ok(Self { workers, acknowledged })
    }

    /// Waits, for a while, until a transaction was acknowledged or somebody ended.
    pub(super) fn wait_for_one(&mut self, time_max: Duration) -> Result<()> {
        let deadline = Instant::now() + time_max;
        while Instant::now() < deadline && !self.acknowledged.load(Relaxed) && self.ended()?.is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The status and messages of a worker that has ended already.
    pub(super) fn ended(&mut self) -> Result<Option<String>> {
        for worker in &mut self.workers {
            if let Some(status) = worker.child.try_wait()? {
                let said = std::fs::read_to_string(&worker.stderr).unwrap_or_default();
                return Ok(Some(format!("{status}: {}", said.trim())));
            }
        }
        Ok(None)
    }

    /// Waits until they ended, for a while, and takes in what they told.
    pub(super) fn finish(mut self, time_max: Duration, account: &mut Account) -> Result<()> {
        let deadline = Instant::now() + time_max;
        while Instant::now() < deadline
            && self.workers.iter_mut().any(|worker| matches!(worker.child.try_wait(), Ok(None)))
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        for worker in &mut self.workers {
            worker.end();
            let Some(Ok(lines)) = worker.lines.take().map(JoinHandle::join) else { bail!("a reader of a worker fell") };
            lines.iter().try_for_each(|line| account.note(line))?;
        }
        Ok(())
    }
}

impl Worker {
    fn end(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> Account {
        let mut account = Account::default();
        for line in ["begun 1", "acknowledged 1", "begun 2", "acknowledged 2", "begun 3"] {
            account.note(line).expect("a good line");
        }
        account
    }

    #[test]
    fn an_acknowledged_transaction_has_to_be_there_and_another_may() {
        for found in [vec![1, 2], vec![1, 2, 3]] {
            let compared = account().compare(found.iter().copied().collect()).expect("nothing is lost");
            assert_eq!((compared.acknowledged, compared.unacknowledged), (2, found.len() as u64 - 2));
        }
        let error = account().compare(BTreeSet::from([1, 3])).expect_err("2 is lost");
        assert!(error.to_string().starts_with("LOST: 1 of 2"), "{error}");
    }

    #[test]
    fn a_transaction_that_never_began_is_found_out() {
        assert!(account().compare(BTreeSet::from([1, 2, 4])).is_err());
    }

    #[test]
    fn what_was_found_once_has_to_stay() {
        let mut account = account();
        account.compare(BTreeSet::from([1, 2, 3])).expect("nothing is lost");
        assert!(account.compare(BTreeSet::from([1, 2])).is_err());
    }
}
