//! The tree of vdevs under a pool's row in `zpool list -v`: as text and as JSON.

use cenote_props::number::{nicenum, percent};
use serde_json::{Map, Value, json};

use super::vdevs::{Tree, Vdev};
use crate::json::property;
use crate::{Cell, Json, Source};

impl Tree {
    /// Appends the rows below a pool's, with names of this width; `is_scripted`: separated by tabs.
    pub fn rows(&self, out: &mut String, name_width: usize, is_scripted: bool, is_exact: bool) {
        Rows { out, name_width, is_scripted, exact: is_exact }.tree(self);
    }

    /// The same in JSON.
    pub(crate) fn json_rows(&self, json: Json, is_exact: bool) -> Value {
        json_tree(self, json, is_exact)
    }
}

/// A vdev's columns. Those that apply only to its top-level vdev are `-` elsewhere.
fn columns(vdev: &Vdev, exact: bool) -> [(&'static str, String, usize); 9] {
    let sizes = &vdev.sizes;
    let is_top = sizes.space != 0;
    let number = |number: u64| if exact { number.to_string() } else { nicenum(number) };
    let dash = || "-".to_owned();
    let known = |number_: u64| if number_ == 0 { dash() } else { number(number_) };
    let size = if sizes.device != 0 { sizes.device } else { sizes.space };
    let capacity = || {
        let parts = u128::from(sizes.allocated) * 10_000 / u128::from(sizes.space.max(1));
        match parts as u64 {
            parts if exact => (parts / 100).to_string(),
            parts @ 0..1_000 => format!("{:1.2}%", parts as f64 / 100.0),
            parts @ 1_000..10_000 => format!("{:2.1}%", parts as f64 / 100.0),
            parts => format!("{:3.0}%", parts as f64 / 100.0),
        }
    };
    let top = |text: String| if is_top { text } else { dash() };
    [
        ("size", known(size), 5),
        ("allocated", top(number(sizes.allocated)), 5),
        ("free", top(number(sizes.space.saturating_sub(sizes.allocated))), 5),
        ("checkpoint", top(known(sizes.checkpoint)), 7),
        ("expandsize", known(sizes.expandable), 8),
        ("fragmentation", top(sizes.fragmentation.map_or_else(dash, |each| percent(each, exact))), 5),
        ("capacity", top(capacity()), 5),
        ("dedupratio", dash(), 5),
        ("health", vdev.state.to_owned(), 8),
    ]
}

struct Rows<'a> {
    out: &'a mut String,
    name_width: usize,
    is_scripted: bool,
    exact: bool,
}

impl Rows<'_> {
    fn tree(&mut self, tree: &Tree) {
        self.below(&tree.root, 0);
        tree.classes().for_each(|(class, members)| self.group(class, &members));
        self.group("cache", &tree.caches.iter().collect::<Vec<_>>());
        self.group("spare", &tree.spares.iter().collect::<Vec<_>>());
    }

    fn group(&mut self, heading: &str, members: &[&Vdev]) {
        if members.is_empty() {
            return;
        }
        let name_width = self.name_width;
        let dashes = "      -      -      -        -         -      -      -      -         -\n";
        self.out.push_str(&format!("{heading:name_width$}{dashes}"));
        for member in members {
            self.vdev(member, 2);
        }
    }

    fn below(&mut self, vdev: &Vdev, depth: usize) {
        let is_shown = |child: &&Vdev| child.is_listed() && (depth > 0 || child.heading().is_none());
        let shown = vdev.children.iter().filter(is_shown);
        for child in shown {
            self.vdev(child, depth + 2);
        }
    }

    fn vdev(&mut self, vdev: &Vdev, depth: usize) {
        if self.is_scripted {
            self.out.extend(["\t", &vdev.name]);
        } else {
            let width = self.name_width.saturating_sub(depth);
            self.out.push_str(&format!("{:depth$}{:width$}", "", vdev.name));
        }
        for (_, text, width) in columns(vdev, self.exact) {
            if self.is_scripted {
                self.out.extend(["\t", &text]);
            } else {
                self.out.push_str(&format!("  {text:>width$}"));
            }
        }
        if !self.is_scripted && !vdev.missed.is_empty() {
            self.out.extend(vdev.remark().map(|remark| format!("  {remark}")));
        }
        self.out.push('\n');
        self.below(vdev, depth);
    }
}

fn json_tree(tree: &Tree, json: Json, exact: bool) -> Value {
    let mut map = Map::new();
    for top in tree.root.children.iter().filter(|top| top.is_listed() && top.heading().is_none()) {
        map.insert(top.name.clone(), json_vdev(top, json, exact));
    }
    let mut group = |heading: &str, members: Vec<&Vdev>| {
        if !members.is_empty() {
            let members = members.into_iter().map(|vdev| (vdev.name.clone(), json_vdev(vdev, json, exact)));
            map.insert(heading.to_owned(), Value::Object(members.collect()));
        }
    };
    tree.classes().for_each(|(class, members)| group(class, members));
    group("l2cache", tree.caches.iter().collect());
    group("spares", tree.spares.iter().collect());
    Value::Object(map)
}

fn json_vdev(vdev: &Vdev, json: Json, exact: bool) -> Value {
    let mut object = match vdev.is_placeholder {
        // Of a removed vdev OpenZFS finds nothing but the name.
        true => Map::from_iter([("name".to_owned(), json!(vdev.name))]),
        false => vdev.json(json),
    };
    let cells =
        columns(vdev, exact).map(|(name, text, _)| (name.to_owned(), property(json, &Cell::new(text, Source::None))));
    object.insert("properties".into(), Value::Object(cells.into_iter().collect()));
    if !vdev.missed.is_empty() {
        object.insert("missed_txgs".into(), json!(vdev.missed.to_string()));
    }
    if !vdev.children.is_empty() {
        let children = vdev.children.iter().map(|child| (child.name.clone(), json_vdev(child, json, exact)));
        object.insert("vdevs".into(), Value::Object(children.collect()));
    }
    Value::Object(object)
}
