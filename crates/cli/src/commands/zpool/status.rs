//! `zpool status`: the health of pools and of their devices.

use std::ffi::OsStr;
use std::fmt::Write as _;

use cenote_listing::Condition;
use cenote_listing::{
    Names, ScriptColumns, Status, StatusOptions, Vdev, document, has_hanging, suspended_json, suspended_text,
};
use cenote_server::{Owned, ServerError, Shown};
use serde_json::{Map, Value, json};

use crate::pools::{JsonArgs, NameArgs, facts, lost_pool, scripts};
use crate::prelude::*;
use crate::time;

/// Show the health of pools.
///
/// Error counts are those of the server that has the pool, or of this command's own reads; a kernel's counts are not kept in a
/// pool. `cenote verify` reads everything. A device that has missed txgs (it was absent, or failed) is DEGRADED, followed by those
/// txgs, until it is resilvered ('zpool resilver'; a mount or a server that has the pool does it by itself); so are the vdevs above it and the pool.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of OpenZFS's")]
pub(crate) struct Args {
    /// List the files with errors.
    #[arg(short = 'v')]
    verbose: bool,
    /// Only pools with problems.
    #[arg(short = 'x')]
    explain: bool,
    /// Only devices with problems.
    #[arg(short = 'e')]
    unhealthy: bool,
    /// Show slow I/Os (--tunable zio_slow_io_ms).
    #[arg(short = 's')]
    slow: bool,
    /// Show whether devices are trimmed.
    #[arg(short = 't')]
    trim: bool,
    /// Show whether devices are initialized.
    #[arg(short = 'i')]
    initialize: bool,
    /// Show what dedup has come to.
    #[arg(short = 'D')]
    dedup: bool,
    /// Exact numbers.
    #[arg(short = 'p')]
    exact: bool,
    /// Run scripts for each device, and show what they tell: names with commas between them. Without one, those that there are.
    #[arg(short = 'c', value_name = "SCRIPTS", num_args = 0..=1, default_missing_value = "")]
    scripts: Option<String>,
    /// The words of scripts, for the process that is asked.
    #[arg(long, hide = true)]
    told_by_scripts: Option<String>,
    #[command(flatten)]
    names: NameArgs,
    #[command(flatten)]
    json: JsonArgs,
    /// In JSON, all devices beside one another.
    #[arg(long)]
    json_flat_vdevs: bool,
    /// Show the time first: u in seconds since 1970, d as a date.
    #[arg(short = 'T', value_name = "u|d")]
    timestamp: Option<String>,
    /// The pools; and behind them after how many seconds it is done again, and how often, such as `tank 5 10`.
    #[arg(value_name = "POOL")]
    pub(super) pools: Vec<String>,
}

pub(crate) async fn run(context: &Context, mut args: Args) -> Result<Outcome> {
    let json = args.json.check()?;
    if args.json_flat_vdevs && !args.json.json {
        return Err(crate::outcome::usage("'--json-flat-vdevs' only works with '-j' option"));
    }
    let stamp = args.timestamp.as_deref().map(|how| time::stamp(context.handle(), how)).transpose()?;
    match args.scripts.as_deref().filter(|_| context.served().is_none()) {
        Some("") => {
            context.out(scripts::available("status"))?;
            return Ok(Outcome::Good);
        }
        Some(_) => scripts::check()?,
        None => {}
    }
    // Of a pool that is suspended, or has a device that hangs, nothing is read for this: that could wait for the device.
    if let Some((pool, reason)) = context.served().map(|pool| (pool, pool.suspended()))
        && (reason.is_some() || has_hanging(pool))
    {
        args.pools.iter().try_for_each(|name| context.check_served(name))?;
        if args.json.json {
            let key = if args.json.json_pool_key_guid { pool.guid().0.to_string() } else { pool.name().to_owned() };
            let told = suspended_json(pool, reason.as_deref(), json, args.json_flat_vdevs);
            context.out(document("zpool status", [("pools", json!({ key: told }))]))?;
        } else {
            context.out(suspended_text(pool, reason.as_deref()))?;
        }
        return Ok(Outcome::Good);
    }
    if let Some(pool) = context.served() {
        pool.look_at_spares().await?;
    }
    let mut owned = None;
    if context.served().is_none()
        && let [name] = &args.pools[..]
    {
        owned = args.owned(context.check_failing(name).await)?.err();
    }
    let opened = match owned {
        Some(owned) => Err(owned),
        None => args.owned(context.open_to_show(&args.pools, true).await)?,
    };
    let (pools, mut failed) = opened.unwrap_or_else(|owned| (vec![Shown::Owned(owned)], false));
    if let Some(names) = args.scripts.as_ref().filter(|_| context.served().is_none()) {
        let mut devices = Vec::new();
        for pool in &pools {
            devices.extend(devices_of(context, pool).await?);
        }
        args.told_by_scripts = Some(scripts::run(names, &devices).to_json().to_string());
    }
    let told_by_scripts = args.told_by_scripts.as_ref().and_then(|told| serde_json::from_str(told).ok());
    let told_by_scripts = told_by_scripts.as_ref().and_then(ScriptColumns::from_json);
    let is_all = args.pools.is_empty();
    let mut text = String::new();
    if let Some(stamp) = &stamp {
        let _ = writeln!(text, "{stamp}");
    }
    let options = StatusOptions { is_worked_on: context.served().is_some(), ..args.options() };
    let (mut found, mut shown, mut first) = (Map::new(), 0, true);
    let has_pools = !pools.is_empty();
    for pool in pools {
        let pool = match pool {
            Shown::Open(pool) => pool,
            Shown::Owned(owned) => {
                let told = args.told(context, &owned, &mut found);
                let told = told.unwrap_or_else(|error| {
                    context.err(causes(&error));
                    failed = true;
                    Told::Shown(String::new())
                });
                match told {
                    Told::Healthy if !is_all && !args.json.json => {
                        let _ = writeln!(text, "pool '{}' is healthy", owned.pool);
                        first = false;
                    }
                    Told::Healthy => {}
                    Told::Shown(of_pool) => {
                        shown += 1;
                        if !of_pool.is_empty() && !std::mem::take(&mut first) {
                            text.push('\n');
                        }
                        text.push_str(&of_pool);
                    }
                }
                continue;
            }
            Shown::Lost(lost) => {
                let lost = lost_pool(lost);
                shown += 1;
                if args.json.json {
                    let key = if args.json.json_pool_key_guid { lost.guid.to_string() } else { lost.name.clone() };
                    found.insert(key, Value::Object(lost.json(json, options)));
                    continue;
                }
                if !std::mem::take(&mut first) {
                    text.push('\n');
                }
                lost.text(&mut text, options);
                continue;
            }
        };
        let report = Status::read(facts(context, pool.clone()), options).await;
        let report = report.with_scripts(told_by_scripts.clone());
        let condition = report.condition().await.unwrap_or_else(|error| {
            context.err(error.to_string());
            failed = true;
            None
        });
        if args.explain && condition.is_none_or(Condition::is_remark) {
            if !is_all && !args.json.json {
                let _ = writeln!(text, "pool '{}' is healthy", pool.name());
                first = false;
            }
            continue;
        }
        shown += 1;
        let result = match args.json.json {
            true => {
                let key = report.key(args.json.json_pool_key_guid);
                report.json(json, condition).map(|object| drop(found.insert(key, Value::Object(object))))
            }
            false => {
                if !std::mem::take(&mut first) {
                    text.push('\n');
                }
                report.text(&mut text, condition)
            }
        };
        if let Err(error) = result {
            context.err(format!("pool '{}': {}", pool.name(), causes(&error.into())));
            failed = true;
        }
    }
    if args.json.json {
        let time = stamp.iter().map(|stamp| ("time", json.text(stamp)));
        context.out(document("zpool status", time.chain([("pools", Value::Object(found))])))?;
    } else {
        if is_all && !has_pools && !failed {
            context.err("no pools available");
        } else if is_all && args.explain && shown == 0 && !failed {
            text.push_str(ALL_HEALTHY);
        }
        context.out(text)?;
    }
    Ok(Outcome::unless(failed))
}

/// A pool's devices: for each the pool's name and its path.
async fn devices_of(context: &Context, pool: &Shown) -> Result<Vec<(String, String)>> {
    fn walk(vdev: &Vdev, paths: &mut Vec<String>) {
        paths.extend(vdev.path.clone().filter(|_| vdev.children.is_empty()));
        vdev.children.iter().for_each(|child| walk(child, paths));
    }
    let mut paths = Vec::new();
    match pool {
        Shown::Open(view) => {
            let tree = facts(context, view.clone()).tree(Names::default()).await?;
            [&tree.root].into_iter().chain(&tree.caches).chain(&tree.spares).for_each(|vdev| walk(vdev, &mut paths));
        }
        Shown::Owned(owned) => {
            let line = ["cenote", "zpool", "status", "-j", "--json-flat-vdevs"].map(OsStr::new);
            let (text, _) = context.asked(&owned.socket, &line)?;
            let document: Value = serde_json::from_slice(&text)?;
            let vdevs = document.pointer("/pools").and_then(|pools| pools.as_object()?.values().next()?.get("vdevs"));
            let vdevs = vdevs.and_then(Value::as_object).into_iter().flat_map(Map::values);
            paths.extend(vdevs.filter_map(|vdev| vdev.get("path")?.as_str().map(str::to_owned)));
        }
        Shown::Lost(_) => {}
    }
    paths.sort_unstable();
    // A spare in use is listed twice.
    paths.dedup();
    Ok(paths.into_iter().map(|path| (pool.name().to_owned(), path)).collect())
}

/// The answer of a process about its pool.
enum Told {
    /// With -x: the pool is healthy.
    Healthy,
    /// Its status; of JSON nothing is left to be shown.
    Shown(String),
}

/// As a process says with -x that its pool is well.
const ALL_HEALTHY: &str = "all pools are healthy\n";

impl Args {
    /// The result of looking at a pool; or, where scripts are to run, the process that has it: that runs none, and is told what they told.
    fn owned<T>(&self, result: std::result::Result<T, ServerError>) -> Result<std::result::Result<T, Owned>> {
        match result {
            Err(ServerError::Owned(owned)) if self.scripts.is_some() => Ok(Err(owned)),
            result => Ok(Ok(result?)),
        }
    }

    /// Has the process that has a pool tell its status: that knows which of its devices gave errors. `found` gets what is told in JSON.
    fn told(&self, context: &Context, owned: &Owned, found: &mut Map<String, Value>) -> Result<Told> {
        let flags = [
            (self.verbose, "-v"),
            (self.explain, "-x"),
            (self.unhealthy, "-e"),
            (self.slow, "-s"),
            (self.trim, "-t"),
            (self.initialize, "-i"),
            (self.dedup, "-D"),
            (self.exact, "-p"),
            (self.json.json, "-j"),
            (self.json.json_int, "--json-int"),
            (self.json.json_pool_key_guid, "--json-pool-key-guid"),
            (self.json_flat_vdevs, "--json-flat-vdevs"),
        ];
        let flags = flags.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag));
        let scripts = self.told_by_scripts.as_ref().map(|told| format!("--told-by-scripts={told}"));
        let mut line: Vec<&OsStr> = ["cenote", "zpool", "status"].map(OsStr::new).to_vec();
        flags.chain(self.names.options()).for_each(|word| line.push(OsStr::new(word)));
        line.extend(scripts.as_ref().map(OsStr::new));
        let (text, status) = context.asked(&owned.socket, &line)?;
        anyhow::ensure!(status == 0, "pool '{}': its process does not tell its status", owned.pool);
        if self.json.json {
            let mut document: Value = serde_json::from_slice(&text)?;
            let pools = document.get_mut("pools").and_then(Value::as_object_mut).map(std::mem::take);
            let is_healthy = pools.as_ref().is_none_or(Map::is_empty);
            found.extend(pools.into_iter().flatten());
            return Ok(if is_healthy { Told::Healthy } else { Told::Shown(String::new()) });
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(if self.explain && text == ALL_HEALTHY { Told::Healthy } else { Told::Shown(text) })
    }

    /// Whether JSON is asked for.
    pub(super) const fn is_json(&self) -> bool {
        self.json.json
    }

    fn options(&self) -> StatusOptions {
        StatusOptions {
            names: self.names.into(),
            time: time::format,
            lists_files: self.verbose,
            only_unhealthy: self.unhealthy,
            shows_slow: self.slow,
            shows_trim: self.trim,
            shows_initialize: self.initialize,
            shows_dedup: self.dedup,
            is_exact: self.exact || self.json.json_int,
            is_flat: self.json_flat_vdevs,
            is_worked_on: false,
        }
    }
}
