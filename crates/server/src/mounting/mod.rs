//! `cenote mount`: a dataset mounted until the end, by this process or by the one that has its pool. And file systems at their mount points
//! ([`MountPoints`]).

mod points;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_dsl::name::pool_of;
use cenote_fuse::{Layout, MountHandle, MountOptions, Unmount, change_mount};
use cenote_host::{Mounts, all_device_paths, owners};
use cenote_props::WrongUse;
use cenote_spa::View;
use cenote_taskq::boxed;

use crate::background::{Going, GoingOptions};
use crate::error::{Context as _, Result, ServerError, refused};
use crate::{Delegated, Handler, Pools, Recovery, ServedPool, Session, Who, ending, protocol, signals};

pub use points::{Candidate, MountPoints};

/// A dataset to mount.
#[derive(Clone, Debug, Default)]
pub struct MountRequest {
    /// The dataset, or dataset@snapshot.
    pub dataset: String,
    /// The folder to mount it on.
    pub at: PathBuf,
    /// Lists of mount options.
    pub options: Vec<String>,
    /// It is mounted for writing.
    pub is_writable: bool,
    /// The socket for commands, if not the usual one.
    pub control: Option<PathBuf>,
}

/// Mounts a dataset, and returns when the mount has ended. `clients` carries out the requests of other processes for a pool that is open for
/// writing. False if the process that has the pool refused it and reported why.
///
/// # Errors
/// The options contradict each other; the pool cannot be opened; nothing can be mounted there; the pool could not be written completely.
pub async fn mount(
    session: &Session,
    request: &MountRequest,
    going: GoingOptions,
    clients: Arc<dyn Handler>,
) -> Result<bool> {
    let options = parse_options(&request.options)?;
    let (dataset, at): (_, &Path) = (&request.dataset, &request.at);
    let (handle, console) = (session.handle(), session.console());
    let going = Going::begin(going, dataset)?;
    // Before anything is mounted: from now on an interrupt ends the mount, not the program.
    let signals = signals::ending()?;
    if request.is_writable {
        check_writable(&request.options)?;
        let mut pools = Pools::new(handle.clone(), console.clone(), clients, true);
        let opened = match pools.open(session, pool_of(dataset), Recovery::Retry, request.control.as_deref()).await {
            Err(ServerError::Owned(owned)) if request.control.is_some() => {
                return Err(WrongUse::new(format!("--control is for a pool that no process has: {owned}")).into());
            }
            Err(ServerError::Owned(owned)) => {
                let mount = Delegated { dataset, at, options: &request.options };
                return mount.serve(session, &owned.socket, &going, signals).await;
            }
            opened => opened,
        };
        let begun = async {
            opened?;
            for of in pools.all() {
                let at = of.mounts.mount(&of.pool, dataset, at, &options).await?;
                let end = going.options().unmount(Some(&at));
                console.note(&format!("'{dataset}' is mounted at {} for writing; {end}", at.display()));
            }
            Ok::<_, ServerError>(None)
        };
        let begun = begun.await;
        pools.serve(begun, || going.ready(&**console), || going.ends(), signals).await?;
        return Ok(true);
    }
    let pool = session.open_pool(pool_of(dataset)).await?;
    session.say_notes(pool.name(), pool.notes());
    let _reading = note_reading(session, &pool).await;
    let mount = cenote_fuse::mount(handle, &pool, dataset, at, &options, report(session)).await?;
    let end = going.options().unmount(Some(mount.mountpoint()));
    console.note(&format!("'{dataset}' is mounted at {}; {end}", mount.mountpoint().display()));
    going.ready(&**console)?;
    ending::wait_for(handle, &**console, &[Arc::new(mount)], signals).await?;
    Ok(true)
}

/// Records that this process shows a pool read-only, so that no one creates another pool on its devices meanwhile.
pub(crate) async fn note_reading(session: &Session, pool: &View) -> Option<owners::Reading> {
    let noted = async {
        let devices = all_device_paths(pool).await?;
        owners::begin_reading(pool.name(), pool.guid(), devices)
    };
    let noted = noted.await.inspect_err(|error| {
        session.warn(format!("no note can be kept that this process shows '{}': {error}", pool.name()));
    });
    noted.ok()
}

/// Mounts a dataset for another process, which requested it. The mount is now this process's.
///
/// # Errors
/// It is not of this pool, is not for writing, or nothing can be mounted there.
#[boxed]
pub async fn take_over(session: &Session, of: &ServedPool, request: &MountRequest) -> Result<()> {
    let options = parse_options(&request.options)?;
    session.check_served(pool_of(&request.dataset))?;
    if !request.is_writable || !request.at.is_absolute() {
        return Err(refused("a server of a pool does not do this"));
    }
    check_writable(&request.options)?;
    of.mounts.mount(&of.pool, &request.dataset, &request.at, &options).await?;
    Ok(())
}

/// Changes the options of an existing mount.
///
/// # Errors
/// The dataset is not mounted there, or is mounted read-only and the request is for writing.
pub fn remount(request: &MountRequest) -> Result<()> {
    let options = parse_options(&request.options)?;
    let mounts = Mounts::read();
    let at = request.at.display();
    let mount = mounts.find(&request.at).filter(|mount| mount.is_ours());
    let Some(mount) = mount.filter(|mount| mount.dataset == request.dataset) else {
        return Err(refused(format!("cannot remount: '{}' is not mounted at '{at}'", request.dataset)));
    };
    let is_served = |who: &Who| who.mounts.iter().any(|(name, at)| *name == mount.dataset && *at == mount.at);
    if request.is_writable && !protocol::servers().iter().any(|(_, who)| is_served(who)) {
        return Err(refused(format!(
            "cannot remount '{at}' for writing: not supported yet: the pool of a read-only mount is open read-only; unmount it and \
             mount it with -o rw"
        )));
    }
    change_mount(&mount.at, &options, !request.is_writable).with_context(|| format!("cannot remount '{at}'"))
}

/// A dataset that is shown in a folder, until this is detached.
pub struct Shown(MountHandle);

impl Shown {
    /// Detaches it, even if it is in use.
    #[boxed]
    pub async fn detach(&self) -> Result<()> {
        self.0.unmount(Unmount::Detach).await?;
        Ok(())
    }
}

/// Shows a dataset of an open pool in a folder, read-only, without its descendants.
///
/// # Errors
/// Nothing can be mounted there, or this user may not; or the dataset cannot be opened.
#[boxed]
pub async fn shown_alone(session: &Session, pool: &View, dataset: &str, at: &Path) -> Result<Shown> {
    let options = MountOptions { layout: Layout::Alone, ..MountOptions::default() };
    Ok(Shown(cenote_fuse::mount(session.handle(), pool, dataset, at, &options, report(session)).await?))
}

/// Passes messages of a mount or a volume server to a person.
pub(crate) fn report(session: &Session) -> Arc<dyn Fn(&str) + Send + Sync> {
    let console = session.console().clone();
    Arc::new(move |line: &str| console.warn(line))
}

/// Parses the mount options of a command line.
pub(crate) fn parse_options(lists: &[String]) -> Result<MountOptions, WrongUse> {
    let mut options = MountOptions::default();
    for list in lists {
        options.parse(list).map_err(|error| WrongUse(error.to_string()))?;
    }
    Ok(options)
}

/// Refuses options that forbid writing.
pub(crate) fn check_writable(lists: &[String]) -> Result<(), WrongUse> {
    match lists.iter().flat_map(|list| list.split(',')).any(|word| word == "ro") {
        true => Err(WrongUse::new("mount option 'ro' and --rw exclude each other")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_contradict_writing_are_refused_by_name() {
        let lists = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        check_writable(&lists(&["allow_other,layout=alone", "nosuid"])).unwrap();
        let error = check_writable(&lists(&["nosuid", "exec,ro"])).unwrap_err().to_string();
        assert!(error.contains("'ro'"), "{error}");
    }
}
