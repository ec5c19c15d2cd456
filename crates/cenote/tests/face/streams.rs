//! Streams between pools, and the holds and bookmarks that keep their sources.

use cenote::{
    CreateOptions, Dataset, Error, ErrorKind, KeyStatus, OpenOptions, Pool, ReceiveOptions, Received, Runtime,
    SendOptions, SentName, Snapshot,
};
use cenote_testkit::{theme, theme_if_present};
use tempfile::tempdir;

use super::admin::on_new_pool;

/// Runs a test on two new pools of a simulation, `tank` and `backup`.
fn on_two_pools(test: impl AsyncFnOnce(&Runtime, &Pool, &Pool) -> Result<(), Error>) {
    on_new_pool(async |runtime, tank| {
        runtime.add_disk("/other", 256 << 20);
        let backup = CreateOptions::new(["/other"]).create(runtime, "backup").await?;
        test(runtime, tank, &backup).await?;
        // Some tests export it themselves.
        match backup.export().await {
            Err(error) if error.kind() == ErrorKind::Closed => Ok(()),
            exported => exported,
        }
    });
}

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

async fn sent(options: &SendOptions, snapshot: &Snapshot) -> Vec<u8> {
    let mut stream = Vec::new();
    let sent = options.send(snapshot, &mut stream).await.unwrap();
    assert_eq!(sent.bytes, stream.len() as u64);
    stream
}

async fn received(pool: &Pool, target: &str, stream: &[u8]) -> Result<Received, Error> {
    ReceiveOptions::new().receive(pool, target, stream).await
}

/// Writes a file, and takes a snapshot.
async fn changed(dataset: &Dataset, content: &str, snapshot: &str) -> Snapshot {
    dataset.filesystem().await.unwrap().write("note", content).await.unwrap();
    dataset.snapshot(snapshot).await.unwrap()
}

async fn note(pool: &Pool, of: &str) -> Vec<u8> {
    pool.filesystem(of).await.unwrap().read("note").await.unwrap()
}

#[test]
fn a_copy_has_the_snapshots_properties_and_holds_that_were_sent() {
    on_two_pools(async |_, tank, backup| {
        let home =
            tank.create_filesystem("tank/home", &[("compression", "zstd"), ("org.example:note", "mine")]).await?;
        let one = changed(&home, "1", "one").await;
        one.hold("kept").await?;
        changed(&home, "2", "two").await;
        let three = changed(&home, "3", "three").await;
        let options = SendOptions::new().properties(true).holds(true);
        let whole = sent(&options, &one).await;
        let set = ReceiveOptions::new().property("atime", "off").exclude("org.example:note");
        let outcome = set.receive(backup, "backup/copy", &whole[..]).await?;
        assert_eq!((outcome.datasets, outcome.warnings), (vec!["backup/copy".to_owned()], Vec::new()));
        let copy = backup.dataset("backup/copy").await?;
        assert_eq!(copy.get("compression").await?.value, "zstd");
        assert_eq!(copy.get("atime").await?.value, "off");
        assert_eq!(kind(copy.get("org.example:note").await), ErrorKind::NotFound);

        let rest = sent(&SendOptions::new().since("tank/home@one").with_between(true), &three).await;
        received(backup, "backup/copy", &rest).await?;
        let copies = copy.snapshots().await?;
        assert_eq!(
            copies.iter().map(|copy| copy.name()).collect::<Vec<_>>(),
            ["backup/copy@one", "backup/copy@two", "backup/copy@three"]
        );
        assert_eq!(copies[2].guid(), three.guid());
        assert_eq!(copies[0].holds().await?[0].tag, "kept");
        assert!(copies[1].holds().await?.is_empty());
        assert_eq!(note(backup, "backup/copy@two").await, b"2");
        assert_eq!(note(backup, "backup/copy").await, b"3");
        // The same once more is passed over.
        received(backup, "backup/copy", &rest).await?;
        Ok(())
    });
}

#[test]
fn a_package_brings_a_tree_and_takes_away_what_its_sender_has_no_more() {
    on_two_pools(async |_, tank, backup| {
        let top = tank.create_filesystem("tank/a", &[]).await?;
        let below = tank.create_filesystem("tank/a/b", &[]).await?;
        let gone = tank.create_filesystem("tank/a/gone", &[]).await?;
        for dataset in [&below, &gone, &top] {
            changed(dataset, "1", "one").await;
        }
        let tree = SendOptions::new().replicate(true);
        let whole = sent(&tree, &tank.snapshot("tank/a@one").await?).await;
        let into = ReceiveOptions::new().force(true).sent_name(SentName::Last);
        let outcome = into.receive(backup, "backup", &whole[..]).await?;
        let mut datasets = outcome.datasets;
        datasets.sort();
        assert_eq!(datasets, ["backup/a", "backup/a/b", "backup/a/gone"]);
        gone.destroy_all().await?;
        for dataset in [&below, &top] {
            changed(dataset, "2", "two").await;
        }
        let changes = sent(&tree.clone().since("@one"), &tank.snapshot("tank/a@two").await?).await;
        let outcome = into.receive(backup, "backup", &changes[..]).await?;
        assert!(!outcome.is_incomplete, "{outcome:?}");
        assert_eq!(kind(backup.dataset("backup/a/gone").await), ErrorKind::NotFound);
        assert_eq!(note(backup, "backup/a/b").await, b"2");

        // A dataset that was made later is left out; one that has lost the snapshot is an error, or left out.
        tank.create_filesystem("tank/a/new", &[]).await?;
        let two = tank.snapshot("tank/a@two").await?;
        assert!(tree.send(&two, &mut Vec::new()).await?.is_whole);
        tank.snapshot("tank/a/b@two").await?.destroy().await?;
        assert_eq!(kind(tree.send(&two, &mut Vec::new()).await), ErrorKind::NotFound);
        let skips = tree.clone().skip_missing(true).send(&two, &mut Vec::new()).await?;
        assert!(skips.is_whole || !skips.warnings.is_empty(), "{skips:?}");
        let without = sent(&tree.exclude("tank/a/b").skip_missing(true), &two).await;
        let outcome = received(backup, "backup/other", &without).await?;
        assert_eq!(outcome.datasets, ["backup/other"]);
        Ok(())
    });
}

#[test]
fn a_stream_that_breaks_off_is_resumed_or_given_up() {
    on_two_pools(async |_, tank, backup| {
        let home = tank.create_filesystem("tank/home", &[("compression", "off")]).await?;
        let files = home.filesystem().await?;
        for number in 0..8 {
            files.write(format!("file{number}"), vec![number; 300_000]).await?;
        }
        let one = home.snapshot("one").await?;
        let whole = sent(&SendOptions::new(), &one).await;
        let half = &whole[..whole.len() / 2];
        let kept = ReceiveOptions::new().resumable(true);
        let error = kept.receive(backup, "backup/copy", half).await.unwrap_err();
        assert_eq!((error.kind(), error.place().dataset.as_deref()), (ErrorKind::Corrupt, Some("backup/copy")));
        let copy = backup.dataset("backup/copy").await?;
        let token = copy.receive_resume_token().await?.expect("there is something to resume");
        assert!(error.to_string().contains(&token), "{error}");
        assert_eq!(kind(backup.filesystem("backup/copy").await), ErrorKind::Busy, "it is half received");

        let mut rest = Vec::new();
        SendOptions::new().resume(tank, &token).await?.write_to(&mut rest).await?;
        assert!(rest.len() < whole.len() * 3 / 4, "{} of {}", rest.len(), whole.len());
        kept.receive(backup, "backup/copy", &rest[..]).await?;
        assert_eq!(copy.receive_resume_token().await?, None);
        let copied = backup.filesystem("backup/copy@one").await?;
        assert_eq!(copied.read("file7").await?, vec![7; 300_000]);

        kept.receive(backup, "backup/second", half).await.unwrap_err();
        let second = backup.dataset("backup/second").await?;
        second.abort_receive().await?;
        assert_eq!(kind(backup.dataset("backup/second").await), ErrorKind::NotFound);
        assert_eq!(kind(copy.abort_receive().await), ErrorKind::NotFound, "there is nothing to give up");
        // Without the option nothing is kept.
        assert_eq!(kind(received(backup, "backup/third", half).await), ErrorKind::Corrupt);
        assert_eq!(kind(backup.dataset("backup/third").await), ErrorKind::NotFound);
        assert_eq!(kind(SendOptions::new().resume(tank, "nonsense").await), ErrorKind::Misuse);
        assert_eq!(kind(SendOptions::new().replicate(true).resume(tank, &token).await), ErrorKind::Misuse);
        Ok(())
    });
}

#[test]
fn streams_that_are_refused_have_their_kind() {
    on_two_pools(async |runtime, tank, backup| {
        let home = tank.create_filesystem("tank/home", &[]).await?;
        let one = changed(&home, "1", "one").await;
        let two = changed(&home, "2", "two").await;
        let send = |options: SendOptions, of: &Snapshot| {
            let of = of.clone();
            async move { options.send(&of, &mut Vec::new()).await }
        };
        assert_eq!(kind(send(SendOptions::new().since("@none"), &two).await), ErrorKind::NotFound);
        assert_eq!(kind(send(SendOptions::new().since("#none"), &two).await), ErrorKind::NotFound);
        assert_eq!(kind(send(SendOptions::new().since("@two"), &one).await), ErrorKind::Misuse, "it is later");
        assert_eq!(
            kind(send(SendOptions::new().exclude("tank/x"), &one).await),
            ErrorKind::Misuse,
            "without replicate"
        );
        let full = SendOptions::new().send(&one, Full).await;
        assert_eq!(kind(full), ErrorKind::NoSpace, "the output's");

        let (whole, changes) =
            (sent(&SendOptions::new(), &one).await, sent(&SendOptions::new().since("@one"), &two).await);
        assert_eq!(kind(received(backup, "backup/copy", b"no stream").await), ErrorKind::Corrupt);
        assert_eq!(kind(received(backup, "backup/copy", &[]).await), ErrorKind::Corrupt);
        assert_eq!(kind(received(backup, "backup/copy", &changes).await), ErrorKind::NotFound, "it has no base");
        assert_eq!(kind(received(backup, "backup/none/copy", &whole).await), ErrorKind::NotFound);
        let mut damaged = whole.clone();
        damaged[whole.len() / 2] ^= 1;
        assert_eq!(kind(received(backup, "backup/copy", &damaged).await), ErrorKind::Corrupt);
        assert_eq!(kind(backup.dataset("backup/copy").await), ErrorKind::NotFound, "nothing is left of it");

        received(backup, "backup/copy", &whole).await?;
        assert_eq!(kind(received(backup, "backup/copy@other", &whole).await), ErrorKind::Exists);
        let copy = backup.dataset("backup/copy").await?;
        let files = copy.filesystem().await?;
        assert_eq!(kind(received(backup, "backup/copy", &changes).await), ErrorKind::Busy, "it is open");
        files.write("note", "changed").await?;
        drop(files);
        assert_eq!(kind(received(backup, "backup/copy", &changes).await), ErrorKind::Busy, "it was changed");
        ReceiveOptions::new().force(true).receive(backup, "backup/copy", &changes[..]).await?;
        assert_eq!(note(backup, "backup/copy").await, b"2");

        let odd = ReceiveOptions::new().property("nothing", "1").receive(backup, "backup/odd", &whole[..]).await;
        assert_eq!(kind(odd), ErrorKind::Misuse);
        let odd = ReceiveOptions::new().property("volblocksize", "8K").receive(backup, "backup/odd", &whole[..]).await;
        assert_eq!(kind(odd), ErrorKind::Misuse, "it is no volume");
        let odd = ReceiveOptions::new().origin("backup/copy@none").receive(backup, "backup/odd", &whole[..]).await;
        assert_eq!(kind(odd), ErrorKind::NotFound);

        backup.clone().export().await?;
        let frozen = OpenOptions::new().search("/other").open(runtime, "backup").await?;
        assert_eq!(kind(received(&frozen, "backup/late", &whole).await), ErrorKind::ReadOnly);
        // It can be sent from, though.
        sent(&SendOptions::new(), &frozen.snapshot("backup/copy@two").await?).await;
        frozen.export().await?;
        assert_eq!(kind(backup.snapshot("backup/copy@two").await), ErrorKind::Closed);
        Ok(())
    });
}

/// An output without room.
struct Full;

impl std::io::Write for Full {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stream_is_taken_piece_by_piece_by_any_task_while_the_pool_changes() {
    on_two_pools(async |runtime, tank, backup| {
        let home = tank.create_filesystem("tank/home", &[("compression", "off")]).await?;
        let files = home.filesystem().await?;
        files.write("large", vec![7; 24 << 20]).await?;
        let one = home.snapshot("one").await?;
        let mut stream = SendOptions::new().stream(&one).await?;
        let mut whole = stream.next().await?.expect("it has a beginning");
        // The view of the stream keeps blocks that are freed meanwhile.
        drop(files);
        one.destroy().await?;
        home.filesystem().await?.write("large", "short").await?;
        tank.sync().await?;
        let task = runtime.spawn(async move {
            let mut longest = 0;
            while let Some(bytes) = stream.next().await? {
                longest = longest.max(bytes.len());
                whole.extend(bytes);
            }
            assert_eq!(stream.sent_bytes(), whole.len() as u64);
            Ok::<_, Error>((whole, longest))
        });
        let (whole, longest) = task.await?;
        assert!(longest <= 2 << 20, "no piece is as long as the stream: {longest}");
        received(backup, "backup/copy", &whole).await?;
        assert_eq!(backup.filesystem("backup/copy@one").await?.read("large").await?, vec![7; 24 << 20]);
        Ok(())
    });
}

#[test]
fn bookmarks_are_made_listed_copied_and_destroyed() {
    on_new_pool(async |_, pool| {
        let home = pool.create_filesystem("tank/home", &[]).await?;
        let one = changed(&home, "1", "one").await;
        let two = changed(&home, "2", "two").await;
        let later = two.bookmark("b").await?;
        let first = one.bookmark("c").await?;
        assert_eq!((first.name(), first.guid(), first.txg()), ("tank/home#c", one.guid(), one.txg()));
        assert_eq!(first.created(), one.created());
        assert_eq!(kind(one.bookmark("c").await), ErrorKind::Exists);
        assert_eq!(kind(one.bookmark("a b%").await), ErrorKind::Misuse);
        one.destroy().await?;
        let copy = first.bookmark("copy").await?;
        assert_eq!(copy.guid(), first.guid());
        let names = home.bookmarks().await?.iter().map(|found| found.name().to_owned()).collect::<Vec<_>>();
        assert_eq!(names.len(), 3);
        assert_eq!(names[2], later.name(), "the oldest come first");
        first.clone().destroy().await?;
        first.destroy().await?;
        assert_eq!(kind(pool.bookmark("tank/home#c").await), ErrorKind::NotFound);
        assert_eq!(kind(pool.bookmark("tank/home").await), ErrorKind::Misuse);
        assert_eq!(pool.bookmark("tank/home#copy").await?.txg(), copy.txg());
        Ok(())
    });
}

#[test]
fn holds_are_placed_listed_and_released() {
    on_new_pool(async |_, pool| {
        let home = pool.create_filesystem("tank/home", &[]).await?;
        let one = changed(&home, "1", "one").await;
        one.hold("b").await?;
        one.hold("a").await?;
        assert_eq!(kind(one.hold("a").await), ErrorKind::Exists);
        assert_eq!(kind(one.hold("").await), ErrorKind::Misuse);
        assert_eq!(kind(one.clone().destroy().await), ErrorKind::Busy);
        let holds = one.holds().await?;
        assert_eq!(holds.iter().map(|hold| hold.tag.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(holds[0].placed >= one.created());
        one.release("a").await?;
        assert_eq!(kind(one.release("a").await), ErrorKind::NotFound);
        one.release("b").await?;
        one.clone().destroy().await?;
        assert_eq!(kind(one.hold("c").await), ErrorKind::NotFound);
        Ok(())
    });
}

#[test]
fn a_raw_stream_needs_no_key_and_brings_none() {
    let golden = theme_if_present("encryption_small").unwrap_or_else(|| theme("encryption_gcm"));
    let (scratch, folder) = (golden.scratch().unwrap(), tempdir().unwrap());
    let keys = golden.write_keys(folder.path()).unwrap();
    let (name, file) = &keys[0];
    let key = std::fs::read(file).unwrap();
    let runtime = Runtime::new().unwrap();
    let done = runtime.block_on(async {
        let options = OpenOptions::new().search(scratch.dir()).force(true).cache_bytes(32 << 20);
        let tank = options.open(&runtime, &options.find(&runtime).await?[0].name.clone()).await?;
        let dataset = tank.dataset(name).await?;
        assert_eq!(dataset.key_status().await?, KeyStatus::Unavailable);
        assert_eq!(tank.dataset(tank.name()).await?.key_status().await?, KeyStatus::None);
        let snapshots = dataset.snapshots().await?;
        let snapshot = snapshots.first().expect("the golden pool has a snapshot of it");
        assert_eq!(kind(SendOptions::new().send(snapshot, &mut Vec::new()).await), ErrorKind::Key);
        let raw = sent(&SendOptions::new().raw(true), snapshot).await;

        let image = folder.path().join("b.img").display().to_string();
        let made = CreateOptions::new([image]).file_bytes(256 << 20).cache_bytes(32 << 20);
        let backup = made.create(&runtime, "backup").await?;
        received(&backup, "backup/copy", &raw).await?;
        let copy = backup.dataset("backup/copy").await?;
        assert_eq!(copy.key_status().await?, KeyStatus::Unavailable);
        assert_eq!(kind(copy.filesystem().await), ErrorKind::Key);
        backup.load_key("backup/copy", &key).await?;
        assert_eq!(copy.key_status().await?, KeyStatus::Available);
        let of_copy = format!("backup/copy@{}", snapshot.name().split_once('@').unwrap().1);
        let open = backup.filesystem(&of_copy).await?;
        assert!(open.read_dir("/").await?.next().await?.is_some());
        let error = backup.unload_key("backup/copy").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        let what = format!("cannot unload key for 'backup/copy': '{of_copy}' is in use: the program has it open");
        assert_eq!(error.to_string(), what);
        drop(open);
        backup.unload_key("backup/copy").await?;
        assert_eq!(copy.key_status().await?, KeyStatus::Unavailable);
        assert_eq!(kind(backup.filesystem(&of_copy).await), ErrorKind::Key);
        assert_eq!(kind(backup.unload_key("backup/copy").await), ErrorKind::Key, "it is not loaded");
        // The seat of the changes of keys to come.
        let error = copy.change_key(b"another").await.unwrap_err();
        assert_eq!((error.kind(), error.place().dataset.as_deref()), (ErrorKind::NotSupported, Some("backup/copy")));
        assert!(error.to_string().starts_with("not supported yet: ") && error.to_string().contains(';'), "{error}");
        backup.export().await?;
        tank.export().await
    });
    done.unwrap();
}
