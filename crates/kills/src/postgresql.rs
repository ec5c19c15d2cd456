//! PostgreSQL as a client: sessions that transfer money, `pgbench` beside them, page checksums, and little memory.
//!
//! Root hands the cluster to the user that Debian's package makes, since PostgreSQL refuses to run as root.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::account::{Account, Compared, Workers};
use super::client::Client;
use super::place::{Place, process_good};
use super::sqlite;
use crate::numbers::Numbers;
use crate::process;

const WORKERS: u64 = 4;
const LOAD_MS_MAX: u64 = 4000;
const USER: &str = "postgres";
const START_TIME_MAX: Duration = Duration::from_secs(120);
const END_TIME_MAX: Duration = Duration::from_secs(20);
/// Settings of every start: all is promised, little is kept, and checkpoints and vacuums come often.
const SETTINGS: [&str; 11] = [
    "fsync=on",
    "synchronous_commit=on",
    "listen_addresses=",
    "shared_buffers=4MB",
    "min_wal_size=2MB",
    "max_wal_size=8MB",
    "checkpoint_timeout=30s",
    "autovacuum_naptime=1s",
    "restart_after_crash=off",
    "unix_socket_permissions=0777",
    "max_connections=20",
];
/// How the log is made stable, and how its files come to be.
const LOG_SETTINGS: [[&str; 3]; 4] = [
    ["wal_sync_method=fdatasync", "wal_recycle=on", "wal_init_zero=on"],
    ["wal_sync_method=fdatasync", "wal_recycle=off", "wal_init_zero=off"],
    ["wal_sync_method=open_datasync", "wal_recycle=on", "wal_init_zero=on"],
    ["wal_sync_method=fsync", "wal_recycle=on", "wal_init_zero=off"],
];

/// PostgreSQL with full pages in its log, or half ones.
pub(super) struct PostgreSql {
    full_page_writes: &'static str,
    programs: PathBuf,
    user: Option<(u32, u32)>,
    account: Account,
    workers: Option<Workers>,
    bench: Option<Child>,
    server: Option<Child>,
    log_settings: usize,
}

impl PostgreSql {
    pub(super) fn new(has_full_pages: bool) -> Result<Self> {
        Ok(Self {
            full_page_writes: if has_full_pages { "full_page_writes=on" } else { "full_page_writes=off" },
            programs: programs().context("PostgreSQL's programs")?,
            user: if number_of(None, "-u")? == 0 {
                Some((number_of(Some(USER), "-u")?, number_of(Some(USER), "-g")?))
            } else {
                None
            },
            account: Account::default(),
            workers: None,
            bench: None,
            server: None,
            log_settings: 0,
        })
    }

    /// A command of PostgreSQL's, run by whom it accepts.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command.current_dir("/").env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    /// The same, for one that talks to the server.
    fn client(&self, place: &Place, program: &str) -> Command {
        let mut command = self.command(program);
        command.env("PGHOST", sockets(place)).env("PGUSER", USER).env("PGDATABASE", "postgres");
        command
    }

    fn script(place: &Place, verb: &[&str]) -> Command {
        let mut command = sqlite::python("postgresql.py");
        command.arg(sockets(place)).arg(USER).args(verb);
        command
    }

    /// Starts the server, which recovers, and waits until it serves.
    fn serve(&mut self, place: &Place) -> Result<()> {
        let path = place.dir.path().join("postgresql.log");
        let log = File::options().create(true).append(true).open(&path)?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(data(place));
        let directories = format!("unix_socket_directories={}", sockets(place).display());
        let log_settings = LOG_SETTINGS[self.log_settings % LOG_SETTINGS.len()];
        for setting in SETTINGS.into_iter().chain(log_settings).chain([self.full_page_writes, directories.as_str()]) {
            command.arg("-c").arg(setting);
        }
        command.stdout(Stdio::null()).stderr(log);
        self.server = Some(command.spawn().context("cannot start postgres")?);
        let deadline = Instant::now() + START_TIME_MAX;
        while !process::output(&mut self.client(place, "pg_isready"))?.good {
            if let Some(status) = self.server.as_mut().context("a server")?.try_wait()? {
                bail!("PostgreSQL does not start: {status}: {}", tail(&path));
            }
            ensure!(Instant::now() < deadline, "PostgreSQL is not ready: {}", tail(&path));
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Has the server end in a way: `INT` with all written, `QUIT` at once.
    fn stop(&mut self, signal: &str) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        // One that ended by itself takes no signal.
        let _ =
            Command::new("kill").arg(format!("-{signal}")).arg(server.id().to_string()).stderr(Stdio::null()).status();
        let deadline = Instant::now() + END_TIME_MAX;
        while server.try_wait()?.is_none() {
            if Instant::now() >= deadline {
                server.kill()?;
                server.wait()?;
                bail!("PostgreSQL did not end after signal {signal}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Client for PostgreSql {
    fn mount_options(&self) -> &'static str {
        if self.user.is_some() { "allow_other" } else { "" }
    }

    fn load_ms_max(&self) -> u64 {
        LOAD_MS_MAX
    }

    fn prepare(&mut self, place: &Place) -> Result<()> {
        for dir in [data(place), sockets(place)] {
            fs::create_dir(&dir)?;
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))?;
            if let Some((user, group)) = self.user {
                chown(&dir, Some(user), Some(group))?;
            }
        }
        let mut init = self.command("initdb");
        init.args(["--data-checksums", "--wal-segsize=1", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
        process_good(init.arg("-U").arg(USER).arg("-D").arg(data(place)))?;
        self.serve(place)?;
        process_good(&mut Self::script(place, &["setup"]))?;
        process_good(self.client(place, "pgbench").args(["-i", "-q"]))
    }

    fn start(&mut self, place: &Place, numbers: &mut Numbers) -> Result<()> {
        let commands = numbered(&self.account, place);
        self.workers = Some(Workers::start(commands, place.dir.path())?);
        let mut bench = self.client(place, "pgbench");
        bench.args(["-n", "-c", "2", "-T", "600"]).stdout(Stdio::null());
        self.bench = Some(bench.stderr(File::create(place.dir.path().join("pgbench"))?).spawn()?);
        // Of the start that comes.
        self.log_settings = numbers.below(LOG_SETTINGS.len() as u64) as usize;
        Ok(())
    }

    fn wait_for_one(&mut self) -> Result<()> {
        self.workers.as_mut().context("workers")?.wait_for_one(START_TIME_MAX)
    }

    fn ended(&mut self) -> Result<Option<String>> {
        if let Some(status) = self.bench.as_mut().context("pgbench")?.try_wait()? {
            return Ok(Some(format!("pgbench: {status}")));
        }
        if let Some(status) = self.server.as_mut().context("a server")?.try_wait()? {
            return Ok(Some(format!("postgres: {status}")));
        }
        self.workers.as_mut().context("workers")?.ended()
    }

    fn end(&mut self) -> Result<()> {
        // Without its files the server panics by itself, which its clients are told.
        let deadline = Instant::now() + END_TIME_MAX;
        while Instant::now() < deadline && self.workers.as_mut().context("workers")?.ended()?.is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let stopped = self.stop("QUIT");
        let finished = sqlite::finish(self.workers.take(), &mut self.account);
        end(self.bench.take());
        stopped.and(finished)
    }

    fn check(&mut self, place: &Place, is_long: bool) -> Result<Compared> {
        if is_long {
            // Recovered and stopped, every page is looked at; the next start finds nothing to do.
            self.serve(place)?;
            self.stop("INT")?;
            process_good(self.command("pg_checksums").arg("--check").arg("-D").arg(data(place)))?;
        }
        self.serve(place)?;
        let compared = sqlite::compare(&mut Self::script(place, &["check", &WORKERS.to_string()]), &mut self.account)?;
        let mut amcheck = self.client(place, "pg_amcheck");
        process_good(amcheck.args(["--install-missing", "--heapallindexed", "--rootdescend", "-d", "postgres"]))?;
        Ok(compared)
    }
}

impl Drop for PostgreSql {
    fn drop(&mut self) {
        end(self.bench.take());
        self.workers = None;
        // Whether it ends well was judged where that matters.
        let _ = self.stop("QUIT");
    }
}

fn numbered(account: &Account, place: &Place) -> Vec<Command> {
    sqlite::numbered(account, WORKERS, |verb| PostgreSql::script(place, verb))
}

fn end(child: Option<Child>) {
    if let Some(mut child) = child {
        // One that has ended cannot be killed.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn data(place: &Place) -> PathBuf {
    place.mount().join("postgresql")
}

fn sockets(place: &Place) -> PathBuf {
    place.dir.path().join("sockets")
}

fn tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// A number that `id` tells of a user.
fn number_of(user: Option<&str>, option: &str) -> Result<u32> {
    let output = process::output(Command::new("id").arg(option).args(user))?;
    ensure!(output.good, "id: {}", output.stderr);
    Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?)
}

/// Where Debian puts the programs of the newest version.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let version = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    let newest = versions.flatten().map(|entry| entry.path()).max_by_key(version)?.join("bin");
    newest.join("postgres").is_file().then_some(newest)
}

pub(super) fn missing() -> Option<String> {
    let all = programs().is_some_and(|dir| ["pg_amcheck", "pgbench"].iter().all(|name| dir.join(name).is_file()));
    (!all).then(|| "PostgreSQL is not installed (Debian package postgresql)".to_owned()).or_else(sqlite::missing)
}
