//! `zpool trim`.

use std::path::PathBuf;

use cenote_admin::values::parse_size;
use cenote_admin::{LeafAction, LeafWorkKind, LeafWorkRequest};
use cenote_server::exporting;
use cenote_server::verbs::work_on_leaves;

use crate::prelude::*;

/// Tell devices which of their space is free: SSDs, and files, which get holes there.
///
/// In a pool that a mount or a server has it goes on in the background: 'zpool status -t' shows how far it is. Otherwise this command does it; it may be
/// interrupted, and goes on when the pool is served. OpenZFS goes on with it, too.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of OpenZFS's")]
pub(crate) struct Args {
    /// Give it up.
    #[arg(short = 'c', conflicts_with_all = ["suspend", "wait", "rate"])]
    cancel: bool,
    /// Have the devices erase it. No device is known that can: it is refused for each, as for files in OpenZFS.
    #[arg(short = 'd')]
    secure: bool,
    /// Bytes a second for each device, such as 500M; as fast as they can if it is left out.
    #[arg(short = 'r', value_name = "RATE")]
    rate: Option<String>,
    /// Have it wait, until 'zpool trim' has it go on.
    #[arg(short = 's', conflicts_with_all = ["wait", "rate"])]
    suspend: bool,
    /// Wait until it has ended.
    #[arg(short = 'w')]
    wait: bool,
    /// All pools that are imported.
    #[arg(short = 'a', long = "all", conflicts_with_all = ["pool", "devices"])]
    all: bool,
    /// The pool.
    #[arg(required_unless_present = "all")]
    pool: Option<String>,
    /// The devices; all if none is named.
    #[arg(value_name = "DEVICE")]
    devices: Vec<String>,
    /// The folder in which the command was given: a server works in another one.
    #[arg(skip = std::env::current_dir().unwrap_or_default())]
    folder: PathBuf,
}

impl Args {
    /// One for each pool, where it is for all.
    pub(crate) fn of_pools(&self) -> Vec<Self> {
        let names = if self.all { exporting::names_of_all().unwrap_or_default() } else { Vec::new() };
        names.into_iter().map(|name| Self { pool: Some(name), all: false, ..self.clone() }).collect()
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let Some(pool) = args.pool else {
        // All pools are parts of this command, and there are none.
        exporting::names_of_all()?;
        context.err("no pools available");
        return Ok(Outcome::Good);
    };
    let rate_bytes = match &args.rate {
        Some(rate) => parse_size(rate).map_err(|error| anyhow::anyhow!("invalid value for rate: {error}"))?,
        None => 0,
    };
    let action = match (args.cancel, args.suspend) {
        (true, _) => LeafAction::Cancel,
        (_, true) => LeafAction::Suspend,
        _ => LeafAction::Start { rate_bytes },
    };
    let flags = [(args.cancel, "-c"), (args.secure, "-d"), (args.suspend, "-s"), (args.wait, "-w")];
    let mut flags: Vec<String> =
        flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.to_owned()).collect();
    flags.extend(args.rate.iter().flat_map(|rate| ["-r".to_owned(), rate.clone()]));
    let request = LeafWorkRequest {
        pool,
        kind: LeafWorkKind::Trim,
        action,
        devices: Vec::new(),
        is_of_all: false,
        is_secure: args.secure,
        waits: args.wait,
        words: (flags, args.devices),
    };
    Ok(Outcome::unless(!work_on_leaves(context, request, &args.folder).await?))
}
