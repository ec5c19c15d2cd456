//! Properties of pools, as `zpool list` and `zpool get` show them.

use std::collections::BTreeMap;

use crate::error::Result;
use cenote_dsl::property::Value;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::ObjectId;
use cenote_metaslab::class_fragmentation;
use cenote_props::number::{nicebytes, nicenum, percent, ratio};
use cenote_props::{Kind, Property, WrongUse, pool as table};
use cenote_taskq::boxed;
use cenote_vdev::config::AllocationClass;

use super::{Facts, features};
use crate::datasets::{Cell, Source};

/// A property to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// A property of the table.
    Native(&'static Property),
    /// A feature, known or not.
    Feature(String),
    /// A user property.
    User(String),
}

impl Column {
    /// The column with this name, if there is such a property.
    pub fn find(name: &str) -> Option<Self> {
        if let Some(property) = table::find(name) {
            return Some(Self::Native(property));
        }
        if features::is_feature(name) {
            return Some(Self::Feature(name.to_owned()));
        }
        cenote_props::is_user_property(name).then(|| Self::User(name.to_owned()))
    }

    /// The property's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Native(property) => property.name,
            Self::Feature(name) | Self::User(name) => name,
        }
    }

    /// The heading of its column.
    pub(crate) fn heading(&self) -> String {
        match self {
            Self::Native(property) => property.column.to_owned(),
            Self::Feature(name) | Self::User(name) => name.to_ascii_uppercase(),
        }
    }

    /// True if its column is right-aligned.
    pub(crate) fn is_right_aligned(&self) -> bool {
        matches!(self, Self::Native(property) if property.is_right_aligned())
    }

    /// The least width of its column. Health is a number only within OpenZFS.
    pub(crate) fn width(&self) -> usize {
        const HEALTH_WIDTH: usize = 8;
        match self {
            Self::Native(property) if property.name == "health" => HEALTH_WIDTH,
            Self::Native(property) => property.column_width(),
            Self::Feature(name) | Self::User(name) => name.len(),
        }
    }

    /// True if that is the width of its column, for all values.
    pub fn is_fixed(&self, is_exact: bool) -> bool {
        match self {
            Self::Native(property) => !property.is_flexible && !is_exact,
            Self::Feature(_) => true,
            Self::User(_) => false,
        }
    }
}

/// The properties of `all` for these pools: every property of the table that is not hidden, their user properties, and the features.
pub(crate) async fn all_columns(views: &[Facts]) -> Result<Vec<Column>> {
    let mut columns: Vec<Column> =
        table::PROPERTIES.iter().filter(|property| property.is_visible).map(Column::Native).collect();
    let mut add = |column: Column| {
        if !columns.contains(&column) {
            columns.push(column);
        }
    };
    for view in views {
        let stored = view.pool.properties().await?;
        stored.into_keys().filter(|name| cenote_props::is_user_property(name)).map(Column::User).for_each(&mut add);
    }
    for view in views {
        features::features(&view.pool).await?.into_iter().map(|(name, _)| Column::Feature(name)).for_each(&mut add);
    }
    Ok(columns)
}

/// The data for all properties of a pool, read once.
pub(crate) struct Values<'a> {
    view: &'a Facts,
    stored: BTreeMap<String, Value>,
    features: Vec<(String, &'static str)>,
}

impl<'a> Values<'a> {
    /// Reads the data for all properties of a pool.
    #[boxed]
    pub async fn new(view: &'a Facts) -> Result<Self> {
        let stored = view.pool.properties().await?;
        Ok(Self { stored, features: features::features(&view.pool).await?, view })
    }

    /// The value of a property of the pool; `None` if the pool does not have it.
    #[boxed]
    pub async fn cell(&self, column: &Column, is_exact: bool) -> Result<Option<Cell>> {
        match column {
            Column::Native(property) => self.native(property, is_exact).await,
            Column::Feature(name) => {
                let value = self.features.iter().find(|(feature, _)| feature == name).map(|(_, value)| *value);
                Ok(value.map(|value| Cell::new(value, Source::Local)))
            }
            Column::User(name) => Ok(Some(match self.stored.get(name).and_then(Value::text) {
                Some(text) => Cell::new(text, Source::Local),
                None => Cell::new("-", Source::Default),
            })),
        }
    }

    async fn native(&self, property: &'static Property, is_exact: bool) -> Result<Option<Cell>> {
        if let Kind::Text(default) = property.kind {
            let text = self.text(property.name).await?;
            return Ok(Some(match (text, default) {
                (Some((text, source)), _) => Cell::new(text, source),
                (None, default) => Cell::new(default.unwrap_or("-"), Source::Default),
            }));
        }
        if property.name == "health" {
            return Ok(Some(Cell::new(self.view.state(), Source::None)));
        }
        // Drawn each time a pool is opened, so it is useless if no process keeps the pool open.
        if property.name == "load_guid" {
            let text = self.view.imported.load_guid.map_or("-".to_owned(), |guid| guid.to_string());
            return Ok(Some(Cell::new(text, Source::None)));
        }
        let (number, source) = self.number(property).await?;
        let plain = |number: u64| if is_exact { number.to_string() } else { nicenum(number) };
        let text = match property.name {
            "dedup_table_quota" if number == u64::MAX => "auto".into(),
            "dedup_table_quota" if number == 0 && !is_exact => "none".into(),
            "expandsize" | "checkpoint" if number == 0 => "-".into(),
            "expandsize" | "checkpoint" if !is_exact => nicebytes(number),
            "fragmentation" if number == u64::MAX => "-".into(),
            "capacity" | "fragmentation" => percent(number, is_exact),
            "bcloneratio" | "dedupratio" => ratio(number, is_exact),
            "version" if number >= FEATURES_VERSION => "-".into(),
            "size" | "allocated" | "free" | "freeing" | "leaked" | "ashift" | "maxblocksize" | "maxdnodesize"
            | "bclonesaved" | "bcloneused" | "dedup_table_size" | "dedup_table_quota" => plain(number),
            _ => match property.kind {
                Kind::Index(..) => match property.word(number) {
                    Some(word) => word.to_owned(),
                    None => return Ok(None),
                },
                _ => number.to_string(),
            },
        };
        Ok(Some(Cell::new(text, source)))
    }

    async fn text(&self, name: &str) -> Result<Option<(String, Source)>> {
        let pool = &self.view.pool;
        let local = |text: &str| (text.to_owned(), Source::Local);
        Ok(match name {
            "name" => Some((pool.name().to_owned(), Source::None)),
            "altroot" => pool.altroot().map(local),
            "cachefile" => self.view.imported.cachefile.as_deref().map(local),
            "comment" | "compatibility" => pool.config().str(name).map(local),
            "bootfs" => match self.stored.get(name).and_then(Value::number) {
                // An earlier Cenote left the number of a destroyed file system here.
                Some(object) if object != 0 => {
                    let name = pool.dsl().dataset_name(ObjectId(object)).await;
                    name.ok().map(|name| (name, Source::Local))
                }
                _ => None,
            },
            _ => self.stored.get(name).and_then(Value::text).map(local),
        })
    }

    async fn number(&self, property: &'static Property) -> Result<(u64, Source)> {
        let pool = &self.view.pool;
        let number = match property.name {
            "size" => self.view.space().await?.figures().size_bytes,
            "allocated" => self.view.space().await?.figures().allocated_bytes,
            "free" => self.view.space().await?.figures().free_bytes(),
            "capacity" => self.view.space().await?.figures().capacity_percent(),
            "checkpoint" => self.view.space().await?.figures().checkpoint_bytes,
            "fragmentation" => {
                let space = self.view.space().await?;
                let normal = space.vdevs.iter().filter(|vdev| vdev.maps.class == AllocationClass::Normal);
                class_fragmentation(normal).unwrap_or(u64::MAX)
            }
            "expandsize" => {
                let tree = self.view.tree(super::Names::default()).await?;
                let normal = tree.root.children.iter().filter(|top| top.class == "normal");
                normal.map(|top| top.sizes.expandable).sum()
            }
            "guid" => pool.guid().0,
            "readonly" => u64::from(self.view.imported.is_read_only),
            "dedupratio" => pool.dedup().await?.ratio_hundredths(),
            "dedup_table_size" => pool.dedup().await?.table_bytes,
            "bcloneused" => pool.cloning().await?.used_bytes,
            "bclonesaved" => pool.cloning().await?.saved_bytes,
            "bcloneratio" => pool.cloning().await?.ratio_hundredths(),
            "freeing" => self.view.freeing_bytes().await?,
            "leaked" => self.view.dir_bytes(pool_directory::LEAK_DIR).await?,
            "last_scrubbed_txg" => pool.directory_number(pool_directory::LAST_SCRUBBED_TXG).await?.unwrap_or(0),
            "maxblocksize" => {
                if self.has_feature("large_blocks") {
                    16 << 20
                } else {
                    128 << 10
                }
            }
            "maxdnodesize" => {
                if self.has_feature("large_dnode") {
                    16 << 10
                } else {
                    512
                }
            }
            "version" => {
                let version = pool.config().u64("version").unwrap_or(0);
                let is_default = property.default_number() == Some(version);
                return Ok((version, if is_default { Source::Default } else { Source::Local }));
            }
            name => {
                let default = property.default_number().unwrap_or(0);
                return Ok(match self.stored.get(name).and_then(Value::number) {
                    Some(number) if number != default => (number, Source::Local),
                    _ => (default, Source::Default),
                });
            }
        };
        Ok((number, Source::None))
    }

    fn has_feature(&self, name: &str) -> bool {
        self.features
            .iter()
            .any(|(feature, state)| feature.strip_prefix("feature@") == Some(name) && *state != "disabled")
    }
}

impl Facts {
    /// Bytes of what was destroyed that are not free yet.
    pub(super) async fn freeing_bytes(&self) -> Result<u64> {
        self.dir_bytes(pool_directory::FREE_DIR).await
    }

    /// The bytes that an internal directory of the pool uses.
    async fn dir_bytes(&self, name: &str) -> Result<u64> {
        let dsl = self.pool.dsl();
        let dir = dsl.child(&dsl.root_dir().await?, name).await?;
        Ok(dir.map_or(0, |dir| dir.phys.used_bytes))
    }
}

/// From this version on, features describe a pool's format, and the number means nothing more.
const FEATURES_VERSION: u64 = 1000;

/// Parses a list of properties; `None` for `all`.
///
/// # Errors
/// It is empty, or contains a word that is not a property.
pub fn parse_pool_columns(list: &str) -> Result<Option<Vec<Column>>, WrongUse> {
    if list == "all" {
        return Ok(None);
    }
    if list.is_empty() {
        return Err(WrongUse::new("bad property list: no properties specified"));
    }
    let find = |name: &str| {
        Column::find(name).ok_or_else(|| WrongUse::new(format!("bad property list: invalid property '{name}'")))
    };
    list.split(',').map(find).collect::<Result<_, _>>().map(Some)
}
