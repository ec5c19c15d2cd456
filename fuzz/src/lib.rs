//! Fuzz targets: functions that take arbitrary bytes and must return.
//!
//! # Need
//!
//! Every byte from a disk, a stream or a socket is hostile until checked. For each decoder there is a function in its
//! crate's module `fuzz` that feeds it arbitrary bytes and asserts what must hold of the answer; here they have names.
//! Returning is the claim: no panic, no hang, no memory out of proportion to the input.
//!
//! # Two drivers
//!
//! * `any`: libFuzzer, coverage-guided, for as long as one likes; takes the target's name from the environment, so that a
//!   new target is one line below and nothing else. `cargo xtask fuzz [TARGET,…] [SECONDS]`.
//! * `budget`: a fixed number of inputs made from a seed by mutating what lies in `corpus/TARGET/` and from nothing, the
//!   same on every machine, on stable. It runs in every test. `cargo xtask fuzz-budget [COUNT]`.
//!
//! # A found input
//!
//! goes, made small, into `corpus/TARGET/` under a name that says what was wrong, in the commit that repairs it: both drivers
//! run all of the corpus first.

pub mod mutate;

/// A target's name and body.
pub type Target = (&'static str, fn(&[u8]));

/// All targets, by layer.
pub const TARGETS: &[Target] = &[
    ("codec_checksum_block", cenote_codec::fuzz::checksum_block),
    ("codec_compress_round_trip", cenote_codec::fuzz::compress_round_trip),
    ("codec_crypt_block", cenote_codec::fuzz::crypt_block),
    ("codec_crypt_tree", cenote_codec::fuzz::crypt_tree),
    ("codec_decompress", cenote_codec::fuzz::decompress),
    ("format_acl", cenote_format::fuzz::objects::acl),
    ("format_blkptr", cenote_format::fuzz::core::blkptr),
    ("format_ddt", cenote_format::fuzz::objects::ddt),
    ("format_dnode", cenote_format::fuzz::core::dnode),
    ("format_dsl", cenote_format::fuzz::objects::dsl),
    ("format_foreign", cenote_format::fuzz::core::foreign),
    ("format_gang", cenote_format::fuzz::core::gang),
    ("format_history", cenote_format::fuzz::objects::history),
    ("format_indirect", cenote_format::fuzz::core::indirect),
    ("format_l2arc", cenote_format::fuzz::core::l2arc),
    ("format_label", cenote_format::fuzz::core::label),
    ("format_lists", cenote_format::fuzz::objects::lists),
    ("format_names", cenote_format::fuzz::objects::names),
    ("format_nvlist", cenote_format::fuzz::core::nvlist),
    ("format_objset", cenote_format::fuzz::core::objset),
    ("format_sa", cenote_format::fuzz::objects::sa),
    ("format_spacemap", cenote_format::fuzz::objects::spacemap),
    ("format_stream_record", cenote_format::fuzz::streams::stream_record),
    ("format_uberblock", cenote_format::fuzz::core::uberblock),
    ("format_zap_header", cenote_format::fuzz::objects::zap_header),
    ("format_zap_leaf", cenote_format::fuzz::objects::zap_leaf),
    ("format_zap_micro", cenote_format::fuzz::objects::zap_micro),
    ("format_zil_block", cenote_format::fuzz::streams::zil_block),
    ("format_zil_header", cenote_format::fuzz::core::zil_header),
    ("format_zil_record", cenote_format::fuzz::streams::zil_record),
    ("nbd_connection", cenote_nbd::fuzz::connection),
    ("send_stream", cenote_send::fuzz::stream),
    ("vdev_config", cenote_vdev::fuzz::config),
    ("vdev_layout", cenote_vdev::fuzz::layout),
    ("vdev_partitions", cenote_vdev::fuzz::partitions),
];

/// The body of a target.
pub fn target(name: &str) -> Option<fn(&[u8])> {
    TARGETS.iter().find(|(other, _)| *other == name).map(|(_, body)| *body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_sorted() {
        assert!(TARGETS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn every_target_takes_the_shortest_inputs() {
        for (_, body) in TARGETS {
            for len in 0..20 {
                body(&vec![0; len]);
                body(&vec![0xff; len]);
            }
        }
    }
}
