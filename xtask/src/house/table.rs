//! The table of crates.

use super::counts::Counts;
use super::source::Module;

/// Prints a line for each crate, their sums, and the circles and long files by name.
pub(super) fn print(crates: &[Counts]) {
    println!(
        "{:10} {:>7} {:>7} {:>11} {:>7} {:>6} {:>9} {:>4} {:>8}",
        "crate", "lines", "code", "assert/kLOC", "map_err", "public", "pub/kLOC", "up", "circles"
    );
    for it in crates {
        println!(
            "{:10} {:>7} {:>7} {:>11.1} {:>7} {:>6} {:>9.1} {:>4} {:>8}",
            it.name,
            it.lines,
            it.code_lines,
            it.per_kloc(it.assertions),
            it.map_errs,
            it.public_items,
            it.per_kloc(it.public_items),
            it.arrows_up,
            it.circles.len()
        );
    }
    for it in crates {
        for (module, lines) in &it.long {
            println!("long: {} {}, {lines} lines", it.name, name(module));
        }
        for circle in &it.circles {
            println!(
                "circle of {}: {} {}",
                circle.len(),
                it.name,
                circle.iter().map(name).collect::<Vec<_>>().join(", ")
            );
        }
    }
}

fn name(module: &Module) -> String {
    if module.is_empty() { "lib".to_owned() } else { module.join("/") }
}
