//! Goal: what fingers and scripts do every day has the effect that they expect, or is refused in words that help. Method: the program
//! on pools made here; verbs and spellings of OpenZFS's tools, terminals that close, sockets in places where others could be.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::fs;

use common::images::Images;
use common::mounted::{End, Mounted, can_mount};
use common::serving::Serving;

#[test]
fn a_terminal_that_closes_loses_nothing() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    let mounted = Mounted::new(&images, "mine");
    fs::write(mounted.path("kept"), [7; 100_000]).unwrap();
    mounted.end(End::Signal("-HUP"));
    images.assert_whole();
    let mounted = Mounted::new(&images, "mine");
    assert!(fs::read(mounted.path("kept")).unwrap() == [7; 100_000]);
    mounted.end(End::Unmount);
    images.run("zfs", &["create", "-V", "1M", "-s", "mine/v"]);
    let socket = images.cache.path().join("nbd.sock");
    let serving = Serving::start(&images.dir, "mine", &socket, &["--rw"]).unwrap();
    serving.end_by("-HUP").unwrap();
    images.assert_whole();
}
