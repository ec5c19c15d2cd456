//! The body of the fuzz target: what a client may send, from its first byte on.

use std::io;
use std::sync::{Arc, OnceLock};

use cenote_taskq::{Runtime, RuntimeOptions};

use crate::connection::serve_stream;
use crate::export::{Exports, StaticExports};
use crate::memory::MemoryExport;
use crate::transport::Transport;

/// A transport without deadlines or a way to send at once.
pub(crate) struct Quiet;

impl Transport for Quiet {}

/// A whole connection; the replies go nowhere.
pub fn connection(input: &[u8]) {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        let options = RuntimeOptions { workers: Some(1), ..RuntimeOptions::default() };
        Runtime::real(options).expect("a runtime starts")
    });
    let exports = StaticExports::new([("v".to_owned(), Arc::new(MemoryExport::new(1 << 16)) as _)]);
    let exports: Arc<dyn Exports> = Arc::new(exports);
    let _ = serve_stream(&runtime.handle(), &exports, &Arc::default(), input, io::sink(), &Quiet);
}
