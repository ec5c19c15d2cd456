//! `cargo xtask golden DIR`: every golden pool read by the program and compared with what OpenZFS saw in it.
//!
//! For each theme the images are unpacked and `cenote manifest` describes the pool; the description is compared, dataset by
//! dataset and field by field, with the section `contents` of the theme's manifest. Where the pool has redundancy the same
//! is asked again with as many images missing as it can bear ([`degraded`]): the answer must not change. Each time a sample
//! goes through the front ends too ([`crate::frontends`]).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use cenote_testkit::compare::{Options, Report, compare};
use cenote_testkit::manifest::{Manifest, Section};
use cenote_testkit::{Golden, Theme, Unpacked};
use serde_json::Value;
use tempfile::TempDir;

use crate::frontends::{self, Available, Subject};
use crate::steps::{Context, Outcome, Tally};
use crate::{process, value_of};

/// Differences printed per comparison; the rest is counted.
const DIFFERENCES_SHOWN_MAX: usize = 20;

/// Degraded variants tried per pool. Chosen by eye: all of a mirror's or a narrow raidz's, a spread of a wide one's.
const VARIANTS_MAX: usize = 8;

/// Carries out the chore.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let mut dir = None;
    let mut themes = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--theme" => themes.extend(value_of(arg, &mut rest)?.split(',').map(str::to_owned)),
            other if other.starts_with('-') => bail!("golden: unknown option {other}"),
            other if dir.is_none() => dir = Some(PathBuf::from(other)),
            other => bail!("golden: unexpected {other}"),
        }
    }
    let golden = dir.as_deref().map_or_else(Golden::find, Golden::at)?;
    let (front_ends, _) = Available::find();
    let tally = run(&golden, &themes, front_ends)?;
    println!("{} passed, {} failed", tally.passed, tally.failed);
    if tally.failed > 0 || tally.passed == 0 {
        bail!("golden pools are not read as OpenZFS reads them");
    }
    Ok(())
}

/// The step: the largest set at hand, and the repository's own if that is another.
pub(crate) fn step(context: &Context) -> Result<Outcome> {
    let largest = Golden::find()?;
    let own = Golden::selection()?;
    let (front_ends, left_out) = Available::find();
    let mut tally = run(&largest, &[], front_ends)?;
    if context.ci {
        tally.failed += left_out.len() as u64;
    }
    // Packed differently, but the same pools; worth a second look only where nothing is hurried.
    if context.ci && own.root() != largest.root() {
        tally.absorb(run(&own, &[], Available::default())?);
    }
    Ok(Outcome::Done(tally))
}

/// Builds the program as checks run it, and says where it is; or takes the one that `CENOTE_PROGRAM` names.
pub(crate) fn built_program() -> Result<PathBuf> {
    std::env::var_os("CENOTE_PROGRAM").map_or_else(|| process::built("cenote"), |program| Ok(program.into()))
}

/// As [`built_program`], but as its users build it.
pub(crate) fn released_program() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("CENOTE_PROGRAM") {
        return Ok(program.into());
    }
    process::run(process::cargo().args(["build", "--release", "--locked", "--package", "cenote-cli"]))?;
    process::target_program("release", "cenote")
}

fn run(golden: &Golden, only: &[String], front_ends: Available) -> Result<Tally> {
    let cenote = built_program()?;
    let mut tally = Tally::default();
    let mut total = Report::default();
    for theme in golden.themes()? {
        if !only.is_empty() && !only.iter().any(|name| name == theme.name()) {
            continue;
        }
        match run_theme(&cenote, &theme, front_ends, &mut total) {
            Ok(theme_tally) => tally.absorb(theme_tally),
            Err(error) => {
                println!("FAILED  {}: {error:#}", theme.name());
                tally.failed += 1;
            }
        }
    }
    println!("{total}");
    Ok(tally)
}

fn run_theme(cenote: &Path, theme: &Theme, front_ends: Available, total: &mut Report) -> Result<Tally> {
    let manifest = theme.manifest()?;
    let json = theme.manifest_json()?;
    let unpacked = theme.unpacked()?;
    let keys_dir = tempfile::tempdir()?;
    let keys = theme.write_keys(keys_dir.path())?;
    let mut tally = Tally::default();
    let sections = json["sections"].as_array().context("a manifest has sections")?;
    for (section, expected) in manifest.sections.iter().zip(sections) {
        if section.section != "contents" {
            continue;
        }
        let expected = &comparable(expected, section);
        let mut variants = vec![BTreeSet::new()];
        variants.extend(degraded(&manifest, section));
        for missing in variants {
            let name = variant_name(theme, section, &manifest, &missing);
            let present = Present::new(&unpacked, &missing)?;
            let begin = Instant::now();
            let report = describe(cenote, present.dir(), &keys, &section.pool)
                .map(|got| compare(expected, &without_unrecorded(expected, got), &Options::default()));
            let seconds = begin.elapsed().as_secs_f64();
            match report {
                Ok(report) => {
                    let verdict = if report.is_match() { "ok    " } else { "FAILED" };
                    println!("{verdict}  {name}: {report} ({seconds:.1} s)");
                    show(&report);
                    tally.count(report.is_match());
                    total.absorb(report);
                }
                Err(error) => {
                    println!("FAILED  {name}: {error:#} ({seconds:.1} s)");
                    tally.failed += 1;
                }
            }
            let images = present.dir();
            let subject = Subject { cenote, images, keys: &keys, pool: &section.pool, expected };
            tally.absorb(frontends::run(&name, &subject, front_ends));
        }
    }
    if tally == Tally::default() {
        bail!("the manifest has no section 'contents'");
    }
    Ok(tally)
}

/// The expected account less what it says of OpenZFS's mounts and not of the pool.
///
/// * `.zfs`, where `snapdir=visible` made it part of the walk: a view of snapshots, each of which is compared as a dataset.
/// * An empty `projectspace` beside a filled `userspace` where project accounting is active. The part of the set that was
///   made first lacks these rows; asked again, OpenZFS shows the same pools' project 0. Where the feature is not active
///   an empty list is what is right, and compared.
fn comparable(expected: &Value, section: &Section) -> Value {
    let properties = &section.zpool_get["pools"][&section.pool]["properties"];
    let has_projects = properties["feature@project_quota"]["value"] == "active";
    let mut expected = expected.clone();
    for dataset in expected["datasets"].as_object_mut().into_iter().flat_map(|datasets| datasets.values_mut()) {
        let Some(dataset) = dataset.as_object_mut() else { continue };
        if let Some(entries) = dataset.get_mut("entries").and_then(Value::as_array_mut) {
            entries
                .retain(|entry| entry["path"].as_str().is_none_or(|path| path != ".zfs" && !path.starts_with(".zfs/")));
        }
        let is_empty = |key: &str| dataset.get(key).and_then(Value::as_array).is_none_or(Vec::is_empty);
        if has_projects && is_empty("projectspace") && !is_empty("userspace") {
            dataset.remove("projectspace");
        }
    }
    expected
}

/// Leaves `projectspace` out of our account where the expected one lacks it.
fn without_unrecorded(expected: &Value, mut got: Value) -> Value {
    for (name, dataset) in got["datasets"].as_object_mut().into_iter().flatten() {
        let recorded = expected["datasets"].get(name);
        if let Some(dataset) = dataset.as_object_mut()
            && recorded.is_some_and(|recorded| recorded.get("projectspace").is_none())
        {
            dataset.remove("projectspace");
        }
    }
    got
}

fn variant_name(theme: &Theme, section: &Section, manifest: &Manifest, missing: &BTreeSet<String>) -> String {
    let mut name = theme.name().to_owned();
    if manifest.pools.len() > 1 {
        name = format!("{name} {}", section.pool);
    }
    if !missing.is_empty() {
        let list: Vec<&str> = missing.iter().map(String::as_str).collect();
        name = format!("{name} without {}", list.join(", "));
    }
    name
}

fn show(report: &Report) {
    for difference in report.differences.iter().take(DIFFERENCES_SHOWN_MAX) {
        println!("        {difference}");
    }
    if report.differences.len() > DIFFERENCES_SHOWN_MAX {
        println!("        … and {} more", report.differences.len() - DIFFERENCES_SHOWN_MAX);
    }
}

/// The folder with the images that are not missing.
enum Present {
    /// All are there: the folder itself.
    All(PathBuf),
    /// A folder with links to those that are.
    Some(TempDir),
}

impl Present {
    fn new(unpacked: &Unpacked, missing: &BTreeSet<String>) -> Result<Self> {
        if missing.is_empty() {
            return Ok(Self::All(unpacked.dir.clone()));
        }
        let dir = tempfile::tempdir()?;
        for image in &unpacked.images {
            let name = image.file_name().context("an image has a name")?;
            if !missing.contains(&*name.to_string_lossy()) {
                std::os::unix::fs::symlink(image, dir.path().join(name))?;
            }
        }
        Ok(Self::Some(dir))
    }

    fn dir(&self) -> &Path {
        match self {
            Self::All(dir) => dir,
            Self::Some(dir) => dir.path(),
        }
    }
}

/// Asks the program what the pool contains.
fn describe(cenote: &Path, images: &Path, keys: &[(String, PathBuf)], pool: &str) -> Result<Value> {
    let mut command = Command::new(cenote);
    command.arg("manifest").arg("-d").arg(images);
    for (dataset, file) in keys {
        command.arg("--key").arg(format!("{dataset}={}", file.display()));
    }
    command.arg(pool);
    let output = process::output(&mut command)?;
    if !output.good {
        bail!("cenote manifest: {}: {}", output.status, output.stderr.trim());
    }
    serde_json::from_slice(&output.stdout).context("cenote manifest did not print JSON")
}

/// Sets of image names that the pool can do without, smallest first.
///
/// Each top-level vdev of known redundancy (a mirror all children but one, raidz and draid as many as they have parity) may
/// lose that many. Pools that were not whole when they were described, or that have log, special or other vdevs besides,
/// are left as they are: what they can lose is a matter of their own.
fn degraded(manifest: &Manifest, section: &Section) -> Vec<BTreeSet<String>> {
    let status = &section.zpool_status["pools"][&section.pool];
    if status["state"] != "ONLINE" {
        return Vec::new();
    }
    let Some(tops) = status["vdevs"][&section.pool]["vdevs"].as_object() else { return Vec::new() };
    let [(top, tree)] = tops.iter().collect::<Vec<_>>()[..] else { return Vec::new() };
    let Some(children) = tree["vdevs"].as_object() else { return Vec::new() };
    let names: Vec<String> = children
        .keys()
        .filter_map(|path| path.rsplit('/').next())
        .filter(|name| manifest.images.iter().any(|image| image.file == *name))
        .map(str::to_owned)
        .collect();
    if names.len() != children.len() {
        return Vec::new();
    }
    let bearable = match top.split_once(|letter: char| letter.is_ascii_digit() || letter == '-') {
        Some(("mirror", _)) => names.len() - 1,
        Some(("raidz" | "draid", _)) => {
            usize::from(top.as_bytes().get(5).copied().unwrap_or(b'0').saturating_sub(b'0')).min(names.len() - 1)
        }
        _ => 0,
    };
    let mut sets = subsets(&names, bearable);
    // The largest losses ask most; the single ones tell which child is at fault. Keep both ends.
    if sets.len() > VARIANTS_MAX {
        let step = sets.len() as f64 / VARIANTS_MAX as f64;
        sets = (0..VARIANTS_MAX).map(|index| sets[((index as f64 + 0.5) * step) as usize].clone()).collect();
        let last: BTreeSet<String> = names.iter().take(bearable).cloned().collect();
        sets.push(last);
        sets.dedup();
    }
    sets
}

/// All sets of 1 to `size_max` names, smallest first.
fn subsets(names: &[String], size_max: usize) -> Vec<BTreeSet<String>> {
    let mut all: Vec<BTreeSet<String>> = (1u32..1 << names.len().min(16))
        .filter(|bits| bits.count_ones() as usize <= size_max)
        .map(|bits| {
            names.iter().enumerate().filter(|(index, _)| bits >> index & 1 == 1).map(|(_, name)| name.clone()).collect()
        })
        .collect();
    all.sort_by_key(BTreeSet::len);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_that_were_not_recorded_are_left_out() {
        let manifest = |theme: &str| Golden::selection().unwrap().theme(theme).unwrap();
        let look = |theme: &str| {
            let json = manifest(theme).manifest_json().unwrap();
            comparable(&json["sections"][0], manifest(theme).manifest().unwrap().contents())
        };
        // Recorded with rows, and without.
        let with = look("mirror3");
        let without = look("raidz1");
        assert!(with["datasets"].as_object().unwrap().values().all(|dataset| dataset.get("projectspace").is_some()));
        assert!(without["datasets"].as_object().unwrap().values().all(|dataset| dataset.get("projectspace").is_none()));
        let got = without_unrecorded(&without, look("raidz1"));
        assert!(compare(&without, &got, &Options::default()).is_match());
    }

    fn variants(theme: &str) -> Vec<BTreeSet<String>> {
        let manifest = Golden::selection().unwrap().theme(theme).unwrap().manifest().unwrap();
        degraded(&manifest, manifest.contents())
    }

    #[test]
    fn a_three_way_mirror_can_lose_any_two_and_never_all() {
        let sets = variants("mirror3");
        assert_eq!(sets.len(), 6);
        assert!(sets.iter().all(|set| (1..=2).contains(&set.len())));
    }

    #[test]
    fn single_parity_can_lose_one_child() {
        let sets = variants("raidz1");
        assert_eq!(sets.len(), 3);
        assert!(sets.iter().all(|set| set.len() == 1));
    }

    #[test]
    fn a_pool_without_redundancy_has_no_degraded_variant() {
        assert!(variants("basic").is_empty());
        assert!(variants("log_spacemap").is_empty());
    }
}
