//! Changing the size of a volume that clients may be writing.

use anyhow::{Result, anyhow};
use cenote_admin::{Resize, set_reserved};

use cenote_server::OpenVolumes;
use cenote_server::writing::Writing;

/// Gives a volume that clients may be writing another size: it changes in an open txg, like all that they change. Space is
/// reserved before it grows, and no longer reserved after it has shrunk; if the process ends in between, more is reserved than needed.
pub(crate) async fn resize_served(
    pool: &mut Writing,
    volumes: &OpenVolumes,
    name: &str,
    size_bytes: u64,
) -> Result<()> {
    let mut volumes = volumes.lock().await;
    let planned = name.to_owned();
    let reserved = pool.step(move |writer| {
        Box::pin(async move {
            let plan = Resize::plan(writer, &planned, size_bytes).await?;
            if let Some((before, after)) = plan.reserved_bytes()
                && after > before
            {
                set_reserved(writer, &planned, after).await?;
            }
            Ok::<_, anyhow::Error>(plan.reserved_bytes())
        })
    });
    let reserved = reserved.await?;
    volumes.resize(name, size_bytes).await.map_err(|error| anyhow!("cannot set property for '{name}': {error}"))?;
    if let Some((before, after)) = reserved
        && after < before
    {
        let name = name.to_owned();
        pool.step(move |writer| {
            Box::pin(async move { Ok::<_, anyhow::Error>(set_reserved(writer, &name, after).await?) })
        })
        .await?;
    }
    Ok(())
}
