//! `cenote_volume`: a block device's bytes.

use cenote::Volume;

use crate::border::{Buffer, Data, Give, In, Text};
use crate::fault::Fault;
use crate::file::STEP_BYTES;
use crate::pool::PoolHandle;
use crate::runtime::wait;

type Done = Result<(), Fault>;

/// A volume that is open.
pub(crate) struct OpenVolume(Volume);

pub(crate) fn open(pool: In<PoolHandle>, dataset: Text, volume: Give<OpenVolume>) -> Done {
    let place = volume.get("volume")?;
    let opened = wait(pool.get("pool")?.pool.volume(dataset.get("dataset")?))?;
    place.give(OpenVolume(opened));
    Ok(())
}

pub(crate) fn size(volume: In<OpenVolume>) -> u64 {
    volume.optional().map_or(0, |volume| volume.0.size_bytes())
}

pub(crate) fn block_size(volume: In<OpenVolume>) -> u64 {
    volume.optional().map_or(0, |volume| volume.0.block_bytes())
}

pub(crate) fn is_read_only(volume: In<OpenVolume>) -> bool {
    volume.optional().is_some_and(|volume| volume.0.is_read_only())
}

pub(crate) fn pread(volume: In<OpenVolume>, buffer: Buffer, len: usize, offset: u64) -> Done {
    let (volume, mut room) = (volume.get("volume")?, buffer.get(len, "buffer")?);
    let end = offset.checked_add(len as u64).filter(|end| *end <= volume.0.size_bytes());
    if end.is_none() {
        let size = volume.0.size_bytes();
        return Err(Fault::misuse(format!("{len} bytes at {offset} do not lie within a volume of {size} bytes")));
    }
    wait(async {
        while room.left() > 0 {
            let at = offset + (len - room.left()) as u64;
            let part = volume.0.read_at(at, room.left().min(STEP_BYTES)).await?;
            if part.is_empty() {
                break;
            }
            room.put(&part);
        }
        Ok(())
    })?;
    match room.left() {
        0 => Ok(()),
        left => Err(Fault::internal(format!("{left} bytes of a volume were not read"))),
    }
}

pub(crate) fn pwrite(volume: In<OpenVolume>, data: Data, len: usize, offset: u64) -> Done {
    let (volume, data) = (volume.get("volume")?, data.get(len, "data")?);
    wait(volume.0.write_at(offset, data))
}

pub(crate) fn trim(volume: In<OpenVolume>, offset: u64, len: u64) -> Done {
    wait(volume.get("volume")?.0.trim(offset, len))
}

pub(crate) fn flush(volume: In<OpenVolume>) -> Done {
    wait(volume.get("volume")?.0.flush())
}
