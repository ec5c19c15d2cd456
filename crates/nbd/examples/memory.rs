//! Serves memory, to measure the protocol alone: `cargo run --release -p cenote-nbd --example memory -- SOCKET [MIB]`.

use std::sync::Arc;

use cenote_nbd::{Listener, MemoryExport, Server, ServerOptions, StaticExports};
use cenote_taskq::{Runtime, RuntimeOptions};

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let socket = arguments.next().unwrap_or_else(|| "nbd.sock".to_owned());
    let mib: usize = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(256);
    let runtime = Runtime::real(RuntimeOptions::default())?;
    let export = MemoryExport::with_contents(&vec![0xa5; mib << 20]);
    let exports = StaticExports::new([("memory".to_owned(), Arc::new(export) as _)]);
    let options = ServerOptions { report: Arc::new(|line| eprintln!("{line}")), ..ServerOptions::default() };
    let server = Server::start(runtime.handle(), Arc::new(exports), vec![Listener::unix(&socket)?], options)?;
    println!("nbd+unix:///memory?socket={socket}; a line on standard input ends it");
    std::io::stdin().read_line(&mut String::new())?;
    server.shutdown();
    Ok(())
}
