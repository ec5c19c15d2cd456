//! Verbs at random, beside a plain model: what is refused leaves all as it was, what is made is there with all of it.

use std::collections::BTreeMap;

use cenote_admin::{
    AUTO, AdminError, Reach, Reason, Setting, VolumeShape, create_filesystem, create_volume, destroy, inherit_property,
    set_properties,
};
use cenote_dsl::property::Source;
use cenote_format::enums::ObjsetType;
use cenote_sim::{Machine, SINGLE, check, options};
use cenote_spa::{Pool, PropertyValue};
use cenote_taskq::sim::disk::SimDiskOptions;
use cenote_taskq::{Handle, Rng, Runtime};

const DISK_BYTES: u64 = 128 << 20;
const PROPERTIES: [&str; 6] = ["copies", "compression", "quota", "refreservation", "volsize", "atime"];
const NAMES: [&str; 8] = ["p/a", "p/b", "p/a/a", "p/a/b", "p/b/a", "p/a/a/a", "p/v", "p/a/v"];

/// Datasets: whether it is a volume, and its own properties.
type Model = BTreeMap<String, (bool, BTreeMap<String, u64>)>;

async fn new_pool(runtime: &Runtime, handle: &Handle) -> Pool {
    let machine = Machine::new(runtime, 1, &SimDiskOptions { size_bytes: DISK_BYTES, ..SimDiskOptions::default() });
    let tops = machine.tops(handle, SINGLE).await.unwrap();
    cenote_sim::new_pool(handle, options("p", tops, 12)).await.unwrap()
}

/// The datasets that the pool has now, as a model.
async fn seen(pool: &Pool) -> Model {
    let dsl = pool.dsl().unwrap();
    let mut model = Model::new();
    for dir in dsl.tree(dsl.root_dir().await.unwrap(), false).await.unwrap() {
        let dataset = dsl.dataset(&dir.name).await.unwrap();
        let is_volume = dsl.kind(&dataset).await.unwrap() == ObjsetType::Zvol;
        let mut own = BTreeMap::new();
        for property in PROPERTIES {
            let found = dsl.property(&dir, property, false).await.unwrap();
            if let Some(found) = found.filter(|found| found.source == Source::Local)
                && let Some(number) = found.value.number()
            {
                own.insert(property.to_owned(), number);
            }
        }
        model.insert(dir.name.clone(), (is_volume, own));
    }
    model
}

fn setting(rng: &mut Rng) -> Setting {
    let property = PROPERTIES[rng.below(PROPERTIES.len() as u64) as usize];
    let value = match property {
        // One in eight has a value that it cannot have, or for which there is no room.
        "copies" => 1 + rng.below(4),
        "compression" => [2, 3, 15, 99][rng.below(4) as usize],
        "quota" => [0, 1, 64 << 20][rng.below(3) as usize],
        "refreservation" => [0, 1 << 20, 1 << 40, AUTO][rng.below(4) as usize],
        "volsize" => [1 << 20, 2 << 20, 1000][rng.below(3) as usize],
        _ => rng.below(2),
    };
    (property.to_owned(), PropertyValue::Number(value))
}

fn settings(rng: &mut Rng, max: u64) -> Vec<Setting> {
    let mut all: Vec<Setting> = Vec::new();
    for _ in 0..rng.below(max + 1) {
        let new = setting(rng);
        if all.iter().all(|(property, _)| *property != new.0) {
            all.push(new);
        }
    }
    all
}

async fn step(pool: &Pool, model: &mut Model, rng: &mut Rng) -> Result<(), AdminError> {
    let name = NAMES[rng.below(NAMES.len() as u64) as usize];
    let flag = rng.chance(1, 2);
    let is_there = model.contains_key(name);
    let above = name.rsplit_once('/').unwrap().0;
    let has_above = model.get(above).is_some_and(|(is_volume, _)| !is_volume);
    match rng.below(6) {
        0 | 1 => {
            let settings: Vec<Setting> =
                settings(rng, 3).into_iter().filter(|(property, _)| property != "volsize").collect();
            let made = if name.ends_with('v') {
                let shape = VolumeShape { size_bytes: 1 + rng.below(4 << 20), block_bytes: None, sparse: flag };
                create_volume(pool, name, shape, settings.clone(), flag).await
            } else {
                create_filesystem(pool, name, settings.clone(), flag).await
            };
            let made = made?;
            assert!(flag || (has_above && !is_there), "'{name}' is made without what is above it, or twice");
            assert_eq!(made, !is_there);
            let now = seen(pool).await;
            for (at, _) in name.match_indices('/') {
                let missing = name[..at].to_owned();
                model.entry(missing).or_insert_with(|| (false, BTreeMap::new()));
            }
            if made {
                let own = now[name].1.clone();
                for (property, value) in settings {
                    match value {
                        PropertyValue::Number(AUTO) => {}
                        PropertyValue::Number(number) if own.get(&property) != Some(&number) => {
                            assert_eq!((number, own.get(&property)), (0, None), "{property} of '{name}'");
                        }
                        _ => {}
                    }
                }
                model.insert(name.to_owned(), (name.ends_with('v'), own));
            }
        }
        2 => {
            destroy(pool, name, Reach { recursive: flag, clones: false }).await?;
            assert!(is_there, "what is not there is destroyed");
            let below = format!("{name}/");
            let has_below = model.keys().any(|other| other.starts_with(&below));
            assert!(flag || !has_below, "'{name}' goes with what is below it, unasked");
            model.retain(|other, _| other != name && !other.starts_with(&below));
        }
        3 | 4 => {
            let count = 1 + rng.below(3) as usize;
            let names: Vec<String> = (0..count).map(|_| NAMES[rng.below(8) as usize].to_owned()).collect();
            let settings = settings(rng, 2);
            set_properties(pool, &names, &settings).await?;
            let now = seen(pool).await;
            for name in &names {
                // The pool decides what reservation belongs to a size.
                let (_, own) = model.get_mut(name).expect("what is not there has no properties");
                for (property, value) in &settings {
                    let PropertyValue::Number(number) = value else { continue };
                    match now[name].1.get(property) {
                        Some(kept) if *number == AUTO => drop(own.insert(property.clone(), *kept)),
                        Some(kept) => {
                            assert_eq!(kept, number, "{property} of '{name}'");
                            own.insert(property.clone(), *kept);
                        }
                        None => drop(own.remove(property)),
                    }
                    if property == "volsize" {
                        own.extend(
                            now[name].1.get("refreservation").map(|bytes| ("refreservation".to_owned(), *bytes)),
                        );
                    }
                }
            }
        }
        _ => {
            let property = ["copies", "compression", "atime"][rng.below(3) as usize];
            inherit_property(pool, &[name.to_owned()], property, flag, false).await?;
            let below = format!("{name}/");
            for (other, (is_volume, own)) in model.iter_mut() {
                // Volumes below have no such property, and what they have all the same is left alone.
                let applies = !*is_volume || property != "atime";
                if applies && (other == name || (flag && other.starts_with(&below))) {
                    own.remove(property);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn verbs_at_random_do_all_or_nothing() {
    let (mut refused, mut made) = (0, 0);
    for seed in 0..12 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let (no, yes) = runtime.block_on(async {
            let pool = new_pool(&runtime, &handle).await;
            let mut rng = Rng::new(seed);
            let mut model = seen(&pool).await;
            let (mut refused, mut made) = (0, 0);
            for number in 0..80 {
                let before = model.clone();
                match step(&pool, &mut model, &mut rng).await {
                    Ok(()) => made += 1,
                    Err(error) => {
                        refused += 1;
                        assert_eq!(model, before, "step {number} of seed {seed}: {error}");
                    }
                }
                if let Some(failed) = pool.failure() {
                    panic!("step {number} of seed {seed} failed half-way: {}", failed.why);
                }
                assert_eq!(seen(&pool).await, model, "step {number} of seed {seed}");
                if rng.chance(1, 4) {
                    pool.sync().await.unwrap();
                }
            }
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &[Machine::name(0).into()]).await.unwrap();
            assert!(report.is_clean(), "seed {seed}: {report}");
            (refused, made)
        });
        refused += no;
        made += yes;
    }
    assert!(refused > 100 && made > 100, "{refused} refused, {made} made");
}

#[test]
fn of_several_datasets_none_is_changed_where_one_is_refused() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = new_pool(&runtime, &handle).await;
        create_filesystem(&pool, "p/a", Vec::new(), false).await.unwrap();
        let before = seen(&pool).await;
        let quota = [("quota".to_owned(), PropertyValue::Number(64 << 20))];
        set_properties(&pool, &["p/a".into(), "p/none".into()], &quota).await.unwrap_err();
        assert_eq!(seen(&pool).await, before);
        let size = [("volsize".to_owned(), PropertyValue::Number(1 << 20))];
        let refused = set_properties(&pool, &["p/a".into()], &size).await.unwrap_err();
        assert!(
            matches!(&refused, AdminError::Refused { reason, .. } if matches!(**reason, Reason::DoesNotApply(_))),
            "{refused}"
        );
        assert!(pool.failure().is_none());
    });
}

#[test]
fn a_new_dataset_whose_quota_is_below_its_reservation_is_refused_in_any_order() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = new_pool(&runtime, &handle).await;
        let before = seen(&pool).await;
        let quota = ("quota".to_owned(), PropertyValue::Number(1024));
        let reserved = ("refreservation".to_owned(), PropertyValue::Number(1 << 20));
        for settings in [[quota.clone(), reserved.clone()], [reserved, quota]] {
            let refused = create_filesystem(&pool, "p/a", settings.to_vec(), false).await.unwrap_err();
            assert!(refused.to_string().contains("out of space"), "{refused}");
            assert_eq!(seen(&pool).await, before);
            assert!(pool.failure().is_none(), "a refusal leaves the pool in use");
        }
    });
}
