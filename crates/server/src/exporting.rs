//! Exporting pools: everything that shows them ends, and the cache file forgets them.
//!
//! The process that has a pool open for writing exports it. Processes that show one read-only take no commands and end only with their mounts,
//! so those are unmounted first; if one is in use the pool remains, as in OpenZFS.

use std::ffi::OsStr;
use std::path::PathBuf;

use cenote_format::ids::Guid;
use cenote_host::{CacheFile, Mounted, Mounts, owners};
use cenote_taskq::boxed;

use crate::error::{Result, ServerError, refused};
use crate::{Session, protocol, unmounting};

/// A pool that is imported, or served by a process.
struct Had {
    name: String,
    guid: Guid,
}

fn all_had() -> Result<Vec<Had>> {
    let noted = CacheFile::of_user()?.pools()?;
    let mut all: Vec<Had> = noted.into_iter().map(|(name, entry)| Had { name, guid: Guid(entry.guid) }).collect();
    for (_, who) in protocol::servers() {
        if !all.iter().any(|had| had.guid.0 == who.guid) {
            all.push(Had { name: who.pool, guid: Guid(who.guid) });
        }
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}

/// The names of all pools that are imported, or that a process of this user has.
///
/// # Errors
/// The list of imported pools cannot be read.
pub fn names_of_all() -> Result<Vec<String>> {
    Ok(all_had()?.into_iter().map(|had| had.name).collect())
}

/// Exports every pool that is imported, and every one that a process of this user has. False if one could not be exported, which is reported.
#[boxed]
pub async fn export_all(session: &Session, is_forced: bool) -> Result<bool> {
    let mut is_good = true;
    for had in all_had()? {
        match export(session, &had, is_forced).await {
            Ok(true) => {}
            // Its server has reported the reason.
            Ok(false) => is_good = false,
            Err(error) => {
                session.warn(error.chain());
                is_good = false;
            }
        }
    }
    Ok(is_good)
}

/// Exports one of several named pools, by the process that has it. False if that failed, which its server has reported.
///
/// # Errors
/// There is no pool with this name, or it is in use.
#[boxed]
pub async fn export_named(session: &Session, name: &str, is_forced: bool) -> Result<bool> {
    let noted = CacheFile::of_user()?.pools()?;
    let guid = match session.locate(name).await {
        Ok((found, _)) => Some(found.guid),
        // A pool whose devices are gone is only forgotten.
        Err(_) => noted.get(name).map(|entry| Guid(entry.guid)),
    };
    let Some(guid) = guid else { return Err(refused(format!("cannot open '{name}': no such pool"))) };
    export(session, &Had { name: name.to_owned(), guid }, is_forced).await
}

async fn export(session: &Session, had: &Had, is_forced: bool) -> Result<bool> {
    if let Some(socket) = server_of(session, had).await? {
        let flag: &[&str] = if is_forced { &["-f"] } else { &[] };
        let line = [&["cenote", "zpool", "export"], flag, &["--", &had.name]].concat();
        let line: Vec<&OsStr> = line.into_iter().map(OsStr::new).collect();
        // The server forgets it too.
        let status = session.console().ask(&socket, &line);
        let status = status.map_err(|error| refused(format!("cannot export '{}': {}", had.name, error.chain())))?;
        return Ok(status == 0);
    }
    end_readers(session, "export", &had.name, had.guid, is_forced).await?;
    match forget(&had.name)? {
        true => Ok(true),
        false => Err(refused(format!("cannot open '{}': no such pool", had.name))),
    }
}

/// The socket of the process that has a pool. A process that is ending is waited for instead.
async fn server_of(session: &Session, had: &Had) -> Result<Option<PathBuf>> {
    let Some(socket) = protocol::find(had.guid) else { return Ok(None) };
    match protocol::who(&socket) {
        Ok(who) if who.guid != had.guid.0 => Ok(None),
        Ok(who) if who.is_ending => {
            // If the pool was not imported, it is then gone.
            let _ = session.locate(&had.name).await;
            Ok(None)
        }
        // If it does not answer, the request will report the reason.
        Ok(_) | Err(_) => Ok(Some(socket)),
    }
}

/// Removes a pool from the cache file, under any name.
pub fn forget_guid(guid: Guid) -> Result<()> {
    CacheFile::of_user()?.update(|pools| {
        pools.retain(|_, entry| entry.guid != guid.0);
        Ok::<_, ServerError>(())
    })
}

/// Removes a pool from the cache file. False if it is not in it.
pub fn forget(name: &str) -> Result<bool> {
    let mut was_there = false;
    CacheFile::of_user()?.update(|pools| {
        was_there = pools.remove(name).is_some();
        Ok::<_, ServerError>(())
    })?;
    Ok(was_there)
}

/// Before `verb`: unmounts a pool's read-only mounts, with `is_forced` even those in use. Their processes end with their last mount.
///
/// # Errors
/// A mount is in use, or a process serves the pool read-only in another way.
#[boxed]
pub async fn end_readers(session: &Session, verb: &str, name: &str, guid: Guid, is_forced: bool) -> Result<()> {
    if owners::readers(guid).is_empty() {
        return Ok(());
    }
    let mounts = Mounts::read();
    let is_of_pool = |mounted: &&Mounted| {
        let rest = mounted.dataset.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
    };
    let mut shown: Vec<&Mounted> = mounts.ours().filter(is_of_pool).collect();
    shown.reverse();
    for mounted in shown {
        unmounting::unmount_one(session, mounted, is_forced).await.map_err(|error| {
            let (dataset, at) = (&mounted.dataset, mounted.at.display());
            refused(format!("cannot {verb} '{name}': '{dataset}' is mounted at {at}: {}", error.chain()))
        })?;
    }
    let begun = session.handle().now();
    loop {
        let Some(process) = owners::readers(guid).first().copied() else { return Ok(()) };
        if session.handle().now() - begun >= END_TIME_MAX {
            let what =
                format!("cannot {verb} '{name}': pool is busy: process {process} serves it read-only; end that first");
            return Err(refused(what));
        }
        session.handle().sleep(END_POLL).await;
    }
}

/// The longest wait for a process to end after its last mount.
const END_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(3);
/// The interval between checks for that.
const END_POLL: std::time::Duration = std::time::Duration::from_millis(20);
