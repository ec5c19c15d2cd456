//! `cenote mount`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use cenote_fuse::{MountOptions, change_mount};
use cenote_host::Mounts;
use cenote_server::{Owned, Recovery, ServedPool, ServerError, Who, ending, protocol, signals};
use serde::{Deserialize, Serialize};
use signal_hook::iterator::Signals;

use crate::args::GoesOn;
use crate::args::Search;
use crate::context::Context;
use crate::files::pool_of;
use crate::live;
use crate::outcome::{Outcome, usage};
use cenote_server::Delegated;
use cenote_server::background::Going;

/// Mount a dataset or snapshot as a folder until interrupted or unmounted; read-only unless `--rw` is given.
///
/// Datasets below it stand where their `mountpoint` puts them, snapshots in `.zfs/snapshot`. Works as root, and through
/// fusermount3 as anybody.
///
/// With `--rw` files can be changed, in the datasets below too: each as its own properties say, and read-only where it cannot be written
/// yet, which is said. Datasets that commands make, rename and destroy come and go in the mount; `zfs destroy` is refused for one that is
/// in use there. The pool is this process's alone meanwhile, which takes commands for it; what a program has synced (`fsync`) is on disk
/// when it is told so, everything else within seconds, and an interrupt or `umount` ends with everything written and the pool exported.
///
/// A pool that another process of Cenote has for writing is mounted by that process, which goes on until its last mount has ended. This
/// command then waits for the end of its own mount, and an interrupt ends that mount alone.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    /// Mount options, separated by commas: allow_other, allow_root, auto_unmount, default_permissions or
    /// no_default_permissions, dev or nodev, suid or nosuid, exec or noexec, atime, noatime, relatime or strictatime, sync or async,
    /// io_uring or no_io_uring, threads=N, read_ahead=KIB, layout=mountpoints|names|alone.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Let files be changed.
    #[arg(long)]
    rw: bool,
    /// Take commands for the pool at this unix socket instead of one beside the cache file; clients find it by CENOTE_CONTROL.
    #[arg(long, value_name = "SOCKET", requires = "rw")]
    control: Option<PathBuf>,
    /// Change the options of a mount that is there: dev, suid, exec, and whether it may be written.
    #[arg(long)]
    remount: bool,
    #[command(flatten)]
    goes_on: GoesOn,
    /// The dataset, or dataset@snapshot.
    dataset: String,
    /// Where: a folder that is there.
    mountpoint: PathBuf,
}

impl Args {
    /// Its options as a command that goes on until it is ended.
    pub(crate) const fn goes_on(&self) -> &GoesOn {
        &self.goes_on
    }

    /// Whether the process that has the pool can do it: it mounts for writing.
    pub(crate) const fn is_for_server(&self) -> bool {
        self.rw && !self.remount
    }

    /// Whether it only changes a mount that another process serves.
    pub(crate) const fn is_remount(&self) -> bool {
        self.remount
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let options = parse_options(&args.options)?;
    if args.remount {
        return change(&args, &options);
    }
    if let Some(of) = context.served_pool() {
        return take_over(context, of, &args, &options).await;
    }
    let context = context.with(&args.search).quiet(args.goes_on.quiet);
    let going = Going::begin((&args.goes_on).into(), &args.dataset)?;
    // Before anything is mounted: an interrupt from now on ends the mount and not the program.
    let signals = signals::ending()?;
    let pool_name = pool_of(&args.dataset);
    let at: &Path = &args.mountpoint;
    if args.rw {
        check_options(&args.options)?;
        let mut pools = live::pools(&context, true);
        let control = args.control.as_deref();
        let opened = match pools.open(&context, pool_name, Recovery::Retry, control).await {
            Err(ServerError::Owned(owned)) => return delegate(&context, &owned, &args, &going, signals).await,
            opened => opened,
        };
        let begun = async {
            opened?;
            for of in pools.all() {
                let at = of.mounts.mount(&of.pool, &args.dataset, at, &options).await?;
                let end = going.options().end("unmount");
                context.tell(format!("'{}' is mounted at {} for writing; {end}", args.dataset, at.display()));
            }
            Ok(None)
        };
        let begun = begun.await;
        pools.serve(begun, || going.ready(&**context.console()), || going.ends(), signals).await?;
        return Ok(Outcome::Good);
    }
    let report = context.clone();
    let report = Arc::new(move |line: &str| report.err(line));
    let pool = context.open_pool(pool_name).await?;
    context.say_notes(pool.name(), pool.notes());
    let mount = cenote_fuse::mount(context.handle(), &pool, &args.dataset, at, &options, report).await?;
    let end = going.options().end("unmount");
    context.tell(format!("'{}' is mounted at {}; {end}", args.dataset, mount.mountpoint().display()));
    going.ready(&**context.console())?;
    ending::wait_for(context.handle(), &**context.console(), &[Arc::new(mount)], signals).await?;
    Ok(Outcome::Good)
}

/// Has the process that has the pool mount the dataset.
async fn delegate(context: &Context, owned: &Owned, args: &Args, going: &Going, signals: Signals) -> Result<Outcome> {
    if args.control.is_some() {
        return Err(usage(format!("--control is for a pool that no process has: {owned}")));
    }
    let mount = Delegated { dataset: &args.dataset, at: &args.mountpoint, options: &args.options };
    Ok(Outcome::unless(!mount.serve(context, &owned.socket, going, signals).await?))
}

/// Mounts the dataset for another process that was asked to. The mount is this process's from now on.
async fn take_over(context: &Context, of: &ServedPool, args: &Args, options: &MountOptions) -> Result<Outcome> {
    context.check_served(pool_of(&args.dataset))?;
    ensure!(args.rw && args.mountpoint.is_absolute(), "a server of a pool does not do this");
    check_options(&args.options)?;
    of.mounts.mount(&of.pool, &args.dataset, &args.mountpoint, options).await?;
    Ok(Outcome::Good)
}

/// Changes the options of a mount that is there.
fn change(args: &Args, options: &MountOptions) -> Result<Outcome> {
    let mounts = Mounts::read();
    let at = args.mountpoint.display();
    let mount = mounts.find(&args.mountpoint.to_string_lossy()).filter(|mount| mount.is_ours());
    let Some(mount) = mount.filter(|mount| mount.dataset == args.dataset) else {
        bail!("cannot remount: '{}' is not mounted at '{at}'", args.dataset);
    };
    let is_served = |who: &Who| who.mounts.iter().any(|(name, at)| *name == mount.dataset && *at == mount.at);
    if args.rw && !protocol::servers().iter().any(|(_, who)| is_served(who)) {
        bail!(
            "cannot remount '{at}' for writing: not supported yet: the pool of a read-only mount is open read-only; unmount it and \
             mount it with -o rw"
        );
    }
    change_mount(&mount.at, options, !args.rw).with_context(|| format!("cannot remount '{at}'"))?;
    Ok(Outcome::Good)
}

/// The mount options of a command line.
pub(crate) fn parse_options(lists: &[String]) -> Result<MountOptions> {
    let mut options = MountOptions::default();
    for list in lists {
        options.parse(list).map_err(usage)?;
    }
    Ok(options)
}

/// The words of `-o` that say something else than `--rw`.
pub(crate) fn check_options(lists: &[String]) -> Result<()> {
    match lists.iter().flat_map(|list| list.split(',')).any(|word| word == "ro") {
        true => Err(usage("mount option 'ro' and --rw exclude each other")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_contradict_writing_are_refused_by_name() {
        let lists = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        check_options(&lists(&["allow_other,layout=alone", "nosuid"])).unwrap();
        let error = check_options(&lists(&["nosuid", "exec,ro"])).unwrap_err().to_string();
        assert!(error.contains("'ro'"), "{error}");
    }
}
