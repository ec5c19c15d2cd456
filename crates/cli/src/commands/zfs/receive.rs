//! `zfs receive`: a stream on standard input becomes a snapshot, and a package of them a tree.

use std::io::{self, BufReader};

use anyhow::{anyhow, bail};
use cenote_admin::Owner;
use cenote_admin::receive::{HealRequest, Naming, ReceiveRequest, Told, heal as healing};
use cenote_server::writing::{Writing, line};
use cenote_server::{Input, verbs};

use crate::prelude::*;

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
    fn request(&self, owner: Owner) -> Result<ReceiveRequest> {
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
            owner,
            ..ReceiveRequest::default()
        };
        request.set(&self.properties, &self.exclude)?;
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
    let request = args.request(context.owner())?;
    let pool = Writing::open(context, pool_of(&args.target)).await?.in_background(context).await;
    let (input, mut said) = (stream(context)?, Ok(()));
    let received = verbs::receive(context, pool.pool(), input, &request, &mut tell(context, &mut said)).await;
    // A message that could not be printed is an error only after the pool is in its final state.
    let said = said.and_then(|()| context.output().flush());
    if !request.is_dry {
        pool.work_off(context, "freeing").await?;
        pool.finish(args.line()).await?;
    }
    let outcome = received?;
    said?;
    Ok(Outcome::unless(outcome.is_incomplete && !request.is_dry))
}

/// Standard input, which must not be a terminal.
fn stream(context: &Context) -> Result<BufReader<Input>> {
    let input = context.input()?;
    if input.is_terminal() {
        bail!("Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.");
    }
    Ok(BufReader::with_capacity(READ_BYTES, input))
}

/// Says what a receive tells.
fn tell<'a>(context: &'a Context, said: &'a mut io::Result<()>) -> impl FnMut(Told) + Send + Sync + 'a {
    move |told| match told {
        Told::Out(text) if said.is_ok() => *said = context.output().out(format!("{text}\n")),
        Told::Out(_) => {}
        Told::Err(text) => context.err(text),
    }
}

async fn heal(context: &Context, args: &Args) -> Result<Outcome> {
    let with_names = args.without_pool || args.last || !args.properties.is_empty() || !args.exclude.is_empty();
    let others = args.force || args.resumable || args.abort || args.skip_holds || args.keep_unmounted;
    if with_names || others {
        bail!("cannot receive: corrective recv can not be used when combined with this flag");
    }
    let pool = Writing::open(context, pool_of(&args.target)).await?;
    let (input, mut said) = (stream(context)?, Ok(()));
    let request = HealRequest { target: args.target.clone(), is_verbose: args.verbose, is_dry: args.dryrun };
    let healed = healing(pool.pool(), input, &request, &mut tell(context, &mut said)).await;
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
    // OpenZFS shows the usage where there is no such dataset.
    if let Err(error) = pool.pool().dsl()?.dataset(name).await {
        return Err(usage(error.to_string()));
    }
    let aborted = pool.pool().abort_receive(name).await;
    aborted.map_err(|error| anyhow!("{error}"))?;
    pool.work_off(context, "freeing").await?;
    pool.finish(args.line()).await?;
    Ok(Outcome::Good)
}
