//! Histories that an order explains, and the same histories with one fault, which no order explains.

use std::collections::BTreeMap;

use super::check::{Failure, judge};
use super::events::{Answer, Call, Entry, Found, Handle, History, How, Kind, Operation, Tree, bytes_of};
use super::workers::{Pace, Workers, read_tree};

/// A salt for incompressible bytes.
const SALT: u64 = 3;

/// Builds a history operation by operation. Without given times each begins after the one before.
#[derive(Default)]
struct Told {
    before: Tree,
    operations: Vec<Operation>,
}

impl Told {
    fn at(&mut self, (called_ns, answered_ns): (u64, u64), call: Call, answer: Answer) -> usize {
        self.operations.push(Operation { client: 0, call, called_ns, answered_ns, answer });
        self.operations.len() - 1
    }

    fn say(&mut self, call: Call, answer: Answer) -> usize {
        let now = self.now();
        self.at((now + 10, now + 20), call, answer)
    }

    fn now(&self) -> u64 {
        self.operations.iter().map(|operation| operation.answered_ns).max().unwrap_or_default()
    }

    fn done(&mut self, call: Call) -> usize {
        self.say(call, Answer::Done)
    }

    fn open(&mut self, name: &str) -> usize {
        self.done(open(name))
    }

    /// Writes 100 bytes at an offset.
    fn write(&mut self, file: usize, offset: u64, salt: u64) {
        self.say(Call::Write { file, offset, length: 100, salt }, Answer::Count(100));
    }

    fn judge(&self, after: &[(&str, Entry)]) -> Result<(), Failure> {
        let after = after.iter().map(|(path, entry)| ((*path).to_owned(), entry.clone())).collect();
        self.judge_tree(Some(after))
    }

    fn judge_tree(&self, after: Option<Tree>) -> Result<(), Failure> {
        let killed_ns = self.now() + 1;
        let (before, operations) = (self.before.clone(), self.operations.clone());
        judge(&History { seed: 0, before, operations, killed_ns, after }).map(drop)
    }

    fn good(&self, after: &[(&str, Entry)]) {
        if let Err(failure) = self.judge(after) {
            panic!("{failure}");
        }
    }

    /// Asserts that the history is refused, in these words.
    fn bad(&self, after: &[(&str, Entry)], words: &str) {
        let failure = self.judge(after).expect_err("nothing explains it");
        assert!(failure.to_string().contains(words), "{failure}");
    }

    fn is_linear(&self) -> bool {
        self.judge_tree(None).is_ok()
    }
}

fn open(name: &str) -> Call {
    Call::Open { dir: None, name: name.into(), create: true, exclusive: false, append: false, dsync: false }
}

fn rename(name: &str, to_name: &str, how: How) -> Call {
    Call::Rename { dir: None, name: name.into(), to_dir: None, to_name: to_name.into(), how }
}

fn make_directory(name: &str) -> Call {
    Call::MakeDirectory { dir: None, name: name.into() }
}

fn unlink(name: &str) -> Call {
    Call::Unlink { dir: None, name: name.into() }
}

fn stat_name(name: &str) -> Call {
    Call::StatName { dir: None, name: name.into() }
}

fn error(name: &str) -> Answer {
    Answer::Error(name.into())
}

const SYNC: Call = Call::Sync { handle: None };
const FILE: Answer = Answer::Stat { kind: Kind::File, size: 0, links: 1 };

fn file_of(inode: u64, links: u64, bytes: &[u8]) -> Entry {
    Entry::File(Found { inode, links, bytes: bytes.to_vec(), attributes: BTreeMap::new() })
}

/// A file with one name.
fn file(inode: u64, bytes: &[u8]) -> Entry {
    file_of(inode, 1, bytes)
}

fn with_attribute(value: Option<&str>) -> Entry {
    let attributes = value.map(|value| ("k0".to_owned(), value.to_owned())).into_iter().collect();
    Entry::File(Found { inode: 1, links: 1, bytes: Vec::new(), attributes })
}

#[test]
fn a_write_that_fsync_has_acknowledged_is_not_lost() {
    let (first, second) = (bytes_of(SALT, 100), bytes_of(SALT + 1, 100));
    let mut told = Told::default();
    let a = told.open("a");
    told.write(a, 0, SALT);
    // Without an fsync the file or its write may be lost, but no size may be found without its bytes.
    told.good(&[]);
    told.good(&[("a", file(1, &[]))]);
    told.good(&[("a", file(1, &first))]);
    told.bad(&[("a", file(1, &[0; 100]))], "the content of a");
    told.done(Call::Sync { handle: Some(a) });
    told.good(&[("a", file(1, &first))]);
    told.bad(&[("a", file(1, &[]))], "its size is 0, was 100");
    told.bad(&[], "a is not there");
    told.write(a, 0, SALT + 1);
    told.good(&[("a", file(1, &first))]);
    told.good(&[("a", file(1, &second))]);
    told.done(Call::DataSync { file: a });
    told.good(&[("a", file(1, &second))]);
    told.bad(&[("a", file(1, &first))], "the content of a");
    let mut torn = second.clone();
    torn[99] ^= 1;
    told.bad(&[("a", file(1, &torn))], "1 bytes in all");
}

#[test]
fn what_is_called_during_a_sync_may_be_lost_and_what_was_answered_before_it_may_not() {
    for (called, is_lost) in [(100, true), (150, true), (80, false)] {
        let mut told = Told::default();
        let a = told.open("a");
        told.done(SYNC);
        told.at((called, called + 10), Call::Write { file: a, offset: 0, length: 100, salt: SALT }, Answer::Count(100));
        told.at((called + 10, called + 10), make_directory("x"), Answer::Done);
        told.at((105, 200), Call::Sync { handle: Some(a) }, Answer::Done);
        assert_eq!(told.judge(&[("a", file(1, &[]))]).is_ok(), is_lost, "{called}");
        let directory = Entry::Directory { links: 2 };
        told.good(&[("a", file(1, &bytes_of(SALT, 100))), ("x", directory)]);
    }
}

#[test]
fn names_are_of_one_moment_of_the_order_in_which_they_were_changed() {
    let mut told = Told::default();
    for name in ["a", "b"] {
        told.open(name);
    }
    told.done(SYNC);
    told.done(rename("a", "x", How::Replace));
    told.done(rename("b", "y", How::NoReplace));
    let one = || file(1, &[]);
    for pair in [["a", "b"], ["b", "x"], ["x", "y"]] {
        told.good(&[(pair[0], one()), (pair[1], file(2, &[]))]);
    }
    told.bad(&[("a", one()), ("y", file(2, &[]))], "the names are of no moment");
    told.bad(&[("b", one())], "the names are of no moment");
    told.bad(&[("a", one()), ("b", file(2, &[])), ("x", file(3, &[]))], "x is there");
}

#[test]
fn renames_at_once_may_have_come_in_either_order() {
    let mut told = Told::default();
    told.open("a");
    told.open("b");
    told.done(SYNC);
    let now = told.now();
    told.at((now + 1, now + 9), rename("a", "x", How::Replace), Answer::Done);
    told.at((now + 2, now + 8), rename("b", "y", How::Replace), Answer::Done);
    told.good(&[("a", file(1, &[])), ("y", file(2, &[]))]);
    told.good(&[("b", file(1, &[])), ("x", file(2, &[]))]);
    // Somebody has seen the order.
    told.at((now + 3, now + 4), stat_name("y"), FILE);
    told.at((now + 5, now + 6), stat_name("a"), FILE);
    told.good(&[("a", file(1, &[])), ("y", file(2, &[]))]);
    told.bad(&[("b", file(1, &[])), ("x", file(2, &[]))], "the names are of no moment");
}

#[test]
fn a_file_whose_removal_was_synced_does_not_come_back() {
    let mut told = Told::default();
    let a = told.open("a");
    told.done(Call::Sync { handle: Some(a) });
    told.done(unlink("a"));
    told.good(&[("a", file(1, &[]))]);
    told.good(&[]);
    // An fsync of any file promises the names.
    told.done(Call::Sync { handle: Some(a) });
    told.good(&[]);
    told.bad(&[("a", file(1, &[]))], "a is there");
}

#[test]
fn a_read_of_what_was_never_written_is_found_out() {
    let written = bytes_of(SALT, 100);
    let mut wrong = written.clone();
    wrong[50] ^= 0x40;
    for (answer, is_linear) in
        [(&written, true), (&wrong, false), (&written[..99].to_vec(), false), (&vec![0; 100], false)]
    {
        let mut told = Told::default();
        let a = told.open("a");
        told.write(a, 0, SALT);
        told.say(Call::Read { file: a, offset: 0, length: 200 }, Answer::Bytes(answer.clone()));
        assert_eq!(told.is_linear(), is_linear, "{answer:?}");
    }
}

#[test]
fn a_read_beside_a_write_sees_the_old_or_the_new_of_each_byte_and_the_next_one_nothing_older() {
    let (old, new) = (bytes_of(SALT, 100), bytes_of(SALT + 1, 100));
    let mixed: Vec<u8> = new[..50].iter().chain(&old[50..]).copied().collect();
    for (first, second, is_linear) in
        [(&old, &new, true), (&mixed, &new, true), (&new, &new, true), (&new, &old, false), (&mixed, &mixed, false)]
    {
        let mut told = Told::default();
        let a = told.open("a");
        told.write(a, 0, SALT);
        let now = told.now();
        let read = || Call::Read { file: a, offset: 0, length: 100 };
        told.at(
            (now + 10, now + 40),
            Call::Write { file: a, offset: 0, length: 100, salt: SALT + 1 },
            Answer::Count(100),
        );
        told.at((now + 15, now + 25), read(), Answer::Bytes(first.clone()));
        // After the write was answered.
        told.at((now + 50, now + 60), read(), Answer::Bytes(second.clone()));
        assert_eq!(told.is_linear(), is_linear, "{first:?} {second:?}");
    }
}

#[test]
fn a_read_beside_a_truncate_may_show_zeros_and_a_later_one_not() {
    let (bytes, zeros) = (bytes_of(SALT, 100), vec![0; 100]);
    for (called, answer, is_linear) in [
        (1030, &bytes, true),
        (1030, &zeros, true),
        (1030, &vec![], true),
        (1080, &zeros, false),
        (1080, &bytes, false),
        (1080, &vec![], true),
    ] {
        let mut told = Told::default();
        let a = told.open("a");
        told.write(a, 0, SALT);
        told.at((1000, 1070), Call::Truncate { file: a, size: 0 }, Answer::Done);
        // Somebody has seen the new size.
        told.at((1010, 1020), Call::Stat { handle: Some(a) }, FILE);
        told.at((called, called + 9), Call::Read { file: a, offset: 0, length: 100 }, Answer::Bytes(answer.clone()));
        assert_eq!(told.is_linear(), is_linear, "{called} {answer:?}");
        if is_linear {
            told.good(&[("a", file(1, &bytes))]);
            told.bad(&[("a", file(1, &zeros))], "the content of a");
        }
    }
}

#[test]
fn what_one_client_has_seen_another_sees_later() {
    for (first, second, is_linear) in [
        (FILE, FILE, true),
        (error("ENOENT"), FILE, true),
        (error("ENOENT"), error("ENOENT"), true),
        (FILE, error("ENOENT"), false),
    ] {
        let mut told = Told::default();
        told.at((0, 100), open("a"), Answer::Done);
        told.at((10, 20), stat_name("a"), first.clone());
        told.at((30, 40), stat_name("a"), second.clone());
        assert_eq!(told.is_linear(), is_linear, "{first:?} {second:?}");
    }
}

#[test]
fn an_open_that_creates_meets_no_absence_and_is_stale_only_beside_a_removal() {
    for (called, answer, is_linear) in [(100, "ESTALE", true), (100, "ENOENT", false), (300, "ESTALE", false)] {
        let mut told = Told::default();
        told.open("a");
        told.at((100, 200), unlink("a"), Answer::Done);
        told.at((called, called + 50), open("a"), error(answer));
        assert_eq!(told.is_linear(), is_linear, "{called} {answer}");
    }
}

#[test]
fn a_name_that_was_there_all_the_time_is_listed() {
    let names = |names: &[&str]| Answer::Names(names.iter().map(|name| ((*name).to_owned(), Kind::File)).collect());
    for (listed, is_linear) in
        [(vec!["a"], true), (vec!["a", "b"], true), (vec!["b"], false), (vec![], false), (vec!["a", "c"], false)]
    {
        let mut told = Told::default();
        told.open("a");
        told.at((100, 200), Call::List { dir: None }, names(&listed));
        told.at((110, 120), open("b"), Answer::Done);
        told.at((130, 140), unlink("b"), Answer::Done);
        assert_eq!(told.is_linear(), is_linear, "{listed:?}");
    }
}

#[test]
fn errors_are_those_of_linux() {
    let exclusive =
        Call::Open { dir: None, name: "a".into(), create: true, exclusive: true, append: false, dsync: false };
    let remove_directory = Call::RemoveDirectory { dir: None, name: "x".into() };
    let calls = [
        (exclusive, "EEXIST"),
        (unlink("x"), "EISDIR"),
        (unlink("b"), "ENOENT"),
        (remove_directory, "ENOTEMPTY"),
        (rename("a", "x", How::Replace), "EISDIR"),
        (rename("x", "a", How::Replace), "ENOTDIR"),
        (rename("a", "x", How::NoReplace), "EEXIST"),
        (rename("a", "b", How::Exchange), "ENOENT"),
        (open("x"), "EISDIR"),
    ];
    for (call, right) in calls {
        for answer in [error(right), error("EPERM"), error("EIO"), Answer::Done] {
            let mut told = Told::default();
            told.open("a");
            told.done(make_directory("x"));
            let x = told.done(Call::OpenDirectory { dir: None, name: "x".into() });
            told.done(Call::MakeDirectory { dir: Some(x), name: "y".into() });
            told.say(call.clone(), answer.clone());
            assert_eq!(told.is_linear(), answer == error(right), "{call} = {answer:?}");
        }
    }
}

#[test]
fn what_was_not_answered_has_happened_or_not() {
    let mut told = Told::default();
    let a = told.open("a");
    told.done(Call::Sync { handle: Some(a) });
    let now = told.now();
    told.at((now, u64::MAX - 1), rename("a", "b", How::Replace), error("ENOTCONN"));
    told.at((now, u64::MAX - 1), Call::Write { file: a, offset: 0, length: 100, salt: SALT }, error("ECONNABORTED"));
    let bytes = bytes_of(SALT, 100);
    let judge = |after: Tree, killed_ns: u64| {
        let operations = told.operations.clone();
        judge(&History { seed: 0, before: Tree::new(), operations, killed_ns, after: Some(after) }).is_ok()
    };
    for (name, bytes, is_good) in [
        ("a", &bytes[..0], true),
        ("b", &bytes, true),
        ("a", &bytes[..40], true),
        ("b", &[7; 4][..], false),
        ("c", &bytes, false),
    ] {
        let tree = || Tree::from([(name.to_owned(), file(1, bytes))]);
        assert_eq!(judge(tree(), now), is_good, "{name} {bytes:?}");
        // Before the kill such an error is a fault of the server.
        assert!(!judge(tree(), u64::MAX), "{name}");
    }
}

#[test]
fn a_read_that_the_kill_cuts_short_says_nothing_of_the_size() {
    let bytes = bytes_of(SALT, 5000);
    for (killed_ns, length, is_good) in [(150, 4096, true), (250, 4096, false), (150, 0, false), (250, 5000, true)] {
        let mut told = Told::default();
        let a = told.open("a");
        told.say(Call::Write { file: a, offset: 0, length: 5000, salt: SALT }, Answer::Count(5000));
        told.at((100, 200), Call::Read { file: a, offset: 0, length: 6000 }, Answer::Bytes(bytes[..length].to_vec()));
        let after = Some(Tree::from([("a".to_owned(), file(1, &bytes))]));
        let history = History { seed: 0, before: Tree::new(), operations: told.operations, killed_ns, after };
        assert_eq!(judge(&history).is_ok(), is_good, "{killed_ns} {length}");
    }
}

#[test]
fn an_attribute_is_promised_by_fsync_and_not_by_fdatasync() {
    for (sync, may_be_lost) in [(None, true), (Some(false), true), (Some(true), false)] {
        let mut told = Told::default();
        let file = told.open("a");
        told.done(SYNC);
        let (key, value) = ("k0".to_owned(), "one".to_owned());
        told.done(Call::SetAttribute { file, key, value, create: false, replace: false });
        match sync {
            Some(true) => drop(told.done(Call::Sync { handle: Some(file) })),
            Some(false) => drop(told.done(Call::DataSync { file })),
            None => {}
        }
        told.good(&[("a", with_attribute(Some("one")))]);
        told.bad(&[("a", with_attribute(Some("two")))], "its attribute k0");
        assert_eq!(told.judge(&[("a", with_attribute(None))]).is_ok(), may_be_lost, "{sync:?}");
    }
}

#[test]
fn a_write_through_o_dsync_is_there_and_makes_no_other_stable() {
    let mut told = Told::default();
    let a = told.open("a");
    told.write(a, 0, SALT);
    told.done(Call::Sync { handle: Some(a) });
    let stable =
        Call::Open { dir: None, name: "a".into(), create: false, exclusive: false, append: false, dsync: true };
    let stable = told.done(stable);
    let (old, new, other) = (bytes_of(SALT, 100), bytes_of(SALT + 1, 100), bytes_of(SALT + 2, 100));
    // Bytes 0 to 99 by one descriptor, 50 to 149 by the other.
    told.write(a, 0, SALT + 1);
    told.write(stable, 50, SALT + 2);
    let content = |first: &[u8], end: &[u8]| file(1, &[&first[..50], end].concat());
    told.good(&[("a", content(&new, &other))]);
    told.good(&[("a", content(&old, &other))]);
    told.bad(&[("a", content(&new, &new[50..]))], "its size is 100");
    told.bad(&[("a", file(1, &[&new, &other[50..]].concat()))], "the content of a");
}

#[test]
fn names_of_one_file_stay_names_of_one_file() {
    let mut told = Told::default();
    let a = told.open("a");
    told.done(Call::Link { file: a, dir: None, name: "b".into() });
    told.done(SYNC);
    told.good(&[("a", file_of(1, 2, &[])), ("b", file_of(1, 2, &[]))]);
    told.bad(&[("a", file(1, &[])), ("b", file(2, &[]))], "b is File(\"b\") and should be File(\"a\")");
    told.bad(&[("a", file_of(1, 3, &[])), ("b", file_of(1, 3, &[]))], "3 links and 2 names");
}

#[test]
fn what_was_found_once_stays_unless_it_is_changed() {
    let bytes = bytes_of(SALT, 300);
    let before = Tree::from([
        ("x".to_owned(), Entry::Directory { links: 2 }),
        ("x/a".to_owned(), file(5, &bytes)),
        ("l".to_owned(), Entry::Symlink { target: "to".to_owned() }),
    ]);
    let mut told = Told { before: before.clone(), ..Told::default() };
    for _ in 0..2 {
        assert!(told.judge_tree(Some(before.clone())).is_ok());
        for path in ["x/a", "l"] {
            let mut less = before.clone();
            less.remove(path);
            assert!(told.judge_tree(Some(less)).is_err(), "{path}");
        }
        let mut other = before.clone();
        other.insert("x/a".to_owned(), file(5, &bytes[..299]));
        assert!(told.judge_tree(Some(other)).is_err());
        // Concurrent operations of others do not change that.
        told.open("b");
    }
}

/// A history of threads in a folder of this machine's file system, without a kill.
fn live(seed: u64) -> History {
    let dir = tempfile::tempdir().expect("a folder");
    let pace = Pace { pause_us: 100 * (seed % 2), syncs: 50 };
    let workers = Workers::start(dir.path(), seed, pace).expect("clients");
    let operations = workers.finish().expect("a history");
    let after = Some(read_tree(dir.path()).expect("a tree"));
    History { seed, before: Tree::new(), operations, killed_ns: u64::MAX, after }
}

/// The reason why the clients cannot work in this folder: its file system lacks a call that they use, or counts links of directories in another way.
fn lacking() -> Option<&'static str> {
    use std::os::unix::fs::MetadataExt as _;
    let dir = tempfile::tempdir().expect("a folder");
    let (one, other) = (dir.path().join("one"), dir.path().join("other"));
    std::fs::create_dir_all(one.join("below")).expect("directories");
    std::fs::write(&other, "").expect("a file");
    if std::fs::metadata(&one).expect("a directory").nlink() != 3 {
        return Some("links of directories are not counted");
    }
    if rustix::fs::setxattr(&other, "user.k0", b"", rustix::fs::XattrFlags::empty()).is_err() {
        return Some("there are no attributes of users");
    }
    let exchange = rustix::fs::RenameFlags::EXCHANGE;
    let is_exchanged = rustix::fs::renameat_with(rustix::fs::CWD, &one, rustix::fs::CWD, &other, exchange).is_ok();
    (!is_exchanged).then_some("names are not exchanged")
}

#[test]
fn what_threads_did_in_a_folder_of_this_system_is_explained_and_nothing_else_is() {
    if let Some(why) = lacking() {
        println!("left out, since in {} {why}", std::env::temp_dir().display());
        return;
    }
    let mut changed = 0;
    for seed in 1..=8 {
        let mut history = live(seed);
        if let Err(failure) = judge(&history) {
            panic!("seed {seed}: {failure}");
        }
        let text = serde_json::to_vec(&history).expect("JSON");
        let again: History = serde_json::from_slice(&text).expect("a history");
        assert_eq!(serde_json::to_vec(&again).expect("JSON"), text);
        for at in 0..history.operations.len() {
            let answer = history.operations[at].answer.clone();
            let wrong = match &answer {
                Answer::Bytes(bytes) if bytes.len() >= 8 => {
                    let mut bytes = bytes.clone();
                    bytes.iter_mut().take(16).for_each(|byte| *byte ^= 0x5a);
                    Answer::Bytes(bytes)
                }
                Answer::Error(name) if name != "ENXIO" => error("ENXIO"),
                Answer::Text(text) => Answer::Text(format!("{text}-")),
                Answer::Stat { kind: Kind::File, size, links } => {
                    Answer::Stat { kind: Kind::File, size: *size, links: links + 9 }
                }
                Answer::Names(names) => {
                    let mut names = names.clone();
                    names.insert("never".to_owned(), Kind::File);
                    Answer::Names(names)
                }
                _ => continue,
            };
            // A few of each history, since each takes a judgement.
            if (at as u64 + seed).is_multiple_of(11) {
                history.operations[at].answer = wrong;
                assert!(judge(&history).is_err(), "seed {seed}, #{at}: {}", history.operations[at]);
                history.operations[at].answer = answer;
                changed += 1;
            }
        }
    }
    assert!(changed > 50, "only {changed} histories were changed");
}

#[test]
fn handles_are_of_the_file_that_was_opened_whatever_has_its_name_now() {
    let mut told = Told::default();
    let a = told.open("a");
    told.done(unlink("a"));
    let other: Handle = Some(told.open("a"));
    told.write(a, 0, SALT);
    let stat = |size, links| Answer::Stat { kind: Kind::File, size, links };
    told.say(Call::Stat { handle: Some(a) }, stat(100, 0));
    told.say(Call::Stat { handle: other }, stat(0, 1));
    told.done(Call::Sync { handle: other });
    told.good(&[("a", file(1, &[]))]);
    told.bad(&[("a", file(1, &bytes_of(SALT, 100)))], "the content of a");
    told.say(Call::Stat { handle: other }, stat(100, 1));
    assert!(!told.is_linear());
}
