//! `zfs send`: a snapshot, or what changed since another one, as a stream on standard output.

mod report;

use std::any::Any;
use std::io::{self, Write};
use std::sync::Arc;

use anyhow::bail;
use cenote_admin::send::{SendCaller, SendFlags, SendOptions, SendProgress, Sending, Told};

use self::report::Watch;
use crate::outcome::{ResumeError, causes};
use crate::output::Content;
use crate::prelude::*;

/// Write a stream of a snapshot to standard output, for a receiver elsewhere.
///
/// Streams are OpenZFS's. An encrypted dataset is sent in the clear if its key is given with --key, or raw (-w) without a key.
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
#[command(disable_help_flag = true)]
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct Args {
    /// Only what changed since this snapshot or bookmark (`@NAME`, `#NAME`: of the same dataset).
    #[arg(short = 'i', value_name = "SNAPSHOT|BOOKMARK", conflicts_with = "all_from")]
    from: Option<String>,
    /// All snapshots after this one.
    #[arg(short = 'I', value_name = "SNAPSHOT")]
    all_from: Option<String>,
    /// Everything below too, with properties and all earlier snapshots (or those after that of -i or -I).
    #[arg(short = 'R', long)]
    replicate: bool,
    /// With -R, leave out these datasets with everything below; several are separated by commas.
    #[arg(short = 'X', long, value_name = "DATASET", value_delimiter = ',')]
    exclude: Vec<String>,
    /// With -R, pass over datasets without the snapshot.
    #[arg(short = 's', long)]
    skip_missing: bool,
    /// Leave out the blocks of a redaction bookmark.
    #[arg(short = 'd', long, value_name = "BOOKMARK")]
    redact: Option<String>,
    /// With properties.
    #[arg(short = 'p', long)]
    props: bool,
    /// Properties as they were received, in place of those in force.
    #[arg(short = 'b', long)]
    backup: bool,
    /// With holds.
    #[arg(short = 'h', long)]
    holds: bool,
    /// Send encrypted datasets with properties in the clear.
    #[arg(short = 'U', long)]
    no_preserve_encryption: bool,
    /// Blocks above 128 KiB as they are.
    #[arg(short = 'L', long)]
    large_block: bool,
    /// Blocks in their pointers as they are.
    #[arg(short = 'e', long)]
    embed: bool,
    /// Compressed blocks as they are.
    #[arg(short = 'c', long)]
    compressed: bool,
    /// Blocks as they lie on disk: encrypted ones stay so. Implies -Lec.
    #[arg(short = 'w', long)]
    raw: bool,
    /// Go on where the receiver that has this token was interrupted.
    #[arg(short = 't', long, value_name = "TOKEN")]
    resume: Option<String>,
    /// Send what was received in part.
    #[arg(short = 'S', long)]
    saved: bool,
    /// Send nothing; with -v say how long the stream would be.
    #[arg(short = 'n', long)]
    dryrun: bool,
    /// Say what is sent, how long it is likely to be, and each second how far it is; twice: blocks too.
    #[arg(short = 'v', long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Say it for programs: exact numbers between tabs.
    #[arg(short = 'P', long)]
    parsable: bool,
    /// Show in the name of the process how much is sent: `sending 45%`.
    #[arg(short = 'V', long)]
    proctitle: bool,
    /// Has no effect: streams are not deduplicated any more.
    #[arg(short = 'D', long)]
    dedup: bool,
    /// This text.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The snapshot; a file system or volume, as it is now.
    dataset: Option<String>,
}

impl Args {
    fn options(self) -> SendOptions {
        let raw = self.raw;
        SendOptions {
            flags: SendFlags {
                large_blocks: self.large_block || raw,
                embedded: self.embed || raw,
                compressed: self.compressed || raw,
                raw,
            },
            dataset: self.dataset,
            from: self.from,
            all_from: self.all_from,
            replicate: self.replicate,
            exclude: self.exclude,
            skip_missing: self.skip_missing,
            redact: self.redact,
            props: self.props,
            backup: self.backup,
            holds: self.holds,
            no_preserve_encryption: self.no_preserve_encryption,
            token: self.resume,
            saved: self.saved,
            dryrun: self.dryrun,
            // As OpenZFS counts: for programs, something is said.
            verbosity: if self.parsable && self.verbose == 0 { 1 } else { self.verbose },
            parsable: self.parsable,
            is_titled: self.proctitle,
        }
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let told = (args.verbose > 0).then(|| context.clone().in_place(false));
    let context = told.as_ref().unwrap_or(context);
    if args.dedup {
        context.err(
            "WARNING: deduplicated send is no longer supported.  A regular,\nnon-deduplicated stream will be \
             generated.\n",
        );
    }
    let verbose = args.verbose;
    let options = args.options();
    options.check()?;
    if !options.dryrun && context.output().is_terminal() {
        bail!("Error: Stream can not be written to a terminal.\nYou must redirect standard output.");
    }
    let is_whole = sent(context, &options, verbose).await.map_err(|error| match options.is_resumed() {
        true => {
            let text = causes(&error);
            error.context(ResumeError(text))
        }
        false => error,
    })?;
    context.output().flush()?;
    // All that was read of a pool in use was of one txg.
    context.check_views()?;
    Ok(Outcome::unless(!is_whole))
}

async fn sent(context: &Context, options: &SendOptions, verbose: u8) -> Result<bool> {
    let pool = context.open_pool(&options.pool()?).await?;
    let sending = Sending {
        pool: &pool,
        options,
        settings: context.tunables(),
        is_kept: &|| context.check_kept(),
        caller: &Caller { context, verbose, parsable: options.parsable },
    };
    Ok(sending.run().await?)
}

/// Standard output for the bytes of streams, and for what is said of them.
struct Caller<'a> {
    context: &'a Context,
    verbose: u8,
    parsable: bool,
}

impl SendCaller for Caller<'_> {
    fn told(&self, told: Told) -> io::Result<()> {
        match told {
            Told::Out(text) => return self.context.output().out(format!("{text}\n")),
            Told::Err(text) => self.context.err(text),
        }
        Ok(())
    }

    fn out(&self) -> Box<dyn Write + Send + '_> {
        Box::new(Content(self.context.output().clone()))
    }

    fn begins(&self, snapshot: &str, progress: &Arc<SendProgress>, bytes: Option<u64>) -> Box<dyn Any + Send> {
        Box::new(Watch::start(self.context, self.verbose, self.parsable, bytes, snapshot, progress))
    }
}
