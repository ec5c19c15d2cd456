//! The real OpenZFS in a virtual machine: `tools/openzfs-vm`, and its preparation while other steps run.

mod image;
mod rounds;
mod seen;

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context as _, Result, bail};
use cenote_testkit::{Golden, repository_root};

use crate::rotation;
use crate::steps::{Context, Outcome, Tally};
use crate::{golden, process};

/// The setup that runs in the background, if one does.
static SETUP: Mutex<Option<Child>> = Mutex::new(None);

const SETUP_LOG: &str = "target/openzfs-vm-setup.log";

/// `openzfs-vm setup|run|smoke|judge|image|owner|devices|logs|frozen|jobs|seen|written|multihost|send|snapshots|livelists|redact|replicate|raw [ARG…]`
pub(crate) fn main(args: &[String]) -> Result<()> {
    let Some((word, rest)) = args.split_first() else {
        bail!(
            "usage: cargo xtask openzfs-vm setup|run|smoke|judge|image|owner|devices|logs|frozen|jobs|seen|written|multihost|send|snapshots|livelists|redact|replicate|raw \
             [--all] \
             [ARG…]"
        )
    };
    match (word.as_str(), rest) {
        ("image", []) => return image(),
        ("owner", []) => return owner(),
        ("devices", []) => return devices(),
        ("logs", []) => return logs(),
        ("frozen", _) => return frozen(rest),
        ("jobs", _) => return jobs(rest),
        ("seen", _) => return seen::run(&golden::built_program()?, rest),
        ("multihost", []) => return multihost(),
        ("send", []) => return send(),
        ("snapshots", []) => return snapshots(),
        ("livelists", []) => return livelists(),
        ("redact", []) => return redact(),
        ("replicate", []) => return replicate(),
        ("raw", []) => return raw(),
        ("written", _) => {
            written()?;
            return rounds(rest.iter().any(|argument| argument == "--all"));
        }
        _ => {}
    }
    if ![
        "setup",
        "run",
        "smoke",
        "judge",
        "image",
        "owner",
        "devices",
        "logs",
        "multihost",
        "send",
        "snapshots",
        "livelists",
        "redact",
        "replicate",
        "raw",
    ]
    .contains(&word.as_str())
    {
        bail!(
            "openzfs-vm: setup, run, smoke, judge, image, owner, devices, logs, frozen, jobs, seen, written, multihost, send, snapshots, livelists, redact, replicate or raw, not {word}"
        );
    }
    let mut command = process::script(&format!("tools/openzfs-vm/{word}"));
    // The caller's own standard input: a script may come that way.
    let status = command.args(rest).status().context("cannot start bash")?;
    if !status.success() {
        bail!("openzfs-vm {word}: {status}");
    }
    Ok(())
}

/// Starts the setup if it may be done here and is not done already.
pub(crate) fn prepare_in_background(_: &Context) {
    if ready() || !process::may_install() {
        return;
    }
    let start = || -> Result<Child> {
        std::fs::create_dir_all(repository_root().join("target"))?;
        let log = File::create(repository_root().join(SETUP_LOG))?;
        let errors = log.try_clone()?;
        let mut command = process::script("tools/openzfs-vm/setup");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        Ok(command.spawn()?)
    };
    match start() {
        Ok(child) => {
            println!("preparing the virtual machine in the background ({SETUP_LOG})");
            *SETUP.lock().expect("no step panics with the lock") = Some(child);
        }
        Err(error) => println!("cannot prepare the virtual machine: {error:#}"),
    }
}

fn ready() -> bool {
    process::output(process::script("tools/openzfs-vm/setup").arg("--check")).is_ok_and(|output| output.good)
}

/// Waits for the setup, if it runs in the background.
pub(crate) fn prepared() -> Result<()> {
    let Some(mut setup) = SETUP.lock().expect("no step panics with the lock").take() else { return Ok(()) };
    println!("waiting for the virtual machine's setup");
    if setup.wait()?.success() {
        return Ok(());
    }
    let log = std::fs::read_to_string(repository_root().join(SETUP_LOG)).unwrap_or_default();
    let tail: Vec<&str> = log.lines().rev().take(30).collect();
    for line in tail.iter().rev() {
        println!("    {line}");
    }
    bail!("the virtual machine's setup failed")
}

/// A check of many minutes.
type Check = fn() -> Result<()>;

/// The checks of the step, of which each run does a part, so that neighbours are in different ones.
const CHECKS: &[(&str, Check)] = &[
    ("owner", owner),
    ("devices", devices),
    ("logs", logs),
    ("frozen", || frozen(&["--short".to_owned()])),
    ("image", image),
    ("written", written),
    ("rounds", || rounds(false)),
    ("multihost", multihost),
    ("send", send),
    ("snapshots", snapshots),
    ("replicate", replicate),
    ("raw", raw),
    ("redact", redact),
];
/// Parts in continuous integration. No divisor of the number of layouts that [`rounds()`] has, so that each layout has its turn.
const PARTS: u64 = 5;

/// The step.
pub(crate) fn step(context: &Context) -> Result<Outcome> {
    if SETUP.lock().expect("no step panics with the lock").is_none() {
        prepare_in_background(context);
    }
    prepared()?;
    if !ready() {
        return Ok(Outcome::LeftOut("no virtual machine (tools/openzfs-vm/setup, as root on Debian 12)".to_owned()));
    }
    let unpacked = Golden::selection()?.theme("basic")?.unpacked()?;
    process::run(process::script("tools/openzfs-vm/smoke").args(&unpacked.images))?;
    // A person waits for a run of their own, and the next one is for all to see.
    let part = rotation::of_commit(if context.ci { PARTS } else { CHECKS.len() as u64 });
    let (mine, others): (Vec<_>, Vec<_>) = CHECKS.iter().enumerate().partition(|(index, _)| part.has(*index as u64));
    let names =
        |checks: &[(usize, &(&'static str, Check))]| -> Vec<&str> { checks.iter().map(|(_, check)| check.0).collect() };
    println!("checks: smoke {}; of other commits: {}", names(&mine).join(" "), names(&others).join(" "));
    let mut tally = Tally::ONE;
    for (_, (name, check)) in mine {
        let begun = std::time::Instant::now();
        let result = check();
        println!("{name}: {:.0} s", begun.elapsed().as_secs_f64());
        if let Err(error) = &result {
            println!("FAILED {name}: {error:#}");
        }
        tally.count(result.is_ok());
    }
    Ok(Outcome::Done(tally))
}

/// A pool has one owner, Cenote or the kernel's module.
fn owner() -> Result<()> {
    process::run(process::script("tools/openzfs-vm/owner").arg(golden::built_program()?))
}

/// Block devices that miss txgs, and such with large sectors, in turns with the kernel's module.
fn devices() -> Result<()> {
    process::run(process::script("tools/openzfs-vm/devices").arg(golden::built_program()?))
}

/// Intent logs that a killed server leaves, which the kernel's module replays.
fn logs() -> Result<()> {
    if !rounds::can_mount() {
        bail!("openzfs-vm logs: /dev/fuse cannot be opened, and the logs are of a mount and a volume");
    }
    process::run(process::script("tools/openzfs-vm/logs").arg(golden::built_program()?))
}

/// Intent logs in all their forms: OpenZFS's for Cenote, Cenote's for OpenZFS. The arguments may be `--short`, and a folder to keep the pools in.
fn frozen(arguments: &[String]) -> Result<()> {
    if !rounds::can_mount() {
        bail!("openzfs-vm frozen: /dev/fuse cannot be opened, and the logs are of mounts and volumes");
    }
    let (options, folder): (Vec<_>, Vec<_>) = arguments.iter().partition(|argument| argument.starts_with("--"));
    process::run(process::script("tools/openzfs-vm/frozen").args(options).arg(golden::built_program()?).args(folder))
}

/// Half-done work on a pool's devices, in turns with the kernel's module. The argument is a pattern for the names of scenarios.
fn jobs(arguments: &[String]) -> Result<()> {
    process::run(process::script("tools/openzfs-vm/jobs").arg(golden::built_program()?).args(arguments))
}

/// Checks that a built image has the content that it was built from.
fn image() -> Result<()> {
    let temp = tempfile::tempdir()?;
    image::run(&golden::built_program()?, temp.path())
}

/// Each side refuses what the other has in use.
fn multihost() -> Result<()> {
    process::run(process::script("tools/openzfs-vm/multihost").arg(golden::built_program()?))
}

/// Streams of golden pools, which the kernel's module receives.
fn send() -> Result<()> {
    let mut script = process::script("tools/openzfs-vm/send");
    script.arg(golden::built_program()?);
    // More themes are by hand: the machine takes minutes for each.
    script.arg(Golden::selection()?.theme("snapshots")?.unpacked()?.dir);
    process::run(&mut script)
}

/// Streams of the kernel's module that Cenote receives and sends on, in turns.
fn replicate() -> Result<()> {
    let mut script = process::script("tools/openzfs-vm/replicate");
    script.arg(golden::built_program()?);
    process::run(&mut script)
}

/// Raw streams of encrypted datasets, in turns.
fn raw() -> Result<()> {
    process::run(process::script("tools/openzfs-vm/raw").arg(golden::built_program()?))
}

/// Snapshots and clones that both make and destroy in turns.
fn snapshots() -> Result<()> {
    if !rounds::can_mount() {
        bail!("openzfs-vm snapshots: /dev/fuse cannot be opened, and files are changed in a mount");
    }
    process::run(process::script("tools/openzfs-vm/snapshots").arg(golden::built_program()?))
}

/// Clones whose livelists both write, and by which both destroy.
fn livelists() -> Result<()> {
    if !rounds::can_mount() {
        bail!("openzfs-vm livelists: /dev/fuse cannot be opened, and files are changed in a mount");
    }
    process::run(process::script("tools/openzfs-vm/livelists").arg(golden::built_program()?))
}

/// Redaction bookmarks that both make of the same snapshots, and send by.
fn redact() -> Result<()> {
    if !rounds::can_mount() {
        bail!("openzfs-vm redact: /dev/fuse cannot be opened, and files are changed in a mount");
    }
    process::run(process::script("tools/openzfs-vm/redact").arg(golden::built_program()?))
}

/// Pools that both write in turns.
fn rounds(all: bool) -> Result<()> {
    if !rounds::can_mount() {
        bail!("openzfs-vm written: /dev/fuse cannot be opened, and files that exist are changed in a mount");
    }
    let temp = tempfile::tempdir()?;
    rounds::run(&golden::built_program()?, temp.path(), &repository_root().join("crates/format"), all)
}

/// A pool that Cenote builds from this repository's own files and changes, given to OpenZFS: it must find it sound, with the same contents, and
/// go on with it; and what it makes of it Cenote must read.
fn written() -> Result<()> {
    const POOL: &str = "written";
    const SUMS: &str = "sums";
    let cenote = golden::built_program()?;
    let temp = tempfile::tempdir()?;
    let whole = temp.path().to_owned();
    let share = &whole.join(POOL);
    std::fs::create_dir(share)?;
    let cenote = || {
        let mut command = Command::new(&cenote);
        command.env("CENOTE_CACHE", share.join("cache.json"));
        command
    };
    let source = repository_root().join("crates");
    let images = ["a.img", "b.img", "c.img"].map(|name| share.join(name));
    let options = ["build", "--pool", POOL, "--size", "128M", "-O", "compression=zstd", "--from"];
    process::run(cenote().args(options).arg(&source).arg("raidz1").args(&images))?;
    sums_to(&source, &share.join(SUMS))?;
    // Opened again and changed, once without one of its devices, which OpenZFS then resilvers by the log of what it missed.
    let zfs = |words: &[&str]| process::run(cenote().args(["zfs", "-d"]).arg(share).args(words));
    zfs(&["create", "-o", "compression=gzip-2", "written/made"])?;
    // Folders are not looked into.
    let elsewhere = share.join("elsewhere");
    std::fs::create_dir(&elsewhere)?;
    let away = elsewhere.join("b.img");
    std::fs::rename(&images[1], &away)?;
    zfs(&["set", "atime=off", POOL])?;
    zfs(&["create", "written/gone"])?;
    std::fs::rename(&away, &images[1])?;
    zfs(&["destroy", "written/gone"])?;
    zfs(&["rename", "written/made", "written/renamed"])?;
    let volume = Volume { share, socket: share.join("nbd"), file: share.join("volume") };
    zfs(&["create", "-V", "16M", Volume::NAME])?;
    volume.write(&mut cenote())?;
    process::run(process::script("tools/openzfs-vm/judge").arg(&whole).arg(POOL))?;
    volume.compare(&mut cenote())?;

    zfs(&["create", "written/second"])?;
    zfs(&["destroy", "written/second"])?;
    process::run(cenote().args(["verify", "-d"]).arg(share).arg(POOL))?;
    let copy = share.join("copy");
    process::run(cenote().args(["cp", "-a", "--privileged", "-d"]).arg(share).args([POOL, "/"]).arg(&copy))?;
    process::run(
        cenote()
            .args(["cp", "-a", "--privileged", "-d"])
            .arg(share)
            .args([&format!("{POOL}/child"), "/"])
            .arg(copy.join("child")),
    )?;
    process::run(Command::new("sha256sum").args(["--quiet", "-c"]).arg(share.join("sums.after")).current_dir(&copy))
}

/// A volume that is written over NBD, then by OpenZFS, and then read.
struct Volume<'a> {
    share: &'a Path,
    socket: std::path::PathBuf,
    /// A file with the content that the volume is to hold.
    file: std::path::PathBuf,
}

impl Volume<'_> {
    const NAME: &'static str = "written/volume";
    const BYTES: usize = 16 << 20;

    /// Fills it through `cenote serve --rw`.
    fn write(&self, cenote: &mut Command) -> Result<()> {
        // A sequence that nothing compresses, the same each time.
        let mut state = 1_u64;
        let content = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        });
        let content: Vec<u8> = content.take(Self::BYTES).collect();
        std::fs::write(&self.file, content)?;
        let mut server = cenote
            .args(["serve", "--rw", "-d"])
            .arg(self.share)
            .arg("--unix")
            .arg(&self.socket)
            .arg("written")
            .spawn()?;
        let copied = self.copy();
        // Asked to end, it writes what is left and exports the pool.
        process::run(Command::new("kill").arg(server.id().to_string()))?;
        let ended = server.wait()?;
        copied?;
        if !ended.success() {
            bail!("cenote serve --rw: {ended}");
        }
        Ok(())
    }

    fn copy(&self) -> Result<()> {
        let begun = std::time::Instant::now();
        while !self.socket.exists() {
            if begun.elapsed() > std::time::Duration::from_secs(60) {
                bail!("cenote serve --rw does not listen");
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let address = format!("nbd+unix:///{}?socket={}", Self::NAME, self.socket.display());
        process::run(Command::new("nbdcopy").arg("--flush").arg(&self.file).arg(address))
    }

    /// Its first MiB is what OpenZFS wrote, zeros; the rest as it was.
    fn compare(&self, cenote: &mut Command) -> Result<()> {
        let mut expected = std::fs::read(&self.file)?;
        expected[..1 << 20].fill(0);
        let found = cenote.args(["cat", "-d"]).arg(self.share).arg(Self::NAME).output()?;
        if !found.status.success() || found.stdout != expected {
            bail!("{} is not what OpenZFS left: {}", Self::NAME, String::from_utf8_lossy(&found.stderr));
        }
        Ok(())
    }
}

/// Sums of all files of a folder, with paths relative to it.
fn sums_to(folder: &Path, target: &Path) -> Result<()> {
    let mut command = Command::new("find");
    command.args([".", "-type", "f", "-exec", "sha256sum", "{}", "+"]).current_dir(folder);
    process::run(command.stdout(File::create(target)?))
}
