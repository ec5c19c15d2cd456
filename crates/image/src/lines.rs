//! Directory entries in the format of `ls`.

use cenote_zpl::{Attributes, FileKind, Time};
use serde_json::{Map, Value, json};

use crate::walk::Node;

/// Mode, links, owner, group, size (or device number) and time of last change.
pub fn long(attributes: &Attributes, time: fn(i64) -> String) -> String {
    let size = match attributes.kind {
        FileKind::CharDevice | FileKind::BlockDevice => format!("{}, {}", attributes.device.0, attributes.device.1),
        _ => attributes.size_bytes.to_string(),
    };
    format!(
        "{} {:>3} {:>5} {:>5} {size:>12} {}",
        mode(attributes),
        attributes.link_count,
        attributes.uid,
        attributes.gid,
        time(attributes.modified.seconds)
    )
}

fn mode(attributes: &Attributes) -> String {
    let kind = match attributes.kind {
        FileKind::File => '-',
        other => other.letter(),
    };
    let bits = attributes.permissions;
    let mut text = String::from(kind);
    for (shift, special, on, off) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')] {
        text.push(if bits >> shift & 4 != 0 { 'r' } else { '-' });
        text.push(if bits >> shift & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits >> shift & 1 != 0, bits & special != 0) {
            (true, true) => on,
            (false, true) => off,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// An entry as JSON, with the keys of a manifest.
pub fn json(node: &Node, path: &[u8]) -> Value {
    let mut map = Map::new();
    map.insert("path".into(), crate::manifest::name(if path.is_empty() { b"." } else { path }));
    crate::manifest::describe_attributes(&mut map, &node.attributes);
    if let Some(target) = &node.target {
        map.insert("target".into(), crate::manifest::name(target));
    }
    let time = |time: Time| json!(format!("{}.{:09}", time.seconds, time.nanoseconds));
    map.insert("atime".into(), time(node.attributes.accessed));
    map.insert("crtime".into(), time(node.attributes.created));
    Value::Object(map)
}
