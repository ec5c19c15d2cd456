//! The table of limits: each measure's figure, the bound that is held, and the figure that is wanted.
//!
//! A bound that is not the wanted figure yet is the figure of the day on which it was set. A change that improves a measure moves its bound.

use super::counts::Counts;
use super::rooms::Room;

/// A bound, and the figure that is wanted.
#[derive(Clone, Copy)]
struct Goal {
    bound: f64,
    wanted: f64,
}

/// A goal that is reached.
const fn held(bound: f64) -> Goal {
    Goal { bound, wanted: bound }
}

/// A goal that is not reached yet: `bound` is the figure of today.
const fn until(wanted: f64, bound: f64) -> Goal {
    Goal { bound, wanted }
}

/// Lines of the product at most: crates without those of tests and the laboratory, and without tests.
const PRODUCT_LINES: Goal = until(163_000.0, 204_000.0);
/// Lines of the program at most, tests included: it keeps the grammar of the command line, and printing.
const PROGRAM_LINES: Goal = until(9_000.0, 10_700.0);
/// Public items of the product for each 1,000 lines of its code, at most.
///
/// On 29 November 2026 there are 4,540, and other crates name each of them (`doors`). 576 are `pub use` and `pub mod`, which open others. By the
/// compiled code and the links of the sources, 1,870 items have one crate as their user: 400 of `server`, `image`, `listing` and `inspect` the
/// program, 260 of `metaslab`, `dsl`, `dmu` and `vdev` the pool, 170 of `format` `dmu`, `spa` and `send`, 80 of `cenote` the C library. 2,000 have
/// two or more. So 25 takes 1,250 of the items with one user away: interfaces of fewer and larger requests between the program and the crates
/// for programs, and between the pool and its parts. Moving parts of the format to their only user would reach it too, and would take the
/// description of the bytes apart.
const PUBLIC: Goal = until(25.0, 34.5);
/// Public items of the product that no other crate names, at most.
const UNNAMED: Goal = held(0.0);
/// Translations of errors in spa at most.
const SPA_MAP_ERRS: Goal = held(120.0);
/// Circles of files in the whole house at most, and with re-exported names followed to their files.
const CIRCLES: Goal = held(3.0);
const CIRCLES_FOLLOWED: Goal = held(6.0);
/// Files of the largest circle of a crate at most.
const CIRCLE_FILES: &[(&str, Goal)] =
    &[("spa", held(3.0)), ("dsl", held(3.0)), ("zpl", held(3.0)), ("server", held(0.0)), ("cenote", held(0.0))];
/// Arrows up in a crate at most.
const ARROWS_UP: &[(&str, Goal)] = &[
    ("dmu", held(54.0)),
    ("dsl", held(27.0)),
    ("spa", until(99.0, 153.0)),
    ("zpl", held(48.0)),
    ("server", until(37.0, 39.0)),
];
/// Assertions for each 1,000 lines of a crate's code, at least.
const ASSERTIONS: &[(&str, Goal)] = &[
    ("vdev", held(12.0)),
    ("zio", held(12.0)),
    ("arc", held(12.0)),
    ("l2arc", held(12.0)),
    ("metaslab", held(12.0)),
    ("dmu", held(12.0)),
    ("zil", held(12.0)),
    ("dsl", held(12.0)),
    ("spa", held(12.0)),
    ("zpl", held(12.0)),
    ("zvol", held(12.0)),
    ("send", held(12.0)),
    ("scan", held(12.0)),
    ("nbd", held(12.0)),
];
/// The syncer's rooms: fields at most, and files with functions of the room at most.
const ROOMS: &[(&str, Goal, Goal)] = &[
    ("Syncer", held(21.0), until(28.0, 45.0)),
    ("Mos", held(9.0), held(4.0)),
    ("Blocks", until(9.0, 13.0), held(2.0)),
    ("Devices", until(9.0, 11.0), held(1.0)),
    ("Jobs", until(6.0, 13.0), held(1.0)),
    ("Zil", held(2.0), held(0.0)),
    ("InTxg", held(6.0), until(11.0, 14.0)),
];

/// A measure with its limit.
pub(super) struct Limit {
    name: String,
    now: f64,
    goal: Goal,
    /// The figure is at least the bound, instead of at most.
    is_least: bool,
}

impl Limit {
    fn at_most(name: impl Into<String>, now: f64, goal: Goal) -> Self {
        assert!(goal.wanted <= goal.bound, "a bound leads to the wanted figure");
        Self { name: name.into(), now, goal, is_least: false }
    }

    fn at_least(name: impl Into<String>, now: f64, goal: Goal) -> Self {
        assert!(goal.bound <= goal.wanted, "a bound leads to the wanted figure");
        Self { name: name.into(), now, goal, is_least: true }
    }

    /// True if the figure is within the bound.
    pub(super) fn holds(&self) -> bool {
        self.is_within(self.goal.bound)
    }

    fn is_within(&self, bound: f64) -> bool {
        if self.is_least { self.now >= bound } else { self.now <= bound }
    }

    /// The line of the table.
    pub(super) fn line(&self) -> String {
        let Goal { bound, wanted } = self.goal;
        let sign = if self.is_least { ">=" } else { "<=" };
        let wanted = if bound == wanted { String::new() } else { format!("  wanted {sign} {}", shown(wanted)) };
        let word = if self.holds() { "" } else { "  FAULT" };
        format!("{:44} {:>8}  {sign} {:>7}{wanted}{word}", self.name, shown(self.now), shown(bound))
    }

    /// The fault, if there is one.
    pub(super) fn fault(&self) -> Option<String> {
        let sign = if self.is_least { "at least" } else { "at most" };
        (!self.holds())
            .then(|| format!("{}: {}, {sign} {} is held", self.name, shown(self.now), shown(self.goal.bound)))
    }
}

fn shown(figure: f64) -> String {
    if figure.fract() == 0.0 { format!("{figure}") } else { format!("{figure:.1}") }
}

/// All measures.
pub(super) fn limits(crates: &[Counts], rooms: &[Room], unnamed: usize) -> Vec<Limit> {
    let find = |name: &str| crates.iter().find(|krate| krate.name == name).expect("a crate of the list exists");
    let product = || crates.iter().filter(|krate| krate.is_product());
    let sum = |count: fn(&Counts) -> usize| product().map(count).sum::<usize>() as f64;
    let whole = |count: fn(&Counts) -> usize| crates.iter().map(count).sum::<usize>() as f64;
    let doors = sum(|krate| krate.public_items) * 1000.0 / sum(|krate| krate.code_lines).max(1.0);
    let mut found = vec![
        Limit::at_most("lines of the product", sum(|krate| krate.lines), PRODUCT_LINES),
        Limit::at_most("lines of the program, with tests", find("cli").lines_with_tests as f64, PROGRAM_LINES),
        Limit::at_most("public items per kLOC, product", tenths(doors), PUBLIC),
        Limit::at_most("public items that no other crate names", unnamed as f64, UNNAMED),
        Limit::at_most("map_err in spa", find("spa").map_errs as f64, SPA_MAP_ERRS),
        Limit::at_most("circles of files", whole(|krate| krate.circles.len()), CIRCLES),
        Limit::at_most("circles, re-exports followed", whole(|krate| krate.circles_followed), CIRCLES_FOLLOWED),
    ];
    for (name, goal) in CIRCLE_FILES {
        let files = find(name).circles.iter().map(|circle| circle.len()).max().unwrap_or(0);
        found.push(Limit::at_most(format!("files of the largest circle, {name}"), files as f64, *goal));
    }
    for (name, goal) in ARROWS_UP {
        found.push(Limit::at_most(format!("arrows up, {name}"), find(name).arrows_up as f64, *goal));
    }
    for (name, goal) in ASSERTIONS {
        let krate = find(name);
        let density = tenths(krate.per_kloc(krate.assertions));
        found.push(Limit::at_least(format!("assertions per kLOC, {name}"), density, *goal));
    }
    for (name, fields, files) in ROOMS {
        let room = rooms.iter().find(|room| room.name == *name).expect("a room of the list is measured");
        found.push(Limit::at_most(format!("fields of {name}"), room.fields as f64, *fields));
        found.push(Limit::at_most(format!("files with functions of {name}"), room.files as f64, *files));
    }
    found
}

/// A figure to one digit, as it is shown.
fn tenths(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_beyond_its_bound_is_a_fault_and_one_beyond_the_wanted_figure_is_none() {
        assert!(Limit::at_most("x", 13.0, until(12.0, 13.0)).holds());
        assert!(Limit::at_most("x", 13.1, until(12.0, 13.0)).fault().is_some());
        assert!(Limit::at_least("x", 7.0, until(12.0, 7.0)).holds());
        assert!(Limit::at_least("x", 6.9, until(12.0, 7.0)).fault().is_some());
    }

    #[test]
    fn a_line_shows_the_wanted_figure_only_while_it_is_not_held() {
        assert!(!Limit::at_most("x", 1.0, held(2.0)).line().contains("wanted"));
        assert!(Limit::at_least("x", 1.0, until(3.0, 2.0)).line().ends_with("wanted >= 3  FAULT"));
    }
}
