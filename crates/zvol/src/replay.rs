//! Replays a volume's intent log: writes, and ranges that were freed or cloned. A volume has no other records.

use cenote_dmu::DmuError;
use cenote_format::ids::BlockId;
use cenote_format::zil::{CloneRange, ClonedPart, LogRecord, Tx, Write, ZilHeader};
use cenote_taskq::boxed;
use cenote_zil::{Chain, Marking, Position, ReplayError, Replaying, Survey, reaches_claim};

use crate::VolumeError;
use crate::live::{Clear, LiveVolume, LiveVolumeError};
use crate::volume::DATA_OBJECT;

/// The largest block.
const BLOCK_MAX_BYTES: u64 = crate::BLOCK_BYTES_MAX as u64;

fn unsupported(record: &LogRecord<'_>) -> Option<&'static str> {
    match &record.tx {
        Tx::Write(_) | Tx::Truncate { .. } | Tx::CloneRange(_) | Tx::Commit => None,
        _ => Some("a record that no volume has"),
    }
}

impl LiveVolume {
    /// Replays the intent log, if one was claimed, and destroys it. Before anybody else has the volume; the caller holds no txg and is no
    /// sync task.
    ///
    /// # Errors
    /// It cannot be replayed: what is done is done, and the log stays.
    #[boxed]
    pub async fn replay(&self) -> Result<(), LiveVolumeError> {
        let header = self.objset.zil_header();
        if header.claim_txg.0 == 0 {
            return Ok(());
        }
        let source = Replaying::new(self.log.clone(), self.objset.clone());
        if header.flags & ZilHeader::REPLAY_NEEDED != 0 {
            let survey = cenote_zil::check(self.objset.dmu().zio(), header, unsupported).await?;
            self.replay_all(header, &source, &survey).await?;
        }
        Ok(source.end().await?)
    }

    async fn replay_all(&self, header: ZilHeader, source: &Replaying, survey: &Survey) -> Result<(), LiveVolumeError> {
        let position = Position::of(&header);
        let mut chain = Chain::new(self.objset.dmu().zio(), header);
        loop {
            let batch = cenote_zil::next_batch(&mut chain, &self.objset, &position).await;
            if batch.is_empty() {
                break;
            }
            for link in &batch {
                let records = link.content.iter().flat_map(|content| content.records());
                for record in records.filter(|record| position.is_left(record)) {
                    let effect =
                        async { if survey.is_superseded(&record) { Ok(()) } else { self.effect(&record).await } };
                    let replayed = source.replay(record.sequence, Marking::of(&record.tx), effect).await;
                    replayed.map_err(|error| ReplayError::new(record.sequence, error))?;
                }
                source.passed(link, survey).await?;
            }
        }
        Ok(reaches_claim(&chain, &header)?)
    }

    async fn effect(&self, record: &LogRecord<'_>) -> Result<(), LiveVolumeError> {
        match &record.tx {
            Tx::Write(write) => self.write_again(write).await,
            Tx::CloneRange(range) => self.clone_range(range).await,
            Tx::Truncate { offset_bytes, length_bytes, .. } => {
                let size_bytes = self.volume().size_bytes();
                let length_bytes = if *length_bytes == 0 { u64::MAX } else { *length_bytes };
                let end = offset_bytes.saturating_add(length_bytes).min(size_bytes);
                let length_bytes = end.saturating_sub(*offset_bytes);
                if length_bytes > 0 {
                    self.clear_in(*offset_bytes, length_bytes, Clear::Freed).await?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn write_again(&self, write: &Write<'_>) -> Result<(), LiveVolumeError> {
        if write.size_only {
            return Ok(());
        }
        if let Some(data) = &write.data {
            return self.write_within(write.offset_bytes, data).await;
        }
        let block_bytes = match write.pointer.lsize_bytes() {
            0 => write.length_bytes,
            lsize => lsize,
        };
        if block_bytes == 0 || block_bytes > BLOCK_MAX_BYTES {
            let what = "a block of no size, or of more than 16 MiB".to_owned();
            return Err(ReplayError { sequence: 0, what }.into());
        }
        let offset_bytes = match write.length_bytes < block_bytes {
            true => write.offset_bytes / block_bytes * block_bytes,
            false => write.offset_bytes,
        };
        if write.pointer.is_hole() {
            return self.write_within(offset_bytes, &vec![0; block_bytes as usize]).await;
        }
        let context = self.objset.context(DATA_OBJECT, 0, BlockId(offset_bytes / block_bytes));
        let block = self.objset.dmu().read(&write.pointer, context).await;
        let block = block.map_err(|error| DmuError::new(self.objset.id(), DATA_OBJECT, error));
        self.write_within(offset_bytes, &block.map_err(VolumeError::from)?).await
    }

    /// Replays a cloned range by copying: reads the source blocks and writes their contents, which take new space.
    async fn clone_range(&self, range: &CloneRange) -> Result<(), LiveVolumeError> {
        for part in range.parts().map_err(|error| ReplayError { sequence: 0, what: error.to_string() })? {
            let ClonedPart { offset_bytes, length_bytes, pointer } = part;
            if pointer.is_hole() {
                let end = (offset_bytes + length_bytes).min(self.volume().size_bytes());
                if end > offset_bytes {
                    self.clear_in(offset_bytes, end - offset_bytes, Clear::Freed).await?;
                }
                continue;
            }
            let context = self.objset.context(DATA_OBJECT, 0, BlockId(offset_bytes / range.block_bytes));
            let block = self.objset.dmu().read(&pointer, context).await;
            let block = block.map_err(|error| DmuError::new(self.objset.id(), DATA_OBJECT, error));
            self.write_within(offset_bytes, &block.map_err(VolumeError::from)?[..length_bytes as usize]).await?;
        }
        Ok(())
    }

    /// Writes what lies within the volume: it may have become smaller since.
    async fn write_within(&self, offset_bytes: u64, data: &[u8]) -> Result<(), LiveVolumeError> {
        let room = self.volume().size_bytes().saturating_sub(offset_bytes);
        let data = &data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        if data.is_empty() {
            return Ok(());
        }
        self.write_in(offset_bytes, data).await.map(drop)
    }
}
