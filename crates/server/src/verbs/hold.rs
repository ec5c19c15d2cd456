//! `zfs hold` and `zfs release`.

use cenote_admin::tree_names;
use cenote_dsl::name::pool_of;
use cenote_dsl::{Dsl, DslError};
use cenote_taskq::boxed;

use crate::Session;
use crate::error::{Result, ServerError, refused};
use crate::writing::{Writing, line};

/// Holds to put on snapshots, or to release.
#[derive(Clone, Debug, Default)]
pub struct HoldRequest {
    /// They are released.
    pub releases: bool,
    /// Also on snapshots with the same name of all datasets below.
    pub recursive: bool,
    /// The tag.
    pub tag: String,
    /// The snapshots.
    pub snapshots: Vec<String>,
}

/// Changes holds, for each snapshot separately: a failure does not stop the others. True if none failed; failures are reported.
///
/// # Errors
/// The command cannot be recorded.
#[boxed]
pub async fn change_holds(session: &Session, pool: Writing, request: &HoldRequest) -> Result<bool> {
    let mut failed = 0;
    for name in &request.snapshots {
        if let Err(error) = change_one(session, &pool, request, name).await {
            session.warn(error.chain());
            failed += 1;
        }
    }
    if failed < request.snapshots.len() {
        let verb = if request.releases { "release" } else { "hold" };
        let words = ["zfs", verb, if request.recursive { "-r" } else { "" }, request.tag.as_str()].into_iter();
        pool.finish(line(words.chain(request.snapshots.iter().map(String::as_str)))).await?;
    }
    Ok(failed == 0)
}

/// Changes the holds on one snapshot; with `-r` also on those with the same name below, all or none.
async fn change_one(session: &Session, pool: &Writing, request: &HoldRequest, name: &str) -> Result<()> {
    let HoldRequest { releases, recursive, tag, .. } = request;
    let Some((dataset, snapshot)) = name.split_once('@') else {
        return Err(refused(format!("'{name}' is not a snapshot")));
    };
    if pool_of(dataset) != pool.pool().name() {
        return Err(refused(format!("not supported yet: snapshots of several pools in one command ('{name}')")));
    }
    let mut names = vec![name.to_owned()];
    let tree = tree_names(pool.pool(), dataset).await?;
    if *recursive {
        let (tag, snapshot) = (releases.then(|| tag.clone()), snapshot.to_owned());
        let look = pool.pool().look(move |syncer| {
            Box::pin(async move {
                let found = with_snapshot(syncer.dsl(), &tree, &snapshot, tag.as_ref()).await;
                found.map_err(ServerError::from)
            })
        });
        let found: Result<Vec<String>> = look.await;
        let found = found?;
        // If there is none at all, the first is refused.
        if !found.is_empty() {
            names = found;
        }
    }
    if !releases {
        return Ok(cenote_admin::hold(pool.pool(), tag, &names).await?);
    }
    // Snapshots that are to be destroyed with their last hold.
    session.let_go(|snapshot| names.contains(&snapshot.name())).await?;
    Ok(cenote_admin::release(pool.pool(), tag, &names).await?)
}

/// The snapshots with this name of these datasets. `tag`: only those with a hold of this tag.
async fn with_snapshot(
    dsl: &Dsl,
    datasets: &[String],
    snapshot: &str,
    tag: Option<&String>,
) -> Result<Vec<String>, DslError> {
    let mut found = Vec::new();
    for dataset in datasets {
        let name = format!("{dataset}@{snapshot}");
        let there = match dsl.dataset(&name).await {
            Err(DslError::NoSuchDataset(_)) => continue,
            there => there?,
        };
        let is_meant = match tag {
            Some(tag) => dsl.holds(&there).await?.iter().any(|hold| hold.tag == *tag),
            None => true,
        };
        found.extend(is_meant.then_some(name));
    }
    Ok(found)
}
