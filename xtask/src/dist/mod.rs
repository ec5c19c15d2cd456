//! `cargo xtask dist`: what users install. A static program, a package for Debian, a wheel for Python and an archive, with their sums.
//!
//! The same programs are packed to the same bytes: the commit's time is the time of all files, and entries are sorted ([`tree`]). Programs have
//! no absolute path of a source in them, so that the same compilers can make the same ones. docs/PACKAGES.md says how they are installed.
//!
//! The step `dist` makes them of builds that other steps have left, which are optimised less, and installs each: the archive in a folder, where
//! a C program is built with it; the Debian package in a root of its own; the wheel in a virtual environment, where the tests of the
//! Python package run.

mod check;
mod inputs;
mod packages;
mod tree;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use cenote_testkit::repository_root;
use cenote_testkit::zdb::program;

use self::inputs::Inputs;
use self::packages::{Package, archive, debian, debug, sums, wheel};
use crate::steps::{Context, Outcome, Tally};

/// Where they go without an argument.
const FOLDER: &str = "target/dist";
/// How the name of the program that is packed in nothing ends.
const PROGRAM: &str = "-linux-x86_64";

/// Carries out the chore.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let folder = match args {
        [] => repository_root().join(FOLDER),
        [folder] if !folder.starts_with('-') => PathBuf::from(folder),
        _ => bail!("dist: at most a folder is taken"),
    };
    let inputs = Inputs::release()?;
    let mut packages = made(&inputs)?;
    packages.push((format!("cenote-{}{PROGRAM}", inputs.version), inputs.program.clone()));
    packages.push(debug(&inputs)?);
    packages.sort();
    packages.push(sums(&packages));
    write(&folder, &packages)?;
    for (name, content) in &packages {
        println!("{:>10} {}", content.len(), folder.join(name).display());
    }
    Ok(())
}

/// Carries out the chore `wheel`: the wheel alone.
pub(crate) fn main_wheel(args: &[String]) -> Result<()> {
    let folder = match args {
        [] => repository_root().join(FOLDER),
        [folder] if !folder.starts_with('-') => PathBuf::from(folder),
        _ => bail!("wheel: at most a folder is taken"),
    };
    let package = wheel(&Inputs::release()?)?;
    write(&folder, std::slice::from_ref(&package))?;
    println!("{:>10} {}", package.1.len(), folder.join(&package.0).display());
    Ok(())
}

/// The packages that are installed.
fn made(inputs: &Inputs) -> Result<Vec<Package>> {
    Ok(vec![archive(inputs)?, debian(inputs)?, wheel(inputs)?])
}

fn write(folder: &Path, packages: &[Package]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for (name, content) in packages {
        let path = folder.join(name);
        fs::write(&path, content).with_context(|| path.display().to_string())?;
        let mode = if name.ends_with(PROGRAM) { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Installs a package and uses it.
type Check = fn(&Path) -> Result<()>;

/// The step.
pub(crate) fn step(context: &Context) -> Result<Outcome> {
    let inputs = Inputs::quick()?;
    let packages = made(&inputs)?;
    let mut tally = Tally::default();
    // A second time: nothing of when and where they are made is in them.
    let is_same = made(&inputs)? == packages;
    println!("packed twice: {}", if is_same { "the same bytes" } else { "different bytes" });
    tally.count(is_same);
    let folder = tempfile::tempdir()?;
    write(folder.path(), &packages)?;
    let path = |index: usize| folder.path().join(&packages[index].0);
    let checks: [(&str, &str, Check); 3] =
        [("archive", "cc", check::archive), ("Debian package", "dpkg", check::debian), ("wheel", "pip3", check::wheel)];
    for (index, (what, needed, check)) in checks.into_iter().enumerate() {
        if program(needed).is_none() {
            println!("left out: {what}, which needs {needed}");
            tally.failed += u64::from(context.ci);
            continue;
        }
        let checked = check(&path(index));
        match &checked {
            Ok(()) => println!("ok      {what}"),
            Err(error) => println!("FAILED  {what}: {error:#}"),
        }
        tally.count(checked.is_ok());
    }
    Ok(Outcome::Done(tally))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_alone_can_be_run() {
        let folder = tempfile::tempdir().unwrap();
        let names = [format!("cenote-1.0{PROGRAM}"), format!("cenote-1.0{PROGRAM}.tar.zst")];
        // The second time they are there already.
        for _ in 0..2 {
            write(folder.path(), &names.clone().map(|name| (name, b"x".to_vec()))).unwrap();
        }
        let modes = names.map(|name| fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777);
        assert_eq!(modes, [0o755, 0o644]);
    }
}
