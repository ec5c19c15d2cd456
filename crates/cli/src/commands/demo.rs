//! `cenote demo`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cenote_dmu::tx::TxTunables;
use cenote_fuse::{Layout, MountOptions, Unmount};
use cenote_taskq::Rng;
use cenote_zpl::{FileSystem, FileSystemOptions, NewNode};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::args::Search;
use crate::context::Context;
use crate::files::{dataset, filesystem};
use crate::outcome::Outcome;
use crate::output::nicebytes;
use cenote_server::writing::open_for_writing;

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

/// The pool that the demo makes itself.
const OWN: &str = "own";
/// The file that is written and overwritten in it.
const WRITTEN: &str = "written";
const WRITTEN_BYTES: u64 = 8 << 20;
/// How often, at random, and in pieces of which size.
const OVERWRITES: u64 = 2000;
const OVERWRITE_BYTES: u64 = 4096;

/// Open a small pool made by OpenZFS, show it, verify it, copy a tree out of it, mount it; then make a mirrored pool, change it
/// while it is in use, lose a disk, and find everything again.
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
    let shown = folder.path().display().to_string();
    let demo = Demo { context, images: images.display().to_string(), folder: shown, failed: 0 };
    demo.run(folder.path(), start).await
}

struct Demo<'a> {
    context: &'a Context,
    images: String,
    /// The folder that all of it happens in.
    folder: String,
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
        self.own(folder).await?;
        let seconds = self.context.handle().now().since(start).as_secs_f64();
        let io = self.context.handle().io_mode();
        self.context.out(format!("\nDone in {seconds:.1} s; {}.\n", io.explanation))?;
        self.context.out(
            "\nWith a pool of your own (disks or image files; these commands write nothing to them):\n\
             \x20 cenote ls -d DIR -l POOL/FILESYSTEM   files\n\
             \x20 cenote cp -d DIR POOL/FILESYSTEM / TARGET   copy everything out\n\
             \x20 cenote verify -d DIR POOL             every checksum, every byte\n\
             \x20 cenote serve -d DIR --unix SOCK POOL  volumes over NBD\n\
             And to make one, unprivileged:\n\
             \x20 cenote build --pool NAME --size 1G --from DIR|TAR|OCI-IMAGE mirror A.img B.img\n\
             \x20 cenote zpool create --size 1G NAME mirror A.img B.img\n",
        )?;
        Ok(Outcome::unless(self.failed > 0))
    }

    fn say(&self, text: &str) -> Result<()> {
        self.context.out(format!("\n{text}\n"))
    }

    /// Shows a command line, and runs it as if it had been typed.
    async fn command(&mut self, words: &[&str]) -> Result<()> {
        let shown: Vec<&str> = words
            .iter()
            .map(|word| match word.strip_prefix(&self.folder) {
                Some(_) if *word == self.images => "DISKS",
                Some(rest) => rest.trim_start_matches('/'),
                None => word,
            })
            .collect();
        self.context.out(format!("$ cenote {}\n", shown.join(" ")))?;
        let line = std::iter::once("cenote").chain(words.iter().copied()).map(str::to_owned).collect();
        let (handle, output) = (self.context.handle().clone(), self.context.output().clone());
        let outcome = self.context.program()?.run(handle, line, output).await?;
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

    /// Makes a mirrored pool, changes it while it is in use, and finds all of it again with one disk.
    async fn own(&mut self, folder: &Path) -> Result<()> {
        let disks = folder.join("own");
        std::fs::create_dir(&disks)?;
        let text = |path: &Path| path.display().to_string();
        let (first, second, images) = (text(&disks.join("1.img")), text(&disks.join("2.img")), text(&disks));
        // In a clone of the repository, its own files.
        let repository = Path::new("crates/format/src");
        let source = if repository.join("lib.rs").is_file() { text(repository) } else { text(&folder.join("copy")) };
        self.say("A mirrored pool of our own, which OpenZFS takes as one of its own, from files that are here:")?;
        self.command(&[
            "build",
            "--pool",
            OWN,
            "--size",
            "128M",
            "-O",
            "compression=zstd",
            "--from",
            &source,
            "mirror",
            &first,
            &second,
        ])
        .await?;
        self.command(&["ls", "-d", &images, "-l", OWN]).await?;
        self.say(
            "Opened for writing: a file is made and overwritten at random while txgs are written in the background:",
        )?;
        let expected = self.overwrite(&images).await?;
        self.say("Imported again: every block of both disks, and what was written, with one of them gone:")?;
        self.command(&["verify", "-d", &images, OWN]).await?;
        std::fs::remove_file(&second)?;
        let search = Search { paths: vec![images.clone().into()], force: true };
        let (pool, dataset) = dataset(&self.context.with(&search), OWN).await?;
        let filesystem = filesystem(&pool, &dataset).await?;
        let file = filesystem.lookup(filesystem.root(), WRITTEN.as_bytes()).await?;
        let found = filesystem.open_file(file).await?.read(0, WRITTEN_BYTES as usize).await?;
        let is_same = *found == *expected;
        self.failed += u64::from(!is_same);
        pool.close().await;
        self.context.out(match is_same {
            true => format!("{} of '{WRITTEN}' are what was written last\n", nicebytes(WRITTEN_BYTES)),
            false => format!("'{WRITTEN}' is not what was written last\n"),
        })
    }

    /// Makes a file in the pool and overwrites it at random; what it holds in the end.
    async fn overwrite(&mut self, images: &str) -> Result<Vec<u8>> {
        let handle = self.context.handle().clone();
        let search = Search { paths: vec![images.into()], force: true };
        let pool = open_for_writing(&self.context.with(&search), OWN).await?;
        let paced = TxTunables { zfs_txg_timeout: 1, zfs_dirty_data_max: 32 << 20, ..TxTunables::default() };
        let pool = pool.start(paced).await;
        let head = pool.open_head(OWN).await?;
        let files = FileSystem::open_head(head.objset(), Arc::new(head.clone()), FileSystemOptions::default()).await?;
        let new = NewNode { mode: 0o100_644, ..NewNode::default() };
        let (file, _) = files.create_file(files.root(), WRITTEN.as_bytes(), &new).await?;
        let begun = handle.now();
        let mut rng = Rng::new(1);
        let mut content = vec![0; WRITTEN_BYTES as usize];
        rng.fill(&mut content);
        file.write(0, &content).await?;
        pool.sync().await?;
        let first = handle.now();
        let mut piece = vec![0; OVERWRITE_BYTES as usize];
        for _ in 0..OVERWRITES {
            let at = rng.below(WRITTEN_BYTES - OVERWRITE_BYTES);
            rng.fill(&mut piece);
            file.write(at, &piece).await?;
            content[at as usize..][..piece.len()].copy_from_slice(&piece);
        }
        let txg = pool.sync().await?;
        let (seconds, since) = ((first - begun).as_secs_f64(), (handle.now() - first).as_secs_f64());
        file.close().await?;
        let txgs = pool.history().len();
        drop((files, head));
        pool.export().await?;
        self.context.out(format!(
            "{} written in {seconds:.2} s, then {OVERWRITES} overwrites of 4 KiB in {since:.2} s, all on disk: {txgs} txgs up to {txg}, \
             pool exported\n",
            nicebytes(WRITTEN_BYTES)
        ))?;
        Ok(content)
    }

    async fn open(&self, images: &str) -> Result<cenote_spa::View> {
        let search = Search { paths: vec![images.into()], force: true };
        Ok(self.context.with(&search).open_pool(POOL).await?)
    }

    /// Hashes every file and compares with what OpenZFS saw.
    async fn compare(&mut self, images: &str) -> Result<()> {
        let start = self.context.handle().now();
        let pool = self.open(images).await?;
        let mut ours = Vec::new();
        cenote_image::manifest::manifest(self.context.handle(), &pool, &mut ours).await?;
        let ours: Value = serde_json::from_slice(&ours)?;
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
