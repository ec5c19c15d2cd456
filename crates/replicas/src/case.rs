//! One case: a number, from which all else follows.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context, Result, bail, ensure};
use cenote_admin::receive::ReceiveRequest;
use cenote_admin::{Reach, create_bookmarks, create_filesystem, destroy, destroy_snapshots, rollback};
use cenote_dmu::tx::TxTunables;
use cenote_dsl::{Dataset, Secret};
use cenote_send::sender::{Base, SendFlags, SendRequest};
use cenote_sim::{Machine, SINGLE, audit_space, check, new_pool, options};
use cenote_spa::{ImportOptions, NewBookmark, PropertyValue, View};
use cenote_taskq::sim::disk::SimDiskOptions;
use cenote_taskq::{Handle, Rng, Runtime};
use cenote_testkit::campaign::take_panics;

use crate::golden;
use crate::records::{Model, apply, difference};
use crate::source::{Kind, Source, compare};
use crate::streams::{Tally, boundaries, deliver, draw_flags, received, rest_of, stream, token};
use crate::trees;
use crate::world::{Expected, World, draw_properties, draw_target};

/// Bytes of a disk.
pub const DISK_BYTES: u64 = 256 << 20;
/// Polls that a case may take: many times what one takes.
const STEPS_MAX: u64 = 4_000_000;
/// Records at each of which a stream is broken off.
const SWEPT_MAX: usize = 40;
/// The pool that receives.
pub const REPLICA: &str = "replica";

/// The subject of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Course {
    /// One dataset, stream by stream: from snapshots and bookmarks, onto replicas that were changed.
    Chain,
    /// A tree with clones, in packages.
    Tree,
    /// A clone from its origin.
    Clone,
    /// A redacted snapshot, and clones from its bookmark.
    Redacted,
    /// One stream, broken off at each of its records.
    Sweep,
    /// Golden pools of OpenZFS, sent by Cenote.
    TheirPools,
    /// Golden streams of OpenZFS.
    TheirStreams,
}

impl Course {
    fn draw(rng: &mut Rng, has_golden: bool) -> Self {
        match rng.below(20) {
            18 if has_golden => Self::TheirPools,
            19 if has_golden => Self::TheirStreams,
            0..=2 => Self::Tree,
            3..=5 => Self::Clone,
            6..=8 => Self::Redacted,
            9 => Self::Sweep,
            _ => Self::Chain,
        }
    }
}

/// The outcome of a case.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Its subject.
    pub course: Course,
    /// The counts.
    pub tally: Tally,
}

/// Does a case. `zdb`: OpenZFS's judges what is left.
///
/// # Errors
/// The replica differs from its source, or an operation failed.
pub fn run(number: u64, golden: Option<&golden::Pools>, zdb: bool) -> Result<Done, String> {
    take_panics();
    let mut rng = Rng::new(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x7265_706c);
    let course = Course::draw(&mut rng, golden.is_some());
    let runtime = Runtime::simulated(number);
    if let Some(sim) = runtime.sim() {
        sim.set_steps_max(STEPS_MAX);
    }
    let disks = SimDiskOptions { size_bytes: DISK_BYTES, ..SimDiskOptions::default() };
    let machine = Machine::new(&runtime, 2, &disks);
    let handle = runtime.handle();
    let work = live(&handle, &runtime, &machine, course, golden, &mut rng);
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.try_block_on(work)));
    let panics = take_panics();
    let tally = match ended {
        _ if !panics.is_empty() => Err(format!("panic: {}", panics.join("; "))),
        Err(_) => Err("a panic without words".to_owned()),
        Ok(Err(deadlock)) => Err(deadlock.to_string()),
        Ok(Ok(result)) => result.map_err(|error| format!("{error:#}")),
    };
    let tally = tally.map_err(|what| format!("{course:?}: {what}"))?;
    if zdb {
        let images = machine.part(1..2).images();
        let judged = cenote_sim::zdb(REPLICA, &images, DISK_BYTES);
        judged.map_err(|error| format!("{course:?}: {error:#}"))?;
    }
    Ok(Done { course, tally })
}

async fn live(
    handle: &Handle,
    runtime: &Runtime,
    machine: &Machine,
    course: Course,
    golden: Option<&golden::Pools>,
    rng: &mut Rng,
) -> Result<Tally> {
    let (left, right) = (machine.part(0..1), machine.part(1..2));
    let ashift = |rng: &mut Rng| if rng.chance(1, 3) { 9 } else { 12 };
    let source = new_pool(handle, options("written", left.tops(handle, SINGLE).await?, ashift(rng))).await?;
    let replica = new_pool(handle, options(REPLICA, right.tops(handle, SINGLE).await?, ashift(rng))).await?;
    let replica = replica.start(TxTunables::default()).await;
    let (tally, expected) = (Tally::default(), BTreeMap::new());
    let mut world = World { handle: handle.clone(), source, replica, tally, expected, keys: Vec::new() };
    match (course, golden) {
        (Course::Tree, _) => trees::tree(&mut world, rng).await?,
        (Course::Clone, _) => clone(&mut world, rng).await?,
        (Course::Redacted, _) => trees::redacted(&mut world, rng).await?,
        (Course::Sweep, _) => sweep(&mut world, rng).await?,
        (Course::TheirPools, Some(golden)) => golden.pools(runtime, &mut world, rng).await?,
        (Course::TheirStreams, Some(golden)) => golden.streams(runtime, &mut world, rng).await?,
        (Course::Chain | Course::TheirPools | Course::TheirStreams, _) => {
            chain(&mut world, rng).await?;
        }
    }
    judge(world, &right, rng).await
}

/// Compares all that was received, and has the pool of it verified.
async fn judge(world: World, right: &Machine, rng: &mut Rng) -> Result<Tally> {
    let World { handle, source, replica, mut tally, expected, keys } = world;
    while replica.peek(|syncer| syncer.has_work()).await? {
        replica.sync().await?;
    }
    let view = replica.view(&ImportOptions::default()).await?;
    for (name, key) in &keys {
        view.dsl().load_key(name, Secret::new(key.clone())).await.with_context(|| format!("the key of {name}"))?;
    }
    for (name, expected) in &expected {
        let dataset = view.dsl().dataset(name).await.with_context(|| format!("{name} is not there"))?;
        verify(&view, &dataset, expected, rng).await.with_context(|| name.clone())?;
        tally.compared += 1;
    }
    let root = view.dsl().root_dir().await?;
    let mut found = 0;
    for dir in view.dsl().tree(root, true).await? {
        ensure!(!dir.name.contains('%'), "{} is left", dir.name);
        if dir.name.contains('$') {
            // The pool's own.
            continue;
        }
        if let Some(head) = view.dsl().head(&dir).await? {
            found += view.dsl().snapshots(&head).await?.len();
        }
    }
    ensure!(found == expected.len(), "{found} snapshots in place of {:?}", expected.keys());
    audit_space(&view).await?;
    view.close().await;
    replica.audit().await?;
    replica.export().await?;
    source.export().await?;
    let (_, report) = check(&handle, &right.paths).await?;
    ensure!(report.is_clean(), "verify: {report}");
    Ok(tally)
}

/// Compares a snapshot of a replica: with the history, with the records of a whole stream of its source, and with those of a stream of its
/// own.
async fn verify(view: &View, dataset: &Dataset, expected: &Expected, rng: &mut Rng) -> Result<()> {
    if let Some(state) = &expected.state {
        compare(view, dataset, state).await?;
    }
    if let Some(difference) = difference(view.dsl(), dataset, &expected.model).await? {
        bail!("it is not what its source sends: {difference}");
    }
    let request = SendRequest::full(dataset.clone(), draw_flags(rng));
    let again = stream(view, &request).await.context("sending it on")?;
    let mut model = Model::new();
    apply(&mut model, &again)?;
    if let Some(difference) = difference(view.dsl(), dataset, &model).await? {
        bail!("its own stream comes to something else: {difference}");
    }
    Ok(())
}

/// A stream that was received, and what can be its base later.
struct Sent {
    short: String,
    is_bookmarked: bool,
    is_there: bool,
}

/// A name for the dataset that is sent.
fn draw_name(rng: &mut Rng) -> &'static str {
    if rng.chance(1, 3) { "written/x/a" } else { "written/a" }
}

/// The base of a stream that goes on from `sent`.
async fn base(view: &View, to: &Dataset, source: &str, sent: &Sent, rng: &mut Rng) -> Result<Base> {
    let dsl = view.dsl();
    if sent.is_bookmarked && (!sent.is_there || rng.chance(1, 2)) {
        let head = dsl.dataset(source).await?;
        let bookmark = dsl.bookmark(&head, &sent.short).await?.context("a bookmark")?;
        return Ok(Base::bookmark(dsl, to, &head, &bookmark).await?);
    }
    let from = dsl.dataset(&format!("{source}@{}", sent.short)).await?;
    Ok(Base::snapshot(dsl, to, &from).await?)
}

/// A dataset and its replica through some snapshots. The dataset comes back with the replica's name and those that it has.
async fn chain(world: &mut World, rng: &mut Rng) -> Result<(Source, String, Vec<String>)> {
    let mut source = Source::create(&world.source, draw_name(rng), Kind::draw(rng), rng).await?;
    create_filesystem(&world.replica, "replica/in", Vec::new(), false).await?;
    let (mut asked, target) = draw_target(&source.name, rng);
    draw_properties(&mut asked, rng)?;
    let mut sent: Vec<Sent> = Vec::new();
    let mut is_large = rng.chance(1, 2);
    let rounds = 2 + rng.below(4);
    for round in 0..rounds {
        for _ in 0..1 + rng.below(2) {
            source.change(&world.source, rng).await?;
        }
        let short = format!("s{round}");
        let name = source.snapshot(&world.source, &short).await?;
        if round > 0 && round + 1 < rounds && rng.chance(1, 6) {
            // This one is not sent.
            continue;
        }
        let is_bookmarked = rng.chance(1, 2);
        if is_bookmarked {
            let bookmark = format!("{}#{short}", source.name);
            create_bookmarks(&world.source, vec![NewBookmark { name: bookmark, source: name.clone() }]).await?;
        }
        world.source.sync().await?;
        let view = world.view().await?;
        let to = view.dsl().dataset(&name).await?;
        let back = if rng.chance(1, 5) { rng.below(sent.len() as u64 + 1) as usize } else { 0 };
        let at = sent.len().checked_sub(1 + back).or(if sent.is_empty() { None } else { Some(0) });
        let mut request = SendRequest::full(to.clone(), draw_flags(rng));
        is_large |= rng.chance(1, 4);
        request.flags.large_blocks = is_large;
        if let Some(at) = at {
            request.base = Some(base(&view, &to, &source.name, &sent[at], rng).await?);
        }
        let is_spoiled = at.is_some() && rng.chance(1, 4);
        if is_spoiled {
            world.spoil(&target).await?;
        }
        let must_force = is_spoiled || at.is_some_and(|at| at + 1 < sent.len());
        let mut asked = asked.clone();
        asked.is_resumable = rng.chance(2, 3);
        let what = || format!("{name} from {:?}, {:?}", at.map(|at| &sent[at].short), request.flags);
        let refused = match must_force {
            true => received(&world.replica, &stream(&view, &request).await?, &asked).await.err(),
            false => None,
        };
        if must_force && refused.is_none() {
            // Snapshots after the base that changed nothing are no changes.
            ensure!(!is_spoiled, "{}: a dataset that was changed is overwritten without -F", what());
        } else {
            ensure!(refused.iter().all(|why| why.contains("has been modified")), "{}: {refused:?}", what());
            asked.is_forced = must_force || rng.chance(1, 4);
            let World { replica, tally, .. } = world;
            deliver(&view, &request, replica, &target, &asked, rng, tally).await.with_context(what)?;
            for gone in sent.drain(at.map_or(0, |at| at + 1)..) {
                world.expected.remove(&format!("{target}@{}", gone.short));
            }
        }
        world.expect(&view, &to, Some(source.at(&short).clone()), &format!("{target}@{short}")).await?;
        if let (Some((property, value)), false) = (asked.overrides.first(), asked.is_dry) {
            let dsl = world.replica.dsl()?;
            let found = dsl.property(&dsl.dir(&target).await?, property, true).await?;
            let found = found.and_then(|found| found.value.number());
            ensure!(*value == PropertyValue::Number(found.unwrap_or(0)), "{property} is {found:?}");
        }
        view.close().await;
        let is_there = !(is_bookmarked && rng.chance(1, 3));
        if !is_there {
            destroy_snapshots(&world.source, &[name], false, &|_| ()).await?;
        }
        sent.push(Sent { short, is_bookmarked, is_there });
    }
    let there = sent.into_iter().filter(|sent| sent.is_there).map(|sent| sent.short).collect();
    Ok((source, target, there))
}

/// A clone, from its origin to a clone of its replica.
async fn clone(world: &mut World, rng: &mut Rng) -> Result<()> {
    let (source, target, there) = chain(world, rng).await?;
    if there.is_empty() {
        return Ok(());
    }
    let origin = &there[rng.below(there.len() as u64) as usize];
    let mut clone = source.clone_of(&world.source, origin, "written/c", rng).await?;
    let replica_origin = format!("{target}@{origin}");
    let mut before = format!("{}@{origin}", source.name);
    for round in 0..1 + rng.below(3) {
        for _ in 0..rng.below(3) {
            clone.change(&world.source, rng).await?;
        }
        let short = format!("c{round}");
        let name = clone.snapshot(&world.source, &short).await?;
        let view = world.view().await?;
        let (to, from) = (view.dsl().dataset(&name).await?, view.dsl().dataset(&before).await?);
        let mut request = SendRequest::full(to.clone(), SendFlags { large_blocks: true, ..draw_flags(rng) });
        request.base = Some(Base::snapshot(view.dsl(), &to, &from).await?);
        let asked = ReceiveRequest {
            target: format!("replica/c@{short}"),
            origin: (round == 0 && rng.chance(1, 2)).then(|| replica_origin.clone()),
            is_resumable: rng.chance(2, 3),
            is_verbose: true,
            ..ReceiveRequest::default()
        };
        let World { replica, tally, .. } = world;
        let what = || format!("{name} from {before}, {:?}", request.flags);
        deliver(&view, &request, replica, "replica/c", &asked, rng, tally).await.with_context(what)?;
        world.expect(&view, &to, Some(clone.at(&short).clone()), &format!("replica/c@{short}")).await?;
        view.close().await;
        before = name;
    }
    let dsl = world.replica.dsl()?;
    let found = dsl.dataset_name(dsl.dir("replica/c").await?.phys.origin).await?;
    ensure!(found == replica_origin, "the clone's origin is {found} in place of {replica_origin}");
    Ok(())
}

/// One stream, whole or a difference, broken off at each of its records and gone on with.
async fn sweep(world: &mut World, rng: &mut Rng) -> Result<()> {
    let mut source = Source::create(&world.source, "written/a", Kind::draw(rng), rng).await?;
    let target = "replica/of";
    source.change(&world.source, rng).await?;
    let mut name = source.snapshot(&world.source, "s0").await?;
    let is_whole = rng.chance(1, 3);
    let mut asked = ReceiveRequest { target: target.to_owned(), is_verbose: true, ..ReceiveRequest::default() };
    let mut flags = draw_flags(rng);
    if !is_whole {
        let view = world.view().await?;
        let to = view.dsl().dataset(&name).await?;
        let request = SendRequest::full(to.clone(), flags);
        let World { replica, tally, .. } = world;
        deliver(&view, &request, replica, target, &asked, rng, tally).await?;
        world.expect(&view, &to, Some(source.at("s0").clone()), &format!("{target}@s0")).await?;
        view.close().await;
        source.change(&world.source, rng).await?;
        name = source.snapshot(&world.source, "s1").await?;
        flags = SendFlags { large_blocks: flags.large_blocks, ..draw_flags(rng) };
    }
    let short = name.rsplit('@').next().unwrap_or_default().to_owned();
    asked.is_resumable = true;
    let view = world.view().await?;
    let to = view.dsl().dataset(&name).await?;
    let mut request = SendRequest::full(to.clone(), flags);
    if !is_whole {
        let from = view.dsl().dataset("written/a@s0").await?;
        request.base = Some(Base::snapshot(view.dsl(), &to, &from).await?);
    }
    let whole = stream(&view, &request).await?;
    let places = boundaries(&whole)?;
    world.expect(&view, &to, Some(source.at(&short).clone()), &format!("{target}@{short}")).await?;
    let expected = world.expected[&format!("{target}@{short}")].clone();
    let step = places.len().div_ceil(SWEPT_MAX);
    for at in places.iter().step_by(step) {
        let what = || format!("broken off at byte {at} of {}, {flags:?}", whole.len());
        received(&world.replica, &whole[..*at], &asked).await.err().with_context(what)?;
        world.tally.broken += 1;
        let rest = match token(&world.replica, target).await? {
            Some(token) => {
                world.tally.resumed += 1;
                rest_of(&view, &request, &token).await?
            }
            None => whole.clone(),
        };
        received(&world.replica, &rest, &asked).await.map_err(anyhow::Error::msg).with_context(what)?;
        world.tally.streams += 1;
        let there = world.replica.view(&ImportOptions::default()).await?;
        let dataset = there.dsl().dataset(&format!("{target}@{short}")).await?;
        if let Some(state) = &expected.state {
            compare(&there, &dataset, state).await.with_context(what)?;
        }
        if let Some(difference) = difference(there.dsl(), &dataset, &expected.model).await? {
            bail!("{}: {difference}", what());
        }
        world.tally.compared += 1;
        there.close().await;
        if Some(at) == places.iter().step_by(step).next_back() {
            break;
        }
        match is_whole {
            true => destroy(&world.replica, target, Reach { recursive: true, clones: false }).await?,
            false => {
                rollback(&world.replica, &format!("{target}@s0"), true).await?;
            }
        }
    }
    view.close().await;
    Ok(())
}
