//! `cenote demo`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cenote_fuse::{Layout, MountOptions, Unmount};
use clap::Parser;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::args::Search;
use crate::context::Context;
use crate::outcome::Outcome;
use crate::output::nicebytes;
use crate::request::{Request, handle};

/// The pool: a mirror of three files, made by OpenZFS 2.3.2. It is part of the program, so that the demo needs nothing else.
const POOL: &str = "venxanix0";
const IMAGES: [(&str, &[u8]); 3] = [
    ("a.img", include_bytes!("../../../../testdata/golden/mirror3/a.img.zst")),
    ("b.img", include_bytes!("../../../../testdata/golden/mirror3/b.img.zst")),
    ("c.img", include_bytes!("../../../../testdata/golden/mirror3/c.img.zst")),
];
/// What OpenZFS saw in it.
const MANIFEST: &[u8] = include_bytes!("../../../../testdata/golden/mirror3/manifest.json.zst");

/// Bytes compared at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Open a small pool made by OpenZFS, show it, verify it, copy a tree out of it, mount it, and say how it went.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {}

pub(crate) async fn run(context: &Context, _: Args) -> Result<Outcome> {
    let folder = tempfile::tempdir().context("no folder for the demo's files")?;
    let start = context.handle().now();
    context
        .out("A pool of three mirrored disks, written by OpenZFS 2.3.2, is part of this program. Unpacking it:\n")?;
    let images = folder.path().join("disks");
    std::fs::create_dir(&images)?;
    for (name, packed) in IMAGES {
        let size = unpack(packed, &images.join(name))?;
        context.out(format!("  {name}  {}\n", nicebytes(size)))?;
    }
    let demo = Demo { context, images: images.display().to_string(), failed: 0 };
    demo.run(folder.path(), start).await
}

struct Demo<'a> {
    context: &'a Context,
    images: String,
    failed: u64,
}

impl Demo<'_> {
    async fn run(mut self, folder: &Path, start: cenote_taskq::Instant) -> Result<Outcome> {
        let images = self.images.clone();
        let out = folder.join("copy").display().to_string();
        self.say("What is it, and is it well?")?;
        self.show(&images).await?;
        self.say("Files in it, without mounting anything:")?;
        self.command(&["ls", "-d", &images, "-l", POOL]).await?;
        self.say("Reading every block of every copy, and accounting for every allocated byte:")?;
        self.command(&["verify", "-d", &images, POOL]).await?;
        self.say("Copying a tree out, with attributes, holes and links:")?;
        self.command(&["cp", "-d", &images, "-a", "-v", POOL, "/", &out]).await?;
        self.compare(&images).await?;
        self.mount(&images, folder).await?;
        self.say("Losing two of the three disks:")?;
        for name in ["a.img", "c.img"] {
            std::fs::remove_file(Path::new(&images).join(name))?;
            self.context.out(format!("  removed {name}\n"))?;
        }
        self.show(&images).await?;
        self.compare(&images).await?;
        let seconds = self.context.handle().now().since(start).as_secs_f64();
        let io = self.context.handle().io_mode();
        self.context.out(format!("\nDone in {seconds:.1} s; {}.\n", io.explanation))?;
        self.context.out(
            "\nWith a pool of your own (disks or image files; nothing is ever written to them):\n\
             \x20 cenote ls -d DIR -l POOL/FILESYSTEM   files\n\
             \x20 cenote cp -d DIR POOL/FILESYSTEM / TARGET   copy everything out\n\
             \x20 cenote verify -d DIR POOL             every checksum, every byte\n\
             \x20 cenote serve -d DIR --unix SOCK POOL  volumes over NBD\n",
        )?;
        Ok(Outcome::unless(self.failed > 0))
    }

    fn say(&self, text: &str) -> Result<()> {
        self.context.out(format!("\n{text}\n"))
    }

    /// Shows a command line, and runs it as if it had been typed.
    async fn command(&mut self, words: &[&str]) -> Result<()> {
        let shown: Vec<&str> = words.iter().map(|word| if *word == self.images { "DISKS" } else { *word }).collect();
        self.context.out(format!("$ cenote {}\n", shown.join(" ")))?;
        let argv = std::iter::once("cenote").chain(words.iter().copied());
        let request = Request::try_parse_from(argv).context("a command of the demo does not parse")?;
        let outcome = Box::pin(handle(self.context.handle().clone(), request, self.context.output().clone())).await?;
        self.failed += u64::from(outcome != Outcome::Good);
        Ok(())
    }

    /// The pool's vdevs with their health, and its datasets with their sizes.
    async fn show(&self, images: &str) -> Result<()> {
        let pool = self.open(images).await?;
        self.context.out(format!("pool '{}' at txg {}\n", pool.name(), pool.txg()))?;
        let mut pending = vec![(pool.tree().status(), 1)];
        while let Some((vdev, depth)) = pending.pop() {
            let name = vdev.name.strip_prefix(&self.images).map_or(&*vdev.name, |rest| rest.trim_start_matches('/'));
            self.context.out(format!("{:indent$}{name}  {:?}\n", "", vdev.state, indent = 2 * depth))?;
            pending.extend(vdev.children.into_iter().rev().map(|child| (child, depth + 1)));
        }
        let dsl = pool.dsl();
        for dir in dsl.tree(dsl.root_dir().await?, false).await? {
            let Some(head) = dsl.head(&dir).await? else { continue };
            let referenced = nicebytes(head.phys.referenced_bytes);
            self.context.out(format!(
                "  {}  used {}, refers to {referenced}\n",
                dir.name,
                nicebytes(dir.phys.used_bytes)
            ))?;
        }
        pool.close().await;
        Ok(())
    }

    /// Mounts the pool where this machine lets us, and reads through the kernel what was copied out before.
    async fn mount(&mut self, images: &str, folder: &Path) -> Result<()> {
        self.say("Mounting it, read-only, and reading the same tree through the kernel:")?;
        let at = folder.join("mnt");
        std::fs::create_dir(&at)?;
        let pool = self.open(images).await?;
        let options = MountOptions { layout: Layout::Alone, ..MountOptions::default() };
        let report = self.context.clone();
        let report = Arc::new(move |line: &str| report.err(line));
        let mount = match cenote_fuse::mount(self.context.handle(), &pool, POOL, &at, &options, report).await {
            Ok(mount) => mount,
            Err(error) => return self.context.out(format!("left out: {error}\n")),
        };
        let copy = folder.join("copy");
        // The mount is served by the workers of this runtime: who reads from it must not hold one of them.
        let walked = self.context.handle().spawn_blocking(move || same_trees(&at, &copy)).await;
        mount.unmount(Unmount::Detach).await?;
        pool.close().await;
        let (files, different, bytes) = walked??;
        self.failed += different;
        self.context.out(format!(
            "{} of {files} files have the contents that were copied out ({})\n",
            files - different,
            nicebytes(bytes)
        ))
    }

    async fn open(&self, images: &str) -> Result<cenote_spa::Pool> {
        let search = Search { paths: vec![images.into()], force: true };
        self.context.with(&search).open_pool(POOL).await
    }

    /// Hashes every file and compares with what OpenZFS saw.
    async fn compare(&mut self, images: &str) -> Result<()> {
        let start = self.context.handle().now();
        let pool = self.open(images).await?;
        let ours = crate::manifest::manifest(self.context.handle(), &pool).await?;
        let seconds = self.context.handle().now().since(start).as_secs_f64();
        let theirs: Value = serde_json::from_slice(&zstd::decode_all(MANIFEST)?)?;
        let (mut equal, mut entries, mut bytes) = (0_u64, 0_u64, 0_u64);
        let datasets = theirs["sections"][0]["datasets"].as_object().context("the demo's manifest has no datasets")?;
        for (name, dataset) in datasets {
            let expected = dataset["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
            for entry in expected {
                let found = ours["datasets"][name]["entries"].as_array().into_iter().flatten();
                entries += 1;
                equal += u64::from(found.clone().any(|found| found == entry));
                bytes += entry["size"].as_u64().filter(|_| entry["type"] == "f").unwrap_or(0);
            }
        }
        ensure!(entries > 0, "the demo's manifest has no entries");
        self.failed += u64::from(equal != entries);
        self.context.out(format!(
            "{equal} of {entries} files and directories are what OpenZFS saw: names, modes, times, links, attributes, \
             SHA-256 of the contents ({} in {seconds:.2} s)\n",
            nicebytes(bytes)
        ))
    }
}

/// Walks a folder and compares the contents of its files with those of another: files, how many differ, bytes.
fn same_trees(folder: &Path, other: &Path) -> Result<(u64, u64, u64)> {
    let (mut files, mut different, mut bytes) = (0, 0, 0);
    let mut pending = vec![PathBuf::new()];
    while let Some(relative) = pending.pop() {
        let at = folder.join(&relative);
        for entry in std::fs::read_dir(&at).with_context(|| format!("cannot list {}", at.display()))? {
            let entry = entry?;
            let (kind, relative) = (entry.file_type()?, relative.join(entry.file_name()));
            if kind.is_dir() {
                pending.push(relative);
            } else if kind.is_file() {
                let size = same_contents(&entry.path(), &other.join(&relative))?;
                files += 1;
                different += u64::from(size.is_none());
                bytes += size.unwrap_or(0);
            }
        }
    }
    Ok((files, different, bytes))
}

/// The bytes of data that two files have in common, if they are equal. Holes are not read: a file of holes may be larger
/// than anybody would wait for.
fn same_contents(path: &Path, other: &Path) -> Result<Option<u64>> {
    let (file, other) = (File::open(path)?, File::open(other)?);
    let size_bytes = file.metadata()?.len();
    let mut is_same = other.metadata()?.len() == size_bytes;
    let (mut at, mut data_bytes) = (0, 0);
    let (mut ours, mut theirs) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    while is_same && at < size_bytes {
        at = match seek(&file, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = seek(&file, SeekFrom::Hole(at))?;
        while is_same && at < end {
            let len = CHUNK_BYTES.min(usize::try_from(end - at).unwrap_or(CHUNK_BYTES));
            file.read_exact_at(&mut ours[..len], at)?;
            other.read_exact_at(&mut theirs[..len], at)?;
            is_same = ours[..len] == theirs[..len];
            at += len as u64;
            data_bytes += len as u64;
        }
    }
    Ok(is_same.then_some(data_bytes))
}

fn unpack(packed: &[u8], target: &Path) -> Result<u64> {
    let mut bytes = zstd::Decoder::new(packed)?;
    let mut file = File::create_new(target)?;
    Ok(std::io::copy(&mut bytes, &mut file)?)
}
