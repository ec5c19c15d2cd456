//! Datasets and their properties.

use std::collections::BTreeMap;
use std::fmt;

use cenote_admin::values::{self, When};
use cenote_admin::{CreateRequest, DestroyRequest, RenameRequest, SetRequest};
use cenote_dsl::name::is_at_or_below;
use cenote_dsl::property::Value;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::ObjectId;
use cenote_props::{Types, dataset as table, find, is_user_property};

use crate::error::{Error, ErrorKind, Place};
use crate::filesystem::{self, FileSystem};
use crate::open::Open;
use crate::pool::Pool;
use crate::raise::Raise as _;
use crate::volume::Volume;

/// The kind of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatasetKind {
    /// A file system.
    FileSystem,
    /// A volume.
    Volume,
}

impl DatasetKind {
    const fn types(self) -> Types {
        match self {
            Self::FileSystem => Types::FILESYSTEM,
            Self::Volume => Types::VOLUME,
        }
    }
}

/// The part of a dataset that must not be open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The dataset.
    Itself,
    /// Also its snapshots, and the datasets below it.
    AllBelow,
}

/// The source of a property's value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Nothing was set.
    Default,
    /// Set on the dataset itself.
    Local,
    /// Inherited from the dataset with this name.
    Inherited(String),
    /// Came with a stream.
    Received,
}

/// A property of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Property {
    /// Its name.
    pub name: String,
    /// Its value in OpenZFS's words; numbers in digits.
    pub value: String,
    /// The source of that value.
    pub source: Source,
}

/// A file system or volume of a pool, by its name. Cheap to clone; it holds nothing in the pool.
#[derive(Clone)]
pub struct Dataset {
    pool: Pool,
    name: String,
    kind: DatasetKind,
    guid: u64,
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dataset").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Settings as a command has them.
pub(crate) fn texts(given: &[(&str, &str)]) -> Vec<String> {
    given.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

impl Pool {
    /// All datasets, in the order of a walk from the top down.
    ///
    /// # Errors
    /// The pool's directory of datasets cannot be read.
    pub async fn datasets(&self) -> Result<Vec<Dataset>, Error> {
        let found = self.look(|dsl| {
            Box::pin(async move {
                let mut found = Vec::new();
                for dir in dsl.tree(dsl.root_dir().await?, false).await? {
                    let Some(head) = dsl.head(&dir).await? else { continue };
                    found.extend(kind_of(dsl.kind(&head).await?).map(|kind| (dir.name, kind, head.phys.guid.0)));
                }
                Ok(found)
            })
        });
        let of = |(name, kind, guid)| Dataset { pool: self.clone(), name, kind, guid };
        Ok(found.await?.into_iter().map(of).collect())
    }

    /// The dataset of this name.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Misuse`](ErrorKind::Misuse) (it is a snapshot's name).
    pub async fn dataset(&self, name: &str) -> Result<Dataset, Error> {
        let whole = name.to_owned();
        let found = self.look(move |dsl| {
            Box::pin(async move {
                let dataset = dsl.dataset(&whole).await?;
                let kind = dsl.kind(&dataset).await?;
                Ok((dataset, kind))
            })
        });
        let (dataset, kind) = found.await?;
        if dataset.is_snapshot() {
            return Err(Error::misuse(format!("'{name}' is a snapshot")).of_dataset(name));
        }
        let kind = kind_of(kind);
        let kind = kind.ok_or_else(|| Error::misuse(format!("'{name}' has no contents")).of_dataset(name))?;
        Ok(Dataset { pool: self.clone(), name: name.to_owned(), kind, guid: dataset.phys.guid.0 })
    }

    /// Makes a file system, on disk when this returns, with properties such as `("compression", "zstd")`.
    ///
    /// # Errors
    /// [`Exists`](ErrorKind::Exists), [`NotFound`](ErrorKind::NotFound) (of the dataset above), [`NoSpace`](ErrorKind::NoSpace),
    /// [`Misuse`](ErrorKind::Misuse).
    ///
    /// ```no_run
    /// # async fn example(pool: cenote::Pool) -> Result<(), cenote::Error> {
    /// let home = pool.create_filesystem("tank/home", &[("compression", "zstd"), ("quota", "10G")]).await?;
    /// assert_eq!(home.get("compression").await?.value, "zstd");
    /// let before = home.snapshot("before").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_filesystem(&self, name: &str, properties: &[(&str, &str)]) -> Result<Dataset, Error> {
        let (name, properties) = (name.to_owned(), texts(properties));
        self.create(CreateRequest { name, properties, ..CreateRequest::default() }).await
    }

    /// Makes a volume, on disk when this returns. Its size is rounded up to whole blocks, and space for all of it is reserved unless
    /// `("refreservation", "none")` says otherwise. `volblocksize` is the size of its blocks.
    ///
    /// # Errors
    /// As [`Self::create_filesystem`].
    pub async fn create_volume(
        &self,
        name: &str,
        size_bytes: u64,
        properties: &[(&str, &str)],
    ) -> Result<Dataset, Error> {
        let (name, properties, volume_size) = (name.to_owned(), texts(properties), Some(size_bytes.to_string()));
        self.create(CreateRequest { name, properties, volume_size, ..CreateRequest::default() }).await
    }

    async fn create(&self, request: CreateRequest<'_>) -> Result<Dataset, Error> {
        let request = CreateRequest { owner: self.owner(), ..request };
        self.make(&request).await?;
        self.dataset(&request.name).await
    }
}

fn kind_of(kind: ObjsetType) -> Option<DatasetKind> {
    match kind {
        ObjsetType::Zfs => Some(DatasetKind::FileSystem),
        ObjsetType::Zvol => Some(DatasetKind::Volume),
        _ => None,
    }
}

/// Space of a dataset, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatasetSpace {
    /// Used by it, its snapshots and all below it.
    pub used_bytes: u64,
    /// The bytes that it refers to.
    pub referenced_bytes: u64,
}

impl Dataset {
    /// Its whole name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> DatasetKind {
        self.kind
    }

    /// Its guid, which stays when it is renamed.
    #[must_use]
    pub const fn guid(&self) -> u64 {
        self.guid
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    async fn found(&self) -> Result<cenote_dsl::Dataset, Error> {
        let name = self.name.clone();
        self.pool.look(move |dsl| Box::pin(async move { Ok(dsl.dataset(&name).await?) })).await
    }

    /// The space that it takes, as of the last txg.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound): it was destroyed or renamed.
    pub async fn space(&self) -> Result<DatasetSpace, Error> {
        let found = self.found().await?;
        let (used_bytes, referenced_bytes) = (found.dir.phys.used_bytes, found.phys.referenced_bytes);
        Ok(DatasetSpace { used_bytes, referenced_bytes })
    }

    /// Opens it as a file system.
    ///
    /// # Errors
    /// As [`Pool::filesystem`].
    pub async fn filesystem(&self) -> Result<FileSystem, Error> {
        self.pool.filesystem(&self.name).await
    }

    /// Opens it as a volume.
    ///
    /// # Errors
    /// As [`Pool::volume`].
    pub async fn volume(&self) -> Result<Volume, Error> {
        self.pool.volume(&self.name).await
    }

    /// A property that can be set, or one of the user's, with the value that is in force.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound): there is no such property, or a user property that is not set.
    /// [`NotSupported`](ErrorKind::NotSupported): it only reports something, or is chosen at creation.
    pub async fn get(&self, property: &str) -> Result<Property, Error> {
        let place = || Place { dataset: Some(self.name.clone()), ..Place::default() };
        let absent = || Error::new(ErrorKind::NotFound, place(), format!("no property '{property}'"));
        let known = find(table::PROPERTIES, property).filter(|known| known.types.intersects(self.kind.types()));
        if known.is_none() && !is_user_property(property) {
            return Err(absent());
        }
        if known.is_some_and(|known| known.is_read_only()) {
            let what = format!("not supported yet: reading the property '{property}'");
            return Err(Error::new(ErrorKind::NotSupported, place(), what));
        }
        let name = known.map_or(property, |known| known.name);
        if name == "volsize" {
            let value = self.volume().await?.size_bytes().to_string();
            return Ok(Property { name: name.to_owned(), value, source: Source::Local });
        }
        let is_inherited = known.is_none_or(|known| known.is_inheritable());
        let (own, wanted) = (self.name.clone(), name.to_owned());
        let set = self.pool.look(move |dsl| {
            Box::pin(async move { Ok(dsl.property(&dsl.dir(&own).await?, &wanted, is_inherited).await?) })
        });
        let word =
            |number: u64| known.and_then(|known| known.word(number)).map_or_else(|| number.to_string(), str::to_owned);
        let (value, source) = match set.await? {
            Some(set) => {
                let value = match set.value {
                    Value::Number(number) => word(number),
                    Value::Text(text) => text,
                };
                (value, source_of(set.source))
            }
            None => {
                let known = known.ok_or_else(absent)?;
                let value = match known.kind {
                    cenote_props::Kind::Text(text) => text.unwrap_or_default().to_owned(),
                    _ => word(known.default_number().unwrap_or(0)),
                };
                (value, Source::Default)
            }
        };
        Ok(Property { name: name.to_owned(), value, source })
    }

    /// The properties that are set on it, received or inherited. The others have their defaults.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound): it was destroyed or renamed.
    pub async fn properties(&self) -> Result<Vec<Property>, Error> {
        let is_inherited =
            |name: &str| find(table::PROPERTIES, name).map_or(is_user_property(name), |known| known.is_inheritable());
        let own = self.name.clone();
        let set = self
            .pool
            .look(move |dsl| Box::pin(async move { Ok(dsl.properties(&dsl.dir(&own).await?, is_inherited).await?) }));
        let shown = set.await?.into_iter().map(|(name, set)| {
            let value = match set.value {
                Value::Number(number) => find(table::PROPERTIES, &name)
                    .and_then(|known| known.word(number))
                    .map_or_else(|| number.to_string(), str::to_owned),
                Value::Text(text) => text,
            };
            Property { name, value, source: source_of(set.source) }
        });
        Ok(shown.collect())
    }

    /// Sets a property, in OpenZFS's words: `("compression", "zstd")`, `("quota", "10G")`, `("org.example:note", "mine")`. It is on disk
    /// when this returns, and file systems and volumes that are open obey it: handles of a volume see another `volsize`.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Misuse`](ErrorKind::Misuse), [`NotSupported`](ErrorKind::NotSupported),
    /// [`NoSpace`](ErrorKind::NoSpace).
    pub async fn set(&self, property: &str, value: &str) -> Result<(), Error> {
        if property.contains('=') {
            return Err(Error::misuse(format!("'{property}' is not the name of a property")).of_dataset(&self.name));
        }
        self.pool.make(&SetRequest { arguments: vec![format!("{property}={value}"), self.name.clone()] }).await
    }

    /// Has it inherit a property from the dataset above, or have its default.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub async fn inherit(&self, property: &str) -> Result<(), Error> {
        let pool = self.pool.writable()?;
        let name = values::dataset_property(property, When::Later, self.kind.types()).raised()?;
        cenote_admin::inherit_property(pool, std::slice::from_ref(&self.name), &name, false, false).await.raised()?;
        filesystem::refresh(&self.pool).await
    }

    /// Gives it another name, in the same pool.
    ///
    /// # Errors
    /// [`Exists`](ErrorKind::Exists), [`NotFound`](ErrorKind::NotFound) (of the dataset above the new name),
    /// [`Busy`](ErrorKind::Busy) (it or one below it is open).
    pub async fn rename(self, to: &str) -> Result<Self, Error> {
        let (from, to) = (self.name.clone(), to.to_owned());
        self.pool.make(&RenameRequest { from, to: to.clone(), ..RenameRequest::default() }).await?;
        Ok(Self { name: to, ..self })
    }

    /// Destroys it. Its blocks are freed in the background.
    ///
    /// # Errors
    /// [`Busy`](ErrorKind::Busy): it is open, or has snapshots or datasets below it.
    pub async fn destroy(self) -> Result<(), Error> {
        self.destroy_with(cenote_admin::Reach::default()).await
    }

    /// Destroys it with its snapshots and all datasets below it, or nothing.
    ///
    /// # Errors
    /// [`Busy`](ErrorKind::Busy): one is open, or a snapshot has a clone elsewhere.
    pub async fn destroy_all(self) -> Result<(), Error> {
        self.destroy_with(cenote_admin::Reach { recursive: true, clones: false }).await
    }

    async fn destroy_with(self, reach: cenote_admin::Reach) -> Result<(), Error> {
        self.pool.make(&DestroyRequest { reach, ..DestroyRequest::new(self.name) }).await.map(drop)
    }
}

fn source_of(source: cenote_dsl::property::Source) -> Source {
    match source {
        cenote_dsl::property::Source::Local => Source::Local,
        cenote_dsl::property::Source::Received => Source::Received,
        cenote_dsl::property::Source::Inherited(from) => Source::Inherited(from),
    }
}

/// A block that could not be read at some time, by the pool's own log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataError {
    /// The dataset, where it is still there; none for the pool's own objects.
    pub dataset: Option<String>,
    /// The number of the dataset's objset; 0 is the pool's own.
    pub objset: u64,
    /// The object: the inode of a file.
    pub object: u64,
    /// The block's level and number.
    pub block: (i64, u64),
}

impl Pool {
    /// The blocks that the pool's log of errors has (`zpool status -v`). Of a pool that is open to be changed, as of a txg that is written
    /// for this.
    ///
    /// # Errors
    /// The log cannot be read.
    pub async fn data_errors(&self) -> Result<Vec<DataError>, Error> {
        let view = self.view().await?;
        let logged = view.logged_errors().await.raised()?;
        let heads: Vec<ObjectId> = logged.iter().map(|error| ObjectId(error.objset.0)).collect();
        let names = view.dsl().head_names(&heads).await;
        let of = |error: cenote_spa::LoggedError| DataError {
            dataset: names.get(&ObjectId(error.objset.0)).cloned(),
            objset: error.objset.0,
            object: error.object.0,
            block: (error.level, error.block),
        };
        Ok(logged.into_iter().map(of).collect())
    }

    /// Closes what no handle refers to.
    pub(crate) async fn close_unused(open: &mut BTreeMap<ObjectId, Open>) {
        let unused: Vec<ObjectId> = open.iter().filter(|(_, open)| open.is_unused()).map(|(id, _)| *id).collect();
        for id in unused {
            if let Some(unused) = open.remove(&id) {
                unused.close().await;
            }
        }
    }

    /// Closes what no handle refers to; refuses if a dataset or one below it is open after that.
    pub(crate) async fn let_go(&self, name: &str, reach: Reach, consequence: &str) -> Result<(), Error> {
        let mut open = self.inner.open.lock().await;
        Self::close_unused(&mut open).await;
        let objects: Vec<ObjectId> = open.keys().copied().collect();
        if objects.is_empty() {
            return Ok(());
        }
        // They may have other names than when they were opened.
        let names = self.look(move |dsl| {
            Box::pin(async move {
                let mut names = Vec::new();
                for object in objects {
                    names.push(dsl.dataset_name(object).await?);
                }
                Ok(names)
            })
        });
        let is_within = |other: &&String| {
            let dataset = other.split('@').next().unwrap_or(other);
            *other == name || (reach == Reach::AllBelow && is_at_or_below(dataset, name))
        };
        match names.await?.iter().find(is_within) {
            Some(used) => {
                let what = format!("'{used}' is open: {consequence}");
                Err(Error::new(ErrorKind::Busy, Place::default(), what).of_dataset(name))
            }
            None => Ok(()),
        }
    }
}
