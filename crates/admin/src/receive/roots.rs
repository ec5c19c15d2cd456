//! Encryption roots of a package of raw streams. Each dataset comes as a root of its own, since nobody knows here whose keys its user key wraps;
//! the package's list tells, and so a dataset that was none at the sender gets the root of the dataset above. The package's top stays one.

use std::io::Read;

use super::error::ReceiveError;
use super::list::List;
use super::run::Run;

impl<R: Read> Run<'_, R> {
    /// Has the datasets at and below the package's top be encryption roots where the sender's are.
    pub(super) async fn move_roots(&mut self, top: &str, list: &List) -> Result<(), ReceiveError> {
        if self.request.is_dry || !list.is_raw {
            return Ok(());
        }
        let looked = async {
            let mut changes = Vec::new();
            let dsl = self.pool.dsl()?;
            let Some(dir) = dsl.find_dir(top).await? else { return Ok(Vec::new()) };
            for dir in dsl.tree(dir, false).await? {
                let Some((_, key)) = dsl.wrapped_key(dir.object).await? else { continue };
                let Some(head) = dsl.head(&dir).await? else { continue };
                let snapshots = dsl.snapshots(&head).await?;
                let sent = snapshots.iter().find_map(|snapshot| list.find(snapshot.phys.guid.0));
                let Some((sent, _)) = sent else { continue };
                let is_clone = dir.phys.origin.0 != 0 && dir.phys.origin != dsl.origin();
                let is_root = key.root_dir == dir.object;
                let location = sent.key_location.clone().filter(|_| sent.is_encryption_root && (is_root || !is_clone));
                let root = match (sent.is_encryption_root, is_root) {
                    (true, false) if !is_clone => Some(true),
                    (false, true) if dir.name != top => Some(false),
                    _ => None,
                };
                changes.push((dir.name, root, location));
            }
            Ok::<_, crate::AdminError>(changes)
        };
        for (name, root, location) in looked.await? {
            let set = self.pool.change(move |syncer| {
                Box::pin(async move {
                    if let Some(is_root) = root {
                        syncer.move_encryption_root(&name, is_root).await?;
                    }
                    match location {
                        Some(location) => syncer.set_key_location(&name, &location).await,
                        None => Ok(()),
                    }
                })
            });
            set.await?;
        }
        Ok(())
    }
}
