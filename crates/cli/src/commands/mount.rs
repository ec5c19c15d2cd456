//! `cenote mount`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use cenote_fuse::{MountError, MountHandle, MountOptions, Unmount, Unmounted, change_mount};
use cenote_taskq::Either;
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;

use crate::args::Search;
use crate::background::{GoesOn, Going};
use crate::context::Context;
use crate::control::{self, Who};
use crate::datasets::Mounts;
use crate::live;
use crate::outcome::{Outcome, usage};
use crate::server::Control;
use crate::signals;

/// Mount a dataset or snapshot as a folder until interrupted or unmounted; read-only unless `--rw` is given.
///
/// Datasets below it stand where their `mountpoint` puts them, snapshots in `.zfs/snapshot`. Works as root, and through
/// fusermount3 as anybody.
///
/// With `--rw` files can be changed, in the datasets below too: each as its own properties say, and read-only where it cannot be written
/// yet, which is said. Datasets that commands make, rename and destroy come and go in the mount; `zfs destroy` is refused for one that is
/// in use there. The pool is this process's alone meanwhile, which takes commands
/// for it; what a program has synced (`fsync`) is on disk when it is told so, everything else within seconds, and an interrupt or
/// `umount` ends with everything written and the pool exported.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    /// Mount options, separated by commas: allow_other, allow_root, auto_unmount, default_permissions or
    /// no_default_permissions, dev or nodev, suid or nosuid, exec or noexec, atime, noatime, relatime or strictatime, sync or async,
    /// threads=N, read_ahead=KIB, layout=mountpoints|names|alone.
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
    let context = context.with(&args.search);
    let going = Going::begin(&args.goes_on, &args.dataset)?;
    // Before anything is mounted: an interrupt from now on ends the mount and not the program.
    let signals = signals::ending()?;
    let pool_name = args.dataset.split(['/', '@']).next().unwrap_or(&args.dataset);
    let report = context.clone();
    let report = Arc::new(move |line: &str| report.err(line));
    let at: &Path = &args.mountpoint;
    if args.rw {
        live::check_options(&args.options)?;
        let of = live::open_pool(&context, pool_name, live::Recovery::Retry).await?;
        let mut control = None;
        let served = async {
            control = Control::start(&context, &of, args.control.as_deref())?;
            let mount = live::mount(&context, &of, &args.dataset, at, &options, report).await?;
            if let Some(control) = &control {
                control.mounted(&args.dataset, mount.mountpoint(), true);
            }
            let at = mount.mountpoint().display();
            let end = args.goes_on.end("unmount");
            context.err(format!("'{}' is mounted at {at} for writing; {end}", args.dataset));
            going.ready(&context)?;
            let ended = wait(&context, &mount, signals).await;
            // After a forced unmount its files may still be in use.
            mount.close().await;
            ended.map(drop)
        };
        let served = served.await;
        going.ends();
        if let Some(control) = &control {
            control.ends();
        }
        live::export(of.pool, served).await?;
        return Ok(Outcome::Good);
    }
    let pool = context.open_pool(pool_name).await?;
    context.say_notes(pool.name(), pool.notes());
    let mount = cenote_fuse::mount(context.handle(), &pool, &args.dataset, at, &options, report).await?;
    let end = args.goes_on.end("unmount");
    context.err(format!("'{}' is mounted at {}; {end}", args.dataset, mount.mountpoint().display()));
    going.ready(&context)?;
    wait(&context, &mount, signals).await?;
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
    if args.rw && !control::servers().iter().any(|(_, who)| is_served(who)) {
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

/// Says that a mount that was not in use is not gone everywhere.
pub(crate) fn tell_others(context: &Context, mount: &MountHandle, unmounted: Unmounted) {
    if unmounted == Unmounted::Detached {
        context.err(format!(
            "'{}' is unmounted here, but still shown in another mount namespace (a container, 'unshare -m'), where its users get errors \
             from now on",
            mount.mountpoint().display()
        ));
    }
}

/// Who ended a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A signal to this process.
    Signal,
    /// Somebody else, as with `umount`.
    Elsewhere,
}

/// Waits until the mount has ended, by others or by a signal. An interrupt unmounts what is not in use; a second one, or
/// a request to end, detaches what is.
pub(crate) async fn wait(context: &Context, mount: &MountHandle, mut signals: Signals) -> Result<Ended> {
    let mut is_second = false;
    loop {
        let closing = signals.handle();
        let waiting = context.handle().spawn_blocking(move || {
            let signal = signals.forever().next();
            (signal, signals)
        });
        let signal = match cenote_taskq::race(mount.ended(), waiting).await {
            Either::Left(ended) => {
                closing.close();
                ended?;
                return Ok(Ended::Elsewhere);
            }
            Either::Right(waited) => {
                let (signal, back) = waited?;
                signals = back;
                signal
            }
        };
        match mount.unmount(Unmount::Unused).await {
            Ok(unmounted) => {
                tell_others(context, mount, unmounted);
                return Ok(Ended::Signal);
            }
            Err(MountError::Busy(_)) if is_second || signal != Some(SIGINT) => {
                mount.unmount(Unmount::Detach).await?;
                return Ok(Ended::Signal);
            }
            Err(error @ MountError::Busy(_)) => context.err(format!("{error}; interrupt again to detach it")),
            Err(error) => return Err(error.into()),
        }
        is_second = true;
    }
}
