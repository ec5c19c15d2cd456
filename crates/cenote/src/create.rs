//! Making pools.

use std::path::{Path, PathBuf};

use cenote_admin::values::{self, When};
use cenote_admin::{Line, Owner};
use cenote_host::images::Images;
use cenote_host::layout::parse_layout;
use cenote_host::{inuse, refuse_mismatch};
use cenote_props::Types;
use cenote_spa::Clock;

use crate::dataset::texts;
use crate::error::Error;
use crate::options::{OpenOptions, cache_bytes, simulated_host};
use crate::pool::Pool;
use crate::raise::Raise as _;
use crate::runtime::Runtime;
use crate::setters::setters;

/// The options with which a pool is made.
///
/// ```no_run
/// use cenote::{CreateOptions, Error, Runtime};
///
/// # fn main() -> Result<(), Error> {
/// let runtime = Runtime::new()?;
/// let options = CreateOptions::new(["mirror", "/images/a", "/images/b"]).file_bytes(256 << 20);
/// let pool = runtime.block_on(options.create(&runtime, "tank"))?;
/// runtime.block_on(pool.export())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CreateOptions {
    vdevs: Vec<String>,
    file_bytes: Option<u64>,
    force: bool,
    ashift: Option<u32>,
    properties: Vec<(String, String)>,
    root_properties: Vec<(String, String)>,
    cache_bytes: Option<usize>,
}

impl CreateOptions {
    /// On these vdevs, in the words of `zpool create`: `["mirror", "/dev/sda", "/dev/sdb", "log", "/dev/nvme0n1"]`.
    #[must_use]
    pub fn new<I: IntoIterator>(vdevs: I) -> Self
    where
        I::Item: Into<String>,
    {
        Self {
            vdevs: vdevs.into_iter().map(Into::into).collect(),
            file_bytes: None,
            force: false,
            ashift: None,
            properties: Vec::new(),
            root_properties: Vec::new(),
            cache_bytes: None,
        }
    }

    setters! {
        /// Makes image files of this size, 64 MiB at least, where there is nothing of a vdev's path.
        file_bytes(self, bytes: u64) { self.file_bytes = Some(bytes); }
        /// Overwrites what devices hold, and takes vdevs of different redundancy (`zpool create -f`). Devices that are in use are refused all
        /// the same.
        force(self, force: bool) { self.force = force; }
        /// The size of sectors, as a power of two; as the devices say, without this.
        ashift(self, ashift: u32) { self.ashift = Some(ashift); }
        /// Sets a property of the pool, such as `("autotrim", "on")`.
        property(self, name: &str, value: &str) { self.properties.push((name.to_owned(), value.to_owned())); }
        /// Sets a property of the root file system, such as `("compression", "zstd")`.
        root_property(self, name: &str, value: &str) { self.root_properties.push((name.to_owned(), value.to_owned())); }
        /// As [`OpenOptions::cache_bytes`].
        cache_bytes(self, bytes: usize) { self.cache_bytes = Some(bytes); }
    }

    /// Makes the pool, with an empty root file system, and opens it to be changed.
    ///
    /// # Errors
    /// [`Misuse`](crate::ErrorKind::Misuse): the words name no vdevs. [`Busy`](crate::ErrorKind::Busy): a device is in use or holds
    /// something. Image files that were made are removed then.
    pub async fn create(&self, runtime: &Runtime, name: &str) -> Result<Pool, Error> {
        let images = Images::default();
        let made = self.make(runtime, name, &images).await;
        let devices = match made {
            Ok(devices) => devices,
            Err(error) => {
                images.remove();
                return Err(error);
            }
        };
        images.keep().raised()?;
        let mut options = OpenOptions::new().write(true);
        for device in devices {
            options = options.search(device);
        }
        if let Some(bytes) = self.cache_bytes {
            options = options.cache_bytes(bytes);
        }
        options.open(runtime, name).await
    }

    /// Makes the pool, exported. Gives its devices.
    async fn make(&self, runtime: &Runtime, name: &str, images: &Images) -> Result<Vec<PathBuf>, Error> {
        let handle = runtime.handle();
        let is_simulated = runtime.simulated_disks().is_some();
        let layout = parse_layout(&self.vdevs).raised()?;
        let of_pool = self.properties.iter().map(|(name, value)| values::new_pool_setting(&format!("{name}={value}")));
        let mut of_pool = of_pool.collect::<Result<Vec<_>, _>>().raised()?;
        let of_root: Vec<(&str, &str)> =
            self.root_properties.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let of_root = texts(&of_root);
        values::check_once(&of_root).raised()?;
        let of_root = values::dataset_settings(&of_root, When::PoolCreation, Types::FILESYSTEM).raised()?;
        if !is_simulated {
            inuse::refuse_used(&handle, &layout, self.force).await.raised()?;
            if !self.force {
                refuse_mismatch(None, &layout).raised()?;
            }
            images.make_unfinished(&layout, self.file_bytes).raised()?;
        }
        let place = |path: &Path| images.place(path);
        let (mut tops, auxiliaries) = layout.open(&handle, &place, self.ashift).await.raised()?;
        if is_simulated {
            tops.iter_mut().flat_map(|top| &mut top.disks).for_each(|disk| disk.is_file = true);
        }
        let (clock, host) = match is_simulated {
            true => (Clock::Now, simulated_host()),
            false => (cenote_host::clock().raised()?, cenote_host::host(false)),
        };
        let user = if is_simulated { 0 } else { u64::from(rustix::process::getuid().as_raw()) };
        let options = cenote_spa::CreateOptions {
            name: name.to_owned(),
            tops,
            auxiliaries,
            ashift: self.ashift,
            disabled_features: Vec::new(),
            properties: self.ashift.map(|ashift| ("ashift".to_owned(), u64::from(ashift))).into_iter().collect(),
            seed: None,
            clock,
            host,
            command: Line::new("zpool create").word(name).words(&self.vdevs).text().to_owned(),
            user,
            cache_bytes: cache_bytes(self.cache_bytes, is_simulated),
            check: false,
        };
        let owner = if is_simulated { Owner::ROOT } else { crate::pool::maker() };
        // The size of sectors is no property that is set later.
        of_pool.retain(|(name, _)| name != "ashift");
        let pool = cenote_admin::create_pool(&handle, options, &of_pool, &of_root, owner).await.raised()?.pool;
        pool.sync().await.raised()?;
        pool.export().await.raised()?;
        Ok(layout.paths().map(Path::to_owned).collect())
    }
}
