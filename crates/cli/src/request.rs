//! From an argument vector to a request, and from a request to its outcome.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use cenote_host::mounthelper;
use cenote_server::{Handle, IoMode, Runtime, RuntimeOptions, background, protocol};
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};
use serde::{Deserialize, Serialize};

use crate::args::{Globals, Repeats, Search};
use crate::commands::Command;
use crate::context::{Context, Program, Serving, Work};
use crate::options;
use crate::outcome::{self, FAILED, Outcome, PIPE, USAGE, causes, is_broken_pipe, status_of};
use crate::output::Output;
use crate::verbs::{self, TOOLS};

/// The request: everything that the command line says.
#[derive(Clone, Debug, Parser, Serialize, Deserialize)]
#[command(name = "cenote", version, about = "OpenZFS pools without a kernel module", max_term_width = 100)]
#[command(propagate_version = false, disable_help_subcommand = true, args_override_self = true)]
pub(crate) struct Request {
    #[command(flatten)]
    globals: Globals,
    #[command(flatten)]
    search: Search,
    #[command(subcommand)]
    command: Command,
}

impl Request {
    /// The grammar, in which the help of a verb names the options of the whole line in one sentence.
    fn grammar() -> clap::Command {
        fn noted(command: clap::Command) -> clap::Command {
            command.after_long_help(GLOBALS).mut_subcommands(noted)
        }
        Self::command().mut_subcommands(noted)
    }

    /// The words of a command line.
    fn parse<W: Into<OsString> + Clone>(line: impl IntoIterator<Item = W>) -> Result<Self, clap::Error> {
        Self::from_arg_matches(&Self::grammar().try_get_matches_from(line)?)
    }
}

/// The end of the help of each verb.
const GLOBALS: &str = "Also --key, --cache-bytes, --io, --tunable, --rewind, --at-txg, --at-checkpoint and --allow-missing: \
                       'cenote --help' tells of them.";

impl Serving for Request {
    fn is_for_suspended(&self) -> bool {
        self.command.is_for_suspended()
    }

    fn serve<'a>(self: Box<Self>, context: &'a Context) -> Work<'a, anyhow::Result<Outcome>> {
        Box::pin(async move {
            anyhow::ensure!(self.command.is_for_server(), "a server of a pool does not do this");
            self.command.run(context).await
        })
    }
}

/// The program.
struct Whole;

impl Program for Whole {
    fn grammar(&self) -> clap::Command {
        Request::command()
    }

    fn request(&self, line: &[&OsStr]) -> anyhow::Result<serde_json::Value> {
        Ok(serde_json::to_value(Request::try_parse_from(line)?)?)
    }

    fn sent(&self, request: serde_json::Value) -> anyhow::Result<Box<dyn Serving>> {
        Ok(Box::new(serde_json::from_value::<Request>(request)?))
    }

    fn run(&self, handle: Handle, line: Vec<String>, output: Output) -> Work<'static, anyhow::Result<Outcome>> {
        Box::pin(async move { handle_request(handle, Request::try_parse_from(line)?, output).await })
    }
}

/// The arguments with the tool's name as the first, where the program was called by it.
fn with_tool(mut argv: Vec<OsString>) -> Vec<OsString> {
    let tool = argv.first().and_then(|name| Path::new(name).file_name()?.to_str());
    if let Some(tool) = tool.and_then(|name| TOOLS.into_iter().find(|tool| *tool == name)) {
        argv[0] = "cenote".into();
        argv.insert(1, tool.into());
    }
    argv
}

/// The whole program.
pub(crate) fn main(argv: Vec<OsString>) -> ExitCode {
    let argv = match mounthelper::translated(&argv, rustix::process::geteuid().is_root()) {
        Ok(line) => line.unwrap_or(argv),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            return ExitCode::from(USAGE);
        }
    };
    let argv = verbs::spelt(with_tool(argv));
    let mut request = match Request::parse(&argv) {
        Ok(request) => request,
        Err(error) => return ExitCode::from(told(&argv, error)),
    };
    let repeats = match request.command.repeats() {
        Ok(repeats) => repeats,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            return ExitCode::from(USAGE);
        }
    };
    if let Some(options) = request.command.goes_on()
        && let Some(status) = background::start(&argv, options.background, request.globals.has_input())
    {
        return status;
    }
    let output = Output::standard();
    let runtime = match Runtime::real(RuntimeOptions { io: request.globals.io.into(), ..RuntimeOptions::default() }) {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "cenote: the runtime cannot start: {error}");
            return ExitCode::from(FAILED);
        }
    };
    if request.command.shows_health() {
        output.shows_health();
    }
    if let Some(line) = notice(&request.command, &runtime.handle().io_mode()) {
        output.err(line);
    }
    if let Some(repeats) = repeats {
        return ExitCode::from(repeated(&runtime, request, &output, repeats));
    }
    let parts = request.command.of_pools();
    // A change of one pool is carried out in its own words.
    if parts.is_empty() || (parts.len() == 1 && matches!(request.command, Command::Zfs(_))) {
        return ExitCode::from(answered(&runtime, request, &output));
    }
    // One that fails does not keep the others from being done.
    let parts = parts.into_iter().map(|command| Request { command, ..request.clone() });
    ExitCode::from(parts.map(|part| answered(&runtime, part, &output)).fold(0, u8::max))
}

/// Tells why a command line is none, or what it asks for: help. The exit status.
fn told(argv: &[OsString], error: clap::Error) -> u8 {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    if let Some(lacking) = verbs::lacking(argv, &error) {
        let _ = match lacking.is_help {
            true => writeln!(out, "{}", lacking.text),
            false => writeln!(err, "{}", lacking.text),
        };
        return if lacking.is_help { 0 } else { FAILED };
    }
    if let Some(text) = options::missing(argv, &error, &Request::command()) {
        let _ = writeln!(err, "{text}");
        return USAGE;
    }
    match error.kind() {
        ErrorKind::DisplayHelp if verbs::is_wrong_help(argv) => {
            let _ = writeln!(err, "invalid option\n{}", error.render());
            USAGE
        }
        ErrorKind::DisplayHelp if argv.len() == 2 => {
            let _ = write!(out, "{}", Request::command().mut_args(|arg| arg.hide_long_help(false)).render_long_help());
            0
        }
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            0
        }
        _ => {
            let _ = verbs::with_tip(error, argv, &Request::command()).print();
            USAGE
        }
    }
}

/// Does a command again and again. It is the same process each time, which opens pools anew or asks the one that has them.
fn repeated(runtime: &Runtime, mut request: Request, output: &Output, repeats: Repeats) -> u8 {
    let mut status = 0;
    let mut left = repeats.count;
    loop {
        let now = answered(runtime, request.clone(), output);
        if now == PIPE {
            return now;
        }
        status = status.max(now);
        left = left.map(|left| left.saturating_sub(1));
        if left == Some(0) {
            return status;
        }
        let handle = runtime.handle();
        runtime.block_on(handle.sleep(repeats.interval));
        request.command.go_on();
    }
}

/// Does what is asked for, here or in the process that has the pool. The exit status.
fn answered(runtime: &Runtime, request: Request, output: &Output) -> u8 {
    let asked = request.clone();
    let result = runtime.block_on(handle_request(runtime.handle(), request, output.clone()));
    let result = result.and_then(|outcome| Ok(output.flush().map(|()| outcome)?));
    if let Err(error) = &result
        && let Some(owned) = outcome::owned(error)
    {
        let stdin = std::io::stdin();
        let input = asked.command.takes_input().then(|| stdin.as_fd());
        return match protocol::send(&owned.socket, &asked, input, output) {
            Ok(status) => status,
            Err(error) => {
                output.error(&error.chain());
                FAILED
            }
        };
    }
    match result {
        Ok(Outcome::Good) => 0,
        Ok(Outcome::Failed) => FAILED,
        Err(error) if is_broken_pipe(&error) => PIPE,
        Err(error) => {
            output.error(&causes(&error));
            status_of(&error)
        }
    }
}

/// The line that says once that device I/O is not done as it is done best, and why. Scripts that were written for OpenZFS's
/// tools get from them what those say, and nothing besides.
fn notice(command: &Command, mode: &IoMode) -> Option<String> {
    let is_wanted = mode.is_fallback && !command.is_of_openzfs();
    is_wanted.then(|| format!("cenote: without io_uring: {}", mode.explanation))
}

/// Carries out a request. The text is the same for every caller with a [`Request`] and an [`Output`]: this process, or a server with
/// its client's.
async fn handle_request(handle: Handle, request: Request, output: Output) -> anyhow::Result<Outcome> {
    let mut context = Context::new(handle, &request.globals, request.search, output).of_program(&Whole);
    context = context.in_place(request.command.is_of_openzfs());
    if request.command.is_for_server() {
        context = context.sending();
    }
    let outcome = request.command.run(&context).await;
    // Blocks read of a view that was given up may be of several txgs, whatever came of it.
    let outcome = context.check_views().map_err(Into::into).and(outcome);
    context.close_pools().await;
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_does_not_contradict_itself() {
        Request::command().debug_assert();
    }

    #[test]
    fn a_client_that_asks_for_no_command_is_refused() {
        for wrong in [serde_json::json!(7), serde_json::json!({}), serde_json::json!({ "command": "zpool" })] {
            assert!(Whole.sent(wrong).is_err());
        }
    }

    #[test]
    fn a_request_survives_being_sent() {
        let request = Request::try_parse_from(["cenote", "-d", "/x", "--key", "a=b", "manifest", "tank"]).unwrap();
        let text = serde_json::to_string(&request).unwrap();
        let back: Request = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), text);
        assert!(text.contains("tank"));
    }

    #[test]
    fn a_refused_ring_is_told_in_one_line_but_not_in_the_place_of_openzfs_tools() {
        let command = |words: &[&str]| Request::try_parse_from(words).unwrap().command;
        let mode = |is_fallback| IoMode { ring: false, is_fallback, explanation: "threads, because of this".into() };
        let verify = command(&["cenote", "verify", "tank"]);
        let line = notice(&verify, &mode(true)).unwrap();
        assert!(line.contains("because of this") && line.lines().count() == 1);
        assert_eq!(notice(&verify, &mode(false)), None, "threads were asked for");
        assert_eq!(notice(&command(&["cenote", "zpool", "list"]), &mode(true)), None);
    }

    #[test]
    fn a_link_called_zpool_is_zpool() {
        let argv = with_tool(vec!["/usr/sbin/zpool".into(), "list".into()]);
        assert_eq!(argv, ["cenote", "zpool", "list"].map(OsString::from));
        assert_eq!(with_tool(vec!["x/cenote".into(), "ls".into()]).len(), 2);
    }
}
