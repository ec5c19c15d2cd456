//! A fixed number of made-up inputs for every target, on any toolchain.
//!
//! `budget [--count N] [--seed N] [TARGET…]`, `budget --list`. An input that makes a target panic is written to
//! `fuzz/artifacts/TARGET-HASH` and named; the others go on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use cenote_fuzz::TARGETS;
use cenote_fuzz::mutate::{Random, invent, mutate};

fn main() -> ExitCode {
    let mut count = 20_000u64;
    let mut seed = 1;
    let mut names = Vec::new();
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        let number = |text: Option<String>| text.and_then(|text| text.parse().ok());
        match arg.as_str() {
            "--list" => {
                for (name, _) in TARGETS {
                    println!("{name}");
                }
                return ExitCode::SUCCESS;
            }
            "--count" => match number(args.next()) {
                Some(number) => count = number,
                None => return usage(),
            },
            "--seed" => match number(args.next()) {
                Some(number) => seed = number,
                None => return usage(),
            },
            name if cenote_fuzz::target(name).is_some() => names.push(arg),
            _ => return usage(),
        }
    }
    let mut good = true;
    for (name, body) in TARGETS {
        if !names.is_empty() && !names.iter().any(|other| other == name) {
            continue;
        }
        let corpus = corpus(name);
        match run(*body, &corpus, count, seed) {
            Ok(()) => println!("ok {name}: {} of the corpus, {count} made up from seed {seed}", corpus.len()),
            Err(input) => {
                good = false;
                match keep(name, &input) {
                    Ok(path) => println!("FAILED {name}: see {}", path.display()),
                    Err(error) => println!("FAILED {name}: {error}; the input was {input:02x?}"),
                }
            }
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!("usage: budget [--count N] [--seed N] [TARGET…] | --list");
    ExitCode::from(2)
}

/// Runs the corpus and then `count` inputs; returns the first that made the body panic.
fn run(body: fn(&[u8]), corpus: &[Vec<u8>], count: u64, seed: u64) -> Result<(), Vec<u8>> {
    let try_one = |input: &[u8]| catch_unwind(AssertUnwindSafe(|| body(input))).map_err(|_| input.to_vec());
    for input in corpus {
        try_one(input)?;
    }
    let mut random = Random::new(seed);
    for _ in 0..count {
        let input = if corpus.is_empty() || random.below(8) == 0 {
            invent(&mut random)
        } else {
            let mut input = corpus[random.below(corpus.len())].clone();
            mutate(&mut input, &mut random);
            input
        };
        try_one(&input)?;
    }
    Ok(())
}

/// The target's corpus, sorted by name so that the same seed gives the same inputs everywhere.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut paths: Vec<PathBuf> =
        fs::read_dir(dir).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default();
    paths.sort();
    paths.iter().filter_map(|path| fs::read(path).ok()).collect()
}

fn keep(name: &str, input: &[u8]) -> std::io::Result<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts");
    fs::create_dir_all(&dir)?;
    // FNV-1a: a name that follows from the bytes.
    let hash = input
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let path = dir.join(format!("{name}-{hash:016x}"));
    fs::write(&path, input)?;
    Ok(path)
}
