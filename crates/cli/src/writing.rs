//! Pools that a command changes: opened for writing, changed in one txg, exported again.
//!
//! The txg that has the changes also says that the pool is exported: it is one step from the state before to the state
//! after, whatever happens in between.

use anyhow::{Context as _, Result, bail};
use cenote_props::{Kind, Property, Types, dataset, find, is_user_property, pool};
use cenote_spa::SpaError;
use cenote_spa::write::live::LivePool;
use cenote_spa::write::{PoolWriter, PropertyValue, WriteOptions, open};

use cenote_taskq::BoxFuture;

use crate::args::parse_size;
use crate::context::Context;
use crate::newpool::{DATASET_PROPERTIES, clock, host};
use crate::outcome::usage;

/// Properties of pools that may be set.
const POOL_PROPERTIES: [&str; 8] =
    ["autoexpand", "autoreplace", "autotrim", "comment", "delegation", "failmode", "listsnapshots", "multihost"];
/// `refreservation=auto`, until it is known what that comes to.
pub(crate) const AUTO: u64 = u64::MAX;
/// Text of a comment at most (`ZPROP_MAX_COMMENT`).
const COMMENT_MAX_BYTES: usize = 32;

/// A pool that is changed step by step: each is made as a whole, and sees what those before have left.
pub(crate) enum Writing {
    /// By this process, which has it for this command alone: a step is a txg.
    Alone {
        /// The pool.
        pool: Box<PoolWriter>,
        /// A step was made that is not on disk.
        is_changed: bool,
    },
    /// By a server, which goes on using it.
    Served(LivePool),
}

impl Writing {
    /// Opens a pool to be changed, where this process does not have it.
    pub(crate) async fn open(context: &Context, name: &str) -> Result<Self> {
        context.check_served(name)?;
        match context.served() {
            Some(pool) => Ok(Self::Served(pool.clone())),
            None => {
                let pool = Box::new(open_for_writing(context, name).await?);
                Ok(Self::Alone { pool, is_changed: false })
            }
        }
    }

    /// The pool, if others use it too.
    pub(crate) fn served(&self) -> Option<LivePool> {
        match self {
            Self::Alone { .. } => None,
            Self::Served(pool) => Some(pool.clone()),
        }
    }

    /// Looks at what the steps so far have left, and changes nothing: what is refused after it leaves the pool as it was.
    pub(crate) async fn look<T, W>(&mut self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: for<'a> FnOnce(&'a mut PoolWriter) -> BoxFuture<'a, Result<T>> + Send + 'static,
    {
        let seen = self.step(work).await;
        if let Self::Alone { is_changed, .. } = self {
            *is_changed = false;
        }
        seen
    }

    /// Makes a step.
    pub(crate) async fn step<T, W>(&mut self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: for<'a> FnOnce(&'a mut PoolWriter) -> BoxFuture<'a, Result<T>> + Send + 'static,
    {
        match self {
            Self::Alone { pool, is_changed } => {
                if std::mem::replace(is_changed, true) {
                    pool.sync().await?;
                }
                work(pool).await
            }
            Self::Served(pool) => {
                let change = pool.change(move |writer| {
                    Box::pin(async move {
                        work(writer).await.map_err(|error| SpaError::CannotCreate(crate::request::causes(&error)))
                    })
                });
                Ok(change.await?)
            }
        }
    }

    /// Notes the command, and has all of it on disk.
    pub(crate) async fn finish(self, line: String) -> Result<()> {
        match self {
            Self::Alone { pool, .. } => finish(*pool, &line).await,
            Self::Served(pool) => {
                let user = u64::from(rustix::process::getuid().as_raw());
                let noted =
                    pool.change(move |writer| Box::pin(async move { writer.record_command(&line, user).await }));
                Ok(noted.await?)
            }
        }
    }
}

/// Opens a pool to be changed by this process alone.
pub(crate) async fn open_for_writing(context: &Context, name: &str) -> Result<PoolWriter> {
    if let Some(pool) = context.served() {
        bail!("not supported yet: this, while a server has the pool '{}'", pool.name());
    }
    let (found, how) = context.locate(name).await?;
    context.check_server(&found)?;
    if found.name() != name && how.new_name.is_some() {
        bail!("not supported yet: changing a pool that was imported under another name");
    }
    let options = WriteOptions { clock: clock()?, host: host(context, false), check: false };
    Ok(open(context.handle(), found, &how, options).await?)
}

/// Notes the command and writes what it changed.
pub(crate) async fn finish(mut pool: PoolWriter, line: &str) -> Result<()> {
    pool.record_command(line, u64::from(rustix::process::getuid().as_raw())).await?;
    Ok(pool.export().await?)
}

/// A command's line as the history has it.
pub(crate) fn line<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// A setting's name and value.
pub(crate) fn setting(text: &str) -> Result<(&str, &str)> {
    text.split_once('=').ok_or_else(|| usage("missing '=' for property=value argument"))
}

/// A value as it is kept.
fn kept(property: &Property, value: &str) -> Result<PropertyValue> {
    let bad = || anyhow::anyhow!("'{value}' is no value of the property '{}'", property.name);
    Ok(match property.kind {
        Kind::Number(_) if value == "none" => PropertyValue::Number(0),
        Kind::Number(_) if property.name == "refreservation" && value == "auto" => PropertyValue::Number(AUTO),
        Kind::Number(_) => PropertyValue::Number(parse_size(value).map_err(|_| bad())?),
        Kind::Index(..) => PropertyValue::Number(property.number(value).with_context(bad)?),
        Kind::Text(_) => PropertyValue::Text(value.to_owned()),
    })
}

/// The name of a dataset's property that may be changed.
pub(crate) fn dataset_property(name: &str) -> Result<String> {
    if is_user_property(name) {
        return Ok(name.to_owned());
    }
    let Some(property) = find(dataset::PROPERTIES, name) else { bail!("invalid property '{name}'") };
    if property.is_read_only() {
        bail!("'{}' is readonly", property.name);
    }
    // Those that change accounts a new pool's root gets later.
    if !DATASET_PROPERTIES.contains(&property.name) && !["quota", "refreservation"].contains(&property.name) {
        bail!("not supported yet: changing the property '{}'", property.name);
    }
    Ok(property.name.to_owned())
}

/// What `zfs set PROPERTY=VALUE` says.
pub(crate) fn dataset_setting(text: &str) -> Result<(String, PropertyValue)> {
    let (name, value) = setting(text)?;
    let name = dataset_property(name)?;
    let value = match find(dataset::PROPERTIES, &name) {
        Some(property) => kept(property, value)?,
        None => PropertyValue::Text(value.to_owned()),
    };
    Ok((name, value))
}

/// As [`dataset_setting`], for a volume that is made.
pub(crate) fn volume_setting(text: &str) -> Result<(String, PropertyValue)> {
    let (name, value) = dataset_setting(text)?;
    if find(dataset::PROPERTIES, &name).is_some_and(|property| !property.types.contains(Types::VOLUME)) {
        bail!("'{name}' does not apply to datasets of this type");
    }
    Ok((name, value))
}

/// What `zpool set PROPERTY=VALUE` says; nothing for a value that takes the property away.
pub(crate) fn pool_setting(text: &str) -> Result<(String, Option<PropertyValue>)> {
    let (name, value) = setting(text)?;
    if is_user_property(name) {
        return Ok((name.to_owned(), (!value.is_empty()).then(|| PropertyValue::Text(value.to_owned()))));
    }
    let Some(property) = find(pool::PROPERTIES, name) else {
        bail!("invalid property '{name}'");
    };
    if property.is_read_only() {
        bail!("property '{}' is readonly", property.name);
    }
    if !POOL_PROPERTIES.contains(&property.name) {
        bail!("not supported yet: changing the property '{}'", property.name);
    }
    if property.name == "comment" {
        if value.len() > COMMENT_MAX_BYTES {
            bail!("comment must not exceed {COMMENT_MAX_BYTES} characters");
        }
        if !value.chars().all(|letter| (' '..='~').contains(&letter)) {
            bail!("comment may only have printable characters");
        }
        return Ok(("comment".to_owned(), (!value.is_empty()).then(|| PropertyValue::Text(value.to_owned()))));
    }
    Ok((property.name.to_owned(), Some(kept(property, value)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_kept_as_openzfs_keeps_them() {
        assert_eq!(dataset_setting("compression=lz4").unwrap().1, PropertyValue::Number(15));
        assert_eq!(dataset_setting("quota=none").unwrap().1, PropertyValue::Number(0));
        assert_eq!(dataset_setting("a:b=c").unwrap(), ("a:b".into(), PropertyValue::Text("c".into())));
        for wrong in ["used=1", "nothing=1", "dedup=on", "compression", "recordsize=x"] {
            assert!(dataset_setting(wrong).is_err(), "{wrong}");
        }
        assert_eq!(pool_setting("comment=").unwrap(), ("comment".into(), None));
        assert_eq!(pool_setting("autotrim=on").unwrap().1, Some(PropertyValue::Number(1)));
        for wrong in ["size=1", "multihost=maybe", "comment=\u{e9}", "feature@x=enabled", "version=28"] {
            assert!(pool_setting(wrong).is_err(), "{wrong}");
        }
    }
}
