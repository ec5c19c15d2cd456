//! Labels of a device.

use std::fmt::Write as _;

use cenote_format::label::BootEnv;
use cenote_vdev::leaf::{LabelProblem, LabelReport};
use serde_json::{Map, Value, json};

use crate::report::{Report, cut, map};
use crate::uberblocks::distinct;
use crate::values;

/// The four labels of a device: which hold, which agree, what they say. `with_rings` shows every slot of the uberblock rings.
pub fn labels_of(report: &mut Report, labels: &LabelReport, with_rings: bool) -> Value {
    let path = labels.disk.path().to_string();
    let mut shown = map([
        ("path", path.clone().into()),
        ("size_bytes", labels.disk.size_bytes().into()),
        ("start_offset_bytes", labels.disk.start_bytes().into()),
        ("guid", labels.guid().map(|guid| guid.0).into()),
        ("pool_guid", labels.pool_guid().map(|guid| guid.0).into()),
        ("good_label_count", labels.good_labels().into()),
    ]);
    let mut configs: Vec<(Vec<usize>, Value)> = Vec::new();
    let mut rows = Vec::new();
    for label in &labels.labels {
        let (state, config) = match &label.config {
            Ok(config) => ("good".to_owned(), Some(values::nvlist(config))),
            Err(problem) => {
                report.problem(format_args!("{path}: label {}: {problem}", label.index));
                let unverified = label.unverified_config().filter(|_| *problem == LabelProblem::Checksum);
                (problem.to_string(), unverified.map(|config| values::nvlist(&config)))
            }
        };
        let boot_env = match &label.boot_env {
            Ok(BootEnv::Raw(bytes)) if bytes.is_empty() => "none".to_owned(),
            Ok(BootEnv::Raw(bytes)) => format!("{} bytes", bytes.len()),
            Ok(BootEnv::Nvlist(list)) => format!("a list of {}", list.len()),
            Err(problem) => problem.to_string(),
        };
        let in_label = |copy: &&cenote_vdev::leaf::UberblockCopy| copy.label == label.index;
        let copies = labels.uberblocks.iter().filter(in_label);
        rows.push(json!({
            "label": label.index,
            "offset_bytes": label.address_bytes,
            "config": state,
            "txg": label.txg().map(|txg| txg.0),
            "uberblocks": copies.clone().count(),
            "newest_txg": copies.map(|copy| copy.uberblock.txg.0).max(),
            "bad_slots": label.bad_slots.len(),
            "boot_env": boot_env,
        }));
        if !label.bad_slots.is_empty() {
            let slots = label.bad_slots.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            report.problem(format_args!(
                "{path}: label {}: uberblock slots that fail their checksum: {slots}",
                label.index
            ));
        }
        if let Some(config) = config {
            match configs.iter_mut().find(|(_, other)| *other == config) {
                Some((indices, _)) => indices.push(label.index),
                None => configs.push((vec![label.index], config)),
            }
        }
    }
    shown.insert("labels".into(), rows.into());
    shown.insert("labels_agree".into(), (configs.len() <= 1).into());
    if configs.len() > 1 {
        let groups: Vec<String> = configs.iter().map(|(indices, _)| format!("{indices:?}")).collect();
        report.problem(format_args!("{path}: the labels disagree: {}", groups.join(" against ")));
    }
    let configs: Vec<Value> =
        configs.into_iter().map(|(indices, config)| json!({ "in_labels": indices, "config": config })).collect();
    shown.insert("configurations".into(), configs.into());
    if with_rings {
        ring(&mut shown, labels, report.limit);
    } else if let Some(best) = labels.best_uberblock() {
        shown.insert("newest_uberblock".into(), values::uberblock(&best.uberblock).into());
    }
    Value::Object(shown)
}

/// Every distinct uberblock with where it stands.
fn ring(shown: &mut Map<String, Value>, labels: &LabelReport, limit: usize) {
    let mut rows = Vec::new();
    for (uberblock, places) in distinct(std::slice::from_ref(labels)) {
        let mut text = String::new();
        for (_, copy) in &places {
            let _ = write!(text, "{}:{} ", copy.label, copy.slot);
        }
        let mut row = values::uberblock(&uberblock);
        row.insert("label_and_slot".into(), text.trim_end().into());
        row.insert("rootbp".into(), uberblock.rootbp.to_string().into());
        rows.push(Value::Object(row));
    }
    let total = rows.len() as u64;
    cut(shown, "uberblocks", &mut rows, limit, total);
}
