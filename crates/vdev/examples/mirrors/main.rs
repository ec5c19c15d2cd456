//! Mechanism M3 on modelled disks: which child of a mirror is read.
//!
//! ```text
//!   cargo run --release -p cenote-vdev --example mirrors -- [founding|mixed|slow]… [quick] [WAYS-way]… [NAME=VALUE]…
//! ```
//!
//! Prints the table of 2013 beside what the same policies come to on models of such drives, mirrors of unlike children, and one
//! child that is ten times slower. See `rig.rs` for what is modelled, and `suites.rs` for the targets.
//!
//! Words of the form NAME=VALUE set tunables of policy `adaptive`.
//!
//! Older policies run with the queue of their time. The row without mirrors shows how well the model fits the document.
//! Not all targets are met: lines that begin with SHORT say which, and by how much. `offset` comes out a little better than the
//! document's, so that ratios over it are smaller than there.

mod rig;
mod suites;

use suites::Length;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let length = if words.iter().any(|word| word == "quick") { Length::QUICK } else { Length::FULL };
    let wants = |name: &str| {
        let names = ["founding", "mixed", "slow"];
        words.iter().any(|word| word == name) || !words.iter().any(|word| names.contains(&word.as_str()))
    };
    if wants("founding") {
        let is_named = |row: &(usize, _)| words.contains(&format!("{}-way", row.0));
        let some = suites::FOUNDING.iter().any(is_named);
        let rows: Vec<_> = suites::FOUNDING.into_iter().filter(|row| !some || is_named(row)).collect();
        println!("{}", suites::founding(length, &rows));
    }
    if wants("mixed") {
        println!("{}", suites::mixed(length));
    }
    if wants("slow") {
        println!("{}", suites::slow(length));
    }
}
