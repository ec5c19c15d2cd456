//! `zfs set`, and the size of a volume while clients may write it.

use cenote_admin::{AdminError, Resize, Setting, set_reserved};
use cenote_spa::PropertyValue;
use cenote_taskq::boxed;

use crate::error::{Result, refused};
use crate::writing::Writing;
use crate::{OpenVolumes, Session};

/// Sets properties of datasets of one pool: all of them, or none. Mounts and served volumes of this process then obey them.
///
/// # Errors
/// As [`cenote_admin::set_properties`]; or the volume cannot be served with its new size.
#[boxed]
pub async fn set_properties(
    session: &Session,
    pool: Writing,
    datasets: &[String],
    settings: &[Setting],
    noted: String,
) -> Result<()> {
    match (settings, datasets, session.served_volumes()) {
        ([(name, PropertyValue::Number(bytes))], [dataset], Some(volumes)) if name == "volsize" => {
            resize_served(&pool, volumes, dataset, *bytes).await?;
        }
        _ => cenote_admin::set_properties(pool.pool(), datasets, settings).await?,
    }
    pool.finish(noted).await
}

/// Changes the size of a volume while clients may write it: in an open txg, like the clients' changes. Space is reserved before it grows, and
/// released after it has shrunk; if the process ends in between, more is reserved than needed.
async fn resize_served(pool: &Writing, volumes: &OpenVolumes, name: &str, size_bytes: u64) -> Result<()> {
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
            Ok::<_, AdminError>(plan.reserved_bytes())
        })
    });
    let reserved = reserved.await?;
    let resized = volumes.resize(name, size_bytes).await;
    resized.map_err(|error| refused(format!("cannot set property for '{name}': {error}")))?;
    if let Some((before, after)) = reserved
        && after < before
    {
        let name = name.to_owned();
        let step = pool.step(move |writer| Box::pin(async move { set_reserved(writer, &name, after).await }));
        step.await?;
    }
    Ok(())
}
