//! The streams against plain models: what a reader reads, block by block, and what had been planned by then.

use std::collections::BTreeSet;

use super::*;

const LIMITS: Limits = Limits { distance_min: 8, distance_easy: 64, distance_max: 1024, last: 999_999 };

/// Numbers that look random, the same in each run.
struct Noise(u64);

impl Noise {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// A cache without limits that loads at once, and counts.
struct Model {
    streams: Streams,
    planned: BTreeSet<u64>,
    read: BTreeSet<u64>,
    /// Accesses, and those of them whose blocks had all been planned.
    accesses: u64,
    ready: u64,
}

impl Model {
    fn new(limits: Limits) -> Self {
        let streams = Streams::new(limits);
        Self { streams, planned: BTreeSet::new(), read: BTreeSet::new(), accesses: 0, ready: 0 }
    }

    fn access(&mut self, first: u64, count: u64) -> Found {
        self.accesses += 1;
        let is_ready = (first..first + count).all(|block| self.planned.contains(&block));
        self.ready += u64::from(is_ready);
        self.read.extend(first..first + count);
        let found = self.streams.access(first, count, u64::MAX);
        if let Some(plan) = found.plan {
            assert!(plan.blocks().all(|block| block <= self.streams.limits.last), "{plan:?} leaves the object");
            assert!(plan.count * plan.span <= self.streams.limits.distance_max, "{plan:?} is too long");
            self.planned.extend(plan.blocks());
            self.streams.loaded(plan.stream, plan.count);
        }
        found
    }

    /// Blocks planned that nobody read.
    fn unused(&self) -> usize {
        self.planned.difference(&self.read).count()
    }
}

#[test]
fn from_the_third_access_on_a_sequential_reader_finds_everything_planned_once() {
    for count in [1, 2, 7, 32, 300] {
        let mut model = Model::new(LIMITS);
        let mut planned = 0;
        for access in 0..2000_u64.min(100_000 / count) {
            let found = model.access(access * count, count);
            planned += found.plan.map_or(0, |plan| plan.count);
        }
        assert!(model.accesses - model.ready <= 3, "{count}: {} of {}", model.ready, model.accesses);
        assert_eq!(planned as usize, model.planned.len(), "{count}: a block was planned twice");
        assert!(model.unused() as u64 <= LIMITS.distance_max.max(2 * count));
    }
}

#[test]
fn a_reader_that_goes_backwards_or_in_strides_is_followed_too() {
    for (step, count) in [(-1_i64, 1), (-4, 4), (10, 1), (-10, 1), (100, 3), (-100, 3), (5, 4)] {
        let mut model = Model::new(LIMITS);
        let mut at = if step > 0 { 1000 } else { 900_000_i64 };
        for _ in 0..1000 {
            model.access(at as u64, count);
            at += step;
        }
        assert!(model.accesses - model.ready <= 4, "{step}, {count}: {} of {}", model.ready, model.accesses);
        assert!(model.unused() as u64 <= LIMITS.distance_max, "{step}, {count}: {} unused", model.unused());
    }
}

/// Readers of one file in turns drawn by lot: forward, backward and strided.
#[test]
fn several_streams_of_one_file_are_told_apart() {
    for seed in 0..40 {
        let mut noise = Noise(seed);
        let mut readers: Vec<(i64, i64, u64)> = (0..6)
            .map(|index| {
                let count = 1 + noise.below(4);
                let step = match noise.below(3) {
                    0 => count as i64,
                    1 => -(count as i64),
                    _ => (count + 2 + noise.below(50)) as i64,
                };
                (index * 150_000 + 70_000, step, count)
            })
            .collect();
        let mut model = Model::new(LIMITS);
        for _ in 0..3000 {
            let index = noise.below(readers.len() as u64) as usize;
            let (at, step, count) = &mut readers[index];
            model.access(*at as u64, *count);
            *at += *step;
        }
        assert!(model.accesses - model.ready <= 80, "seed {seed}: {} of {}", model.ready, model.accesses);
        assert!(model.unused() as u64 <= 6 * LIMITS.distance_max, "seed {seed}: {} unused", model.unused());
    }
}

/// Sixteen reads of one sequential reader are in flight, and reach us in almost any order within that.
#[test]
fn a_queue_of_reads_that_arrive_out_of_order_is_one_stream() {
    for seed in 0..20 {
        let mut noise = Noise(seed);
        let mut model = Model::new(LIMITS);
        let mut queue: Vec<u64> = Vec::new();
        let mut next = 0;
        let mut streams = BTreeSet::new();
        while next < 4000 {
            while queue.len() < 16 {
                queue.push(next);
                next += 1;
            }
            // No read is overtaken by more than a device's queue.
            let oldest = queue.iter().enumerate().min_by_key(|(_, at)| **at).map_or(0, |(index, _)| index);
            let is_overdue = queue[oldest] + 30 < next;
            let at = queue.swap_remove(if is_overdue { oldest } else { noise.below(16) as usize });
            streams.extend(model.access(at, 1).stream);
        }
        assert!(model.ready * 100 >= model.accesses * 90, "seed {seed}: {} of {}", model.ready, model.accesses);
        assert!(streams.len() <= 20, "seed {seed}: taken for {} streams", streams.len());
    }
}

/// Also in a small object, where chance meets what is planned often: a stream that grew on that would feed on itself.
#[test]
fn reads_at_random_plan_next_to_nothing() {
    for (last, part) in [(LIMITS.last, 100), (65_535, 33)] {
        let mut noise = Noise(3);
        let mut model = Model::new(Limits { last, ..LIMITS });
        let mut planned = 0;
        for _ in 0..70_000 {
            let found = model.access(noise.below(last), 1);
            planned += found.plan.map_or(0, |plan| plan.count * plan.span);
        }
        assert!(planned < 70_000 / part, "{planned} blocks planned for 70000 random reads of {last}");
    }
}

/// Pieces of blocks: many accesses to a block before the next one's turn.
#[test]
fn reads_smaller_than_blocks_make_a_stream_of_blocks() {
    let mut model = Model::new(LIMITS);
    for piece in 0..8000_u64 {
        // Pieces of an eighth; every fifth begins in one block and ends in the next.
        let first = piece / 8;
        let count = 1 + u64::from(piece % 40 == 39);
        model.access(first, count);
    }
    assert!(model.accesses - model.ready <= 20, "{} of {}", model.ready, model.accesses);
}

#[test]
fn a_stream_that_is_late_grows_to_the_bound_and_one_that_is_not_stays_small() {
    let mut streams = Streams::new(LIMITS);
    for at in 0..100 {
        streams.access(at, 1, u64::MAX);
    }
    assert_eq!(streams.streams[0].distance, LIMITS.distance_easy);
    for at in 100..5000 {
        let stream = streams.access(at, 1, u64::MAX).stream.unwrap();
        streams.met(stream, Met::Late);
    }
    assert_eq!(streams.streams[0].distance, LIMITS.distance_max);
}

/// A reader takes a block each tick and a block takes `latency` ticks to come: the distance must become what that
/// demands and not much more.
#[test]
fn the_distance_settles_at_what_the_latency_demands() {
    for latency in [1, 10, 100, 500] {
        let mut streams = Streams::new(LIMITS);
        let (mut now, mut at) = (0_u64, 0_u64);
        let mut due = std::collections::BTreeMap::new();
        let mut stalls_late_in_the_run = 0;
        while at < 20_000 {
            let ready: Option<u64> = due.get(&at).copied();
            let found = streams.access(at, 1, u64::MAX);
            for block in found.plan.into_iter().flat_map(Plan::blocks) {
                due.insert(block, now + latency);
            }
            let came = ready.unwrap_or(now + latency);
            if came > now {
                if found.planned {
                    streams.met(found.stream.unwrap(), Met::Late);
                }
                stalls_late_in_the_run += u64::from(at >= 10_000);
                now = came;
            }
            now += 1;
            at += 1;
        }
        let distance = streams.streams[0].distance;
        assert_eq!(stalls_late_in_the_run, 0, "latency {latency}, distance {distance}");
        assert!(distance <= (4 * latency).max(LIMITS.distance_easy), "latency {latency}: {distance} ahead");
    }
}

#[test]
fn a_stream_whose_blocks_are_evicted_unused_shrinks_and_then_rests() {
    let mut streams = Streams::new(LIMITS);
    let mut planned = 0;
    for at in 0..10_000 {
        let found = streams.access(at, 1, u64::MAX);
        if let Some(plan) = found.plan {
            planned += plan.count;
            streams.loaded(plan.stream, plan.count);
        }
        if found.planned && found.loaded {
            // All loaded blocks are gone when they are wanted.
            streams.met(found.stream.unwrap(), Met::Gone);
        }
    }
    assert!(planned < 2000, "{planned} blocks were loaded in vain");
}

#[test]
fn no_more_is_planned_than_there_is_room_for() {
    let mut streams = Streams::new(LIMITS);
    for at in 0..1000 {
        let plan = streams.access(at, 1, 3).plan;
        assert!(plan.is_none_or(|plan| plan.count <= 3));
        assert_eq!(streams.access(at, 1, 0).plan, None);
    }
}

/// No access, to an object of any size, causes a panic, a plan outside the object, or a plan without bounds.
#[test]
fn no_access_brings_it_out_of_bounds() {
    let mut noise = Noise(11);
    for round in 0..400 {
        let last = match round % 4 {
            0 => u64::MAX,
            1 => noise.below(20),
            2 => u64::MAX - noise.below(3),
            _ => noise.below(1 << 31),
        };
        let limits = Limits { last, distance_max: noise.below(200), ..LIMITS };
        let limits = Limits {
            distance_min: limits.distance_min.min(limits.distance_max),
            distance_easy: limits.distance_easy.min(limits.distance_max),
            ..limits
        };
        let mut streams = Streams::new(limits);
        let base = [0, last, last / 2, u64::MAX - 50][noise.below(4) as usize];
        for _ in 0..300 {
            let first = base.wrapping_add(noise.below(60)).wrapping_sub(noise.below(60));
            let count = [1, 1, 2, noise.below(9), u64::MAX][noise.below(5) as usize];
            let found = streams.access(first, count, noise.below(300));
            if let Some(plan) = found.plan {
                assert!(plan.count * plan.span <= limits.distance_max.max(plan.span), "{plan:?} of {limits:?}");
                assert!(plan.blocks().take(2000).all(|block| block <= last), "{plan:?} of {limits:?}");
                if plan.span < 100 {
                    streams.loaded(plan.stream, noise.below(plan.count + 1));
                }
                let _ = plan.beyond(last);
            }
            if let Some(stream) = found.stream {
                match noise.below(6) {
                    0 => streams.met(stream, Met::Gone),
                    1 => streams.met(stream, Met::Late),
                    _ => {}
                }
            }
            assert!(streams.streams.len() <= STREAMS_MAX && streams.starts.len() <= STARTS_MAX);
        }
    }
}
