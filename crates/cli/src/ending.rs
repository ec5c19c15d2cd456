//! The end of mounts: by their users, or by a signal to the process that serves them.
//!
//! An interrupt unmounts what is not in use; a second one, or a request to end, detaches what is. What was mounted last goes first: it
//! may stand in a folder of what was mounted before.

use std::sync::Arc;

use anyhow::Result;
use cenote_fuse::{MountError, MountHandle, Unmount, Unmounted};
use cenote_taskq::{Either, race};
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;

use crate::context::Context;

/// The cause of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A signal to this process.
    Signal,
    /// Somebody else, as with `umount`.
    Elsewhere,
}

/// Waits until `ended`, or until a signal has ended the mounts that `mounts` then finds, in the order of mounting.
pub(crate) async fn wait(
    context: &Context,
    mut signals: Signals,
    mut ended: impl AsyncFnMut() -> Result<()>,
    mounts: impl Fn() -> Vec<Arc<MountHandle>>,
) -> Result<Ended> {
    let mut is_second = false;
    loop {
        let closing = signals.handle();
        let waiting = context.handle().spawn_blocking(move || {
            let signal = signals.forever().next();
            (signal, signals)
        });
        let signal = match race(Box::pin(ended()), waiting).await {
            Either::Left(ended) => {
                closing.close();
                return ended.map(|()| Ended::Elsewhere);
            }
            Either::Right(waited) => {
                let (signal, back) = waited?;
                signals = back;
                signal
            }
        };
        if unmount_all(context, mounts(), is_second || signal != Some(SIGINT)).await? {
            return Ok(Ended::Signal);
        }
        is_second = true;
    }
}

/// Unmounts what is not in use, and with `is_forced` what is. False if something stays, which is said.
async fn unmount_all(context: &Context, mounts: Vec<Arc<MountHandle>>, is_forced: bool) -> Result<bool> {
    let (mut is_all, mut failed) = (true, None);
    for mount in mounts.into_iter().rev() {
        let mut unmounted = mount.unmount(Unmount::Unused).await;
        if matches!(unmounted, Err(MountError::Busy(_))) && is_forced {
            unmounted = mount.unmount(Unmount::Detach).await.map(|_| Unmounted::Ended);
        }
        match unmounted {
            Ok(Unmounted::Ended) => {}
            Ok(Unmounted::Detached) => context.err(format!(
                "'{}' is unmounted here, but still shown in another mount namespace (a container, 'unshare -m'), where its users get \
                 errors from now on",
                mount.mountpoint().display()
            )),
            Err(error @ MountError::Busy(_)) => {
                context.err(format!("{error}; interrupt again to detach it"));
                is_all = false;
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(is_all), |error| Err(error.into()))
}

/// Waits until mounts have ended that nobody adds to, by others or by a signal.
pub(crate) async fn wait_for(context: &Context, mounts: &[Arc<MountHandle>], signals: Signals) -> Result<Ended> {
    let ended = async || {
        for mount in mounts {
            mount.ended().await?;
        }
        Ok(())
    };
    wait(context, signals, ended, || mounts.to_vec()).await
}
