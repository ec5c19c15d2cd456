//! Kills under programs of others (databases, fio), and under threads whose history is judged.
//!
//! A round: the client works in the served pool and tells, outside of it, what was acknowledged; the server is killed; now and then
//! `cenote verify` and `zdb -bcc` judge what it left; it is started again, sometimes killed once more while it replays its logs; the client
//! recovers as it would after any crash; and what it finds is compared with what it was told: every acknowledged transaction is there,
//! none is half there, and none that never began. The pool is kept across kills. The state after the kill is copied, so that a loss can
//! be looked into.
//!
//! SQLite's journal mode DELETE is not among the clients: its commit is the removal of the journal, and nothing syncs that with
//! `synchronous=FULL`. With `EXTRA` the folder is synced, but SQLite takes one that cannot be opened, since the server has just died, for
//! one that needs no sync. It acknowledges what nothing made durable, and a loss would tell nothing of the pool.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::account::Compared;
use super::client::Client;
use super::fio::Fio;
use super::history::Histories;
use super::place::ZDB_EVERY;
use super::place::{Layout, Place, Server, process_good};
use super::postgresql::PostgreSql;
use super::sqlite::Sqlite;
use crate::numbers::Numbers;
use crate::tally::Tally;

/// Kills before another layout's turn.
const KILLS_OF_POOL: u64 = 20;
/// Layouts of pools, and whether they have a log device.
const LAYOUTS: [(Layout, bool); 3] = [(("", 1), false), (("mirror", 2), true), (("raidz1", 3), false)];
const RECORD_SIZES: [&str; 3] = ["recordsize=128K", "recordsize=16K", "recordsize=8K"];
const LOG_BYTES: u64 = 128 << 20;
/// One start in so many is killed before it is done.
const STARTS_PER_KILL: u64 = 5;
/// Such a start is killed at latest after this long, in milliseconds.
const START_MS_MAX: u64 = 300;

/// A name, its client, and why it is missing here.
type Known = (&'static str, fn() -> Result<Box<dyn Client>>, fn() -> Option<String>);

const KNOWN: [Known; 8] = [
    ("sqlite-wal", || Ok(Box::new(Sqlite::new("WAL"))), super::sqlite::missing),
    ("sqlite-truncate", || Ok(Box::new(Sqlite::new("TRUNCATE"))), super::sqlite::missing),
    ("sqlite-persist", || Ok(Box::new(Sqlite::new("PERSIST"))), super::sqlite::missing),
    ("postgresql", || Ok(Box::new(PostgreSql::new(true)?)), super::postgresql::missing),
    ("postgresql-half", || Ok(Box::new(PostgreSql::new(false)?)), super::postgresql::missing),
    ("fio-files", || Ok(Box::new(Fio::files())), super::fio::missing),
    ("fio-volume", || Ok(Box::new(Fio::volume())), super::fio::missing),
    (HISTORY, || Ok(Box::new(Histories::default())), || None),
];

/// The client that judges histories; the others are databases and fio.
pub(super) const HISTORY: &str = "history";

pub(super) fn names() -> Vec<&'static str> {
    KNOWN.iter().map(|known| known.0).collect()
}

/// Why a client cannot be run here.
pub(super) fn missing(name: &str) -> Option<String> {
    KNOWN.iter().find(|known| known.0 == name).and_then(|known| known.2())
}

/// After so many that others do, so many kills under a client, from a seed on. Each counts.
pub(super) fn campaign(cenote: &Path, name: &'static str, (before, count): (u64, u64), seed: u64) -> Result<Tally> {
    let make = KNOWN.iter().find(|known| known.0 == name).context("a client that is known")?.1;
    let mut tally = Tally::default();
    let mut sums = Sums::default();
    let started = Instant::now();
    let mut pool: Option<Pool> = None;
    for kill in before..before + count {
        let result = (|| {
            if pool.is_none() || kill % KILLS_OF_POOL == 0 {
                // The old one goes first, with its server.
                drop(pool.take());
                // In a short run each kill is of another layout.
                let at = if count < KILLS_OF_POOL { kill } else { kill / KILLS_OF_POOL };
                pool = Some(Pool::make(cenote, make()?, at, seed.wrapping_add(kill))?);
            }
            let pool = pool.as_mut().context("a pool")?;
            pool.kill(kill, &mut sums).with_context(|| format!("a pool of {}", pool.about))
        })();
        if let Err(error) = &result {
            println!("FAILED {name}, kill {kill}: {error:#}");
            if let Some(Pool { client, server, place, .. }) = pool.take() {
                drop((client, server));
                println!("the pool is kept in {}, as it was after the kill in killed/", place.dir.keep().display());
            }
        }
        if count < KILLS_OF_POOL {
            pool = None;
        }
        tally.count(result.is_ok());
        if (kill + 1) % KILLS_OF_POOL == 0 {
            println!("{name}: {} kills in {} s, {} failed", kill + 1, started.elapsed().as_secs(), tally.failed);
        }
    }
    println!(
        "{name}: {count} kills from seed {seed} in {:.0} s: {} failed; {} acknowledged, looked for {} times, {} more were there; \
         {} starts killed too, {} judgements of zdb",
        started.elapsed().as_secs_f64(),
        tally.failed,
        sums.compared.acknowledged,
        sums.compared.checked,
        sums.compared.unacknowledged,
        sums.starts,
        sums.zdb
    );
    if tally.failed == 0 && sums.compared.acknowledged == 0 {
        println!("FAILED {name}: nothing was ever acknowledged, so nothing could be lost");
        tally.failed += 1;
    }
    Ok(tally)
}

#[derive(Default)]
struct Sums {
    compared: Compared,
    starts: u64,
    zdb: u64,
}

/// A pool that lives through kills, and who works in it.
///
/// The client ends before the server, and the folder goes last.
struct Pool {
    client: Box<dyn Client>,
    server: Option<Server>,
    place: Place,
    about: String,
    numbers: Numbers,
}

impl Pool {
    fn make(cenote: &std::path::Path, mut client: Box<dyn Client>, at: u64, seed: u64) -> Result<Self> {
        let mut numbers = Numbers(seed);
        let (layout, has_log) = LAYOUTS[at as usize % LAYOUTS.len()];
        let record_size = RECORD_SIZES[numbers.below(RECORD_SIZES.len() as u64) as usize];
        let place = Place::make(cenote, layout, "512M", &["-O", record_size])?;
        if has_log {
            let log = place.images().join("log.img");
            File::create(&log)?.set_len(LOG_BYTES)?;
            place.run("zpool", &["add", "kills", "log", log.to_str().context("a path in UTF-8")?])?;
        }
        place.run("zfs", &["create", "-V", "32M", "-b", "8K", "kills/v"])?;
        let server = Server::start(&place, client.mount_options())?;
        client.prepare(&place)?;
        let about = format!("layout {:?}{}, {record_size}", layout.0, if has_log { " with a log device" } else { "" });
        Ok(Self { client, place, about, numbers, server: Some(server) })
    }

    /// Works, kills, judges, serves and compares, once.
    fn kill(&mut self, kill: u64, sums: &mut Sums) -> Result<()> {
        let is_long = kill.is_multiple_of(ZDB_EVERY);
        let mut server = self.server.take().context("a server")?;
        self.client.start(&self.place, &mut self.numbers)?;
        // Most kills meet work under way, some its beginning.
        if self.numbers.below(4) != 0 {
            self.client.wait_for_one()?;
        }
        std::thread::sleep(Duration::from_millis(1 + self.numbers.below(self.client.load_ms_max())));
        let early = self.client.ended()?;
        server.kill();
        let ended = self.client.end();
        if let Some(why) = early {
            bail!("the client failed before the kill: {why}; the server said: {}", server.said());
        }
        ended?;
        let killed = self.place.dir.path().join("killed");
        let mut copy = Command::new("cp");
        copy.args(["--reflink=auto", "--sparse=always", "-rT"]).arg(self.place.images()).arg(killed);
        process_good(&mut copy)?;
        if is_long {
            self.place.verify()?;
            self.place.zdb()?;
            sums.zdb += 1;
        }
        if self.numbers.below(STARTS_PER_KILL) == 0 {
            let mut server = Server::spawn(&self.place, self.client.mount_options())?;
            std::thread::sleep(Duration::from_millis(1 + self.numbers.below(START_MS_MAX)));
            server.kill();
            sums.starts += 1;
        }
        self.server = Some(Server::start(&self.place, self.client.mount_options())?);
        let compared = self.client.check(&self.place, is_long)?;
        sums.compared.acknowledged += compared.acknowledged;
        sums.compared.checked += compared.checked;
        sums.compared.unacknowledged += compared.unacknowledged;
        Ok(())
    }
}
