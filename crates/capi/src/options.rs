//! `cenote_options`, and finding, opening and making pools.

use std::path::PathBuf;
use std::sync::Mutex;

use cenote::{CreateOptions, OpenOptions};

use crate::border::{Data, Give, In, Text, Words};
use crate::fault::Fault;
use crate::list::List;
use crate::locked;
use crate::pool::{PoolHandle, setting};
use crate::runtime::{runtime, wait};

/// Options, which are set one after the other.
#[derive(Default)]
pub(crate) struct Setting<O>(Mutex<O>);

/// Options of finding, opening and making pools.
pub(crate) type Options = Setting<Given>;

#[derive(Clone, Default)]
pub(crate) struct Given {
    open: OpenOptions,
    force: bool,
    cache_bytes: Option<usize>,
}

type Done = Result<(), Fault>;

impl<O: Default> Setting<O> {
    pub(crate) fn change(&self, change: impl FnOnce(O) -> O) -> Done {
        let mut options = locked(&self.0);
        *options = change(std::mem::take(&mut *options));
        Ok(())
    }
}

impl Options {
    fn open(&self, change: impl FnOnce(OpenOptions) -> OpenOptions) -> Done {
        self.change(|given| Given { open: change(given.open), ..given })
    }
}

/// The options as they are set; the usual ones of none.
pub(crate) fn given<O: Clone + Default>(options: &In<Setting<O>>) -> O {
    options.optional().map(|options| locked(&options.0).clone()).unwrap_or_default()
}

pub(crate) fn new<O: Default + Send + 'static>(options: Give<Setting<O>>) -> Done {
    options.get("options")?.give(Setting::default());
    Ok(())
}

/// The function that sets an option to a value.
pub(crate) fn set<O: Default, V>(setter: impl FnOnce(O, V) -> O) -> impl FnOnce(In<Setting<O>>, V) -> Done {
    |options, value| options.get("options")?.change(|options| setter(options, value))
}

pub(crate) fn search(options: In<Options>, path: Text) -> Done {
    let path: PathBuf = path.path("path")?.to_owned();
    options.get("options")?.open(|open| open.search(path))
}

pub(crate) fn write(options: In<Options>, write: bool) -> Done {
    options.get("options")?.open(|open| open.write(write))
}

pub(crate) fn force(options: In<Options>, force: bool) -> Done {
    options.get("options")?.change(|given| Given { open: given.open.force(force), force, ..given })
}

pub(crate) fn allow_missing(options: In<Options>, allow: bool) -> Done {
    options.get("options")?.open(|open| open.allow_missing(allow))
}

pub(crate) fn rewind(options: In<Options>) -> Done {
    options.get("options")?.open(OpenOptions::rewind)
}

pub(crate) fn at_txg(options: In<Options>, txg: u64) -> Done {
    options.get("options")?.open(|open| open.at_txg(txg))
}

pub(crate) fn cache_bytes(options: In<Options>, bytes: usize) -> Done {
    let change = |given: Given| Given { open: given.open.cache_bytes(bytes), cache_bytes: Some(bytes), ..given };
    options.get("options")?.change(change)
}

pub(crate) fn tunable(options: In<Options>, name: Text, value: Text) -> Done {
    let (name, value) = (name.get("name")?, value.get("value")?);
    options.get("options")?.open(|open| open.tunable(name, value))
}

pub(crate) fn key(options: In<Options>, dataset: Text, key: Data, len: usize) -> Done {
    let (dataset, key) = (dataset.get("dataset")?, key.get(len, "key")?);
    options.get("options")?.open(|open| open.key(dataset, key))
}

pub(crate) fn find(options: In<Options>, pools: Give<List>) -> Done {
    let pools = pools.get("pools")?;
    let found = wait(given(&options).open.find(runtime()?))?;
    pools.give(List::of_pools(&found));
    Ok(())
}

pub(crate) fn open(options: In<Options>, name: Text, pool: Give<PoolHandle>) -> Done {
    let pool = pool.get("pool")?;
    let opened = wait(given(&options).open.open(runtime()?, name.get("name")?))?;
    pool.give(PoolHandle::new(opened));
    Ok(())
}

pub(crate) fn create(
    options: In<Options>,
    name: Text,
    vdevs: Words,
    file_bytes: u64,
    properties: Words,
    root_properties: Words,
    pool: Give<PoolHandle>,
) -> Done {
    let (pool, given) = (pool.get("pool")?, given(&options));
    let mut create = CreateOptions::new(vdevs.get("vdevs")?).force(given.force);
    if file_bytes > 0 {
        create = create.file_bytes(file_bytes);
    }
    if let Some(bytes) = given.cache_bytes {
        create = create.cache_bytes(bytes);
    }
    for word in properties.get("properties")? {
        create = match setting(word)? {
            ("ashift", value) => {
                create.ashift(value.parse().map_err(|_| Fault::misuse(format!("ashift={value}: not a number")))?)
            }
            (name, value) => create.property(name, value),
        };
    }
    for word in root_properties.get("root_properties")? {
        let (name, value) = setting(word)?;
        create = create.root_property(name, value);
    }
    let made = wait(create.create(runtime()?, name.get("name")?))?;
    pool.give(PoolHandle::new(made));
    Ok(())
}
