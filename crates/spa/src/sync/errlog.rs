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
/// Datasets that a log names at most; more is not credible.
const HEADS_MAX: usize = 1 << 20;
/// Entries of a list that another process may have written, at most.
const LISTED_MAX: usize = 1 << 20;

impl InTxg<'_> {
    /// Enters the errors that came since the last txg into the log of this entry of the directory. A log that cannot be written is told, and fails nothing.
    pub(super) async fn log_errors(&mut self, txg: Txg, entry: &str) {
        let errors = self.blocks.writer.dmu().zio().data_errors().take();
        if errors.is_empty() {
            return;
        }
        errors.iter().for_each(|error| self.blocks.space.events.data_error(error));
        if let Err(error) = self.enter_errors(txg, entry, &errors).await {
            let count = errors.len();
            self.blocks.space.troubles.tell(format!(
                "{count} blocks could not be read, and the pool's error log cannot be written, so a later 'zpool status' does not \
                 have them: {error}"
            ));
        }
    }

    async fn enter_errors(&self, txg: Txg, entry: &str, errors: &[DataError]) -> Result<(), DmuError> {
        let log = match self.log(entry).await? {
            Some(log) => log,
            None => self.new_log(txg, &self.mos.directory, entry).await?,
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

    /// The log of an entry of the directory, if there is one.
    async fn log(&self, entry: &str) -> Result<Option<Object>, DmuError> {
        let directory = Zap::open(self.mos.directory.clone()).await?;
        match directory.find_u64(entry).await?.filter(|id| *id != 0) {
            Some(id) => self.mos.objset.object(ObjectId(id)).await.map(Some),
            None => Ok(None),
        }
    }

    /// A scan has ended: the errors that came since it began are in the log of the scrub, and become the log. `is_everywhere`: it has read all that the log
    /// names, so the entries of before go. They stay otherwise. Logs that cannot be written are told, and stay two.
    pub(super) async fn end_scan_of_errors(&mut self, txg: Txg, is_everywhere: bool) {
        let ended = match is_everywhere {
            true => self.swap_logs(txg).await,
            false => self.unite_logs(txg).await,
        };
        if let Err(error) = ended {
            let troubles = &self.blocks.space.troubles;
            troubles.tell(format!("the pool's error log names what was found before the scan as well: {error}"));
        }
    }

    async fn swap_logs(&self, txg: Txg) -> Result<(), DmuError> {
        let log = self.log(pool_directory::ERRLOG_SCRUB).await?.map_or(0, |log| log.id().0);
        if let Some(last) = self.log(pool_directory::ERRLOG_LAST).await? {
            if self.logs_errors_by_head() {
                for entry in Zap::open(last.clone()).await?.entries(HEADS_MAX).await? {
                    let Some(inner) = entry.value.as_u64().filter(|id| *id != 0) else { continue };
                    self.mos.objset.object(ObjectId(inner)).await?.free(txg);
                }
            }
            last.free(txg);
        }
        self.name_logs(txg, log).await
    }

    /// The directory has this log, and none of a scrub.
    async fn name_logs(&self, txg: Txg, log: u64) -> Result<(), DmuError> {
        for (entry, number) in [(pool_directory::ERRLOG_LAST, log), (pool_directory::ERRLOG_SCRUB, 0)] {
            let value = ZapValue::from_u64(number);
            Zap::put_entry(&self.mos.directory, txg, entry, Some(&value)).await?;
        }
        Ok(())
    }

    /// Has the log have what the log of the scrub has.
    async fn unite_logs(&self, txg: Txg) -> Result<(), DmuError> {
        let Some(scrub) = self.log(pool_directory::ERRLOG_SCRUB).await? else { return Ok(()) };
        let Some(last) = self.log(pool_directory::ERRLOG_LAST).await? else {
            return self.name_logs(txg, scrub.id().0).await;
        };
        if self.logs_errors_by_head() {
            for entry in Zap::open(scrub.clone()).await?.entries(HEADS_MAX).await? {
                let Some(inner) = entry.value.as_u64().filter(|id| *id != 0) else { continue };
                let name = String::from_utf8_lossy(entry.name()).into_owned();
                match Zap::open(last.clone()).await?.find_u64(&name).await?.filter(|id| *id != 0) {
                    Some(into) => {
                        let (inner, into) = (ObjectId(inner), self.mos.objset.object(ObjectId(into)).await?);
                        self.move_entries(txg, &self.mos.objset.object(inner).await?, &into).await?;
                    }
                    None => Zap::put_entry(&last, txg, &name, Some(&ZapValue::from_u64(inner))).await?,
                }
            }
            scrub.free(txg);
        } else {
            self.move_entries(txg, &scrub, &last).await?;
        }
        self.name_logs(txg, last.id().0).await
    }

    /// Enters what one list has into another, and frees the one.
    async fn move_entries(&self, txg: Txg, of: &Object, into: &Object) -> Result<(), DmuError> {
        let names = Zap::open(of.clone()).await?.entries(LISTED_MAX).await?;
        enter(into, txg, names.iter().map(|entry| String::from_utf8_lossy(entry.name()).into_owned())).await?;
        of.free(txg);
        Ok(())
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
