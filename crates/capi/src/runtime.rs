//! The runtime of the process, which all pools share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::OnceLock;

use cenote::{Error, Runtime};

use crate::border::{Borrowed, Status};
use crate::fault::Fault;

/// The runtime, and the process that it is of.
static RUNTIME: OnceLock<(Runtime, u32)> = OnceLock::new();

/// The runtime. It is made at its first use and stays.
pub(crate) fn runtime() -> Result<&'static Runtime, Fault> {
    let own = process::id();
    let (runtime, of) = match RUNTIME.get() {
        Some(made) => made,
        None => {
            let made = Runtime::new()?;
            // Two threads may come here at once: the runtime of one is used.
            RUNTIME.get_or_init(|| (made, own))
        }
    };
    match *of == own {
        true => Ok(runtime),
        // Its threads stayed with the parent: nothing here would ever end.
        false => Err(Fault::misuse("a process that was forked off cannot use the library that its parent has used")),
    }
}

/// Waits for a future on this thread.
pub(crate) fn wait<T>(future: impl Future<Output = Result<T, Error>>) -> Result<T, Fault> {
    Ok(runtime()?.block_on(future)?)
}

/// The answer of a function to C.
pub(crate) trait Answer {
    /// The answer where it has panicked.
    fn panicked(fault: Fault) -> Self;
}

impl Answer for Status {
    fn panicked(fault: Fault) -> Self {
        Err(fault).into()
    }
}

impl Answer for Borrowed {
    fn panicked(_: Fault) -> Self {
        Self::of(None)
    }
}

macro_rules! default_where_panicked {
    ($($type:ty)*) => {
        $(impl Answer for $type {
            fn panicked(_: Fault) -> Self {
                Self::default()
            }
        })*
    };
}

default_where_panicked!(() bool u32 u64 usize);

/// Calls a function on behalf of C, which no panic reaches.
pub(crate) fn guarded<A: Answer, T: Into<A>>(name: &str, call: impl FnOnce() -> T) -> A {
    // State that a panic may have left half done is behind locks that tolerate it: those of the engine, which a panic of one task does not
    // end.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(answer) => answer.into(),
        Err(panic) => {
            let what = panic.downcast_ref::<String>().map(String::as_str);
            let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("for an unknown reason");
            A::panicked(Fault::internal(format!("{name} has panicked, which is a bug of Cenote: {what}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_a_missing_value() {
        let status: Status = guarded("cenote_x", || -> Result<(), Fault> { panic!("at {}", 7) });
        let fault = status.fault().expect("it failed");
        assert_eq!(fault.kind, crate::fault::Kind::Internal);
        assert_eq!(fault.message.to_str(), Ok("cenote_x has panicked, which is a bug of Cenote: at 7"));
        let size: u64 = guarded("cenote_y", || -> u64 { panic!("no") });
        assert_eq!(size, 0);
    }
}
