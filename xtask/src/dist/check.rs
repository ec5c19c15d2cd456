//! Installing what was packed, and using it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use cenote_testkit::repository_root;

use crate::process;

/// Runs a program; its output comes back.
fn said(command: &mut Command) -> Result<String> {
    let output = process::output(command)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.good, "{command:?}: {}: {text}{}", output.status, output.stderr);
    Ok(text)
}

fn expect(text: &str, wanted: &str) -> Result<()> {
    ensure!(text.contains(wanted), "no '{wanted}' in: {text}");
    Ok(())
}

/// Unpacks the archive, makes a pool with its program, and builds and runs the example in C with its library.
pub(crate) fn archive(package: &Path) -> Result<()> {
    let folder = tempfile::tempdir()?;
    said(Command::new("tar").arg("--zstd").arg("-xf").arg(package).arg("-C").arg(folder.path()))?;
    let top = fs::read_dir(folder.path())?.next().context("the archive is empty")??.path();
    let pool = folder.path().join("pool");
    fs::create_dir(&pool)?;
    let from = repository_root().join("docs");
    let mut build = Command::new(top.join("bin/cenote"));
    build.args(["build", "--pool", "tank", "--size", "64M", "--from"]).arg(from).arg(pool.join("tank.img"));
    said(build.env("CENOTE_CACHE", folder.path().join("cache.json")))?;
    let program = folder.path().join("copy");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]).arg("-I").arg(top.join("include"));
    cc.arg(top.join("share/doc/cenote/examples/copy.c")).arg("-L").arg(top.join("lib")).arg("-lcenote");
    said(cc.arg("-o").arg(&program))?;
    let mut copy = Command::new(program);
    copy.arg(&pool).args(["tank", "/PACKAGES.md", "/copy.md"]).env("LD_LIBRARY_PATH", top.join("lib"));
    expect(&said(copy.env("CENOTE_CACHE", folder.path().join("cache.json")))?, "copied ")
}

/// Installs the Debian package into a root of its own, looks at what is there, and removes it.
pub(crate) fn debian(package: &Path) -> Result<()> {
    let root = tempfile::tempdir()?;
    let root = root.path();
    // The folders that dpkg expects of a root, and of a system where /sbin and /lib are in /usr.
    for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "usr/sbin", "usr/lib"] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::write(root.join("var/lib/dpkg/status"), "")?;
    let dpkg = |verb: &str| {
        let mut command = Command::new("dpkg");
        command.arg(format!("--root={}", root.display())).args(["--force-not-root", "--force-script-chrootless"]);
        command.arg(format!("--log={}/dpkg.log", root.display()));
        command.arg(verb);
        command
    };
    said(dpkg("--install").arg(package))?;
    expect(&said(dpkg("--status").arg("cenote"))?, "Status: install ok installed")?;
    expect(&said(Command::new(root.join("usr/bin/cenote")).arg("version"))?, "cenote ")?;
    expect(&said(Command::new(root.join("usr/lib/cenote/bin/zpool")).arg("version"))?, "zfs-")?;
    ensure!(fs::metadata(root.join("usr/sbin/mount.cenote"))?.is_file(), "mount.cenote leads nowhere");
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/cenote-serve@.service"))?;
    expect(&unit, "ExecStart=/usr/bin/cenote serve ")?;
    // %I would make slashes of the hyphens in a pool's name.
    expect(&unit, "$CENOTE_SERVE_OPTIONS %i\n")?;
    expect(&unit, "EnvironmentFile=-/etc/default/cenote-serve\nEnvironmentFile=-/etc/default/cenote-serve-%i\n")?;
    for page in ["cenote.1.gz", "cenote-serve.1.gz", "cenote-zpool-list.1.gz"] {
        ensure!(root.join("usr/share/man/man1").join(page).is_file(), "no manual page {page}");
    }
    // Nothing on this system may be owned by both.
    let listed = said(dpkg("--listfiles").arg("cenote"))?;
    for name in ["zfs", "zpool", "zdb", "zstream"] {
        for folder in ["/sbin", "/usr/sbin", "/usr/bin"] {
            ensure!(!listed.lines().any(|line| line == format!("{folder}/{name}")), "it has OpenZFS's {folder}/{name}");
        }
    }
    let verified = said(dpkg("--verify").arg("cenote"))?;
    ensure!(verified.is_empty(), "files are not as their sums say: {verified}");
    fs::write(root.join("etc/default/cenote-serve"), "# changed\n")?;
    said(dpkg("--install").arg(package))?;
    expect(&fs::read_to_string(root.join("etc/default/cenote-serve"))?, "# changed")?;
    said(dpkg("--purge").arg("cenote"))?;
    if root.join("usr/bin/cenote").exists() || root.join("etc/default/cenote-serve").exists() {
        bail!("purging it leaves files");
    }
    Ok(())
}

/// Installs the wheel into a virtual environment and runs the tests of the package there.
pub(crate) fn wheel(package: &Path) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let environment = folder.path().join("venv");
    // Debian has `ensurepip` in a package of its own, so pip comes from outside.
    said(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&environment))?;
    let python = environment.join("bin/python");
    let mut pip = Command::new("pip3");
    pip.arg("--python").arg(&python).args([
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--disable-pip-version-check",
    ]);
    said(pip.arg(package).env("PIP_NO_CACHE_DIR", "1"))?;
    let mut tests = Command::new(&python);
    tests.args(["-W", "error::ResourceWarning", "-m", "unittest", "discover", "--start-directory"]);
    tests.arg(repository_root().join("python/tests")).current_dir(folder.path());
    tests.env_remove("CENOTE_LIBRARY").env_remove("PYTHONPATH").env("PYTHONDONTWRITEBYTECODE", "1");
    let output = process::output(&mut tests)?;
    print!("{}", output.stderr);
    ensure!(output.good, "the tests of the Python package failed");
    expect(&output.stderr, "\nOK")
}
