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
pub(crate) struct Options(Mutex<Given>);

#[derive(Clone, Default)]
struct Given {
    open: OpenOptions,
    force: bool,
    cache_bytes: Option<usize>,
}

type Done = Result<(), Fault>;

impl Options {
    fn change(&self, change: impl FnOnce(OpenOptions) -> OpenOptions) -> Done {
        let mut given = locked(&self.0);
        given.open = change(std::mem::take(&mut given.open));
        Ok(())
    }
}

fn given(options: &In<Options>) -> Given {
    options.optional().map(|options| locked(&options.0).clone()).unwrap_or_default()
}

pub(crate) fn new(options: Give<Options>) -> Done {
    options.get("options")?.give(Options::default());
    Ok(())
}

pub(crate) fn search(options: In<Options>, path: Text) -> Done {
    let path: PathBuf = path.path("path")?.to_owned();
    options.get("options")?.change(|open| open.search(path))
}

pub(crate) fn write(options: In<Options>, write: bool) -> Done {
    options.get("options")?.change(|open| open.write(write))
}

pub(crate) fn force(options: In<Options>, force: bool) -> Done {
    let options = options.get("options")?;
    locked(&options.0).force = force;
    options.change(|open| open.force(force))
}

pub(crate) fn allow_missing(options: In<Options>, allow: bool) -> Done {
    options.get("options")?.change(|open| open.allow_missing(allow))
}

pub(crate) fn rewind(options: In<Options>) -> Done {
    options.get("options")?.change(OpenOptions::rewind)
}

pub(crate) fn at_txg(options: In<Options>, txg: u64) -> Done {
    options.get("options")?.change(|open| open.at_txg(txg))
}

pub(crate) fn cache_bytes(options: In<Options>, bytes: usize) -> Done {
    let options = options.get("options")?;
    locked(&options.0).cache_bytes = Some(bytes);
    options.change(|open| open.cache_bytes(bytes))
}

pub(crate) fn tunable(options: In<Options>, name: Text, value: Text) -> Done {
    let (name, value) = (name.get("name")?, value.get("value")?);
    options.get("options")?.change(|open| open.tunable(name, value))
}

pub(crate) fn key(options: In<Options>, dataset: Text, key: Data, len: usize) -> Done {
    let (dataset, key) = (dataset.get("dataset")?, key.get(len, "key")?);
    options.get("options")?.change(|open| open.key(dataset, key))
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

#[cfg(test)]
mod names {
    use super::*;
    use crate::border::spelling::Named;

    impl Named for Options {
        const NAME: &'static str = "cenote_options";
    }

    impl Named for List {
        const NAME: &'static str = "cenote_list";
    }
}
