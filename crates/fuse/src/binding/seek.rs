//! Seeks in files that may be mapped: see [`mapped`](super::mapped).

use std::sync::Arc;

use super::bound::Bound;
use super::stale::Dropper;
use crate::server::{Errno, FileServer, NodeId, Seek};

/// How often the next hole is looked for, each found full of dirty pages.
const ROUNDS_MAX: u32 = 64;

/// Seeks in a file of which the kernel may hold dirty pages. `queue` is that of the request.
pub(super) async fn seek<S: FileServer>(
    server: &S,
    dropper: &Dropper,
    queue: Option<Arc<Bound>>,
    (node, offset): (NodeId, u64),
    to: Seek,
) -> Result<u64, Errno> {
    for _ in 0..ROUNDS_MAX {
        let begin = match to {
            Seek::Data => offset,
            Seek::Hole => server.seek(node, offset, to).await?,
        };
        let hole = begin..end_of_hole(server, node, begin).await?;
        if hole.is_empty() {
            return Ok(begin);
        }
        if !dropper.handed_over(node, hole.clone(), queue.as_ref()).await {
            break;
        }
        match to {
            Seek::Data => return server.seek(node, offset, to).await,
            Seek::Hole => {
                let found = server.seek(node, offset, to).await?;
                if found < hole.end {
                    return Ok(found);
                }
            }
        }
    }
    let size = server.getattr(node).await?.size_bytes;
    match to {
        _ if offset >= size => Err(Errno::NXIO),
        Seek::Data => Ok(offset),
        Seek::Hole => Ok(size),
    }
}

/// Where the hole at an offset ends; there, if there is data.
async fn end_of_hole<S: FileServer>(server: &S, node: NodeId, offset: u64) -> Result<u64, Errno> {
    match server.seek(node, offset, Seek::Data).await {
        Err(Errno::NXIO) => Ok(u64::MAX),
        found => found,
    }
}
