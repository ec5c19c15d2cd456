//! The coverage-guided driver: the target named by `CENOTE_FUZZ_TARGET`.
#![no_main]

use std::sync::LazyLock;

static BODY: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("CENOTE_FUZZ_TARGET").expect("CENOTE_FUZZ_TARGET names the target");
    cenote_fuzz::target(&name).unwrap_or_else(|| panic!("no fuzz target {name}"))
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| BODY(data));
