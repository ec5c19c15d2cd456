//! `zpool initialize`.

use std::path::PathBuf;

use cenote_admin::{LeafAction, LeafWorkKind, LeafWorkRequest};
use cenote_server::exporting;
use cenote_server::verbs::work_on_leaves;

use crate::prelude::*;

/// Write all free space of devices once, so that the first write of a block there takes no longer than others.
///
/// In a pool that a mount or a server has it goes on in the background: 'zpool status -i' shows how far it is. Otherwise this command does it; it may be
/// interrupted, and goes on when the pool is served. OpenZFS goes on with it, too.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of OpenZFS's")]
pub(crate) struct Args {
    /// Give it up.
    #[arg(short = 'c', conflicts_with_all = ["suspend", "forget", "wait"])]
    cancel: bool,
    /// Have it wait, until 'zpool initialize' has it go on.
    #[arg(short = 's', conflicts_with_all = ["forget", "wait"])]
    suspend: bool,
    /// Forget that devices were initialized.
    #[arg(short = 'u', conflicts_with = "wait")]
    forget: bool,
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
    let action = match (args.cancel, args.suspend, args.forget) {
        (true, ..) => LeafAction::Cancel,
        (_, true, _) => LeafAction::Suspend,
        (.., true) => LeafAction::Forget,
        _ => LeafAction::Start { rate_bytes: 0 },
    };
    let flags = [(args.cancel, "-c"), (args.suspend, "-s"), (args.forget, "-u"), (args.wait, "-w")];
    let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.to_owned()).collect();
    let request = LeafWorkRequest {
        pool,
        kind: LeafWorkKind::Initialize,
        action,
        devices: Vec::new(),
        is_of_all: false,
        is_secure: false,
        waits: args.wait,
        words: (flags, args.devices),
    };
    Ok(Outcome::unless(!work_on_leaves(context, request, &args.folder).await?))
}
