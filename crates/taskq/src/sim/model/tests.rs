//! Each model against the formulas that its module states.

use std::time::Duration;

use super::*;
use crate::rng::Rng;

fn read(id: u64, offset_bytes: u64, size_bytes: u64) -> Asked {
    Asked { id, kind: RequestKind::Read, offset_bytes, size_bytes }
}

/// Keeps `depth` of `count` requests outstanding; the moment the last is done, and each one's time.
fn closed(
    model: &mut impl DeviceModel,
    depth: usize,
    mut asks: impl Iterator<Item = Asked>,
) -> (Instant, Vec<Duration>) {
    let mut now = Instant::default();
    let mut begun = std::collections::BTreeMap::new();
    let mut times = Vec::new();
    let mut done = Vec::new();
    for asked in asks.by_ref().take(depth) {
        begun.insert(asked.id, now);
        model.submit(now, asked);
    }
    while let Some(next) = model.next_event() {
        now = next;
        model.advance(now, &mut done);
        for Done { id, at } in std::mem::take(&mut done) {
            assert_eq!(at, now, "the model was advanced event by event");
            times.push(at - begun.remove(&id).expect("done once"));
            if let Some(asked) = asks.next() {
                begun.insert(asked.id, now);
                model.submit(now, asked);
            }
        }
    }
    assert!(begun.is_empty(), "all that was asked is done");
    (now, times)
}

fn within(value: f64, expected: f64, share: f64) {
    assert!((value / expected - 1.0).abs() <= share, "{value} is not within {share} of {expected}");
}

fn places(count: u64, size_bytes: u64, capacity: u64) -> impl Iterator<Item = Asked> {
    let mut rng = Rng::new(11);
    (0..count).map(move |id| read(id, rng.below(capacity / size_bytes) * size_bytes, size_bytes))
}

#[test]
fn flash_alone_takes_access_command_and_transfer() {
    for (options, alone_ns) in [(FlashOptions::sata(), 94_298), (FlashOptions::nvme(), 66_111)] {
        let (end, times) = closed(&mut Flash::new(options), 1, places(10, 4096, 1 << 30));
        assert!(times.iter().all(|time| *time == Duration::from_nanos(alone_ns)), "{times:?}");
        assert_eq!(end.as_ns(), 10 * alone_ns);
    }
}

#[test]
fn flash_in_depth_comes_to_the_slower_of_channels_and_interface() {
    for options in [FlashOptions::sata(), FlashOptions::nvme()] {
        let cells = options.channels as f64 / options.access.as_secs_f64();
        let interface = 1.0 / (options.command.as_secs_f64() + 4096.0 / options.bytes_per_s as f64);
        let (end, times) = closed(&mut Flash::new(options), 256, places(20_000, 4096, 1 << 30));
        within(20_000.0 / (end.as_ns() as f64 / 1e9), cells.min(interface), 0.01);
        // Little's law: 256 in the system.
        let mean = times.iter().sum::<Duration>().as_secs_f64() / 20_000.0;
        within(mean * cells.min(interface), 256.0, 0.02);
    }
    let options = FlashOptions { channels: 2, ..FlashOptions::nvme() };
    let (end, _) = closed(&mut Flash::new(options), 64, places(10_000, 4096, 1 << 30));
    within(10_000.0 / (end.as_ns() as f64 / 1e9), 2.0 / options.access.as_secs_f64(), 0.01);
}

#[test]
fn flash_moves_large_ones_at_the_interfaces_rate() {
    let options = FlashOptions::sata();
    let (end, _) = closed(&mut Flash::new(options), 8, places(2000, 1 << 20, 1 << 34));
    let each = options.command.as_secs_f64() + f64::from(1 << 20) / options.bytes_per_s as f64;
    within(end.as_ns() as f64 / 1e9, 2000.0 * each, 0.001);
}

#[test]
fn four_times_slower_takes_four_times_as_long() {
    let (fast, _) = closed(&mut Flash::new(FlashOptions::sata()), 8, places(1000, 16384, 1 << 30));
    let (slow, _) = closed(&mut Flash::new(FlashOptions::sata().slower(4)), 8, places(1000, 16384, 1 << 30));
    within(slow.as_ns() as f64, 4.0 * fast.as_ns() as f64, 3e-3);
    let disk = RotatingOptions { plug: Duration::ZERO, ..RotatingOptions::desktop() };
    let (fast, _) = closed(&mut Rotating::new(disk), 1, places(500, 4096, disk.size_bytes));
    let (slow, _) = closed(&mut Rotating::new(disk.slower(4)), 1, places(500, 4096, disk.size_bytes));
    within(slow.as_ns() as f64, 4.0 * fast.as_ns() as f64, 3e-3);
}

#[test]
fn a_stalled_device_begins_nothing_until_the_stall_is_over() {
    let at = |ms: u64| Instant::from_ns(ms * 1_000_000);
    let span = Duration::from_millis;
    let stalls = Stalls { first: at(10), period: span(1000), length: span(100) };
    assert_eq!(stalls.after(at(9)), at(9));
    assert_eq!(stalls.after(at(10)), at(110));
    assert_eq!(stalls.after(at(109)), at(110));
    assert_eq!(stalls.after(at(110)), at(110));
    assert_eq!(stalls.after(at(1050)), at(1110));
    let mut flash = Flash::new(FlashOptions { stalls: Some(stalls), ..FlashOptions::nvme() });
    flash.submit(at(50), read(1, 0, 4096));
    assert_eq!(flash.next_event(), Some(at(110) + Duration::from_nanos(66_111)));
    let mut disk =
        Rotating::new(RotatingOptions { stalls: Some(stalls), plug: Duration::ZERO, ..RotatingOptions::desktop() });
    disk.submit(at(50), read(1, 0, 4096));
    assert!(disk.next_event().unwrap() > at(110));
}

#[test]
fn the_platter_is_where_the_clock_says() {
    let disk = RotatingOptions { plug: Duration::ZERO, command: Duration::ZERO, ..RotatingOptions::desktop() };
    // The head stands on track 0, whose start passes under it at 0: half a track is half a turn away.
    let mut model = Rotating::new(disk);
    model.submit(Instant::default(), read(1, 1_125_000, 2250));
    let half = 8_333_333 / 2;
    within(model.next_event().unwrap().as_ns() as f64, f64::from(half) + 8333.0, 1e-6);
    // A sector that has just gone by comes back after a turn.
    let mut model = Rotating::new(RotatingOptions { read_ahead_bytes: 0, ..disk });
    model.submit(Instant::from_ns(1000), read(1, 0, 2250));
    assert_eq!(model.next_event().unwrap().as_ns(), 8_333_333 + 8334);
}

#[test]
fn seeks_follow_their_curve() {
    let disk = RotatingOptions::desktop();
    assert_eq!(disk.seek(0), Duration::ZERO);
    within(disk.seek(disk.tracks()).as_secs_f64(), 14.8e-3, 1e-9);
    within(disk.seek(disk.tracks() / 4).as_secs_f64(), 7.8e-3, 1e-4);
    assert!(disk.seek(1) >= disk.settle);
}

#[test]
fn sequential_reads_run_at_the_tracks_rate_however_they_come() {
    let disk = RotatingOptions::desktop();
    let rate = disk.track_bytes as f64 / (disk.rotation + disk.track_switch).as_secs_f64();
    let total: u64 = 256 << 20;
    // One at a time the drive reads on; many at a time the elevator merges.
    for (depth, size) in [(1, 128 << 10), (8, 128 << 10), (1, 4096), (64, 4096)] {
        let asks = (0..total / size).map(|id| read(id, id * size, size));
        let (end, _) = closed(&mut Rotating::new(RotatingOptions { plug: Duration::ZERO, ..disk }), depth, asks);
        within(total as f64 / (end.as_ns() as f64 / 1e9), rate, 0.02);
    }
}

#[test]
fn random_reads_one_at_a_time_take_seek_half_a_turn_and_transfer() {
    let disk = RotatingOptions { plug: Duration::ZERO, ..RotatingOptions::desktop() };
    let count = 4000;
    let (end, _) = closed(&mut Rotating::new(disk), 1, places(count, 4096, disk.size_bytes));
    let mean = disk.settle.as_secs_f64() + disk.stroke.as_secs_f64() * 8.0 / 15.0;
    let each = mean + disk.rotation.as_secs_f64() / 2.0 + disk.command.as_secs_f64() + 4096.0 / 2.25e6 * 8.333e-3;
    within(end.as_ns() as f64 / 1e9 / count as f64, each, 0.02);
}

#[test]
fn the_elevator_goes_one_way_and_merges_neighbours() {
    let disk = RotatingOptions { plug: Duration::from_millis(1), ..RotatingOptions::desktop() };
    let mut model = Rotating::new(disk);
    let start = Instant::default();
    let far = 1 << 39;
    model.submit(start, read(1, far, 4096));
    model.submit(start, read(2, 1 << 30, 4096));
    model.submit(start, read(3, far + 4096, 4096));
    let mut order = Vec::new();
    let mut moments = Vec::new();
    while let Some(next) = model.next_event() {
        let mut done = Vec::new();
        model.advance(next, &mut done);
        moments.extend(done.iter().map(|_| next));
        order.extend(done.iter().map(|done| done.id));
    }
    assert_eq!(order, [2, 1, 3]);
    assert_eq!(moments[1], moments[2], "neighbours are one transfer");
}

#[test]
fn a_plug_waits_for_neighbours_and_no_longer_than_it_says() {
    let disk = RotatingOptions { plug: Duration::from_millis(3), plug_count: 2, ..RotatingOptions::desktop() };
    let alone = {
        let mut model = Rotating::new(disk);
        model.submit(Instant::default(), read(1, 150_000, 4096));
        assert_eq!(model.next_event(), Some(Instant::default() + disk.plug));
        closed(&mut Rotating::new(disk), 1, std::iter::once(read(1, 150_000, 4096))).0
    };
    let mut model = Rotating::new(disk);
    model.submit(Instant::default(), read(1, 150_000, 4096));
    model.submit(Instant::default(), read(2, 154_096, 4096));
    assert!(model.next_event().unwrap() < alone, "a second request ends the wait");
}

#[test]
fn nobody_is_passed_over_for_longer_than_the_bound() {
    let disk = RotatingOptions {
        plug: Duration::ZERO,
        expire: Duration::from_millis(200),
        batch: 16,
        ..RotatingOptions::desktop()
    };
    let mut model = Rotating::new(disk);
    // A stream that always has the next piece waiting, and one request behind the head.
    let mut now = Instant::default();
    let mut next = 1 << 30;
    for id in 0..4 {
        model.submit(now, read(id, next, 128 << 10));
        next += 128 << 10;
    }
    model.submit(now, read(1000, 0, 4096));
    let mut id = 4;
    let mut done = Vec::new();
    loop {
        now = model.next_event().expect("the stream goes on");
        model.advance(now, &mut done);
        for Done { id: which, .. } in std::mem::take(&mut done) {
            if which == 1000 {
                let waited = now - Instant::default();
                assert!(waited < Duration::from_millis(300), "waited {waited:?}");
                return;
            }
            model.submit(now, read(id, next, 128 << 10));
            next += 128 << 10;
            id += 1;
        }
    }
}
