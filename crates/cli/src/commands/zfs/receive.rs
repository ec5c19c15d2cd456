//! `zfs receive`: a stream on standard input becomes a snapshot, and a package of them a tree.

use std::io::{self, BufReader};

use anyhow::{anyhow, bail};
use cenote_admin::receive::{HealRequest, Naming, ReceiveRequest, Told, heal as healing};
use cenote_admin::{Line, Owner};
use cenote_server::writing::Writing;
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

    fn line(&self) -> Line {
        let flags = [
            (self.force, "-F"),
            (self.resumable, "-s"),
            (self.abort, "-A"),
            (self.heal, "-c"),
            (self.without_pool, "-d"),
            (self.last, "-e"),
        ];
        let line = flags.iter().fold(Line::new("zfs receive"), |line, (is_given, flag)| line.flag(*is_given, flag));
        line.option("-o", &self.properties).option("-x", &self.exclude).word(&self.target)
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
    let work = async |writing: &mut Writing| -> Result<Outcome> {
        writing.begin_background(context).await;
        if !request.is_dry {
            writing.record(&args.line());
        }
        let (input, mut said) = (stream(context)?, Ok(()));
        let received = verbs::receive(context, writing.pool(), input, &request, &mut tell(context, &mut said)).await;
        // A message that could not be printed is an error only after the pool is in its final state.
        let said = said.and_then(|()| context.output().flush());
        if !request.is_dry {
            writing.work_off(context, "freeing").await?;
        }
        let outcome = received?;
        said?;
        Ok(Outcome::unless(outcome.is_incomplete && !request.is_dry))
    };
    Writing::run(context, pool_of(&args.target), work).await
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
    let request = HealRequest { target: args.target.clone(), is_verbose: args.verbose, is_dry: args.dryrun };
    let work = async |writing: &mut Writing| -> Result<Outcome> {
        if !args.dryrun {
            writing.record(&args.line());
        }
        let (input, mut said) = (stream(context)?, Ok(()));
        let healed = healing(writing.pool(), input, &request, &mut tell(context, &mut said)).await;
        healed?;
        said?;
        Ok(Outcome::Good)
    };
    Writing::run(context, pool_of(&args.target), work).await
}

async fn abort(context: &Context, args: &Args) -> Result<Outcome> {
    let name = &args.target;
    if args.without_pool || args.last || args.force || args.resumable || args.dryrun {
        return Err(usage("-A cannot be used with any other options"));
    }
    let work = async |writing: &mut Writing| -> Result<Outcome> {
        // OpenZFS shows the usage where there is no such dataset.
        if let Err(error) = writing.pool().dsl()?.dataset(name).await {
            return Err(usage(error.to_string()));
        }
        writing.record(&args.line());
        let aborted = writing.pool().abort_receive(name).await;
        aborted.map_err(|error| anyhow!("{error}"))?;
        writing.work_off(context, "freeing").await?;
        Ok(Outcome::Good)
    };
    Writing::run(context, pool_of(name), work).await
}
