//! Writing the pool's error log; the theory is in [`crate::errlog`].

use std::collections::BTreeMap;

use cenote_dmu::{DmuError, Object, ObjectSpec, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{ZBookmark, pool_directory};
use cenote_format::errlog::{ErrorBookmark, bookmark_name};
use cenote_format::ids::{ObjectId, ObjsetId, Txg};
use cenote_format::zap::{ZapValue, int_key_name};
use cenote_zio::DataError;

use super::rooms::InTxg;
use crate::errlog::{LOGGED_MAX, LoggedError, head_of};

/// The first block of a log.
const BLOCK_BYTES: u32 = 512;

impl InTxg<'_> {
    /// Enters the errors that came since the last txg. A log that cannot be written is told, and fails nothing.
    pub(super) async fn log_errors(&mut self, txg: Txg) {
        let errors = self.blocks.writer.dmu().zio().data_errors().take();
        if errors.is_empty() {
            return;
        }
        errors.iter().for_each(|error| self.blocks.space.events.data_error(error));
        if let Err(error) = self.enter_errors(txg, &errors).await {
            let count = errors.len();
            self.blocks.space.troubles.tell(format!(
                "{count} blocks could not be read, and the pool's error log cannot be written, so a later 'zpool status' does not \
                 have them: {error}"
            ));
        }
    }

    async fn enter_errors(&self, txg: Txg, errors: &[DataError]) -> Result<(), DmuError> {
        let directory = Zap::open(self.mos.directory.clone()).await?;
        let log = directory.find_u64(pool_directory::ERRLOG_LAST).await?.filter(|id| *id != 0);
        let log = match log {
            Some(id) => self.mos.objset.object(ObjectId(id)).await?,
            None => self.new_log(txg, &self.mos.directory, pool_directory::ERRLOG_LAST).await?,
        };
        if !self.logs_errors_by_head() {
            let names = errors.iter().map(|DataError { bookmark, .. }| {
                bookmark_name(&ZBookmark {
                    objset: bookmark.objset,
                    object: bookmark.object,
                    level: i64::from(bookmark.level),
                    block: bookmark.block.0,
                })
            });
            return enter(&log, txg, names).await;
        }
        let mut by_head: BTreeMap<ObjectId, Vec<String>> = BTreeMap::new();
        let mut heads: BTreeMap<ObjsetId, (ObjectId, bool)> = BTreeMap::new();
        for DataError { bookmark, birth } in errors {
            let (head, is_known) = match heads.get(&bookmark.objset) {
                Some(head) => *head,
                None => head_of(&self.mos.dsl, bookmark.objset).await,
            };
            heads.insert(bookmark.objset, (head, is_known));
            // Without a dataset nothing can be looked for by the birth.
            let birth = if is_known { *birth } else { Txg(0) };
            let name = ErrorBookmark {
                object: bookmark.object,
                level: i64::from(bookmark.level),
                block: bookmark.block.0,
                birth,
            };
            by_head.entry(head).or_default().push(name.name());
        }
        for (head, names) in by_head {
            let key = int_key_name(head.0);
            let inner = match Zap::open(log.clone()).await?.find_u64(&key).await? {
                Some(id) => self.mos.objset.object(ObjectId(id)).await?,
                None => self.new_log(txg, &log, &key).await?,
            };
            enter(&inner, txg, names.into_iter()).await?;
        }
        Ok(())
    }

    fn logs_errors_by_head(&self) -> bool {
        self.mos.features.count("head_errlog") > 0
    }

    /// A log without entries, which this entry of a ZAP names.
    async fn new_log(&self, txg: Txg, of: &Object, entry: &str) -> Result<Object, DmuError> {
        let object = self.mos.objset.create_object(txg, &ObjectSpec::new(DmuType::ERROR_LOG, BLOCK_BYTES))?;
        Zap::create(object.clone())?.flush(txg).await?;
        Zap::put_entry(of, txg, entry, Some(&ZapValue::from_u64(object.id().0))).await?;
        Ok(object)
    }

    /// Takes entries out of both logs, whose blocks are well.
    pub(crate) async fn drop_errors(&mut self, errors: &[LoggedError]) -> Result<(), DmuError> {
        let txg = self.txg;
        let is_by_head = self.logs_errors_by_head();
        let mut of: BTreeMap<Option<ObjsetId>, Vec<String>> = BTreeMap::new();
        for LoggedError { objset, object, level, block, birth } in errors {
            match is_by_head {
                true => {
                    let name = ErrorBookmark {
                        object: *object,
                        level: *level,
                        block: *block,
                        birth: birth.unwrap_or_default(),
                    };
                    of.entry(Some(*objset)).or_default().push(name.name());
                }
                false => {
                    let name = ZBookmark { objset: *objset, object: *object, level: *level, block: *block };
                    of.entry(None).or_default().push(bookmark_name(&name));
                }
            }
        }
        let directory = Zap::open(self.mos.directory.clone()).await?;
        for entry in [pool_directory::ERRLOG_LAST, pool_directory::ERRLOG_SCRUB] {
            let Some(id) = directory.find_u64(entry).await?.filter(|id| *id != 0) else { continue };
            let log = self.mos.objset.object(ObjectId(id)).await?;
            for (head, names) in &of {
                let object = match head {
                    None => log.clone(),
                    Some(head) => {
                        let inner = Zap::open(log.clone()).await?.find_u64(&int_key_name(head.0)).await?;
                        let Some(inner) = inner else { continue };
                        self.mos.objset.object(ObjectId(inner)).await?
                    }
                };
                let mut zap = Zap::open(object).await?;
                for name in names {
                    if zap.lookup(name.as_bytes()).await?.is_some() {
                        zap.remove(name.as_bytes()).await?;
                    }
                }
                zap.flush(txg).await?;
            }
        }
        Ok(())
    }

    /// Takes the errors of a head that is destroyed out of the logs, as OpenZFS does. Those that cannot be are told.
    pub(crate) async fn forget_errors_of(&mut self, txg: Txg, head: ObjectId) {
        self.blocks.writer.dmu().zio().data_errors().forget(|bookmark| bookmark.objset.0 == head.0);
        if let Err(error) = self.take_errors_of(txg, head).await {
            self.blocks
                .space
                .troubles
                .tell(format!("the errors of a dataset that is destroyed stay in the pool's error log: {error}"));
        }
    }

    async fn take_errors_of(&self, txg: Txg, head: ObjectId) -> Result<(), DmuError> {
        if !self.logs_errors_by_head() {
            return Ok(());
        }
        let directory = Zap::open(self.mos.directory.clone()).await?;
        let key = int_key_name(head.0);
        for entry in [pool_directory::ERRLOG_LAST, pool_directory::ERRLOG_SCRUB] {
            let Some(id) = directory.find_u64(entry).await?.filter(|id| *id != 0) else { continue };
            let log = self.mos.objset.object(ObjectId(id)).await?;
            let Some(inner) = Zap::open(log.clone()).await?.find_u64(&key).await? else { continue };
            let inner = self.mos.objset.object(ObjectId(inner)).await?;
            Zap::put_entry(&log, txg, &key, None).await?;
            inner.free(txg);
        }
        Ok(())
    }
}

/// Enters names that are not there, as far as there is room.
async fn enter(log: &Object, txg: Txg, names: impl Iterator<Item = String>) -> Result<(), DmuError> {
    let mut zap = Zap::open(log.clone()).await?;
    let mut count = zap.entry_count()?;
    for name in names {
        if count >= LOGGED_MAX {
            break;
        }
        if zap.lookup(name.as_bytes()).await?.is_none() {
            // The text is a file's name where it was known.
            zap.insert(name.as_bytes(), &ZapValue::from_text("")).await?;
            count += 1;
        }
    }
    zap.flush(txg).await
}
