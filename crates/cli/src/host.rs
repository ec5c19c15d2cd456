//! Who writes a pool, and when, as a command has it.

use anyhow::{Result, bail};
use cenote_spa::{Clock, Host};

use crate::context::Context;

/// The clock that `SOURCE_DATE_EPOCH` asks for.
pub(crate) fn clock() -> Result<Clock> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => match text.parse() {
            Ok(time) => Ok(Clock::Fixed(time)),
            Err(_) => bail!("SOURCE_DATE_EPOCH is no number of seconds: '{text}'"),
        },
        Err(_) => Ok(Clock::Now),
    }
}

/// Who makes the pool; nobody in particular where it is to be made again elsewhere.
pub(crate) fn host(context: &Context, is_repeatable: bool) -> Host {
    if is_repeatable {
        return Host { id: 0, name: "localhost".to_owned() };
    }
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Host { id: context.import_options().host_id, name }
}
