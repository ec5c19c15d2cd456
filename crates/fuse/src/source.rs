//! The source of a mount's datasets: a pool as of a txg, or a pool in use.
//!
//! Of a pool in use heads are opened to be changed. Snapshots are opened from the open state of its datasets, not from a [`View`]: a
//! view's txg would be pinned for as long as the mount lives, and what is freed meanwhile could not be used again. A snapshot's own
//! blocks need no pin. They are there as long as the snapshot is.
//!
//! A head that cannot be changed yet is read as it is on disk. No other process changes it: this process has the pool.

use cenote_dsl::{Dataset, Dsl};
use cenote_format::ids::Txg;
use cenote_inuse::{OpenError, Opened, Report, Use, Why, allow_sizes, open_files};
use cenote_spa::{HeadSpace, Pool, User, View};
use cenote_taskq::Handle;
use cenote_zpl::{AccessTimes, FileSystem, Properties};

use crate::layout::{self, Layout, Part, Placed};
use crate::live::{Live, OpenFile};
use crate::server::SpaceFigures;
use crate::space::{PoolSize, figures_of};
use crate::zfsvfs::Zfsvfs;

enum From {
    /// As of a txg: nothing ever changes.
    View { view: View, size: PoolSize },
    /// In use.
    Pool(Pool),
}

/// The source of a mount's datasets.
pub(crate) struct Source {
    from: From,
    /// A mount option that overrides the properties `atime` and `relatime`.
    access_times: Option<AccessTimes>,
    /// One that overrides `xattr`.
    xattrs: Option<bool>,
    report: Report,
}

/// The datasets of a mount as they are now.
pub(crate) struct Survey {
    /// The mounted one.
    pub(crate) top: Placed,
    /// Those nested in it, of the part that was asked for.
    pub(crate) below: Vec<Placed>,
    /// Remarks on those that are left out.
    pub(crate) notes: Vec<String>,
}

impl Source {
    pub(crate) fn view(view: &View, xattrs: Option<bool>, report: Report) -> Self {
        let from = From::View { view: view.clone(), size: PoolSize::default() };
        Self { from, access_times: None, xattrs, report }
    }

    /// The options override properties.
    pub(crate) fn pool(
        pool: &Pool,
        (access_times, xattrs): (Option<AccessTimes>, Option<bool>),
        report: Report,
    ) -> Self {
        Self { from: From::Pool(pool.clone()), access_times, xattrs, report }
    }

    /// Whether nothing ever changes.
    pub(crate) const fn is_frozen(&self) -> bool {
        matches!(self.from, From::View { .. })
    }

    /// The txg as of which all is shown, if nothing changes.
    pub(crate) fn frozen_txg(&self) -> Option<Txg> {
        match &self.from {
            From::View { view, .. } => Some(view.txg()),
            From::Pool(_) => None,
        }
    }

    /// The pool, if it is in use.
    pub(crate) const fn as_pool(&self) -> Option<&Pool> {
        match &self.from {
            From::View { .. } => None,
            From::Pool(pool) => Some(pool),
        }
    }

    /// The pool's name.
    pub(crate) fn name(&self) -> &str {
        match &self.from {
            From::View { view, .. } => view.name(),
            From::Pool(pool) => pool.name(),
        }
    }

    /// The runtime.
    pub(crate) fn handle(&self) -> &Handle {
        match &self.from {
            From::View { view, .. } => view.dmu().handle(),
            From::Pool(pool) => pool.handle(),
        }
    }

    /// The datasets: of a pool in use with all that was changed so far.
    pub(crate) fn dsl(&self) -> Result<Dsl, OpenError> {
        match &self.from {
            From::View { view, .. } => Ok(view.dsl().clone()),
            From::Pool(pool) => Ok(pool.dsl()?),
        }
    }

    /// The mounted dataset as it is called now, and where those of a part that are nested in it stand.
    ///
    /// # Errors
    /// It is not there any more, or cannot be read.
    pub(crate) async fn survey(&self, top: &Dataset, layout: Layout, part: &Part) -> Result<Survey, OpenError> {
        let layout = if top.is_snapshot() { Layout::Alone } else { layout };
        let mut survey = match &self.from {
            From::View { view, .. } => survey(view.dsl(), top, layout, part).await?,
            From::Pool(pool) => {
                let (top, part) = (top.clone(), part.clone());
                // Between two changes of the pool, so that none is seen half made.
                let looked = pool.look(move |syncer| {
                    Box::pin(async move {
                        let dsl = syncer.dsl().clone();
                        let mut found = survey(&dsl, &top, layout, &part).await?;
                        for placed in std::iter::once(&mut found.top).chain(&mut found.below) {
                            allow_sizes(syncer, &dsl, &placed.dataset.dir, &mut placed.properties).await?;
                        }
                        Ok::<_, OpenError>(found)
                    })
                });
                looked.await?
            }
        };
        for placed in std::iter::once(&mut survey.top).chain(&mut survey.below) {
            self.override_properties(&mut placed.properties);
        }
        Ok(survey)
    }

    fn override_properties(&self, properties: &mut Properties) {
        properties.has_xattrs = self.xattrs.unwrap_or(properties.has_xattrs);
        properties.files.access_times = self.access_times.unwrap_or(properties.files.access_times);
    }

    /// Opens the mounted dataset: of a pool in use to be changed, or not at all. `files`: the files that programs have open; those that are
    /// still the same are opened again.
    pub(crate) async fn open_top(&self, dataset: &Dataset, files: &[OpenFile]) -> Result<Zfsvfs, OpenError> {
        self.open_as(dataset, files, true).await
    }

    /// Opens a dataset that is nested in the mounted one, or a snapshot. `files` as in [`Self::open_top`].
    pub(crate) async fn open(&self, dataset: &Dataset, files: &[OpenFile]) -> Result<Zfsvfs, OpenError> {
        self.open_as(dataset, files, false).await
    }

    async fn open_as(&self, dataset: &Dataset, files: &[OpenFile], is_for_changes: bool) -> Result<Zfsvfs, OpenError> {
        let source = match &self.from {
            From::View { view, .. } => cenote_inuse::Source::View(view),
            From::Pool(pool) => cenote_inuse::Source::Pool(pool),
        };
        let how = Use { user: User::Mount, is_for_changes, report: self.report.clone() };
        let (opened, mut properties) = open_files(source, dataset, &how).await?;
        self.override_properties(&mut properties);
        match opened {
            Opened::Live(live) => {
                let live = Live::new(live, files, self.report.clone()).await;
                Ok(Zfsvfs::live(live, properties))
            }
            Opened::Frozen(frozen) => {
                if let Some(why) = &frozen.why {
                    (self.report)(&format!("'{}' is shown read-only: {why}", dataset.name()));
                }
                Ok(Zfsvfs::frozen(frozen, properties, dataset.is_snapshot()))
            }
        }
    }

    /// Opens the on-disk state of a dataset for reading, for our own use: also of what was received and is about to take another's place.
    pub(crate) async fn filesystem(&self, dataset: &Dataset) -> Result<FileSystem, OpenError> {
        let objset =
            self.dsl()?.open_as_is(dataset).await?.ok_or_else(|| OpenError::Refused(dataset.name(), Why::Empty))?;
        FileSystem::open(objset).await.map_err(|error| OpenError::Zpl(dataset.name(), error))
    }

    /// The space of a dataset of the mount.
    pub(crate) async fn space(&self, dataset: &Dataset, opened: &Zfsvfs) -> Result<SpaceFigures, OpenError> {
        let record_bytes = opened.record_bytes();
        if let Some(live) = opened.as_live() {
            return Ok(figures_of(&live.space(), record_bytes));
        }
        match &self.from {
            From::View { view, size } => Ok(size.figures(view, dataset, record_bytes).await?),
            From::Pool(pool) => {
                let dir = dataset.dir.object;
                let available_bytes = pool.look(move |syncer| {
                    Box::pin(async move {
                        let dsl = syncer.dsl().clone();
                        let dir = dsl.dir_object(dir, String::new()).await?;
                        syncer.available_bytes(&dsl, &dir).await
                    })
                });
                let space = HeadSpace {
                    referenced_bytes: dataset.phys.referenced_bytes,
                    available_bytes: available_bytes.await?,
                    objects: dataset.phys.bp.fill(),
                };
                Ok(figures_of(&space, record_bytes))
            }
        }
    }
}

async fn survey(dsl: &Dsl, top: &Dataset, layout: Layout, part: &Part) -> Result<Survey, OpenError> {
    // It may have been renamed since.
    let dir = dsl.dir_object(top.dir.object, dsl.dir_name(top.dir.object).await?).await?;
    let dataset = dsl.dataset_object(top.object, dir, top.snapshot.clone()).await?;
    let mut notes = Vec::new();
    let below = layout::placed(dsl, &dataset.dir, layout, part, |text| notes.push(text)).await?;
    let properties = Properties::read(dsl, &dataset.dir).await?;
    Ok(Survey { top: Placed { dataset, path: Vec::new(), properties }, below, notes })
}
