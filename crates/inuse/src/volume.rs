//! Volumes in use.

use cenote_dsl::Dataset;
use cenote_format::enums::ObjsetType;
use cenote_taskq::boxed;
use cenote_zpl::Properties;
use cenote_zvol::Volume;
use cenote_zvol::live::LiveVolume;

use crate::error::OpenError;
use crate::take::{Taken, take};
use crate::{Frozen, Opened, Source, Use};

/// Opens the volume of a dataset.
///
/// # Errors
/// It is no volume, cannot be read, or is in use. To be changed: also a snapshot, one with `readonly=on`, and one that cannot be changed yet.
#[boxed]
pub async fn open_volume(
    source: Source<'_>,
    dataset: &Dataset,
    how: &Use,
) -> Result<Opened<LiveVolume, Volume>, OpenError> {
    let name = dataset.name();
    let (taken, properties) = take(source, dataset, ObjsetType::Zvol, how, None).await?;
    match taken {
        Taken::Head(head) => {
            let opened = LiveVolume::open(head.objset(), head.log(properties.sync)).await;
            let live = opened.map_err(|error| OpenError::volume(&name, error))?;
            obey(&live, &properties);
            live.replay().await.map_err(|error| OpenError::Volume(name, Box::new(error)))?;
            Ok(Opened::Live(live))
        }
        Taken::Frozen(Frozen { contents, hold, why }) => {
            let contents = Volume::open(&contents).await.map_err(|error| OpenError::volume(&name, error))?;
            Ok(Opened::Frozen(Frozen { contents, hold, why }))
        }
    }
}

/// Has a volume obey these properties from the next request on.
pub fn obey(volume: &LiveVolume, properties: &Properties) {
    volume.set_sync(properties.sync);
    volume.set_for_throughput(properties.is_for_throughput);
    volume.set_read_only(properties.forbidden.write);
}
