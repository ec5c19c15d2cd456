//! Healing damaged blocks of a snapshot from a stream of it: `zfs receive -c`.

use std::io::Read;

use cenote_dsl::DslError;
use cenote_format::stream::HeaderKind;
use cenote_send::receiver::{Header, Healed, ReceiveProgress, heal_stream, skip_stream};
use cenote_send::{Checks, StreamReader};
use cenote_spa::Pool;

use super::error::{ReceiveError, ReceiveFailure};
use super::request::{Caller, Told};

/// A request to heal a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealRequest {
    /// The full name of the snapshot, or the name of its dataset. With a dataset, the stream gives the last part of the snapshot's name.
    pub target: String,
    /// Reports progress to the caller (`-v`).
    pub is_verbose: bool,
    /// Changes nothing (`-n`).
    pub is_dry: bool,
}

/// Heals damaged blocks of a snapshot from a stream of it. Reports the blocks that stay damaged to the caller.
///
/// # Errors
/// The stream is damaged, is a package, or belongs to another snapshot; blocks stay damaged; devices fail.
pub async fn heal<R: Read>(
    pool: &Pool,
    input: R,
    request: &HealRequest,
    caller: &mut dyn Caller,
) -> Result<Healed, ReceiveError> {
    let mut reader = StreamReader::new(input, Checks::ALL);
    let header = Header::read(&mut reader)?.ok_or(ReceiveFailure::NotAStream)?;
    if header.begin.header != HeaderKind::Substream {
        let what = "healing from packages ('zfs send -R', '-I', '-p'); one stream heals its snapshot";
        return Err(ReceiveFailure::NotYet(what).into());
    }
    let sent = header.to_name()?.to_owned();
    let snapshot = match (request.target.contains('@'), sent.split_once('@')) {
        (false, Some((_, name))) => format!("{}@{name}", request.target),
        _ => request.target.clone(),
    };
    match pool.dsl()?.dataset(&snapshot).await {
        Ok(found) if found.is_snapshot() => {}
        Ok(_) | Err(DslError::NoSuchDataset(_)) => return Err(ReceiveFailure::NothingToHeal.into()),
        Err(error) => return Err(error.into()),
    }
    if request.is_verbose {
        let doing = if request.is_dry { "would receive" } else { "receiving" };
        let how = if header.begin.from_guid.0 == 0 { "full" } else { "incremental" };
        caller.told(Told::Out(format!("{doing} corrective {how} stream of {sent} into {snapshot}")));
    }
    if request.is_dry {
        skip_stream(&mut reader)?;
        return Ok(Healed::default());
    }
    let healed = heal_stream(pool, &mut reader, &header, &snapshot, &ReceiveProgress::default()).await?;
    for line in &healed.told {
        caller.told(Told::Err(format!("'{snapshot}': {line}")));
    }
    if request.is_verbose {
        caller.told(Told::Out(format!(
            "healed {} of {} damaged blocks",
            healed.healed,
            healed.healed + healed.damaged
        )));
    }
    if healed.damaged > 0 {
        return Err(ReceiveFailure::NotHealed.into());
    }
    Ok(healed)
}
