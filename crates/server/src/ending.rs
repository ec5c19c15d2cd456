//! The end of mounts: from outside, or by a signal to the process that serves them.
//!
//! An interrupt unmounts the mounts that are not in use; a second one, or another ending signal, detaches the others. The last mount is ended
//! first, because it may be in a folder of an earlier one.

use std::sync::Arc;

use cenote_fuse::{MountError, MountHandle, Unmount, Unmounted};
use cenote_taskq::{Either, Handle, race};
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;

use crate::Console;
use crate::error::Result;

/// The cause of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndedBy {
    /// A signal to this process.
    Signal,
    /// Another cause, such as `umount`.
    Elsewhere,
}

/// Waits until `ended` returns, or until a signal has ended the mounts that `mounts` then returns, in the order of mounting.
pub(crate) async fn wait(
    handle: &Handle,
    console: &dyn Console,
    mut signals: Signals,
    mut ended: impl AsyncFnMut() -> Result<()>,
    mounts: impl Fn() -> Vec<Arc<MountHandle>>,
) -> Result<EndedBy> {
    let mut is_second = false;
    loop {
        let closing = signals.handle();
        let waiting = handle.spawn_blocking(move || {
            let signal = signals.forever().next();
            (signal, signals)
        });
        let signal = match race(Box::pin(ended()), waiting).await {
            Either::Left(ended) => {
                closing.close();
                return ended.map(|()| EndedBy::Elsewhere);
            }
            Either::Right(waited) => {
                let (signal, back) = waited?;
                signals = back;
                signal
            }
        };
        if unmount_all(console, mounts(), is_second || signal != Some(SIGINT)).await? {
            return Ok(EndedBy::Signal);
        }
        is_second = true;
    }
}

/// Unmounts mounts that are not in use, and with `is_forced` also the others. False if one remains, which is reported.
async fn unmount_all(console: &dyn Console, mounts: Vec<Arc<MountHandle>>, is_forced: bool) -> Result<bool> {
    let (mut is_all, mut failed) = (true, None);
    for mount in mounts.into_iter().rev() {
        let mut unmounted = mount.unmount(Unmount::Unused).await;
        if matches!(unmounted, Err(MountError::Busy(_))) && is_forced {
            unmounted = mount.unmount(Unmount::Detach).await.map(|_| Unmounted::Ended);
        }
        match unmounted {
            Ok(Unmounted::Ended) => {}
            Ok(Unmounted::Detached) => console.warn(&format!(
                "'{}' is unmounted here, but still shown in another mount namespace (a container, 'unshare -m'), where its users get \
                 errors from now on",
                mount.mountpoint().display()
            )),
            Err(error @ MountError::Busy(_)) => {
                console.warn(&format!("{error}; interrupt again to detach it"));
                is_all = false;
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(is_all), |error| Err(error.into()))
}

/// Waits until a fixed set of mounts has ended, from outside or by a signal.
///
/// # Errors
/// A mount ended with one, or a signal could not end it.
pub(crate) async fn wait_for(
    handle: &Handle,
    console: &dyn Console,
    mounts: &[Arc<MountHandle>],
    signals: Signals,
) -> Result<EndedBy> {
    let ended = async || {
        for mount in mounts {
            mount.ended().await?;
        }
        Ok(())
    };
    wait(handle, console, signals, ended, || mounts.to_vec()).await
}
