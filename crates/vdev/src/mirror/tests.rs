//! Each policy against small situations that are spelled out.

use std::time::Duration;

use cenote_taskq::{Handle, Runtime};

use super::load::ONE;
use super::*;

const MIB: u64 = 1 << 20;

fn ask(address_bytes: u64, size_bytes: u64, handle: &Handle) -> Ask {
    Ask { address_bytes, size_bytes, now: handle.now() }
}

fn candidates(loads: &[Load]) -> Candidates<'_> {
    let mut list = Candidates::new(false);
    for (position, load) in loads.iter().enumerate() {
        assert!(list.push(Candidate { position, load }));
    }
    list
}

fn runtime() -> Runtime {
    let runtime = Runtime::simulated(3);
    runtime.sim().unwrap().set_step_time_max(Duration::ZERO);
    runtime
}

fn rotating(count: usize) -> Vec<Load> {
    (0..count).map(|_| Load::new(true, 1 << 40)).collect()
}

fn solid(count: usize) -> Vec<Load> {
    (0..count).map(|_| Load::new(false, 1 << 40)).collect()
}

/// Has a child answer `count` reads of 4 KiB, each after `time`.
fn answer(runtime: &Runtime, load: &Load, count: u64, time: Duration) {
    let handle = runtime.handle();
    for index in 0..count {
        // Places that neither continue each other nor move the head far.
        let flight = load.send(&ask((1 << 30) + (index % 7) * 64 * MIB, 4096, &handle));
        runtime.block_on(handle.sleep(time));
        flight.answered(Outcome::Good, Some(&handle));
    }
}

#[test]
fn offset_goes_by_regions_and_keeps_the_first_of_a_replacing() {
    let (runtime, loads) = (runtime(), rotating(3));
    let list = candidates(&loads);
    let picks: Vec<_> =
        (0..6).map(|region| Offset.choose(&ask(region << 21, 4096, &runtime.handle()), &list)).collect();
    assert_eq!(picks, [0, 1, 2, 0, 1, 2]);
    let mut replacing = Candidates::new(true);
    assert!(loads.iter().enumerate().all(|(position, load)| replacing.push(Candidate { position, load })));
    assert_eq!(Offset.choose(&ask(5 << 21, 4096, &runtime.handle()), &replacing), 0);
}

#[test]
fn pending_takes_the_least_busy_and_changes_between_equals_after_its_time() {
    let (runtime, loads) = (runtime(), rotating(3));
    let handle = runtime.handle();
    let list = candidates(&loads);
    let policy = Pending::new(&Tunables::default());
    let mut busy = loads[1].send(&ask(0, 4096, &handle));
    busy.passed_on();
    let first = policy.choose(&ask(1, 4096, &handle), &list);
    assert_ne!(first, 1);
    for step in 0..9 {
        assert_eq!(policy.choose(&ask(step << 21, 4096, &handle), &list), first, "the same for 10 ms");
        runtime.block_on(handle.sleep(Duration::from_millis(1)));
    }
    runtime.block_on(handle.sleep(Duration::from_millis(2)));
    let second = policy.choose(&ask(1, 4096, &handle), &list);
    assert!(second != first && second != 1);
    busy.answered(Outcome::Good, Some(&handle));
}

#[test]
fn locality_prices_the_head_and_shares_equals_by_regions() {
    let (runtime, loads) = (runtime(), rotating(2));
    let handle = runtime.handle();
    let list = candidates(&loads);
    let policy = Locality::new(&Tunables::default());
    loads[0].send(&ask(1 << 30, MIB, &handle)).answered(Outcome::Good, Some(&handle));
    loads[1].send(&ask(1 << 35, MIB, &handle)).answered(Outcome::Good, Some(&handle));
    assert_eq!(policy.choose(&ask((1 << 30) + MIB, MIB, &handle), &list), 0, "it goes on there");
    assert_eq!(policy.choose(&ask((1 << 35) + MIB / 2, MIB, &handle), &list), 1, "it is near there");
    let given = |index: u64| {
        let mut flight = loads[0].send(&ask(index << 33, 4096, &handle));
        flight.passed_on();
        flight
    };
    let four: Vec<_> = (0..4).map(given).collect();
    loads[0].send(&ask(1 << 30, MIB, &handle)).answered(Outcome::Good, Some(&handle));
    assert_eq!(policy.choose(&ask((1 << 30) + MIB, MIB, &handle), &list), 0, "four waiting are less than a seek");
    let two: Vec<_> = (0..2).map(given).collect();
    loads[0].send(&ask(1 << 30, MIB, &handle)).answered(Outcome::Good, Some(&handle));
    assert_eq!(policy.choose(&ask((1 << 30) + MIB, MIB, &handle), &list), 1, "six are more");
    four.into_iter().chain(two).for_each(|flight| flight.answered(Outcome::Good, Some(&handle)));
    let far = |region: u64| policy.choose(&ask((1 << 38) + (region << 21), 4096, &handle), &list);
    assert_eq!([far(0), far(1), far(2)], [0, 1, 0]);
}

#[test]
fn adaptive_prefers_the_child_that_answers_sooner() {
    let (runtime, loads) = (runtime(), solid(3));
    let handle = runtime.handle();
    answer(&runtime, &loads[0], 20, Duration::from_micros(100));
    answer(&runtime, &loads[1], 20, Duration::from_millis(1));
    answer(&runtime, &loads[2], 20, Duration::from_micros(110));
    let list = candidates(&loads);
    let policy = Adaptive::new(&Tunables::default());
    let mut flights = Vec::new();
    for index in 0..8_u64 {
        let ask = ask((1 << 36) + index * 1024 * MIB, 4096, &handle);
        let chosen = policy.choose(&ask, &list);
        assert_ne!(chosen, 1, "ten times slower");
        flights.push(loads[chosen].send(&ask));
    }
    assert_eq!([loads[0].pending(), loads[2].pending()], [4, 4], "a tenth of a difference is chance");
    flights.into_iter().for_each(|flight| flight.answered(Outcome::Good, Some(&handle)));
}

#[test]
fn adaptive_leaves_a_sequential_run_on_its_child_until_that_is_far_behind() {
    let (runtime, loads) = (runtime(), rotating(2));
    let handle = runtime.handle();
    let list = candidates(&loads);
    let policy = Adaptive::new(&Tunables::default());
    let mut flights = Vec::new();
    let first = policy.choose(&ask(1 << 32, 128 << 10, &handle), &list);
    for index in 0..32_u64 {
        let ask = ask((1 << 32) + index * (128 << 10), 128 << 10, &handle);
        assert_eq!(policy.choose(&ask, &list), first, "record {index} of 4 MiB");
        flights.push(loads[first].send(&ask));
    }
    // Eight other reads' seeks are more than the run is worth there.
    for index in 0..8_u64 {
        flights.push(loads[first].send(&ask((1 << 38) + (index << 34), 4096, &handle)));
    }
    assert_ne!(policy.choose(&ask((1 << 32) + 4 * MIB, 128 << 10, &handle), &list), first);
    flights.into_iter().for_each(|flight| flight.answered(Outcome::Good, Some(&handle)));
}

#[test]
fn adaptive_turns_away_from_a_child_that_falls_silent_and_tries_it_again() {
    let (runtime, loads) = (runtime(), solid(2));
    let handle = runtime.handle();
    let list = candidates(&loads);
    let tunables = Tunables::default();
    let policy = Adaptive::new(&tunables);
    answer(&runtime, &loads[0], 50, Duration::from_micros(90));
    answer(&runtime, &loads[1], 50, Duration::from_micros(100));
    let hung = loads[0].send(&ask(1 << 33, 4096, &handle));
    runtime.block_on(handle.sleep(Duration::from_millis(20)));
    for _ in 0..5 {
        assert_eq!(policy.choose(&ask(1 << 34, 4096, &handle), &list), 1);
    }
    // Nobody waits for it any more: it still counts as busy.
    let hung = hung.give_up().unwrap();
    assert_eq!((loads[0].pending(), loads[0].overdue()), (1, 1));
    let forget = Duration::from_millis(tunables.zfs_vdev_mirror_forget_ms);
    runtime.block_on(handle.sleep(forget * 3));
    answer(&runtime, &loads[1], 1, Duration::from_micros(100));
    assert_eq!(policy.choose(&ask(1 << 34, 4096, &handle), &list), 0, "one read sees how it is doing");
    assert_eq!(policy.choose(&ask(1 << 34, 4096, &handle), &list), 1, "and only one");
    // Its answer, however late, settles what is owed.
    loads[0].count_late_answer(&hung, Outcome::Good, handle.now());
    assert_eq!((loads[0].pending(), loads[0].overdue()), (0, 0));
}

#[test]
fn second_reads_are_bounded_by_what_was_earned() {
    let load = Load::new(false, 1);
    let mut paid = 0;
    while load.pay() {
        paid += 1;
    }
    assert_eq!(paid, 4, "what there is at the start");
    for _ in 0..1000 {
        load.earn(3);
        paid += u64::from(load.pay());
    }
    assert_eq!(paid, 4 + 30, "3 of a hundred");
    (0..100_000).for_each(|_| load.earn(3));
    let mut saved = 0;
    while load.pay() {
        saved += 1;
    }
    assert!(saved <= 16, "{saved} were saved up");
}

#[test]
fn a_second_read_waits_until_an_answer_is_later_than_usual() {
    let (runtime, loads) = (runtime(), solid(2));
    let handle = runtime.handle();
    answer(&runtime, &loads[0], 200, Duration::from_millis(2));
    let others = candidates(&loads[1..]);
    let policy = Adaptive::new(&Tunables::default());
    let late = policy.second_after_ns(&ask(0, 4096, &handle), &loads[0], &others).unwrap();
    assert!((2_000_000..3_000_000).contains(&late), "{late}");
    // The least of those who know, and never less than the tunable.
    answer(&runtime, &loads[1], 200, Duration::from_micros(1000));
    let late = policy.second_after_ns(&ask(0, 4096, &handle), &loads[0], &others).unwrap();
    assert!((1_000_000..1_500_000).contains(&late), "{late}");
    let late = policy.second_after_ns(&ask(0, 4096, &handle), &loads[1], &candidates(&loads[..1])).unwrap();
    assert!((1_000_000..1_500_000).contains(&late), "{late}");
    // A child that is far slower is only being tried: the other one is asked at once.
    answer(&runtime, &loads[1], 1000, Duration::from_micros(50));
    assert_eq!(policy.second_after_ns(&ask(0, 4096, &handle), &loads[0], &others), Some(0));
    let late = policy.second_after_ns(&ask(0, 4096, &handle), &loads[1], &candidates(&loads[..1])).unwrap();
    assert_eq!(late, 500_000, "never less than the tunable");
    let never = Tunables { zfs_vdev_mirror_hedge_percent: 0, ..Tunables::default() };
    assert_eq!(Adaptive::new(&never).second_after_ns(&ask(0, 4096, &handle), &loads[0], &others), None);
}

#[test]
fn every_policy_chooses_among_the_candidates_whatever_they_are() {
    let runtime = runtime();
    let handle = runtime.handle();
    for word in Policy::WORDS.iter().copied() {
        let mut tunables = Tunables::default();
        tunables.set("zfs_vdev_mirror_policy", word).unwrap();
        let policy = policy(&tunables);
        assert_eq!(policy.name(), word);
        for count in 1..=Candidates::MAX {
            let loads: Vec<Load> = (0..count).map(|index| Load::new(index % 2 == 0, 1 << 30)).collect();
            let mut list = candidates(&loads);
            for address in [0, 1, u64::MAX - 4096, u64::MAX / 3] {
                let index = policy.choose(&ask(address, 4096, &handle), &list);
                assert!(list.at(index).is_some(), "{word}: {index} of {count}");
                drop(loads[index].send(&ask(address, 4096, &handle)));
            }
            if count == Candidates::MAX {
                assert!(!list.push(Candidate { position: 99, load: &loads[0] }), "no more than there is room for");
            }
        }
    }
}

/// The soonest answer is an error that comes at once: whoever goes by time alone sends everything there.
#[test]
fn adaptive_does_not_send_everything_to_a_child_that_fails_at_once() {
    let (runtime, loads) = (runtime(), solid(2));
    let handle = runtime.handle();
    let list = candidates(&loads);
    let policy = Adaptive::new(&Tunables::default());
    answer(&runtime, &loads[0], 50, Duration::from_micros(100));
    answer(&runtime, &loads[1], 50, Duration::from_micros(100));
    let mut failed = 0;
    for index in 0..200_u64 {
        let ask = ask((1 << 34) + index * 1024 * MIB, 4096, &handle);
        let chosen = policy.choose(&ask, &list);
        let flight = loads[chosen].send(&ask);
        if chosen == 0 {
            failed += 1;
            flight.answered(Outcome::Failed, Some(&handle));
        } else {
            runtime.block_on(handle.sleep(Duration::from_micros(100)));
            flight.answered(Outcome::Good, Some(&handle));
        }
    }
    assert!((1..=5).contains(&failed), "{failed} reads of 200 failed");
    // It is forgiven once it brings data again.
    for _ in 0..12 {
        loads[0].send(&ask(0, 4096, &handle)).answered(Outcome::Good, Some(&handle));
    }
    assert!(loads[0].failing() < ONE / 1000, "{}", loads[0].failing());
}

#[test]
fn adaptive_turns_away_from_a_child_that_never_answered() {
    let (runtime, loads) = (runtime(), solid(2));
    let handle = runtime.handle();
    let list = candidates(&loads);
    let policy = Adaptive::new(&Tunables::default());
    runtime.block_on(handle.sleep(Duration::from_secs(1)));
    let hung = loads[0].send(&ask(0, 4096, &handle));
    runtime.block_on(handle.sleep(Duration::from_millis(300)));
    for region in 0..8 {
        assert_eq!(policy.choose(&ask(region << 21, 4096, &handle), &list), 1);
    }
    // Its silence is told once, when it has lasted, and again when there is another.
    let limit = Duration::from_secs(3);
    assert!(!loads[0].take_hang(handle.now(), limit));
    runtime.block_on(handle.sleep(limit));
    assert!(loads[0].take_hang(handle.now(), limit) && !loads[0].take_hang(handle.now(), limit));
    hung.answered(Outcome::Good, Some(&handle));
    runtime.block_on(handle.sleep(limit));
    assert!(!loads[0].take_hang(handle.now(), limit), "it owes nothing");
    let again = loads[0].send(&ask(0, 4096, &handle));
    runtime.block_on(handle.sleep(limit));
    assert!(loads[0].take_hang(handle.now(), limit));
    again.answered(Outcome::Good, Some(&handle));
}

/// A random read that happens to lie near a run's end takes as long as any other, and must not make its child look slow.
#[test]
fn a_random_read_near_a_run_does_not_make_its_child_look_slow() {
    let (runtime, loads) = (runtime(), rotating(1));
    let handle = runtime.handle();
    for index in 0..100_u64 {
        let near = (1 << 30) + (index * 7 % 5) * (MIB / 2);
        let flight = loads[0].send(&ask(near, 4096, &handle));
        runtime.block_on(handle.sleep(Duration::from_millis(7)));
        flight.answered(Outcome::Good, Some(&handle));
    }
    assert!((ONE / 2..2 * ONE).contains(&loads[0].ratio(4096)), "{} of {ONE}", loads[0].ratio(4096));
}

#[test]
fn a_second_read_is_not_for_children_with_much_to_do() {
    let (runtime, loads) = (runtime(), rotating(2));
    let handle = runtime.handle();
    answer(&runtime, &loads[0], 50, Duration::from_millis(8));
    answer(&runtime, &loads[1], 50, Duration::from_millis(8));
    let policy = Adaptive::new(&Tunables::default());
    let others = candidates(&loads[1..]);
    let ask = ask(1 << 36, 4096, &handle);
    assert!(policy.second_after_ns(&ask, &loads[0], &others).is_some());
    let queue: Vec<_> = (0..12_u64).map(|index| loads[1].send(&Ask { address_bytes: index << 34, ..ask })).collect();
    assert_eq!(policy.second_after_ns(&ask, &loads[0], &others), None);
    drop(queue);
    assert!(policy.second_after_ns(&ask, &loads[0], &others).is_some());
}
