//! The suites of the laboratory.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use cenote_bench::report::Suite;
use cenote_bench::suites::{Choice, Request};
use cenote_kstat::Settings;

use crate::{codec, mirror, modelled_write, roots, send, taskq, zil};

/// A suite of the laboratory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Taskq,
    Roots,
    Mirror,
    Codec,
    Write,
    Zil,
    Send,
}

impl Choice for Which {
    const PROGRAM: &'static str = "cenote-lab";
    const ALL: &'static [Self] =
        &[Self::Taskq, Self::Roots, Self::Mirror, Self::Codec, Self::Write, Self::Zil, Self::Send];

    fn name(self) -> &'static str {
        match self {
            Self::Taskq => "taskq",
            Self::Roots => "roots",
            Self::Mirror => "mirror",
            Self::Codec => "codec",
            Self::Write => "write",
            Self::Zil => "zil",
            Self::Send => "send",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Taskq => "The task queue, and its history (M1)",
            Self::Roots => "Account of detached I/O (M2)",
            Self::Mirror => "Which child of a mirror is read, on modelled disks (M3)",
            Self::Codec => "Checksums and parity",
            Self::Write => "Log space maps, on a modelled drive (M5)",
            Self::Zil => "Synchronous writes through the intent log, beside commits as they were (M4)",
            Self::Send => "Streams and snapshots, on pools made for it",
        }
    }

    fn usual(_request: &Request<Self>) -> Vec<Self> {
        vec![Self::Taskq, Self::Roots, Self::Mirror, Self::Codec]
    }

    fn run(self, request: Request<Self>, settings: &Settings, folder: PathBuf) -> Result<Suite> {
        let (rounds, quick) = (request.rounds(), request.quick);
        let seconds = request.seconds(1.0, 4.0);
        let (peer, only) = (request.peer_pool, request.only);
        match self {
            Self::Taskq => taskq::run(quick, &request.peers),
            Self::Roots => roots::run(quick),
            Self::Mirror => mirror::run(quick, settings),
            Self::Codec => codec::run(quick),
            Self::Write => modelled_write::run(quick),
            Self::Zil => zil::run(&zil::Options { folder, peer, rounds, seconds, quick, only }),
            Self::Send => {
                let program = request.program.map_or_else(beside_this, Ok)?;
                send::run(&send::Options { folder, peer, program, rounds, quick, only })
            }
        }
    }
}

/// The program of the product that the same build made.
fn beside_this() -> Result<PathBuf> {
    Ok(std::env::current_exe().context("where this program is")?.with_file_name("cenote"))
}

/// The names of all parts that suites have.
pub(crate) fn parts() -> Vec<&'static str> {
    let mut known: Vec<_> = send::PARTS.into();
    known.extend(zil::PARTS);
    known
}
