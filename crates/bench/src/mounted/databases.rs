//! Databases whose files lie in a tree: their transactions a second, each of which waits until the disk has it.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

/// The user whom Debian's package makes: the server does not run as root.
const USER: &str = "postgres";
/// Rows of pgbench's accounts, in hundreds of thousands.
const SCALE: &str = "5";
/// Connections at once.
const CLIENTS: &str = "4";
/// The longest wait for the server to start or end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The reason why SQLite cannot be measured here.
pub(super) fn sqlite_missing() -> Option<&'static str> {
    let found = Command::new("sqlite3").arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    (!found).then_some("sqlite3 is not installed")
}

/// The reason why PostgreSQL cannot be measured here.
pub(super) fn postgresql_missing() -> Option<&'static str> {
    programs().is_none().then_some("PostgreSQL is not installed (Debian's package postgresql)")
}

/// Transactions of one insertion each, in WAL mode with `synchronous=FULL`: a second.
pub(super) fn sqlite(folder: &Path, count: usize) -> Result<f64> {
    let database = folder.join("db");
    sqlite_run(&database, "PRAGMA journal_mode=WAL; CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB);")?;
    let mut text = "PRAGMA synchronous=FULL;\n".to_owned();
    for _ in 0..count {
        writeln!(text, "INSERT INTO t(v) VALUES(randomblob(200));")?;
    }
    let start = Instant::now();
    sqlite_run(&database, &text)?;
    let seconds = start.elapsed().as_secs_f64();
    let found = sqlite_run(&database, "SELECT count(*) FROM t;")?;
    ensure!(found.trim() == count.to_string(), "SQLite has {} rows of {count}", found.trim());
    Ok(count as f64 / seconds)
}

fn sqlite_run(database: &Path, text: &str) -> Result<String> {
    let script = database.with_extension("sql");
    fs::write(&script, text)?;
    let mut command = Command::new("sqlite3");
    output(command.arg("-batch").arg("-bail").arg(database).stdin(fs::File::open(&script)?))
}

/// Runs a command to its end.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name} is wanted here"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}", told.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The folder of the newest version's programs.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let version = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    let newest = versions.flatten().map(|entry| entry.path()).max_by_key(version)?.join("bin");
    ["initdb", "postgres", "pgbench"].iter().all(|name| newest.join(name).is_file()).then_some(newest)
}

/// A number that `id` prints of the user.
fn number_of(option: &str) -> Result<u32> {
    Ok(output(Command::new("id").args([option, USER]).stdin(Stdio::null()))?.trim().parse()?)
}

/// `pgbench` with its own transactions (three updates, a query, an insertion) on a server with its own settings: a second.
pub(super) fn postgresql(folder: &Path, seconds: f64) -> Result<f64> {
    let server = Server::start(folder)?;
    output(server.client("pgbench").args(["-i", "-q", "-s", SCALE]))?;
    output(server.client("psql").args(["-c", "CHECKPOINT"]))?;
    let seconds = (seconds.ceil() as u64).max(5).to_string();
    let told = output(server.client("pgbench").args(["-n", "-c", CLIENTS, "-j", "2", "-T", &seconds]))?;
    let rate = told.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next());
    let rate = rate.context("pgbench prints no rate")?.parse()?;
    server.end()?;
    Ok(rate)
}

/// A server of its own, whose data lie in the tree. Killed when dropped.
struct Server {
    programs: PathBuf,
    user: (u32, u32),
    /// The folder of its socket, outside the tree.
    sockets: tempfile::TempDir,
    process: Child,
}

impl Server {
    fn start(folder: &Path) -> Result<Self> {
        let programs = programs().context("PostgreSQL's programs")?;
        let user = (number_of("-u")?, number_of("-g")?);
        let sockets = tempfile::tempdir()?;
        let data = folder.join("data");
        fs::create_dir(&data)?;
        for private in [&data, sockets.path()] {
            fs::set_permissions(private, fs::Permissions::from_mode(0o700))?;
            chown(private, Some(user.0), Some(user.1))?;
        }
        let mut init = command(&programs, user, "initdb");
        output(init.args(["--auth=trust", "--encoding=UTF8", "--locale=C", "-U", USER, "-D"]).arg(&data))
            .context("the folder of the measurement has to be open to the user postgres")?;
        let mut serve = command(&programs, user, "postgres");
        serve.arg("-D").arg(&data).args(["-c", "listen_addresses=", "-c"]);
        serve.arg(format!("unix_socket_directories={}", sockets.path().display()));
        let process = serve.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut server = Self { programs, user, sockets, process };
        let start = Instant::now();
        while output(&mut server.client("pg_isready")).is_err() {
            if let Some(status) = server.process.try_wait()? {
                bail!("PostgreSQL ended with {status}");
            }
            ensure!(start.elapsed() < PATIENCE, "PostgreSQL is not ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// A program that talks to the server.
    fn client(&self, program: &str) -> Command {
        let mut command = command(&self.programs, self.user, program);
        command.env("PGHOST", self.sockets.path()).env("PGUSER", USER).env("PGDATABASE", "postgres");
        command
    }

    fn end(mut self) -> Result<()> {
        output(Command::new("kill").arg("-INT").arg(self.process.id().to_string()))?;
        let start = Instant::now();
        while self.process.try_wait()?.is_none() {
            ensure!(start.elapsed() < PATIENCE, "PostgreSQL does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn command(programs: &Path, user: (u32, u32), program: &str) -> Command {
    let mut command = Command::new(programs.join(program));
    command.uid(user.0).gid(user.1).current_dir("/").env("LC_ALL", "C").stdin(Stdio::null());
    command
}
