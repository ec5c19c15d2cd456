//! Where a command's text goes, and how it is set.

mod escape;
mod health;
mod progress;

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cenote_listing::lines;
pub(crate) use cenote_listing::{Align, Json, Table, counted, document, json_of, nicebytes, nicenum};
pub(crate) use progress::Progress;

/// Bytes of output gathered before they are written.
const BUFFER_BYTES: usize = 64 << 10;

/// A command's standard output and error: of this process, or of the client that a server works for. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Output {
    shared: Arc<Shared>,
}

struct Shared {
    out: Mutex<BufWriter<Box<dyn Write + Send>>>,
    err: Mutex<Box<dyn Write + Send>>,
    is_out_terminal: bool,
    is_err_terminal: AtomicBool,
    /// The output is the health of pools, which has colours.
    has_health: AtomicBool,
}

impl Output {
    /// This process's.
    pub(crate) fn standard() -> Self {
        Self {
            shared: Arc::new(Shared {
                out: Mutex::new(BufWriter::with_capacity(BUFFER_BYTES, Box::new(io::stdout()))),
                err: Mutex::new(Box::new(io::stderr())),
                is_out_terminal: io::stdout().is_terminal(),
                is_err_terminal: AtomicBool::new(io::stderr().is_terminal()),
                has_health: AtomicBool::new(false),
            }),
        }
    }

    /// One that is gathered, to be sent elsewhere.
    pub(crate) fn to(out: impl Write + Send + 'static, err: impl Write + Send + 'static) -> Self {
        Self {
            shared: Arc::new(Shared {
                out: Mutex::new(BufWriter::with_capacity(BUFFER_BYTES, Box::new(out))),
                err: Mutex::new(Box::new(err)),
                is_out_terminal: false,
                is_err_terminal: AtomicBool::new(false),
                has_health: AtomicBool::new(false),
            }),
        }
    }

    /// Writes text to standard output. A terminal gets no control characters but line ends, tabs and colours.
    pub(crate) fn out(&self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        if self.is_terminal() {
            let shown = escape::for_terminal(bytes.as_ref());
            return match self.shared.has_health.load(Ordering::Relaxed) {
                true => self.bytes(health::coloured(&String::from_utf8_lossy(&shown))),
                false => self.bytes(shown),
            };
        }
        self.bytes(bytes)
    }

    /// Writes content to standard output, as it is: to have it shown is what the user asked for.
    pub(crate) fn bytes(&self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.shared.out.lock().unwrap_or_else(PoisonError::into_inner).write_all(bytes.as_ref())
    }

    /// Writes a line to standard error, after what standard output has so far. Where it cannot be written there is nobody
    /// to tell.
    pub(crate) fn err(&self, text: impl AsRef<str>) {
        let _ = self.flush();
        let text = for_people(text.as_ref());
        let text = text.as_bytes();
        let shown = if self.is_err_terminal() { escape::for_terminal(text) } else { Cow::Borrowed(text) };
        // In one piece: several processes may append to one log.
        let line = [&shown[..], b"\n"].concat();
        let _ = self.shared.err.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
    }

    /// Writes an error to standard error: on a terminal in red, and in the terminal's own colours nowhere else in it.
    pub(crate) fn error(&self, text: &str) {
        match self.is_err_terminal() {
            true => self.err(format!("\x1b[31m{}\x1b[0m", lines(text))),
            false => self.err(text),
        }
    }

    /// One that is taken for a terminal.
    #[cfg(test)]
    pub(crate) fn terminal(out: impl Write + Send + 'static, err: impl Write + Send + 'static) -> Self {
        let shared = Shared {
            out: Mutex::new(BufWriter::with_capacity(BUFFER_BYTES, Box::new(out))),
            err: Mutex::new(Box::new(err)),
            is_out_terminal: true,
            is_err_terminal: AtomicBool::new(true),
            has_health: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Has lines for standard error written to a file from now on.
    pub(crate) fn redirect_err(&self, to: impl Write + Send + 'static) {
        self.shared.is_err_terminal.store(false, Ordering::Relaxed);
        *self.shared.err.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(to);
    }

    /// Output from now on is the health of pools: with colours on a terminal, where `ZFS_COLOR` asks for them.
    pub(crate) fn shows_health(&self) {
        let has_colours = std::env::var_os("ZFS_COLOR").is_some() && std::env::var_os("NO_COLOR").is_none();
        self.shared.has_health.store(has_colours, Ordering::Relaxed);
    }

    /// Writes out what is gathered.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.shared.out.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }

    /// Whether standard output is a terminal: colours and columns may adapt.
    pub(crate) fn is_terminal(&self) -> bool {
        self.shared.is_out_terminal
    }

    /// Whether standard error is a terminal: progress may be shown.
    pub(crate) fn is_err_terminal(&self) -> bool {
        self.shared.is_err_terminal.load(Ordering::Relaxed)
    }

    /// `text` in a colour, on terminals and where `NO_COLOR` is not set.
    pub(crate) fn paint(&self, colour: Colour, text: &str) -> String {
        if self.is_terminal() && std::env::var_os("NO_COLOR").is_none() {
            format!("\x1b[{}m{text}\x1b[0m", colour as u8)
        } else {
            text.to_owned()
        }
    }
}

/// A message without the numbers of the system's errors, which say nothing that their words do not.
fn for_people(text: &str) -> Cow<'_, str> {
    const BEFORE: &str = " (os error ";
    let mut shown = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(BEFORE) {
        shown.push_str(before);
        rest = match after.split_once(')') {
            Some((number, behind)) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => behind,
            _ => {
                shown.push_str(BEFORE);
                after
            }
        };
    }
    if shown.is_empty() && rest.len() == text.len() {
        return Cow::Borrowed(text);
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

/// Standard output as a writer of text.
impl Write for &Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Output::flush(self)
    }
}

/// Standard output as a writer of content, which stays as it is.
pub(crate) struct Content(pub(crate) Output);

impl Write for Content {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.bytes(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A server's answer. A terminal gets no control characters of it, colours included.
impl cenote_server::protocol::Answer for Output {
    fn out(&self, bytes: &[u8]) -> io::Result<()> {
        match self.is_terminal() {
            true => self.out(&*lines(&String::from_utf8_lossy(bytes))),
            false => self.out(bytes),
        }
    }

    fn err(&self, line: &str) {
        self.err(lines(line));
    }

    fn flush(&self) -> io::Result<()> {
        self.flush()
    }
}

/// Colours, by their SGR numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Colour {
    /// Broken.
    Red = 31,
    /// Good.
    Green = 32,
    /// In need of attention.
    Yellow = 33,
    /// A directory.
    Blue = 34,
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn what_a_pool_says_does_not_drive_a_terminal_and_is_as_it_is_elsewhere() {
        let evil = "tank\x1b]0;pwn\x07\n";
        for is_terminal in [true, false] {
            let (mut read, write) = io::pipe().unwrap();
            let err = write.try_clone().unwrap();
            let output = if is_terminal { Output::terminal(write, err) } else { Output::to(write, err) };
            output.out(evil).unwrap();
            output.err(evil);
            drop(output);
            let mut text = String::new();
            read.read_to_string(&mut text).unwrap();
            let expected = if is_terminal { "tank\\u{1b}]0;pwn\\u{7}\n" } else { evil };
            assert_eq!(text, format!("{expected}{expected}\n"));
        }
    }

    #[test]
    fn messages_have_no_numbers_of_errors() {
        for (text, shown) in [
            ("x: Permission denied (os error 13)", "x: Permission denied"),
            ("a (os error 2): b (os error 5)!", "a: b!"),
            ("a (os error x)", "a (os error x)"),
            (" (os error 2)", ""),
            ("nothing", "nothing"),
        ] {
            assert_eq!(for_people(text), shown);
        }
    }

    #[test]
    fn an_error_is_red_on_a_terminal_and_plain_in_a_log() {
        let (mut read, write) = io::pipe().unwrap();
        let output = Output::terminal(io::sink(), write.try_clone().unwrap());
        output.error("\x1b[32ma");
        output.redirect_err(write);
        output.error("b");
        drop(output);
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        assert_eq!(text, "\x1b[31m\\u{1b}[32ma\x1b[0m\nb\n");
    }
}
