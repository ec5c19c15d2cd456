//! The uberblocks of devices.

use cenote_dmu::{Dmu, KeyAccess, Objset};
use cenote_format::ids::ObjsetId;
use cenote_format::uberblock::Uberblock;
use cenote_taskq::boxed;
use cenote_vdev::leaf::{LabelReport, UberblockCopy};
use serde_json::{Value, json};

use crate::report::Report;
use crate::values;

/// The place of a copy of an uberblock: an index into the devices, and the place there.
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

/// The uberblocks of devices, newest first; with `verbose` all fields. With `check` the root of each is read, as far as the report's
/// limit goes.
#[boxed]
pub async fn uberblocks(report: &mut Report, devices: &[LabelReport], check: Option<&Dmu>, verbose: bool) {
    for device in devices {
        for label in device.labels.iter().filter(|label| !label.bad_slots.is_empty()) {
            report.problem(format_args!(
                "{}: label {}: slots that fail their checksum: {:?}",
                device.disk.path(),
                label.index,
                label.bad_slots
            ));
        }
    }
    let mut rows = Vec::new();
    for (index, (uberblock, places)) in distinct(devices).iter().enumerate() {
        let mut row = values::uberblock(uberblock);
        if !verbose {
            row.retain(|name, _| matches!(name.as_str(), "txg" | "timestamp_s" | "version" | "checkpoint_txg"));
        }
        let mut on: Vec<usize> = places.iter().map(|(device, _)| *device).collect();
        on.dedup();
        row.insert("copies".into(), places.len().into());
        row.insert("devices".into(), on.len().into());
        if let Some(dmu) = check.filter(|_| index < report.limit) {
            let root = Objset::open(dmu.clone(), ObjsetId(0), uberblock.rootbp, KeyAccess::None).await;
            let state = root.map_or_else(|error| error.kind.to_string(), |_| "readable".to_owned());
            row.insert("root".into(), state.into());
        }
        if verbose {
            row.insert("rootbp".into(), uberblock.rootbp.to_string().into());
        }
        rows.push(Value::Object(row));
    }
    report.put("devices", devices.iter().map(|device| json!(device.disk.path().as_ref())).collect::<Vec<_>>());
    report.list("uberblocks", rows);
}
