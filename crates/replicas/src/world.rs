//! The two pools of a case, and what they have in common with others: places and properties that are drawn.

use std::collections::BTreeMap;

use anyhow::Result;
use cenote_admin::receive::{Naming, ReceiveRequest};
use cenote_dmu::ObjectSpec;
use cenote_dmu::tx::Cost;
use cenote_dsl::Dataset;
use cenote_format::dmu_type::DmuType;
use cenote_send::sender::{SendFlags, SendRequest};
use cenote_spa::{ImportOptions, Pool, View};
use cenote_taskq::{Handle, Rng};

use crate::records::{Model, apply};
use crate::source::{State, setting};
use crate::streams::{Tally, stream};

/// The two pools of a case, and what is to be in the second.
pub(crate) struct World {
    pub(crate) handle: Handle,
    pub(crate) source: Pool,
    pub(crate) replica: Pool,
    pub(crate) tally: Tally,
    /// Contents of the snapshots of the replica, by name: as they are to be.
    pub(crate) expected: BTreeMap<String, Expected>,
    /// Keys of encrypted datasets of the replica.
    pub(crate) keys: Vec<(String, Vec<u8>)>,
}

/// The contents that a snapshot of a replica must have.
#[derive(Clone)]
pub(crate) struct Expected {
    /// As the history says.
    pub(crate) state: Option<State>,
    /// As the records of a whole stream of the source say.
    pub(crate) model: Model,
}

/// The objects that a whole stream of a snapshot comes to.
pub(crate) async fn model_of(view: &View, dataset: &Dataset) -> Result<Model> {
    let flags = SendFlags { large_blocks: true, ..SendFlags::default() };
    let bytes = stream(view, &SendRequest::full(dataset.clone(), flags)).await?;
    let mut model = Model::new();
    apply(&mut model, &bytes)?;
    Ok(model)
}

impl World {
    pub(crate) async fn view(&self) -> Result<View> {
        Ok(self.source.view(&ImportOptions::default()).await?)
    }

    pub(crate) async fn expect(&mut self, view: &View, sent: &Dataset, state: Option<State>, at: &str) -> Result<()> {
        let model = model_of(view, sent).await?;
        self.expected.insert(at.to_owned(), Expected { state, model });
        Ok(())
    }

    /// Changes a dataset of the replica, so that nothing is received on top of it without `-F`.
    pub(crate) async fn spoil(&self, dataset: &str) -> Result<()> {
        let head = self.replica.open_head(dataset).await?;
        let tx = head.begin(Cost::objects(1).with_bytes(4096)).await?;
        let object = head.objset().create_object(tx.txg(), &ObjectSpec::new(DmuType::UINT8_DATA, 4096))?;
        object.write(tx.txg(), 0, b"changed here").await?;
        drop((tx, object, head));
        self.replica.sync().await?;
        Ok(())
    }
}

/// The place of a replica: the name that is asked for, and the dataset that comes of it.
pub(crate) fn draw_target(source: &str, rng: &mut Rng) -> (ReceiveRequest, String) {
    let below = source.split_once('/').map_or("", |(_, below)| below);
    let last = source.rsplit('/').next().unwrap_or_default();
    let (target, naming, dataset) = match rng.below(4) {
        0 => ("replica/in", Naming::WithoutPool, format!("replica/in/{below}")),
        1 => ("replica/in", Naming::Last, format!("replica/in/{last}")),
        _ => ("replica/in/of", Naming::Exact, "replica/in/of".to_owned()),
    };
    let asked = ReceiveRequest { target: target.to_owned(), naming, is_verbose: true, ..ReceiveRequest::default() };
    (asked, dataset)
}

/// Properties that are set here, or left out.
pub(crate) fn draw_properties(asked: &mut ReceiveRequest, rng: &mut Rng) -> Result<()> {
    if rng.chance(1, 2) {
        let words = ["compression=off", "compression=lz4", "compression=zstd", "checksum=sha256", "copies=2"];
        asked.overrides.push(setting(words[rng.below(words.len() as u64) as usize])?);
    }
    if rng.chance(1, 4) {
        asked.excluded.push("recordsize".to_owned());
    }
    Ok(())
}
