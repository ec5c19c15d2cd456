//! Requests of people and programs: verbs as values, their lines in a pool's history, and the users that notice them.
//!
//! ```text
//! program ─ words ─► a request: check ─► run(pool, users) ─┬─ users.before, suspend   datasets that go, or change under them
//! library ─ values ─►                                      ├─ sync tasks               all of it in one txg, with the line
//!                                                          └─ users.after              names and properties that are different now
//!                      history_line ─► the pool's history, if the caller's handle has it
//! ```
//! A request has all that its command says. Its caller opens the pool and runs it. A handle of the pool that has the line
//! ([`Pool::recording`]) records it with the first change: `cenote_server::Session::carry_out` has one for the program. A program that uses the
//! library records what it wants to. Those who have datasets in use implement [`Users`]: a server for its mounts and volumes, the library for what
//! its program has open.
//!
//! **Invariants.** 1. [`Request::check`] needs no pool, and `run` refuses all that `check` refuses. 2. Users that had to wait continue, and
//! datasets that they released are shown again, even if the verb fails. 3. A request that changed nothing has no line. 4. Users notice a change
//! whose line is recorded: a crash while they are told leaves no change without its line.
//!
//! **Rejected.** *Lines of the history written by the program*: each was written beside the verb, 27 times. *A verb's effect on users in the server*: the library had to know the same effects once more, and knew fewer.

use cenote_dsl::Dataset;
use cenote_format::ids::Guid;
use cenote_spa::Pool;
use cenote_taskq::boxed;

use crate::error::{AdminError, Verb};

/// An administrative verb, with all that its command says.
pub trait Request: Sync {
    /// Its result.
    type Made: Send;

    /// The name of a dataset of its pool, or of the pool.
    fn subject(&self) -> &str;

    /// Refuses what no pool could do.
    ///
    /// # Errors
    /// The words are wrong, or contradict each other.
    fn check(&self) -> Result<(), AdminError> {
        Ok(())
    }

    /// Makes the change, with its effects on users.
    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<Self::Made, AdminError>;

    /// The line for the pool's history; none of a dry run.
    fn history_line(&self) -> Option<Line>;

    /// True if it has changed nothing: then its line is not recorded.
    fn is_void(&self, _made: &Self::Made) -> bool {
        false
    }

    /// True if it does not fit into one txg.
    fn is_long(&self) -> bool {
        false
    }

    /// True if blocks are freed in the background after it.
    fn frees(&self, _made: &Self::Made) -> bool {
        false
    }

    /// A word for work in the background that it has begun, and that a process which does not keep the pool waits for.
    fn works_on(&self, made: &Self::Made) -> Option<&'static str> {
        self.frees(made).then_some("freeing")
    }

    /// True if it changes the pool's configuration.
    fn changes_config(&self) -> bool {
        false
    }
}

/// Datasets or snapshots that a verb takes from their users.
#[derive(Clone, Copy)]
pub struct Going<'a> {
    /// The verb.
    pub verb: Verb,
    /// Their names.
    pub names: &'a [String],
    /// All below them goes too, with its snapshots.
    pub is_recursive: bool,
    /// True for what goes, of the datasets and snapshots that users hold.
    pub is_going: &'a (dyn Fn(&Dataset) -> bool + Sync),
    /// It is only asked if they can go.
    pub is_dry: bool,
}

/// A change that users see.
#[derive(Clone, Copy, Debug)]
pub enum Changed<'a> {
    /// Datasets that are new, are gone, or have another name, other snapshots or another state, with those below them.
    Datasets(&'a [String]),
    /// Properties of datasets.
    Properties {
        /// The datasets.
        datasets: &'a [String],
        /// The names of the properties.
        names: &'a [String],
    },
}

/// The users of a pool's datasets in this process.
pub trait Users: Sync {
    /// Ends uses that can end without harm, of datasets and snapshots that are about to go.
    ///
    /// # Errors
    /// One is in use. Uses that remain without an error are found when the verb is checked.
    #[boxed]
    async fn before(&self, going: Going<'_>) -> Result<(), AdminError>;

    /// Suspends the users of a dataset that is about to take on the state of `other`, a snapshot of it.
    ///
    /// # Errors
    /// They cannot wait.
    #[boxed]
    async fn suspend(&self, dataset: &str, other: &str) -> Result<Box<dyn Suspended>, AdminError>;

    /// Shows users what is different now.
    ///
    /// # Errors
    /// A use cannot follow, and that is not reported.
    #[boxed]
    async fn after(&self, changed: Changed<'_>) -> Result<(), AdminError>;

    /// A function for the moment in which names change, before any other change of the pool.
    fn renaming(&self) -> Box<dyn FnOnce() + Send> {
        Box::new(|| ())
    }

    /// The volumes that are written in this process, if any can be. None is opened or closed before the result is dropped.
    #[boxed]
    async fn volumes(&self) -> Option<Box<dyn Volumes + '_>> {
        None
    }

    /// The pool is about to get another guid: notes that name it by its guid are changed. Called with the two exchanged where it does not.
    ///
    /// # Errors
    /// They cannot be changed.
    fn guid_changes(&self, _from: Guid, _to: Guid) -> Result<(), AdminError> {
        Ok(())
    }

    /// True if this process has the pool for longer than for the verb.
    fn keep_pool(&self) -> bool {
        true
    }

    /// Reports a line to the person or program that asked.
    fn tell(&self, _line: &str) {}
}

/// The users of a dataset, which wait until this is dropped.
pub trait Suspended: Send {
    /// Resumes them, with the state that the dataset has now.
    #[boxed]
    async fn resume(self: Box<Self>) -> Result<(), AdminError>;
}

/// Volumes that are written.
pub trait Volumes: Send {
    /// Changes the size of a volume, in an open txg as its users' writes.
    #[boxed]
    async fn resize(&mut self, name: &str, size_bytes: u64) -> Result<(), AdminError>;
}

/// No users: nothing in this process has a dataset open.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoUsers;

impl Users for NoUsers {
    #[boxed]
    async fn before(&self, _: Going<'_>) -> Result<(), AdminError> {
        Ok(())
    }

    #[boxed]
    async fn suspend(&self, _: &str, _: &str) -> Result<Box<dyn Suspended>, AdminError> {
        Ok(Box::new(Self) as Box<dyn Suspended>)
    }

    #[boxed]
    async fn after(&self, _: Changed<'_>) -> Result<(), AdminError> {
        Ok(())
    }
}

impl Suspended for NoUsers {
    #[boxed]
    async fn resume(self: Box<Self>) -> Result<(), AdminError> {
        Ok(())
    }
}

/// A command's line in a pool's history: its words, and a space between two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line(String);

impl Line {
    /// The words of the verb.
    #[must_use]
    pub fn new(verb: &str) -> Self {
        Self(verb.to_owned())
    }

    /// A word, unless it is empty.
    #[must_use]
    pub fn word(mut self, word: impl AsRef<str>) -> Self {
        if !word.as_ref().is_empty() {
            self.0.push(' ');
            self.0.push_str(word.as_ref());
        }
        self
    }

    /// More words.
    #[must_use]
    pub fn words<W: AsRef<str>>(self, words: impl IntoIterator<Item = W>) -> Self {
        words.into_iter().fold(self, Self::word)
    }

    /// A flag, if it is set.
    #[must_use]
    pub fn flag(self, is_set: bool, flag: &str) -> Self {
        self.word(if is_set { flag } else { "" })
    }

    /// An option with each of its values.
    #[must_use]
    pub fn option<W: AsRef<str>>(self, option: &str, values: impl IntoIterator<Item = W>) -> Self {
        values.into_iter().fold(self, |line, value| line.word(option).word(value))
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}
