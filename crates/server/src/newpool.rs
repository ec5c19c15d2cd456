//! New pools, on files created for them or on devices of this system.

use cenote_admin::values::{PoolSettings, check_new_pool, root_setting, stored_only};
use cenote_admin::{Line, Owner, Setting, create_pool};
use cenote_host::inuse::refuse_used;
use cenote_host::layout::Layout;
use cenote_host::{clock, host, refuse_mismatch};
use cenote_props::{dataset, effect, pool as pool_table};
use cenote_spa::{Clock, CreateOptions};

use crate::Session;
use crate::error::{Result, refused};
use crate::image_files::ImageFiles;

/// The default ashift of an image that is made from a seed.
const IMAGE_ASHIFT: u32 = 9;

/// A request for a new pool, from the command line.
pub struct NewPoolRequest<'a> {
    /// The pool's name.
    pub name: &'a str,
    /// Its vdevs.
    pub layout: &'a Layout,
    /// `-o`.
    pub pool: &'a [String],
    /// `-O`.
    pub dataset: &'a [String],
    /// The size of the files to create.
    pub size: Option<u64>,
    /// The seed from which guids and salts are drawn.
    pub seed: Option<u64>,
    /// Labels and data on the devices are overwritten.
    pub force: bool,
    /// The command, for the history.
    pub command: Line,
}

impl NewPoolRequest<'_> {
    /// Refuses a pool that cannot be created, as far as this can be checked before writing.
    ///
    /// # Errors
    /// The name or a setting is not valid, or a device is in use.
    pub async fn check(&self, session: &Session) -> Result<()> {
        check_pool_name(self.name)?;
        PoolSettings::parse(self.pool, &cenote_host::feature_list)?;
        self.dataset.iter().try_for_each(|setting| root_setting(setting).map(drop))?;
        refuse_used(session.handle(), self.layout, self.force).await?;
        if !self.force {
            refuse_mismatch(None, self.layout)?;
        }
        Ok(())
    }
}

/// Refuses a name that is not valid for a pool. As in OpenZFS, this precedes the checks of devices.
///
/// # Errors
/// The name is not valid.
pub fn check_pool_name(name: &str) -> Result<()> {
    check_new_pool(name).map_err(|reason| refused(format!("cannot create '{name}': {reason}")))
}

/// A pool whose first txg is not written yet, with an empty root file system.
pub struct NewPool {
    /// The pool, and its root directory.
    pub made: cenote_admin::NewPool,
    /// The latest time that timestamps may have.
    pub latest_s: Option<u64>,
}

impl NewPool {
    /// Creates it, in memory and in labels, and the files that it needs.
    ///
    /// # Errors
    /// A setting is not valid, a device is in use, or the files and devices cannot be written.
    pub async fn make(session: &Session, request: &NewPoolRequest<'_>) -> Result<(Self, ImageFiles)> {
        check_pool_name(request.name)?;
        let settings = PoolSettings::parse(request.pool, &cenote_host::feature_list)?;
        let properties = request.dataset.iter().filter_map(|setting| root_setting(setting).transpose());
        let properties = properties.collect::<Result<Vec<_>, _>>()?;
        let of_dataset = properties.iter().map(|(name, value)| (name.as_str(), value));
        let mut notes = stored_only(effect::of_dataset, dataset::PROPERTIES, of_dataset);
        let of_pool = settings.properties.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_ref()?)));
        notes.extend(stored_only(effect::of_pool, pool_table::PROPERTIES, of_pool));
        notes.iter().for_each(|note| session.warn(note));
        refuse_used(session.handle(), request.layout, request.force).await?;
        if !request.force {
            refuse_mismatch(None, request.layout)?;
        }
        let clock = clock()?;
        let made = ImageFiles::unfinished(session, request.layout, request.size)?;
        let new = Self::make_in(session, request, &settings, &properties, clock, &made).await;
        Ok((new.map_err(|error| made.named(error))?, made))
    }

    async fn make_in(
        session: &Session,
        request: &NewPoolRequest<'_>,
        settings: &PoolSettings,
        properties: &[Setting],
        clock: Clock,
        made: &ImageFiles,
    ) -> Result<Self> {
        // A reproducible image must not depend on the file system on which it is made.
        let of_image = settings.ashift.or(request.seed.map(|_| IMAGE_ASHIFT));
        let (mut tops, mut auxiliaries) =
            request.layout.open(session.handle(), &|path| made.place(path), of_image).await?;
        let is_image = tops.iter().flat_map(|top| &top.disks).all(|disk| disk.is_file);
        if request.seed.is_some() {
            let of_tops = tops.iter_mut().flat_map(|top| &mut top.disks);
            let all = of_tops.chain(&mut auxiliaries.spares).chain(&mut auxiliaries.caches);
            all.enumerate().for_each(|(at, disk)| disk.path = neutral_path(request.name, at));
        }
        let options = CreateOptions {
            name: request.name.to_owned(),
            tops,
            auxiliaries,
            ashift: if is_image { of_image } else { settings.ashift },
            disabled_features: settings.disabled_features.clone(),
            properties: settings.ashift.map(|ashift| ("ashift".to_owned(), u64::from(ashift))).into_iter().collect(),
            seed: request.seed,
            clock,
            host: host(request.seed.is_some()),
            command: request.command.text().to_owned(),
            user: 0,
            cache_bytes: session.import_options().cache_bytes,
            check: false,
        };
        // A reproducible image must not depend on its user: it is root's unless its source says otherwise.
        let owner = if request.seed.is_some() { Owner::ROOT } else { session.owner() };
        let new = create_pool(session.handle(), options, &settings.properties, properties, owner).await?;
        new.files.keep_no_data();
        let latest_s = if let Clock::Fixed(time) = clock { Some(time) } else { None };
        Ok(Self { made: new, latest_s })
    }
}

/// The path in labels for a device of a pool that is made from a seed, so that the pool does not depend on the place or names of its files.
/// OpenZFS requires an absolute path. An import finds devices by their guids, and writes their real paths.
fn neutral_path(pool: &str, at: usize) -> String {
    format!("/{pool}-{}", at + 1)
}
