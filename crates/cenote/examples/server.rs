//! A server with a pool in it: `GET path` sends a file, `PUT path size` and its bytes makes one, on disk before the answer.
//!
//! `cargo run -p cenote --example server` serves two clients of its own and ends.

mod setup;

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use cenote::{FileSystem, Runtime};

/// Bytes of a file that a client may send.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Answers one client, on its own thread. The work is done by the runtime's.
fn answer(runtime: &Runtime, files: &FileSystem, client: &TcpStream) -> io::Result<()> {
    let mut input = BufReader::new(client);
    let mut line = String::new();
    input.by_ref().take(4096).read_line(&mut line)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut output = client;
    match words[..] {
        ["GET", path] => match runtime.block_on(files.read(path)) {
            Ok(content) => {
                writeln!(output, "OK {}", content.len())?;
                output.write_all(&content)
            }
            Err(error) => writeln!(output, "{:?} {error}", error.kind()),
        },
        ["PUT", path, size] => {
            let size = size.parse().unwrap_or(usize::MAX);
            if size > FILE_BYTES_MAX {
                return writeln!(output, "Misuse too large");
            }
            let mut content = vec![0; size];
            input.read_exact(&mut content)?;
            let written = runtime.block_on(async {
                let file = files.create(path).await?;
                file.write_at(0, &content).await?;
                file.sync().await
            });
            match written {
                Ok(()) => writeln!(output, "OK 0"),
                Err(error) => writeln!(output, "{:?} {error}", error.kind()),
            }
        }
        _ => writeln!(output, "Misuse GET path, or PUT path size"),
    }
}

fn ask(server: SocketAddr, request: &[u8]) -> io::Result<String> {
    let mut server = TcpStream::connect(server)?;
    server.write_all(request)?;
    let mut answer = String::new();
    server.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Serves a pool that is made in a folder to three requests, and gives their answers.
pub(crate) fn run(folder: &Path) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let runtime = Runtime::new()?;
    let pool = runtime.block_on(setup::tank(&runtime, folder))?;
    let files = runtime.block_on(pool.filesystem("tank/home"))?;
    let requests: [&[u8]; 3] = [b"PUT note 5\nhello", b"GET note\n", b"GET nothing\n"];
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let server = listener.local_addr()?;
    let answers = thread::scope(|scope| {
        let (runtime, files) = (&runtime, &files);
        scope.spawn(move || {
            for client in listener.incoming().take(requests.len()) {
                // A client that goes away is no concern of the others.
                scope.spawn(move || client.and_then(|client| answer(runtime, files, &client)));
            }
        });
        requests.iter().map(|request| ask(server, request)).collect::<Result<Vec<_>, _>>()
    });
    runtime.block_on(pool.export())?;
    Ok(answers?)
}

#[allow(dead_code, reason = "tests run it without this")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    run(tempfile::tempdir()?.path())?.iter().for_each(|answer| println!("{}", answer.trim_end()));
    Ok(())
}
