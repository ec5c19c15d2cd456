//! `zfs send`: a snapshot, or what changed since another one, as a stream on standard output.
//!
//! ```text
//!   Args ─┬─ one      a snapshot, from a snapshot or bookmark, redacted        -i --redact -p -h -b
//!         ├─ many     a tree, or all snapshots between two                     -R -I
//!         └─ resume   what a receiver has not got yet, or has got in part      -t -S
//!                └─► report: estimates and progress       job: one stream, and what its errors are called
//! ```
//! Nothing is written to the pool, so it is read as others have it open: by the view of a txg.

mod job;
mod many;
mod one;
mod report;
mod resume;

use anyhow::Result;
use cenote_dsl::name::Name;
use cenote_send::sender::SendFlags;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::outcome::{Outcome, usage};

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
    /// Not supported yet: progress in the title of the process.
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
    const fn flags(&self) -> SendFlags {
        let raw = self.raw;
        SendFlags {
            large_blocks: self.large_block || raw,
            embedded: self.embed || raw,
            compressed: self.compressed || raw,
            raw,
        }
    }

    /// As OpenZFS counts: for programs, something is said.
    const fn verbosity(&self) -> u8 {
        if self.parsable && self.verbose == 0 { 1 } else { self.verbose }
    }

    const fn has_list(&self) -> bool {
        self.props || self.holds || self.backup
    }

    const fn incremental(&self) -> Option<&String> {
        match &self.from {
            Some(from) => Some(from),
            None => self.all_from.as_ref(),
        }
    }

    /// The fault of options that do not go together, in OpenZFS's words; in its order.
    fn check(&self) -> Result<(), Refusal> {
        let slip = |text: &str| Err(Refusal::Usage(text.into()));
        let refuse = |text: &str| Err(Refusal::Failed(text.into()));
        for name in &self.exclude {
            if Name::parse(name).is_err() || !name.contains('/') || name.contains(['@', '#']) {
                return slip(&format!("-X {name}: not a valid non-root dataset name."));
            }
        }
        if !self.exclude.is_empty() && !self.replicate {
            return refuse("Cannot specify dataset exclusion (-X) on a non-recursive send.");
        }
        let is_incremental = self.incremental().is_some();
        if self.resume.is_some() && !self.saved {
            if is_incremental || self.replicate || self.has_list() || self.redact.is_some() {
                return slip("invalid flags combined with -t");
            }
            if self.dataset.is_some() {
                return slip("too many arguments");
            }
        } else if self.dataset.is_none() {
            return slip("missing snapshot argument");
        }
        if self.saved {
            let with_flags = self.flags() != SendFlags::default();
            if is_incremental || self.replicate || self.has_list() || with_flags || self.redact.is_some() {
                return slip("incompatible flags combined with saved send flag");
            }
            if self.dataset.as_ref().is_some_and(|name| name.contains('@')) {
                return slip("saved send must specify the dataset with partially-received state");
            }
        }
        if self.raw && self.redact.is_some() {
            return refuse("Error: raw sends may not be redacted.");
        }
        Ok(())
    }
}

/// Why nothing is tried.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// Called wrongly: status 2.
    Usage(String),
    /// Status 1.
    Failed(String),
}

impl From<Refusal> for anyhow::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Usage(text) => usage(text),
            Refusal::Failed(text) => anyhow::Error::msg(text),
        }
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if args.dedup {
        context.err(
            "WARNING: deduplicated send is no longer supported.  A regular,\nnon-deduplicated stream will be \
             generated.\n",
        );
    }
    args.check()?;
    if args.proctitle {
        anyhow::bail!("not supported yet: progress in the title of the process");
    }
    if !args.dryrun && context.output().is_terminal() {
        anyhow::bail!("Error: Stream can not be written to a terminal.\nYou must redirect standard output.");
    }
    let outcome = match (&args.dataset, &args.resume) {
        (Some(dataset), token) if args.saved => resume::saved(context, &args, dataset, token.as_deref()).await?,
        (_, Some(token)) => resume::run(context, &args, token).await?,
        (Some(dataset), None) => {
            if args.skip_missing && !args.replicate {
                return Err(usage("skip-missing flag can only be used in conjunction with replicate"));
            }
            if args.replicate || args.all_from.is_some() {
                many::run(context, &args, dataset).await?
            } else {
                one::run(context, &args, dataset).await?
            }
        }
        (None, None) => return Err(usage("missing snapshot argument")),
    };
    context.output().flush()?;
    // All that was read of a pool in use was of one txg.
    context.check_views()?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(change: impl FnOnce(&mut Args)) -> Result<(), Refusal> {
        let mut args = Args { dataset: Some("p/a@x".into()), ..Args::default() };
        change(&mut args);
        args.check()
    }

    #[test]
    fn options_that_do_not_go_together_are_refused_as_openzfs_does() {
        let slip = |text: &str| Err(Refusal::Usage(text.into()));
        let refused = |text: &str| Err(Refusal::Failed(text.into()));
        assert_eq!(checked(|_| ()), Ok(()));
        assert_eq!(checked(|args| args.dataset = None), slip("missing snapshot argument"));
        assert_eq!(
            checked(|args| args.exclude = vec!["p/a".into()]),
            refused("Cannot specify dataset exclusion (-X) on a non-recursive send.")
        );
        assert_eq!(checked(|args| args.exclude = vec!["p".into()]), slip("-X p: not a valid non-root dataset name."));
        assert_eq!(
            checked(|args| {
                args.resume = Some("1-2-3-4".into());
                args.replicate = true;
            }),
            slip("invalid flags combined with -t")
        );
        assert_eq!(checked(|args| args.resume = Some("1-2-3-4".into())), slip("too many arguments"));
        assert_eq!(
            checked(|args| {
                args.saved = true;
                args.compressed = true;
            }),
            slip("incompatible flags combined with saved send flag")
        );
        assert_eq!(
            checked(|args| args.saved = true),
            slip("saved send must specify the dataset with partially-received state")
        );
        assert_eq!(
            checked(|args| {
                args.raw = true;
                args.redact = Some("b".into());
            }),
            refused("Error: raw sends may not be redacted.")
        );
    }
}
