//! Cases about several datasets: trees in packages, and redacted snapshots with clones.

use anyhow::{Context, Result, bail, ensure};
use cenote_admin::receive::ReceiveRequest;
use cenote_admin::{Reach, RedactRequest, create_filesystem, destroy, destroy_snapshots, redact, take_snapshots};
use cenote_format::ids::Guid;
use cenote_send::package::PackageRequest;
use cenote_send::sender::{Base, ResumeToken, SendFlags, SendRequest};
use cenote_spa::View;
use cenote_taskq::Rng;

use crate::records::{Model, apply};
use crate::source::{Kind, Source};
use crate::streams::{deliver, deliver_bytes, draw_flags, package, received, rest_of, stream, token};
use crate::world::{Expected, World, draw_properties, draw_target};

/// The dataset at the top of a tree.
const TOP: &str = "written/a";

/// A tree that grows, sent in packages: each from the last, or from one before.
pub(crate) async fn tree(world: &mut World, rng: &mut Rng) -> Result<()> {
    let mut datasets = vec![Source::create(&world.source, TOP, draw_top(rng), rng).await?];
    let replicate = !rng.chance(1, 4);
    create_filesystem(&world.replica, "replica/in", Vec::new(), false).await?;
    let (mut asked, target) = draw_target(TOP, rng);
    draw_properties(&mut asked, rng)?;
    let is_large = rng.chance(1, 2);
    let mut last: Option<String> = None;
    let rounds = 2 + rng.below(4);
    for round in 0..rounds {
        if replicate && datasets.len() < 4 && rng.chance(1, 2) {
            grow(world, &mut datasets, last.as_deref(), rng).await?;
        }
        for dataset in &mut datasets {
            dataset.change(&world.source, rng).await?;
        }
        let short = format!("s{round}");
        let names: Vec<String> = datasets.iter().map(|dataset| format!("{}@{short}", dataset.name)).collect();
        take_snapshots(&world.source, &names, &[]).await?;
        datasets.iter_mut().for_each(|dataset| dataset.note(&short));
        if round > 0 && round + 1 < rounds && rng.chance(1, 4) {
            // It is sent with the next, or never.
            continue;
        }
        let request = PackageRequest {
            dataset: TOP.to_owned(),
            to: short.clone(),
            from: last.clone(),
            replicate,
            do_all: last.is_none() && replicate || rng.chance(1, 2),
            props: !replicate && rng.chance(1, 2),
            ..PackageRequest::default()
        };
        let mut asked = asked.clone();
        if last.is_some() && rng.chance(1, 4) {
            world.spoil(&target).await?;
            asked.is_forced = true;
        }
        asked.is_forced |= rng.chance(1, 3);
        asked.is_resumable = rng.chance(1, 2);
        let view = world.view().await?;
        let flags = SendFlags { large_blocks: is_large, ..draw_flags(rng) };
        let what = format!("{TOP}@{short} from {last:?}, replicate {replicate}, all {}, {flags:?}", request.do_all);
        let bytes = package(&view, &request, flags).await.with_context(|| what.clone())?;
        let places: Vec<String> =
            datasets.iter().map(|dataset| format!("{target}{}", dataset.name.trim_start_matches(TOP))).collect();
        world.tally.streams += 1;
        for _ in 0..rng.below(3) {
            broken(world, &view, &bytes, &places, &asked, rng).await.with_context(|| what.clone())?;
        }
        received(&world.replica, &bytes, &asked).await.map_err(anyhow::Error::msg).with_context(|| what.clone())?;
        for (dataset, place) in datasets.iter().zip(&places) {
            // A dataset that came after the last package is sent from its own beginning.
            let is_last = |(name, _): &(String, _)| last.as_ref() == Some(name);
            let after = dataset.snapshots.iter().position(is_last).map_or(0, |last| last + 1);
            for (name, state) in &dataset.snapshots[after..] {
                let at = format!("{place}@{name}");
                let is_new = request.do_all || *name == short;
                if world.expected.contains_key(&at) || !is_new || !is_there(&view, &dataset.name, name).await {
                    continue;
                }
                let sent = view.dsl().dataset(&format!("{}@{name}", dataset.name)).await?;
                world.expect(&view, &sent, Some(state.clone()), &at).await?;
            }
        }
        if replicate && last.is_some() && asked.is_forced {
            // Snapshots that the source has destroyed are destroyed in the replica.
            for (dataset, place) in datasets.iter().zip(&places) {
                for (name, _) in &dataset.snapshots {
                    if !is_there(&view, &dataset.name, name).await {
                        world.expected.remove(&format!("{place}@{name}"));
                    }
                }
            }
        }
        view.close().await;
        if let Some(old) = &last
            && rng.chance(1, 3)
            && !datasets.iter().any(|dataset| dataset.name.contains("clone"))
        {
            destroy_snapshots(&world.source, &[format!("{TOP}@{old}")], false, &|_| ()).await?;
        }
        last = Some(short);
    }
    Ok(())
}

/// Only file systems have datasets below them.
fn draw_top(rng: &mut Rng) -> Kind {
    if rng.chance(1, 2) { Kind::Files } else { Kind::Objects }
}

async fn is_there(view: &View, dataset: &str, snapshot: &str) -> bool {
    view.dsl().dataset(&format!("{dataset}@{snapshot}")).await.is_ok()
}

/// One more dataset below the top: a new one, or a clone.
async fn grow(world: &World, datasets: &mut Vec<Source>, last: Option<&str>, rng: &mut Rng) -> Result<()> {
    let number = datasets.len();
    let made = match last {
        Some(last) if rng.chance(1, 2) => {
            let name = format!("{TOP}/clone{number}");
            let origin = &datasets[rng.below(datasets.len() as u64) as usize];
            if !origin.snapshots.iter().any(|(name, _)| name == last) {
                return Ok(());
            }
            origin.clone_of(&world.source, last, &name, rng).await?
        }
        _ => {
            let deep = if rng.chance(1, 3) { "/deep" } else { "" };
            let name = format!("{TOP}/new{number}{deep}");
            if !deep.is_empty() {
                // The one between would be a dataset that nobody snapshots.
                let between = format!("{TOP}/new{number}");
                datasets.push(Source::create(&world.source, &between, draw_top(rng), rng).await?);
            }
            Source::create(&world.source, &name, Kind::draw(rng), rng).await?
        }
    };
    datasets.push(made);
    Ok(())
}

/// Breaks a package off. A stream of it that is kept in part is resumed.
async fn broken(
    world: &mut World,
    view: &View,
    bytes: &[u8],
    places: &[String],
    asked: &ReceiveRequest,
    rng: &mut Rng,
) -> Result<()> {
    // The last END says nothing that would be missed.
    let at = rng.below(bytes.len() as u64 - 400) as usize;
    if received(&world.replica, &bytes[..at], asked).await.is_ok() {
        bail!("{at} of {} bytes are received as if they were all", bytes.len());
    }
    world.tally.broken += 1;
    for place in places {
        let Some(token) = token(&world.replica, place).await? else { continue };
        ensure!(asked.is_resumable, "without -s a part of {place} is kept");
        let parsed = ResumeToken::parse(&token)?;
        let to = by_guid(view, parsed.to_guid).await?;
        let mut request = SendRequest::full(to.clone(), parsed.flags);
        if let Some(from) = parsed.from_guid {
            request.base = Some(Base::snapshot(view.dsl(), &to, &by_guid(view, from).await?).await?);
        }
        let rest = rest_of(view, &request, &token).await?;
        let short = to.snapshot.as_deref().unwrap_or_default();
        let asked = ReceiveRequest { target: format!("{place}@{short}"), ..asked.clone() };
        let asked = ReceiveRequest { naming: Default::default(), ..asked };
        received(&world.replica, &rest, &asked).await.map_err(anyhow::Error::msg).context("the rest of one stream")?;
        world.tally.resumed += 1;
    }
    // Snapshots that came are passed over when the package comes again; whole datasets are refused, as in OpenZFS.
    for place in places {
        let is_new = !world.expected.keys().any(|name| name.split('@').next() == Some(place));
        if is_new && world.replica.dsl()?.dataset(place).await.is_ok() {
            destroy(&world.replica, place, Reach { recursive: true, clones: true }).await?;
        }
    }
    Ok(())
}

/// The snapshot with a guid.
pub(crate) async fn by_guid(view: &View, guid: Guid) -> Result<cenote_dsl::Dataset> {
    let dsl = view.dsl();
    for dir in dsl.tree(dsl.root_dir().await?, false).await? {
        let Some(head) = dsl.head(&dir).await? else { continue };
        if let Some(found) = dsl.snapshots(&head).await?.into_iter().find(|snapshot| snapshot.phys.guid == guid) {
            return Ok(found);
        }
    }
    bail!("no snapshot has the guid {}", guid.0)
}

/// A snapshot without what its clones have changed; then the clones, and the dataset itself, from the bookmark, with all that was left out.
pub(crate) async fn redacted(world: &mut World, rng: &mut Rng) -> Result<()> {
    let mut source = Source::create(&world.source, TOP, Kind::draw(rng), rng).await?;
    for _ in 0..1 + rng.below(3) {
        source.change(&world.source, rng).await?;
    }
    let name = source.snapshot(&world.source, "s").await?;
    let mut clones = Vec::new();
    let seed = rng.next_u64();
    for number in 0..[1, 1, 2, 3][rng.below(4) as usize] {
        let mut clone = source.clone_of(&world.source, "s", &format!("written/c{number}"), rng).await?;
        // All change some of the same: only what none has any more is redacted.
        let mut same = Rng::new(seed);
        for _ in 0..2 {
            clone.change(&world.source, &mut same).await?;
        }
        for _ in 0..rng.below(2) {
            clone.change(&world.source, rng).await?;
        }
        clone.snapshot(&world.source, "x").await?;
        clones.push(clone);
    }
    let by: Vec<String> = clones.iter().map(|clone| format!("{}@x", clone.name)).collect();
    redact(&world.source, &RedactRequest { snapshot: name.clone(), bookmark: "book".to_owned(), by }).await?;
    world.source.sync().await?;
    if rng.chance(1, 2) {
        source.change(&world.source, rng).await?;
    }
    let later = source.snapshot(&world.source, "t").await?;

    let view = world.view().await?;
    let dsl = view.dsl();
    let head = dsl.dataset(TOP).await?;
    let book = dsl.bookmark(&head, "book").await?.context("the bookmark")?;
    let to = dsl.dataset(&name).await?;
    // A receiver has large blocks or not, whatever comes later.
    let flags = |rng: &mut Rng| SendFlags { large_blocks: true, ..draw_flags(rng) };
    let mut request = SendRequest::full(to.clone(), flags(rng));
    request.redact = Some(book.phys.redaction_list);
    let whole = stream(&view, &request).await?;
    let mut model = Model::new();
    apply(&mut model, &whole)?;
    let complete = crate::world::model_of(&view, &to).await?;
    ensure!(model.keys().eq(complete.keys()), "a redacted stream leaves objects out, or has others");
    for (id, object) in &model {
        if let Some(what) = object.foreign(&complete[id]) {
            bail!("the redacted stream has {what}, of object {id}");
        }
    }
    let mut asked = ReceiveRequest { is_verbose: true, is_resumable: rng.chance(2, 3), ..ReceiveRequest::default() };
    asked.target = "replica/of@s".to_owned();
    let World { replica, tally, .. } = world;
    let delivered = deliver_bytes(&whole, (&view, &request), replica, "replica/of", &asked, rng, tally).await;
    delivered.context("the redacted stream")?;
    world.expected.insert("replica/of@s".to_owned(), Expected { state: None, model });

    for (number, clone) in clones.iter().enumerate() {
        let to = dsl.dataset(&format!("{}@x", clone.name)).await?;
        let mut request = SendRequest::full(to.clone(), flags(rng));
        request.base = Some(Base::bookmark(dsl, &to, &head, &book).await?);
        asked.target = format!("replica/c{number}@x");
        asked.is_resumable = rng.chance(2, 3);
        asked.origin = rng.chance(1, 2).then(|| "replica/of@s".to_owned());
        let World { replica, tally, .. } = world;
        let place = format!("replica/c{number}");
        let delivered = deliver(&view, &request, replica, &place, &asked, rng, tally).await;
        delivered.with_context(|| format!("clone {number} from the bookmark"))?;
        world.expect(&view, &to, Some(clone.at("x").clone()), &format!("{place}@x")).await?;
    }
    let to = dsl.dataset(&later).await?;
    let mut request = SendRequest::full(to.clone(), flags(rng));
    request.base = Some(Base::bookmark(dsl, &to, &head, &book).await?);
    (asked.target, asked.origin) = ("replica/of@t".to_owned(), None);
    let World { replica, tally, .. } = world;
    let delivered = deliver(&view, &request, replica, "replica/of", &asked, rng, tally).await;
    delivered.context("the dataset itself, from the bookmark")?;
    world.expect(&view, &to, Some(source.at("t").clone()), "replica/of@t").await?;
    view.close().await;
    Ok(())
}
