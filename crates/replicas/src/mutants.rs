//! The test of the test: cases whose engine has a deliberate bug of sending or receiving.

use cenote_taskq::mutant::{self, Mutant};

use crate::case;

/// Does cases from the first on until one fails: which, and how.
///
/// # Errors
/// Bugs cannot be had in this build.
pub fn hunt(mutant: Mutant, cases: u64) -> Result<Option<(u64, String)>, String> {
    if !mutant::set(Some(mutant)) {
        return Err("deliberate bugs are only in builds with debug assertions".to_owned());
    }
    let found = (0..cases).find_map(|number| case::run(number, None, false).err().map(|what| (number, what)));
    mutant::set(None);
    Ok(found)
}
