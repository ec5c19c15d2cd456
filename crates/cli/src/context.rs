//! The surroundings of a command: the way to pools ([`Session`]), its output, and the program that it is a part of.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use cenote_admin::Owner;
use cenote_server::{
    Console, Handle, Passed, ServedPool, ServerError, Session, SessionOptions, View, protocol, tunables,
};

use crate::args::{Globals, Search};
use crate::outcome::{Outcome, causes};
use crate::output::{Output, Progress};

/// Work of a command, on the thread that began it.
pub(crate) type Work<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A client's request, as the process that has the pool carries it out.
pub(crate) trait Serving: Send {
    /// True if it is carried out while the pool's devices fail.
    fn is_for_suspended(&self) -> bool;

    /// Carries it out.
    fn serve<'a>(self: Box<Self>, context: &'a Context) -> Work<'a, Result<Outcome>>;
}

/// The program as a whole, for commands that are about it.
pub(crate) trait Program: Sync {
    /// Its grammar.
    fn grammar(&self) -> clap::Command;

    /// The form on the wire of what a command line says.
    fn request(&self, line: &[&OsStr]) -> Result<serde_json::Value>;

    /// A client's request, from its form on the wire.
    fn sent(&self, request: serde_json::Value) -> Result<Box<dyn Serving>>;

    /// Does what a command line says.
    fn run(&self, handle: Handle, line: Vec<String>, output: Output) -> Work<'static, Result<Outcome>>;
}

/// The surroundings of a command. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    session: Session,
    speaker: Speaker,
}

impl Deref for Context {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

/// The answer of another process, of which standard output is gathered.
struct Gathered<'a> {
    out: Mutex<Vec<u8>>,
    of: &'a Output,
}

impl protocol::Answer for Gathered<'_> {
    fn out(&self, bytes: &[u8]) -> io::Result<()> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(())
    }

    fn err(&self, line: &str) {
        self.of.err(line);
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The person at the other end of the output.
#[derive(Clone)]
struct Speaker {
    output: Output,
    program: Option<&'static dyn Program>,
    /// Nothing is told where all is well.
    is_quiet: bool,
    /// It is in the place of one of OpenZFS's tools: what is told where all is well is for people at a terminal, since programs take each
    /// line on standard error for a fault.
    is_in_place: bool,
}

impl Console for Speaker {
    fn warn(&self, line: &str) {
        self.output.err(line);
    }

    fn advise(&self, line: &str) {
        if !self.is_in_place || self.output.is_err_terminal() {
            self.output.err(line);
        }
    }

    fn note(&self, line: &str) {
        if !self.is_quiet {
            self.output.err(line);
        }
    }

    fn progress(&self, label: &str, total_bytes: u64) -> Box<dyn Fn(u64) + Send> {
        let progress = Progress::bytes(&self.output, label, Some(total_bytes));
        Box::new(move |bytes| progress.advance(bytes))
    }

    fn redirect(&self, to: File) {
        self.output.redirect_err(to);
    }

    fn ask(&self, socket: &Path, line: &[&OsStr]) -> Result<u8, ServerError> {
        let program = self.program.context("this is not run by the program");
        let request = program.and_then(|program| program.request(line));
        let request = request.map_err(|error| ServerError::Refused(causes(&error)))?;
        protocol::send(socket, &request, None, &self.output)
    }
}

impl Context {
    /// With the options of the whole line.
    pub(crate) fn new(handle: Handle, globals: &Globals, search: Search, output: Output) -> Self {
        let mut settings = tunables::settings();
        // The grammar has refused what is none.
        globals.tunables.iter().for_each(|text| drop(settings.set_from(text)));
        let options = SessionOptions {
            paths: search.paths,
            force: search.force,
            keys: globals.keys.clone(),
            cache_bytes: globals.cache_bytes,
            rewind: globals.rewind(),
            at_checkpoint: globals.at_checkpoint,
            allow_missing: globals.allow_missing,
            tunables: settings,
            altroot: None,
        };
        let speaker = Speaker { output, program: None, is_quiet: false, is_in_place: false };
        Self { session: Session::new(handle, options, Arc::new(speaker.clone())), speaker }
    }

    fn with_session(&self, change: impl FnOnce(Session) -> Session) -> Self {
        Self { session: change(self.session.clone()), speaker: self.speaker.clone() }
    }

    fn with_speaker(self, speaker: Speaker) -> Self {
        Self { session: self.session.telling(Arc::new(speaker.clone())), speaker }
    }

    /// As a part of this program.
    pub(crate) fn of_program(self, program: &'static dyn Program) -> Self {
        let speaker = Speaker { program: Some(program), ..self.speaker.clone() };
        self.with_speaker(speaker)
    }

    /// The program that it is a part of.
    pub(crate) fn program(&self) -> Result<&'static dyn Program> {
        self.speaker.program.context("this is not run by the program")
    }

    /// For a command that a server can do as well.
    pub(crate) fn sending(self) -> Self {
        self.with_session(Session::sending)
    }

    /// For a command that no one server can do, since it is about pools of several.
    pub(crate) fn without_sending(&self) -> Self {
        self.with_session(|session| session.without_sending())
    }

    /// With what a command's own line adds.
    pub(crate) fn with(&self, search: &Search) -> Self {
        self.with_session(|session| session.searching(&search.paths, search.force))
    }

    /// With a share of the memory, for one of so many pools.
    pub(crate) fn sharing_memory(&self, pools: usize) -> Self {
        self.with_session(|session| session.sharing_memory(pools))
    }

    /// With mount points of pools below a directory, whatever was said at their import.
    pub(crate) fn with_altroot(&self, altroot: Option<String>) -> Self {
        self.with_session(|session| session.with_altroot(altroot))
    }

    /// For a client of this process, which has this pool.
    pub(crate) fn served_by(&self, of: &ServedPool, client: Owner, output: Output, input: Option<Passed>) -> Self {
        let speaker = Speaker { output, ..self.speaker.clone() };
        let session = self.session.served_by(of, client, Arc::new(speaker.clone()), input);
        Self { session, speaker }
    }

    /// The socket of another process that has a pool and takes commands for it.
    pub(crate) fn owner_of(&self, pool: &View) -> Option<PathBuf> {
        let guid = pool.guid();
        let socket = protocol::find(guid).filter(|_| self.served().is_none())?;
        let who = protocol::who(&socket).ok()?;
        (who.guid == guid.0 && !who.is_ending).then_some(socket)
    }

    /// The output of a command line that the process at a socket does, and its status; its lines about what is wrong are this command's.
    ///
    /// # Errors
    /// It does not answer, or takes no such line.
    pub(crate) fn asked(&self, socket: &Path, line: &[&OsStr]) -> Result<(Vec<u8>, u8)> {
        let answer = Gathered { out: Mutex::default(), of: self.output() };
        let request = self.program()?.request(line)?;
        let status = protocol::send(socket, &request, None, &answer)?;
        Ok((answer.out.into_inner().unwrap_or_default(), status))
    }

    /// The output.
    pub(crate) fn output(&self) -> &Output {
        &self.speaker.output
    }

    /// Writes to standard output.
    pub(crate) fn out(&self, bytes: impl AsRef<[u8]>) -> Result<()> {
        Ok(self.output().out(bytes)?)
    }

    /// The same, which tells only what is wrong, if asked to.
    pub(crate) fn quiet(self, is_quiet: bool) -> Self {
        let speaker = Speaker { is_quiet: self.speaker.is_quiet || is_quiet, ..self.speaker.clone() };
        self.with_speaker(speaker)
    }

    /// In the place of one of OpenZFS's tools, unless it is asked to tell more (`-v`).
    pub(crate) fn in_place(self, is_in_place: bool) -> Self {
        let speaker = Speaker { is_in_place, ..self.speaker.clone() };
        self.with_speaker(speaker)
    }

    /// Tells a person something, where all that was asked for is done.
    pub(crate) fn advise(&self, text: impl AsRef<str>) {
        self.speaker.advise(text.as_ref());
    }

    /// Writes a line to standard error.
    pub(crate) fn err(&self, text: impl AsRef<str>) {
        self.output().err(text);
    }

    /// Shows progress of a command that moves bytes.
    pub(crate) fn progress(&self, label: &str, total_bytes: Option<u64>) -> Progress {
        Progress::bytes(self.output(), label, total_bytes)
    }

    /// Shows how many of `total` things are done.
    pub(crate) fn items(&self, label: &str, total: u64) -> Progress {
        Progress::items(self.output(), label, total)
    }
}
