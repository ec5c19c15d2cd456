//! SQLite as a client: two processes that transfer money in one database, with `synchronous=FULL`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cenote_testkit::repository_root;
use serde_json::Value;

use super::account::{Account, Compared, Workers};
use super::client::Client;
use super::place::{Place, process_good};
use crate::numbers::Numbers;
use crate::process;

const WORKERS: u64 = 2;
const LOAD_MS_MAX: u64 = 2000;
/// The first transaction comes in less.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// A worker whose file system is gone sees that in less.
const END_TIME_MAX: Duration = Duration::from_secs(30);

/// SQLite with a journal mode.
pub(super) struct Sqlite {
    journal: &'static str,
    account: Account,
    workers: Option<Workers>,
}

impl Sqlite {
    pub(super) fn new(journal: &'static str) -> Self {
        Self { journal, account: Account::default(), workers: None }
    }

    fn command(&self, place: &Place, verb: &[&str]) -> Command {
        let mut command = python("sqlite.py");
        command.arg(folder(place).join("transfers.db")).arg(self.journal).args(verb);
        command
    }
}

/// Where the database is: a folder of the pool, so that none can come to be in the folder below the mount.
fn folder(place: &Place) -> PathBuf {
    place.mount().join("sqlite")
}

/// A script of `tools/kills`.
pub(super) fn python(script: &str) -> Command {
    let path: PathBuf = repository_root().join("tools/kills").join(script);
    let mut command = Command::new("python3");
    // It leaves nothing beside the scripts.
    command.arg("-B").arg(path);
    command
}

pub(super) fn missing() -> Option<String> {
    let has = process::output(Command::new("python3").args(["-c", "import sqlite3"])).is_ok_and(|output| output.good);
    (!has).then(|| "python3 with its module sqlite3 is not installed (Debian package python3)".to_owned())
}

/// Takes the transactions that a script's `check` found into the account.
pub(super) fn compare(command: &mut Command, account: &mut Account) -> Result<Compared> {
    let output = process::output(command)?;
    ensure!(output.good, "{command:?}: {}: {}", output.status, output.stderr);
    let said: Value = serde_json::from_slice(&output.stdout)?;
    let found: Option<BTreeSet<u64>> =
        said["found"].as_array().and_then(|numbers| numbers.iter().map(Value::as_u64).collect());
    let compared = account.compare(found.context("numbers of transactions")?);
    // Both say something of a loss.
    let faults = said["faults"].as_array().context("a list of faults")?;
    ensure!(
        faults.is_empty(),
        "{}; {}",
        said["faults"],
        compared.map_or_else(|error| error.to_string(), |_| String::new())
    );
    compared
}

/// Commands of workers, each with its first number.
pub(super) fn numbered(account: &Account, count: u64, command: impl Fn(&[&str]) -> Command) -> Vec<Command> {
    let first = account.next().next_multiple_of(count);
    (first..first + count).map(|number| command(&["work", &number.to_string(), &count.to_string()])).collect()
}

pub(super) fn finish(workers: Option<Workers>, account: &mut Account) -> Result<()> {
    workers.context("workers")?.finish(END_TIME_MAX, account)
}

impl Client for Sqlite {
    fn load_ms_max(&self) -> u64 {
        LOAD_MS_MAX
    }

    fn prepare(&mut self, place: &Place) -> Result<()> {
        fs::create_dir(folder(place))?;
        File::open(place.mount())?.sync_all()?;
        process_good(&mut self.command(place, &["setup"]))
    }

    fn start(&mut self, place: &Place, _: &mut Numbers) -> Result<()> {
        let commands = numbered(&self.account, WORKERS, |verb| self.command(place, verb));
        self.workers = Some(Workers::start(commands, place.dir.path())?);
        Ok(())
    }

    fn wait_for_one(&mut self) -> Result<()> {
        self.workers.as_mut().context("workers")?.wait_for_one(START_TIME_MAX)
    }

    fn ended(&mut self) -> Result<Option<String>> {
        self.workers.as_mut().context("workers")?.ended()
    }

    fn end(&mut self) -> Result<()> {
        finish(self.workers.take(), &mut self.account)
    }

    fn check(&mut self, place: &Place, _: bool) -> Result<Compared> {
        let mut command = self.command(place, &["check", &WORKERS.to_string()]);
        compare(&mut command, &mut self.account)
    }
}
