//! Settings of a command line, as `cenote_admin::values` reads them; what is no setting is wrong usage.

use anyhow::Result;
use cenote_admin::values::{self, ValueError, When};
use cenote_props::effect::{self, Effect};
use cenote_props::{Property, Types, find};
use cenote_spa::PropertyValue;

use crate::context::Context;
use crate::outcome::usage;

fn told(error: ValueError) -> anyhow::Error {
    match error {
        ValueError::Syntax(what) => usage(what),
        error => error.into(),
    }
}

/// As [`values::dataset_setting`].
pub(crate) fn dataset_setting(text: &str, when: When, types: Types) -> Result<Option<(String, PropertyValue)>> {
    values::dataset_setting(text, when, types).map_err(told)
}

/// As [`values::snapshot_setting`].
pub(crate) fn snapshot_setting(text: &str) -> Result<(String, String)> {
    values::snapshot_setting(text).map_err(told)
}

/// As [`values::pool_setting`].
pub(crate) fn pool_setting(text: &str) -> Result<(String, Option<PropertyValue>)> {
    values::pool_setting(text).map_err(told)
}

/// Says which of these settings are kept and nothing more, so that nobody relies on them.
pub(crate) fn note_stored<'a>(
    context: &Context,
    effect_of: fn(&Property) -> Effect,
    table: &'static [Property],
    settings: impl IntoIterator<Item = (&'a str, &'a PropertyValue)>,
) {
    for (name, value) in settings {
        let Some(property) = find(table, name) else { continue };
        if let PropertyValue::Number(number) = value
            && effect::is_ignored(effect_of(property), property, *number)
        {
            context.err(format!("note: '{name}' is stored; Cenote does not obey it yet"));
        }
    }
}
