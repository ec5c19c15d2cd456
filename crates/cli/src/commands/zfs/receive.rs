//! `zfs receive`: a stream on standard input becomes a snapshot, and a package of them a tree.

use std::io::BufReader;

use anyhow::{Result, anyhow, bail};
use cenote_admin::receive::{
    Caller, HealRequest, Naming, OF_ENCRYPTION, ReceiveRequest, Told, heal as healing, receive,
};
use cenote_dsl::name::is_at_or_below;
use cenote_props::{Types, is_user_property};
use cenote_spa::{Pool, PropertyValue};
use cenote_taskq::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use cenote_admin::values::dataset_setting;
use cenote_admin::values::{When, check_once};
use cenote_server::Standstill;
use cenote_server::writing::{Writing, line};

/// Properties that served volumes obey.
const OF_VOLUMES: [&str; 3] = ["logbias", "readonly", "sync"];
/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// Receive a stream of `zfs send` from standard input.
///
/// A stream of a whole file system makes a new one; an incremental one goes on top of the snapshot that it builds on. Nothing is seen of it
/// until all has come. If Cenote has the dataset mounted or serves it, its users wait for a moment then, and see the new state.
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
#[command(disable_help_flag = true)]
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct Args {
    /// Destroy changes and later snapshots in the way, and with a package all that its sender has no more.
    #[arg(short = 'F')]
    force: bool,
    /// If it breaks off, keep what has come; 'zfs get receive_resume_token' says where to go on.
    #[arg(short = 's')]
    resumable: bool,
    /// Give up what has come in part.
    #[arg(short = 'A')]
    abort: bool,
    /// Add all of the sent name but its pool.
    #[arg(short = 'd', conflicts_with = "last")]
    without_pool: bool,
    /// Add the last part of the sent name.
    #[arg(short = 'e')]
    last: bool,
    /// Leave out holds.
    #[arg(short = 'h')]
    skip_holds: bool,
    /// Receive nothing; with -v say what would be.
    #[arg(short = 'n')]
    dryrun: bool,
    /// Say what is received.
    #[arg(short = 'v')]
    verbose: bool,
    /// Set a property in place of the one that comes; `origin=SNAPSHOT`: as a clone of it.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// Leave out a property that comes.
    #[arg(short = 'x', value_name = "PROPERTY")]
    exclude: Vec<String>,
    /// Accepted for the sake of scripts: nothing is mounted by this.
    #[arg(short = 'u')]
    keep_unmounted: bool,
    /// Accepted for the sake of scripts: nothing is unmounted by this.
    #[arg(short = 'M')]
    force_unmount: bool,
    /// Heal damaged blocks of an existing snapshot from a stream of it. Nothing else is changed.
    #[arg(short = 'c')]
    heal: bool,
    /// This text.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The file system, volume or snapshot.
    #[arg(value_name = "DATASET|SNAPSHOT")]
    target: String,
}

impl Args {
    fn request(&self) -> Result<ReceiveRequest> {
        check_once(&self.properties)?;
        let mut request = ReceiveRequest {
            target: self.target.clone(),
            naming: match (self.without_pool, self.last) {
                (_, true) => Naming::Last,
                (true, _) => Naming::WithoutPool,
                _ => Naming::Exact,
            },
            is_forced: self.force,
            is_resumable: self.resumable,
            skips_holds: self.skip_holds,
            is_verbose: self.verbose,
            is_dry: self.dryrun,
            ..ReceiveRequest::default()
        };
        for text in &self.properties {
            if let Some(origin) = text.strip_prefix("origin=") {
                request.origin = Some(origin.to_owned());
                continue;
            }
            if text.starts_with("volsize=") {
                bail!("not supported yet: changing the property 'volsize' of what is received");
            }
            let (name, value) = text.split_once('=').unwrap_or((text, ""));
            if name == "keylocation" {
                request.overrides.push((name.to_owned(), PropertyValue::Text(value.to_owned())));
                continue;
            }
            if OF_ENCRYPTION.contains(&name) {
                request.encryption.push(name.to_owned());
            }
            // Which of them it is, is not known before the stream.
            let either = Types::FILESYSTEM | Types::VOLUME;
            let setting = dataset_setting(text, When::Creation, either);
            let setting = setting.map_err(|error| anyhow!("cannot receive: {error:#}"))?;
            request.overrides.extend(setting);
        }
        for name in &self.exclude {
            let is_known = is_user_property(name) || cenote_props::dataset::find(name).is_some();
            if !is_known {
                bail!("cannot receive: invalid property '{name}'");
            }
            let is_given = request.overrides.iter().any(|(given, _)| given == name);
            if is_given || request.excluded.contains(name) {
                bail!("property '{name}' specified multiple times");
            }
            request.excluded.push(name.clone());
        }
        Ok(request)
    }

    fn line(&self) -> String {
        let flag = |is_given: bool, flag: &'static str| if is_given { flag } else { "" };
        let words = ["zfs", "receive", flag(self.force, "-F"), flag(self.resumable, "-s"), flag(self.abort, "-A")];
        let more = [flag(self.heal, "-c"), flag(self.without_pool, "-d"), flag(self.last, "-e")];
        let words = words.into_iter().chain(more);
        let options = self.properties.iter().flat_map(|setting| ["-o", setting]);
        let excluded = self.exclude.iter().flat_map(|name| ["-x", name]);
        line(words.chain(options).chain(excluded).chain([self.target.as_str()]))
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if args.heal {
        return heal(context, &args).await;
    }
    if args.abort {
        return abort(context, &args).await;
    }
    let request = args.request()?;
    let pool = Writing::open(context, pool_of(&args.target)).await?.in_background(context).await;
    let input = context.input()?;
    if input.is_terminal() {
        bail!("Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.");
    }
    let mut listener =
        Listener { context, pool: pool.pool(), is_forced: args.force, said: Ok(()), released: Vec::new(), still: None };
    let input = BufReader::with_capacity(READ_BYTES, input);
    let received = receive(pool.pool(), input, &request, &mut listener).await;
    let Listener { said, mut released, .. } = listener;
    // What could not be said is an error once the pool is left as it is to be.
    let said = said.and_then(|()| Ok(context.output().flush()?));
    // Streams that came are received, also where a later one of the package was refused; and datasets that left their mounts come back.
    if let Ok(outcome) = &received {
        released.extend(outcome.datasets.iter().cloned());
    }
    context.datasets_changed(&released).await;
    if let Some(volumes) = context.served_volumes() {
        // Properties that came with the streams. Mounts have read theirs.
        volumes.refresh(&OF_VOLUMES.map(str::to_owned)).await.iter().for_each(|line| context.err(line));
    }
    if request.is_dry {
        // Nothing was changed.
        received?;
        said?;
        return Ok(Outcome::Good);
    }
    pool.work_off(context, "freeing").await?;
    pool.finish(args.line()).await?;
    let outcome = received?;
    said?;
    Ok(Outcome::unless(outcome.is_incomplete))
}

/// Says what a receive tells, has users of this process's datasets wait while these change, and mounts let go of those that go.
struct Listener<'a> {
    context: &'a Context,
    pool: &'a Pool,
    is_forced: bool,
    said: Result<()>,
    /// Datasets that mounts were asked to let go of.
    released: Vec<String>,
    still: Option<Standstill>,
}

impl Listener<'_> {
    async fn suspend(&mut self, dataset: &str, written: &str) -> Result<()> {
        // Only with -F do snapshots go.
        self.context.let_go(|held| held.dir.name == dataset && (self.is_forced || !held.is_snapshot())).await?;
        let mut still = self.context.stand_still(dataset).await?;
        self.pool.settle_logs().await?;
        // The comparison with the snapshot reads the users' changes from disk.
        self.pool.sync().await?;
        still.note_changes(self.pool, dataset, written).await?;
        self.still = Some(still);
        Ok(())
    }
}

impl Caller for Listener<'_> {
    fn told(&mut self, told: Told) {
        match told {
            Told::Out(text) if self.said.is_ok() => self.said = self.context.out(format!("{text}\n")),
            Told::Out(_) => {}
            Told::Err(text) => self.context.err(text),
        }
    }

    fn has_users_wait(&self) -> bool {
        self.context.served().is_some()
    }

    fn stand_still<'a>(&'a mut self, dataset: &'a str, written: &'a str) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move { self.suspend(dataset, written).await.map_err(|error| format!("{error:#}")) })
    }

    fn go_on(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(still) = self.still.take()
                && let Err(error) = still.go_on().await
            {
                self.context.err(error.chain());
            }
        })
    }

    fn lets_go<'a>(&'a mut self, dataset: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.released.push(dataset.to_owned());
            // A dataset in use is refused afterwards, in OpenZFS's words.
            let _ = self.context.release(&self.released[self.released.len() - 1..], "receive").await;
            let _ = self.context.let_go(|held| is_at_or_below(&held.dir.name, dataset)).await;
        })
    }
}

async fn heal(context: &Context, args: &Args) -> Result<Outcome> {
    let with_names = args.without_pool || args.last || !args.properties.is_empty() || !args.exclude.is_empty();
    let others = args.force || args.resumable || args.abort || args.skip_holds || args.keep_unmounted;
    if with_names || others {
        bail!("cannot receive: corrective recv can not be used when combined with this flag");
    }
    let pool = Writing::open(context, pool_of(&args.target)).await?;
    let input = context.input()?;
    if input.is_terminal() {
        bail!("Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.");
    }
    let request = HealRequest { target: args.target.clone(), is_verbose: args.verbose, is_dry: args.dryrun };
    let mut said = Ok(());
    let mut tell = |told: Told| match told {
        Told::Out(text) if said.is_ok() => said = context.out(format!("{text}\n")),
        Told::Out(_) => {}
        Told::Err(text) => context.err(text),
    };
    let healed = healing(pool.pool(), BufReader::with_capacity(READ_BYTES, input), &request, &mut tell).await;
    if !args.dryrun {
        pool.finish(args.line()).await?;
    }
    healed?;
    said?;
    Ok(Outcome::Good)
}

async fn abort(context: &Context, args: &Args) -> Result<Outcome> {
    let name = &args.target;
    if args.without_pool || args.last || args.force || args.resumable || args.dryrun {
        return Err(usage("-A cannot be used with any other options"));
    }
    let pool = Writing::open(context, pool_of(name)).await?;
    let aborted = pool.pool().abort_receive(name).await;
    aborted.map_err(|error| anyhow!("{error}"))?;
    pool.work_off(context, "freeing").await?;
    pool.finish(args.line()).await?;
    Ok(Outcome::Good)
}
