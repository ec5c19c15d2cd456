//! `cenote_file`: an open file.

use cenote::File;

use crate::border::{Buffer, Data, Give, In, Out, Text};
use crate::fault::Fault;
use crate::filesystem::{CMetadata, Files, c_metadata};
use crate::runtime::wait;

/// Bytes that are read at a time, so that a large buffer is not had twice.
pub(crate) const STEP_BYTES: usize = 4 << 20;

/// Stands for no offset.
const NOWHERE: u64 = u64::MAX;

type Done = Result<(), Fault>;

/// A file that is open.
pub(crate) struct OpenFile(File);

pub(crate) fn open(filesystem: In<Files>, path: Text, file: Give<OpenFile>) -> Done {
    let place = file.get("file")?;
    let opened = wait(filesystem.get("filesystem")?.0.open(path.path("path")?))?;
    place.give(OpenFile(opened));
    Ok(())
}

pub(crate) fn create(filesystem: In<Files>, path: Text, file: Give<OpenFile>) -> Done {
    let place = file.get("file")?;
    let created = wait(filesystem.get("filesystem")?.0.create(path.path("path")?))?;
    place.give(OpenFile(created));
    Ok(())
}

pub(crate) fn size(file: In<OpenFile>) -> u64 {
    file.optional().map_or(0, |file| file.0.len())
}

pub(crate) fn stat(file: In<OpenFile>, metadata: Out<CMetadata>) -> Done {
    let (file, place) = (file.get("file")?, metadata.get("metadata")?);
    place.put(c_metadata(&file.0.metadata()?));
    Ok(())
}

pub(crate) fn pread(file: In<OpenFile>, buffer: Buffer, len: usize, offset: u64, read: Out<usize>) -> Done {
    let (file, mut room, place) = (file.get("file")?, buffer.get(len, "buffer")?, read.get("read")?);
    wait(async {
        while room.left() > 0 {
            let at = offset.saturating_add((len - room.left()) as u64);
            let part = file.0.read_at(at, room.left().min(STEP_BYTES)).await?;
            if part.is_empty() {
                break;
            }
            room.put(&part);
        }
        Ok(())
    })?;
    place.put(len - room.left());
    Ok(())
}

pub(crate) fn pwrite(file: In<OpenFile>, data: Data, len: usize, offset: u64) -> Done {
    let (file, data) = (file.get("file")?, data.get(len, "data")?);
    wait(file.0.write_at(offset, data))
}

pub(crate) fn truncate(file: In<OpenFile>, size: u64) -> Done {
    wait(file.get("file")?.0.set_len(size))
}

pub(crate) fn next_data(file: In<OpenFile>, offset: u64, found: Out<u64>) -> Done {
    let (file, place) = (file.get("file")?, found.get("found")?);
    place.put(wait(file.0.next_data(offset))?.unwrap_or(NOWHERE));
    Ok(())
}

pub(crate) fn next_hole(file: In<OpenFile>, offset: u64, found: Out<u64>) -> Done {
    let (file, place) = (file.get("file")?, found.get("found")?);
    place.put(wait(file.0.next_hole(offset))?.unwrap_or(NOWHERE));
    Ok(())
}

pub(crate) fn sync(file: In<OpenFile>) -> Done {
    wait(file.get("file")?.0.sync())
}
