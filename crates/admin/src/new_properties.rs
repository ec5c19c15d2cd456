//! The properties that `zfs create -v` lists.

/// The size of a volume's blocks that OpenZFS does not name where nothing speaks for another.
const USUAL_BLOCK_BYTES: u64 = 16 << 10;

/// The sizes of a new volume, and what is reserved for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumePlan {
    /// Its size in bytes, in whole blocks.
    pub(crate) size_bytes: u64,
    /// The size of its blocks in bytes.
    pub(crate) block_bytes: u64,
    /// Bytes that are reserved for it.
    pub(crate) reserved_bytes: u64,
}

/// The parts of a command that makes a volume.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NewVolume {
    /// The size that was asked for, if it is a number.
    pub(crate) asked_bytes: Option<u64>,
    /// `-b` gives the size of its blocks.
    pub(crate) names_blocks: bool,
    /// Nothing is reserved for it.
    pub(crate) is_sparse: bool,
}

/// The properties of a new dataset that the command gives (`PROPERTY=VALUE`) or that follow from it, in the order in which OpenZFS lists them:
/// numbers that it works out stand last.
pub(crate) fn new_properties(given: &[String], volume: &NewVolume, plan: Option<&VolumePlan>) -> Vec<(String, String)> {
    let given = given.iter().filter_map(|text| text.split_once('='));
    let given: Vec<(String, String)> = given.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let Some(plan) = plan else { return given };
    let is_given = |name: &str| given.iter().any(|(other, _)| other == name);
    let (size, block) = (plan.size_bytes.to_string(), plan.block_bytes.to_string());
    let is_whole = volume.asked_bytes == Some(plan.size_bytes);
    let is_usual = plan.block_bytes == USUAL_BLOCK_BYTES;
    let (mut first, mut last) = (Vec::new(), Vec::new());
    match volume.names_blocks {
        true if is_usual => first.push(("volblocksize".to_owned(), block)),
        false if is_usual || is_given("volblocksize") => {}
        _ => last.push(("volblocksize".to_owned(), block)),
    }
    let place = if is_whole { &mut first } else { &mut last };
    place.insert(if is_whole { 0 } else { place.len() }, ("volsize".to_owned(), size));
    if !volume.is_sparse && !is_given("refreservation") {
        last.push(("refreservation".to_owned(), plan.reserved_bytes.to_string()));
    }
    first.into_iter().chain(given).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_listed_in_openzfs_order() {
        let list = |asked_bytes, names_blocks, is_sparse, given: &[&str], size_bytes, block_bytes| {
            let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
            let plan = VolumePlan { size_bytes, block_bytes, reserved_bytes: 7 };
            let volume = NewVolume { asked_bytes: Some(asked_bytes), names_blocks, is_sparse };
            let listed = new_properties(&given, &volume, Some(&plan)).into_iter();
            listed.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        let usual = 16 << 10;
        assert_eq!(list(1 << 20, false, false, &[], 1 << 20, usual), "volsize=1048576 refreservation=7");
        assert_eq!(list(1 << 20, true, true, &[], 1 << 20, usual), "volsize=1048576 volblocksize=16384");
        assert_eq!(
            list(1 << 20, true, false, &["exec=off"], 1 << 20, 8192),
            "volsize=1048576 exec=off volblocksize=8192 refreservation=7"
        );
        assert_eq!(
            list(1000, false, false, &["volblocksize=8k", "refreservation=none"], 8192, 8192),
            "volblocksize=8k refreservation=none volsize=8192"
        );
    }
}
