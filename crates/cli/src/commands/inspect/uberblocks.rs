//! `cenote inspect uberblocks`.

use anyhow::Result;
use cenote_dmu::{Dmu, KeyAccess, Objset};
use cenote_format::ids::ObjsetId;
use cenote_format::uberblock::Uberblock;
use cenote_vdev::leaf::{LabelReport, UberblockCopy};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::report::{Common, Report};
use super::{open, values};
use crate::context::Context;
use crate::outcome::Outcome;

/// The uberblocks of a file or device, or of all devices of a pool, newest first.
///
/// Each is a state that the pool was in. With --check it is tried whether its root can still be read: if so
/// `--at-txg` may open the pool as it was then.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// With block pointers of the roots.
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// Try to read the root of each.
    #[arg(long)]
    pub(crate) check: bool,
    /// A file or device, or a pool's name or guid.
    #[arg(value_name = "FILE|POOL")]
    pub(crate) source: String,
}

/// Where a copy of an uberblock stands: an index into the devices, and the place there.
type Place = (usize, UberblockCopy);

/// The different uberblocks of all rings, newest first, with the places of their copies.
pub(crate) fn distinct(devices: &[LabelReport]) -> Vec<(Uberblock, Vec<Place>)> {
    let mut all: Vec<Place> = devices
        .iter()
        .enumerate()
        .flat_map(|(index, device)| device.uberblocks.iter().map(move |copy| (index, *copy)))
        .collect();
    // Equal ones side by side: age does not tell all of them apart.
    all.sort_by(|(_, a), (_, b)| {
        b.uberblock.cmp_age(&a.uberblock).then_with(|| a.uberblock.emit().cmp(&b.uberblock.emit()))
    });
    let mut found: Vec<(Uberblock, Vec<Place>)> = Vec::new();
    for place in all {
        match found.last_mut() {
            Some((uberblock, places)) if *uberblock == place.1.uberblock => places.push(place),
            _ => found.push((place.1.uberblock, vec![place])),
        }
    }
    found
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let context = open::context_of(context, &args.common);
    let mut report = Report::new(&args.common);
    let devices = open::label_reports(&context, &args.source).await?;
    for device in &devices {
        for label in device.labels.iter().filter(|label| !label.bad_slots.is_empty()) {
            report.problem(format_args!(
                "{}: label {}: slots that fail their checksum: {:?}",
                device.disk.path(),
                label.index,
                label.bad_slots
            ));
        }
    }
    let found = distinct(&devices);
    if found.is_empty() {
        report.problem(format_args!("'{}' holds no valid uberblock", args.source));
    }
    let reader = if args.check { report.take("the devices", reader(&context, &args.source).await) } else { None };
    let mut rows = Vec::new();
    for (index, (uberblock, places)) in found.iter().enumerate() {
        let mut row = values::uberblock(uberblock);
        if !args.verbose {
            row.retain(|name, _| matches!(name.as_str(), "txg" | "timestamp_s" | "version" | "checkpoint_txg"));
        }
        let mut on: Vec<usize> = places.iter().map(|(device, _)| *device).collect();
        on.dedup();
        row.insert("copies".into(), places.len().into());
        row.insert("devices".into(), on.len().into());
        if let Some(dmu) = reader.as_ref().filter(|_| index < args.common.limit) {
            let root = Objset::open(dmu.clone(), ObjsetId(0), uberblock.rootbp, KeyAccess::None).await;
            let state = root.map_or_else(|error| error.kind.to_string(), |_| "readable".to_owned());
            row.insert("root".into(), state.into());
        }
        if args.verbose {
            row.insert("rootbp".into(), uberblock.rootbp.to_string().into());
        }
        rows.push(Value::Object(row));
    }
    report.put("devices", devices.iter().map(|device| json!(device.disk.path().as_ref())).collect::<Vec<_>>());
    report.list("uberblocks", rows);
    report.finish(&context)
}

/// A way to blocks that needs labels alone.
async fn reader(context: &Context, source: &str) -> Result<Dmu> {
    let found = open::found_pool(context, source).await?;
    open::dmu_of_labels(context, &found)
}
