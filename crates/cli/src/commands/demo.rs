//! `cenote demo`.

use std::path::Path;

use anyhow::Context as _;
use cenote_image::demo::{
    OVERWRITES, POOL, WRITTEN, WRITTEN_BYTES, compare, overwrite, same_trees, unpack_images, written,
};
use cenote_server::View;
use cenote_server::mounting::shown_alone;
use cenote_server::writing::open_for_writing;

use crate::files::{dataset, filesystem};
use crate::output::nicebytes;
use crate::prelude::*;

/// The pool that the demo makes itself.
const OWN: &str = "own";

/// Open a small pool made by OpenZFS, show it, verify it, copy a tree out of it, mount it; then make a mirrored pool, change it
/// while it is in use, lose a disk, and find everything again.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {}

pub(crate) async fn run(context: &Context, _: Args) -> Result<Outcome> {
    let folder = tempfile::tempdir().context("no folder for the demo's files")?;
    context
        .out("A pool of three mirrored disks, written by OpenZFS 2.3.2, is part of this program. Unpacking it:\n")?;
    let images = folder.path().join("disks");
    std::fs::create_dir(&images)?;
    for (name, size) in unpack_images(&images)? {
        context.out(format!("  {name}  {}\n", nicebytes(size)))?;
    }
    let shown = folder.path().display().to_string();
    let demo = Demo { context, images: images.display().to_string(), folder: shown, failed: 0 };
    demo.run(folder.path()).await
}

struct Demo<'a> {
    context: &'a Context,
    images: String,
    /// The folder that all of it happens in.
    folder: String,
    failed: u64,
}

impl Demo<'_> {
    async fn run(mut self, folder: &Path) -> Result<Outcome> {
        let start = self.context.handle().now();
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
        let mount = match shown_alone(self.context, &pool, POOL, &at).await {
            Ok(mount) => mount,
            Err(error) => return self.context.out(format!("left out: {error}\n")),
        };
        let copy = folder.join("copy");
        // The mount is served by the workers of this runtime: who reads from it must not hold one of them.
        let walked = self.context.handle().spawn_blocking(move || same_trees(&at, &copy)).await;
        mount.detach().await?;
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
        let is_same = written(&filesystem).await? == expected;
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
        let done = overwrite(&handle, pool).await?;
        self.context.out(format!(
            "{} written in {:.2} s, then {OVERWRITES} overwrites of 4 KiB in {:.2} s, all on disk: {} txgs up to {}, pool exported\n",
            nicebytes(WRITTEN_BYTES),
            done.first.as_secs_f64(),
            done.later.as_secs_f64(),
            done.txgs,
            done.last
        ))?;
        Ok(done.content)
    }

    async fn open(&self, images: &str) -> Result<View> {
        let search = Search { paths: vec![images.into()], force: true };
        Ok(self.context.with(&search).open_pool(POOL).await?)
    }

    /// Hashes every file and compares with what OpenZFS saw.
    async fn compare(&mut self, images: &str) -> Result<()> {
        let start = self.context.handle().now();
        let pool = self.open(images).await?;
        let compared = compare(self.context.handle(), &pool).await?;
        let seconds = self.context.handle().now().since(start).as_secs_f64();
        self.failed += u64::from(compared.equal != compared.entries);
        self.context.out(format!(
            "{} of {} files and directories are what OpenZFS saw: names, modes, times, links, attributes, \
             SHA-256 of the contents ({} in {seconds:.2} s)\n",
            compared.equal,
            compared.entries,
            nicebytes(compared.bytes)
        ))
    }
}
