//! The packages: Debian's, Python's, and an archive for everywhere else.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use cenote_testkit::repository_root;
use sha2::{Digest as _, Sha256};

use super::inputs::Inputs;
use super::tree::{Item, Tree, ar};

/// Names of OpenZFS's tools, by which the program is that tool.
const TOOLS: [&str; 4] = ["zdb", "zfs", "zpool", "zstream"];
/// Names by which mount(8) and umount(8) call the program: umount(8) by the type that the kernel shows.
const HELPERS: [&str; 3] = ["mount.cenote", "umount.cenote", "umount.fuse.cenote"];

/// A file that is made: its name and content.
pub(crate) type Package = (String, Vec<u8>);

fn kept(path: &str) -> Result<Vec<u8>> {
    fs::read(repository_root().join(path)).with_context(|| path.to_owned())
}

/// Text of the repository with `@NAME@` replaced.
fn filled(path: &str, values: &[(&str, &str)]) -> Result<String> {
    let mut text = String::from_utf8(kept(path)?)?;
    for (name, value) in values {
        text = text.replace(&format!("@{name}@"), value);
    }
    ensure!(!text.contains("@VERSION@") && !text.contains("@SIZE@"), "{path} is not filled in");
    Ok(text)
}

/// An archive with program, libraries, manual pages and completions, to be unpacked anywhere.
pub(crate) fn archive(inputs: &Inputs) -> Result<Package> {
    let mut tree = Tree::default();
    tree.program("bin/cenote", inputs.program.as_slice());
    tree.program("lib/libcenote.so.0", inputs.shared.as_slice());
    tree.link("lib/libcenote.so", "libcenote.so.0");
    if let Some(archive) = &inputs.archive {
        tree.file("lib/libcenote.a", archive.as_slice());
    }
    tree.file("lib/pkgconfig/cenote.pc", filled("tools/dist/cenote.pc", &[("VERSION", &inputs.version)])?);
    tree.file("include/cenote.h", kept("crates/capi/include/cenote.h")?);
    tree.file("share/doc/cenote/examples/copy.c", kept("crates/capi/examples/copy.c")?);
    tree.file("share/doc/cenote/third-party-licences.txt", inputs.notices.as_str());
    for name in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "docs/LIMITS.md", "docs/PACKAGES.md"] {
        tree.file(&format!("share/doc/cenote/{}", name.trim_start_matches("docs/")), kept(name)?);
    }
    for (path, item) in &inputs.manual.0 {
        tree.0.insert(format!("share/man/man1/{path}"), item.clone());
    }
    for (shell, text) in &inputs.completions {
        let place = match *shell {
            "bash" => "share/bash-completion/completions/cenote",
            "fish" => "share/fish/vendor_completions.d/cenote.fish",
            _ => "share/zsh/site-functions/_cenote",
        };
        tree.file(place, text.as_slice());
    }
    let top = format!("cenote-{}", inputs.version);
    let tar = tree.tar(&top, inputs.seconds)?;
    Ok((format!("{top}-linux-x86_64.tar.zst"), inputs.levels.zstd(&tar)?))
}

/// The debug information that was taken out of program and library.
pub(crate) fn debug(inputs: &Inputs) -> Result<Package> {
    let top = format!("cenote-{}-debug", inputs.version);
    let tar = inputs.debug.tar(&top, inputs.seconds)?;
    Ok((format!("{top}-linux-x86_64.tar.zst"), inputs.levels.zstd(&tar)?))
}

/// A package for Debian and what is made of it. It stands beside OpenZFS's own: its names are in a folder of their own.
pub(crate) fn debian(inputs: &Inputs) -> Result<Package> {
    let mut tree = Tree::default();
    tree.program("usr/bin/cenote", inputs.program.as_slice());
    for name in HELPERS {
        tree.link(&format!("usr/sbin/{name}"), "../bin/cenote");
    }
    for name in TOOLS {
        tree.link(&format!("usr/lib/cenote/bin/{name}"), "../../../bin/cenote");
    }
    for (path, item) in &inputs.manual.0 {
        tree.0.insert(format!("usr/share/man/man1/{path}"), item.clone());
    }
    for (shell, text) in &inputs.completions {
        let place = match *shell {
            "bash" => "usr/share/bash-completion/completions/cenote",
            "fish" => "usr/share/fish/vendor_completions.d/cenote.fish",
            _ => "usr/share/zsh/vendor-completions/_cenote",
        };
        tree.file(place, text.as_slice());
    }
    tree.file("usr/lib/systemd/system/cenote-serve@.service", kept("tools/dist/cenote-serve@.service")?);
    tree.file("etc/default/cenote-serve", kept("tools/dist/cenote-serve.default")?);
    tree.file("usr/share/doc/cenote/copyright", kept("tools/dist/copyright")?);
    tree.file("usr/share/doc/cenote/third-party-licences.txt.gz", inputs.levels.gzip(inputs.notices.as_bytes())?);
    tree.file("usr/share/doc/cenote/changelog.gz", inputs.levels.gzip(&kept("CHANGELOG.md")?)?);
    for name in ["README.md", "docs/LIMITS.md", "docs/service.md"] {
        tree.file(
            &format!("usr/share/doc/cenote/{}.gz", name.trim_start_matches("docs/")),
            inputs.levels.gzip(&kept(name)?)?,
        );
    }
    let kibibytes = tree.bytes().div_ceil(1024).to_string();
    let mut control = Tree::default();
    control.file("control", filled("tools/dist/control", &[("VERSION", &inputs.version), ("SIZE", &kibibytes)])?);
    control.file("conffiles", "/etc/default/cenote-serve\n");
    control.file("md5sums", md5sums(&tree)?);
    for script in ["postinst", "postrm"] {
        control.program(script, kept(&format!("tools/dist/{script}"))?);
    }
    let control = inputs.levels.gzip(&control.tar(".", inputs.seconds)?)?;
    let data = inputs.levels.gzip(&tree.tar(".", inputs.seconds)?)?;
    let members = [("debian-binary", &b"2.0\n"[..]), ("control.tar.gz", &control), ("data.tar.gz", &data)];
    Ok((format!("cenote_{}_amd64.deb", inputs.version), ar(&members, inputs.seconds)))
}

/// The sums by which `dpkg --verify` sees changed files. No library here has MD5, and any system with dpkg has `md5sum`.
fn md5sums(tree: &Tree) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let mut text = String::new();
    for (path, item) in &tree.0 {
        let Item::File(content, _) = item else { continue };
        if path.starts_with("etc/") {
            continue;
        }
        let copy = folder.path().join("file");
        fs::write(&copy, content)?;
        let output = crate::process::output(std::process::Command::new("md5sum").arg(&copy))?;
        ensure!(output.good, "md5sum: {}", output.stderr);
        let sum = String::from_utf8_lossy(&output.stdout);
        let sum = sum.split_whitespace().next().context("md5sum prints a sum")?;
        text += &format!("{sum}  {path}\n");
    }
    Ok(text)
}

/// A wheel for Python with the shared library in it.
pub(crate) fn wheel(inputs: &Inputs) -> Result<Package> {
    let mut tree = Tree::default();
    for entry in fs::read_dir(repository_root().join("python/src/cenote"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "py" || end == "typed") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            tree.file(&format!("cenote/{name}"), fs::read(&path)?);
        }
    }
    tree.program("cenote/libcenote.so", inputs.shared.as_slice());
    let tag = format!("py3-none-{}", platform(&inputs.shared)?);
    let info = format!("cenote-{}.dist-info", inputs.version);
    let readme = String::from_utf8(kept("python/README.md")?)?;
    let metadata = filled("tools/dist/METADATA", &[("VERSION", &inputs.version)])?;
    tree.file(&format!("{info}/METADATA"), format!("{metadata}\n{readme}"));
    let generator = format!("Wheel-Version: 1.0\nGenerator: cenote-xtask\nRoot-Is-Purelib: false\nTag: {tag}\n");
    tree.file(&format!("{info}/WHEEL"), generator);
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        tree.file(&format!("{info}/licenses/{name}"), kept(name)?);
    }
    tree.file(&format!("{info}/licenses/third-party-licences.txt"), inputs.notices.as_str());
    let mut record = String::new();
    for (path, item) in &tree.0 {
        let Item::File(content, _) = item else { continue };
        record += &format!("{path},sha256={},{}\n", base64(&Sha256::digest(content)), content.len());
    }
    record += &format!("{info}/RECORD,,\n");
    tree.file(&format!("{info}/RECORD"), record);
    Ok((format!("cenote-{}-{tag}.whl", inputs.version), tree.zip(inputs.levels)?))
}

/// The platform of a wheel: `manylinux` and the newest version of glibc whose symbols the library asks for.
fn platform(library: &[u8]) -> Result<String> {
    let word = b"GLIBC_2.";
    let found = library.windows(word.len()).enumerate().filter(|(_, window)| window == word);
    let number = |(at, _): (usize, &[u8])| -> Option<u32> {
        let digits = library[at + word.len()..].iter().take_while(|byte| byte.is_ascii_digit()).copied().collect();
        String::from_utf8(digits).ok()?.parse().ok()
    };
    let newest = found.filter_map(number).max().context("the library asks for no symbols of glibc")?;
    Ok(format!("manylinux_2_{newest}_x86_64"))
}

/// Base64 with the alphabet for names, without padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = (0..3).fold(0_u32, |word, at| word << 8 | u32::from(chunk.get(at).copied().unwrap_or(0)));
        for at in 0..=chunk.len() {
            text.push(char::from(LETTERS[(word >> (18 - 6 * at) & 63) as usize]));
        }
    }
    text
}

/// The sums of files, as `sha256sum --check` reads them.
pub(crate) fn sums(packages: &[Package]) -> Package {
    let mut lines: Vec<String> = Vec::new();
    for (name, content) in packages {
        let sum: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        lines.push(format!("{sum}  {name}\n"));
    }
    ("SHA256SUMS".to_owned(), lines.concat().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_as_elsewhere() {
        assert_eq!(base64(b""), "");
        assert_eq!(base64(b"f"), "Zg");
        assert_eq!(base64(b"fo"), "Zm8");
        assert_eq!(base64(b"foobar\xff\xfe"), "Zm9vYmFy__4");
    }

    #[test]
    fn a_wheel_s_platform_is_the_newest_glibc_that_is_asked_for() {
        assert_eq!(platform(b"..GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0").unwrap(), "manylinux_2_34_x86_64");
        assert!(platform(b"nothing").is_err());
    }
}
