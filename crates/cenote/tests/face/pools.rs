//! Opening pools, alone and in company, and letting them go.

use std::path::Path;

use cenote::{CreateOptions, Error, ErrorKind, FileKind, Health, OpenOptions, Runtime};
use cenote_testkit::{theme, theme_if_present};
use tempfile::tempdir;

fn options(folder: &Path) -> OpenOptions {
    OpenOptions::new().search(folder).cache_bytes(16 << 20)
}

#[test]
fn a_file_is_read_and_another_written_in_a_pool_that_openzfs_made() {
    let scratch = theme("mirror3").scratch().unwrap();
    let runtime = Runtime::new().unwrap();
    let found = runtime.block_on(options(scratch.dir()).find(&runtime)).unwrap();
    assert_eq!((found.len(), found[0].devices.len(), found[0].is_exported), (1, 3, true));
    let name = &found[0].name;
    let done = runtime.block_on(async {
        let pool = options(scratch.dir()).write(true).open(&runtime, name).await?;
        let root = pool.filesystem(name).await?;
        let (mut listing, mut file) = (root.read_dir("/").await?, None);
        while let Some(entry) = listing.next().await? {
            if entry.kind == Some(FileKind::File) {
                file.get_or_insert(entry.name);
            }
        }
        let file = file.expect("there is a file");
        let content = root.read(&file).await?;
        root.write("/copy", &content).await?;
        pool.export().await?;
        // By its guid, and read-only.
        let pool = options(scratch.dir()).open(&runtime, &found[0].guid.to_string()).await?;
        assert!(pool.is_read_only() && pool.status()?.root.devices().iter().all(|it| it.health == Health::Online));
        assert!(pool.data_errors().await?.is_empty());
        let root = pool.filesystem(name).await?;
        assert_eq!(root.read("copy").await?, content);
        assert_eq!(root.write("x", "").await.unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(pool.create_filesystem("x/y", &[]).await.unwrap_err().kind(), ErrorKind::ReadOnly);
        pool.export().await
    });
    done.unwrap();
}

#[test]
fn a_pool_that_somebody_has_is_busy_and_one_that_is_nowhere_not_found() {
    let folder = tempdir().unwrap();
    let image = folder.path().join("a.img").display().to_string();
    let runtime = Runtime::new().unwrap();
    let make = || CreateOptions::new([image.clone()]).file_bytes(64 << 20).cache_bytes(16 << 20);
    let done = runtime.block_on(async {
        let pool = make().create(&runtime, "tank").await?;
        let again = options(folder.path()).write(true).force(true).open(&runtime, "tank").await;
        let error = again.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.place().device.as_deref().is_some_and(|device| device.ends_with("a.img")), "{error}");
        assert_eq!(make().force(true).create(&runtime, "other").await.unwrap_err().kind(), ErrorKind::Busy);
        let error = options(folder.path()).open(&runtime, "none").await.unwrap_err();
        assert_eq!((error.kind(), error.place().pool.as_deref()), (ErrorKind::NotFound, Some("none")));
        let files = pool.filesystem("tank").await?;
        let other = pool.clone();
        pool.export().await?;
        assert_eq!(files.write("x", "").await.unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(other.datasets().await.unwrap_err().kind(), ErrorKind::Closed);
        // Handles that are left keep the devices.
        drop((files, other));
        let error = make().create(&runtime, "other").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "it holds a pool: {error}");
        make().force(true).create(&runtime, "other").await?.export().await?;
        assert_eq!(options(folder.path()).find(&runtime).await?.len(), 1);
        Ok::<_, Error>(())
    });
    done.unwrap();
}

#[test]
fn a_pool_that_was_not_exported_opens_with_force_alone() {
    let machine = Runtime::simulated(5);
    machine.add_disk("/disk", 128 << 20);
    machine.block_on(async {
        let pool = CreateOptions::new(["/disk"]).create(&machine, "tank").await.unwrap();
        let file = pool.filesystem("tank").await.unwrap().create("kept").await.unwrap();
        file.write_at(0, "this").await.unwrap();
        file.sync().await.unwrap();
    });
    let machine = machine.cut_power(6);
    let done = machine.block_on(async {
        let error = OpenOptions::new().write(true).open(&machine, "tank").await.unwrap_err();
        assert_eq!((error.kind(), error.place().pool.as_deref()), (ErrorKind::Busy, Some("tank")), "{error}");
        let found = OpenOptions::new().find(&machine).await?;
        assert!(!found[0].is_exported);
        let pool = OpenOptions::new().write(true).force(true).open(&machine, "tank").await?;
        assert_eq!(pool.filesystem("tank").await?.read("kept").await?, b"this");
        pool.export().await
    });
    done.unwrap();
}

#[test]
fn words_and_values_that_make_no_sense_are_misuse() {
    let folder = tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    let image = folder.path().join("a.img").display().to_string();
    let kind = |options: CreateOptions| runtime.block_on(options.create(&runtime, "tank")).unwrap_err().kind();
    let one = || CreateOptions::new([image.clone()]).file_bytes(64 << 20);
    assert_eq!(kind(CreateOptions::new(["mirror".to_owned(), image.clone()])), ErrorKind::Misuse);
    assert_eq!(kind(CreateOptions::new([image.clone()])), ErrorKind::NotFound);
    assert_eq!(kind(one().root_property("atime", "maybe")), ErrorKind::Misuse);
    assert_eq!(kind(one().property("nothing", "1")), ErrorKind::NotFound);
    assert_eq!(kind(one().file_bytes(1 << 20)), ErrorKind::Misuse);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "what was made for nothing is removed");
    let opened = runtime.block_on(options(folder.path()).tunable("no_such", 1).open(&runtime, "tank"));
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::Misuse);
}

#[test]
fn an_encrypted_dataset_wants_its_key() {
    let golden = theme_if_present("encryption_small").unwrap_or_else(|| theme("encryption_gcm"));
    let (scratch, folder) = (golden.scratch().unwrap(), tempdir().unwrap());
    let keys = golden.write_keys(folder.path()).unwrap();
    let (dataset, file) = &keys[0];
    let key = std::fs::read(file).unwrap();
    let runtime = Runtime::new().unwrap();
    let done = runtime.block_on(async {
        let name = options(scratch.dir()).find(&runtime).await?[0].name.clone();
        let pool = options(scratch.dir()).open(&runtime, &name).await?;
        let error = pool.filesystem(dataset).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Key, "{error}");
        assert_eq!(pool.load_key(dataset, b"wrong key, of some length").await.unwrap_err().kind(), ErrorKind::Key);
        pool.export().await?;
        let pool = options(scratch.dir()).key(dataset, key).open(&runtime, &name).await?;
        let mut listing = pool.filesystem(dataset).await?.read_dir("/").await?;
        assert!(listing.next().await?.is_some());
        pool.export().await
    });
    done.unwrap();
}

#[test]
fn a_simulation_runs_the_same_each_time() {
    let run = || {
        let runtime = Runtime::simulated(11);
        runtime.add_disk("/disk", 128 << 20);
        runtime.block_on(async {
            let pool = CreateOptions::new(["/disk"]).create(&runtime, "tank").await.unwrap();
            pool.filesystem("tank").await.unwrap().write("file", vec![5; 1 << 20]).await.unwrap();
            runtime.sleep(std::time::Duration::from_secs(20)).await;
            let seen = (pool.guid(), pool.txg(), pool.txgs());
            pool.export().await.unwrap();
            seen
        })
    };
    assert_eq!(run(), run());
}

#[test]
fn the_readme_shows_the_program_that_the_documentation_runs() {
    let read = |name: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
    let readme = read("../../README.md");
    let (_, block) = readme.split_once("```rust\n").expect("the README has a program");
    let (shown, _) = block.split_once("```").expect("which ends");
    let lib = read("src/lib.rs");
    let (_, block) = lib.split_once("//! ```\n").expect("the documentation has a program");
    let (run, _) = block.split_once("//! ```").expect("which ends");
    let lines = run.lines().map(|line| line.strip_prefix("//! ").unwrap_or_default());
    let run: Vec<&str> = lines.filter(|line| !line.starts_with('#')).collect();
    assert_eq!(shown.replace("\"/images\"", "images").lines().collect::<Vec<_>>(), run);
    assert!(run.len() <= 20, "{} lines", run.len());
}
