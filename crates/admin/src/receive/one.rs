//! One stream: where it goes, and what goes with it.

use std::io::Read;
use std::time::Duration;

use cenote_dsl::DslError;
use cenote_dsl::name::{is_below, parent_and_last, parent_of};
use cenote_format::enums::ObjsetType;
use cenote_format::ids::Guid;
use cenote_format::stream::BeginFlags;
use cenote_props::Types;
use cenote_props::number::nicebytes;
use cenote_send::SendError;
use cenote_send::receiver::{
    Header, ReceiveOptions, ReceiveProgress, ReceiverError, receive_resume_token, receive_stream, skip_stream,
};
use cenote_spa::{ReceiveRefusal, SpaError};
use cenote_taskq::sync::Mutex;

use super::list::{List, Sent};
use super::name;
use super::request::{ACTION, Naming, OF_ENCRYPTION, ReceiveError, Told};
use super::run::Run;
use crate::{Setting, create_filesystem_of};

/// The end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Its snapshot is there now.
    Now,
    /// It was there already, or nothing was to be received.
    Skipped,
}

impl<R: Read> Run<'_, R> {
    fn tell(&mut self, text: String) {
        if self.request.is_verbose {
            self.caller.told(Told::Out(text));
        }
    }

    async fn exists(&self, name: &str) -> Result<bool, ReceiveError> {
        let failed = |error: &dyn std::fmt::Display| ReceiveError::new(ACTION, error);
        let dsl = self.pool.dsl().map_err(|error| failed(&error))?;
        match dsl.dataset(name).await {
            Ok(_) => Ok(true),
            Err(DslError::NoSuchDataset(_)) => Ok(false),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Full name of the pool's snapshot with this guid; of several, that which has most of its path in common with a name.
    async fn by_guid(&self, guid: u64, near: &str) -> Result<Option<String>, ReceiveError> {
        if guid == 0 {
            return Ok(None);
        }
        let common = |name: &str| name.split('/').zip(near.split('/')).take_while(|(one, other)| one == other).count();
        let looked = async {
            let dsl = self.pool.dsl()?;
            let mut found: Option<(usize, String)> = None;
            for dir in dsl.tree(dsl.root_dir().await?, false).await? {
                let Some(head) = dsl.head(&dir).await? else { continue };
                for snapshot in dsl.snapshots(&head).await? {
                    let parts = common(&dir.name);
                    if snapshot.phys.guid == Guid(guid) && found.as_ref().is_none_or(|(best, _)| parts > *best) {
                        found = Some((parts, snapshot.name()));
                    }
                }
            }
            Ok::<_, crate::AdminError>(found.map(|(_, name)| name))
        };
        looked.await.map_err(|error| ReceiveError::new(ACTION, error))
    }

    /// Receives a stream whose beginning was read. `top`: the dataset that was sent first.
    pub(super) async fn one(
        &mut self,
        header: &Header,
        top: &str,
        list: Option<&List>,
    ) -> Result<Received, ReceiveError> {
        let failed = |error: ReceiverError| ReceiveError::new(ACTION, error);
        header.check(self.reader.decoder().endian()).map_err(failed)?;
        let sent_name = header.to_name().map_err(failed)?.to_owned();
        let sent = list.and_then(|list| list.find(header.begin.to_guid.0));
        let is_recursive = list.is_some_and(|list| list.is_recursive);
        let mut target = name::of_snapshot(self.request, &sent_name, top, is_recursive)?;
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let given = &self.request.target;
        if is_first && self.request.naming != Naming::Exact && !self.exists(given).await? {
            return Err(ReceiveError::new(ACTION, format!("specified fs ({given}) does not exist")));
        }
        let origin = self.origin(header, &target).await?;
        let wants_new = (header.is_of_new_dataset() || origin.is_some()) && !header.is_resuming();
        let action = match (wants_new, header.is_resuming()) {
            (true, _) => "cannot receive new filesystem stream",
            (_, true) => "cannot receive resume stream",
            _ => "cannot receive incremental stream",
        };
        let types = match header.kind().map_err(failed)? {
            ObjsetType::Zvol => Types::VOLUME,
            _ => Types::FILESYSTEM,
        };
        self.find_place(header, &mut target, wants_new, top, &sent_name, sent).await?;
        let (dataset, snapshot) = target.split_once('@').expect("checked: it is a snapshot's name");
        self.check_properties(dataset, types, is_recursive, header.is_raw(), action)?;
        if wants_new && self.request.naming == Naming::WithoutPool && !self.request.is_dry {
            self.make_parents(dataset, action).await?;
        }
        let how = if header.begin.from_guid.0 == 0 { "full" } else { "incremental" };
        let doing = if self.request.is_dry { "would receive" } else { "receiving" };
        if self.request.is_dry
            && is_first
            && !header.is_resuming()
            && let Some(why) = self.refused(dataset, wants_new).await?
        {
            return Err(ReceiveError::new(action, why));
        }
        self.tell(format!("{doing} {how} stream of {sent_name} into {target}"));
        if self.request.is_dry {
            skip_stream(&mut self.reader).map_err(failed)?;
            return Ok(Received::Skipped);
        }
        let options = ReceiveOptions {
            dataset: dataset.to_owned(),
            snapshot: snapshot.to_owned(),
            origin,
            is_forced: self.request.is_forced,
            users_wait: self.caller.has_users_wait(),
            is_resumable: self.request.is_resumable,
            note_every: self.request.note_every,
        };
        let began = self.pool.handle().now();
        let progress = ReceiveProgress::default();
        let properties = self.properties(dataset, types, sent.map(|(sent, _)| sent));
        let pool = self.pool.clone();
        let warned = Mutex::new(Vec::new());
        let begun = async |is_new: bool| {
            if is_new {
                let refused = set_properties(&pool, dataset, &properties).await?;
                warned.lock().extend(refused);
            }
            Ok(())
        };
        let caller = &mut *self.caller;
        let ending = async |written: &str| {
            let stands = caller.suspend(dataset, written).await;
            stands.map_err(|error| SpaError::from(ReceiveRefusal::InUse(error.reason())).into())
        };
        let received = receive_stream(self.pool, &mut self.reader, header, &options, &progress, begun, ending).await;
        self.caller.resume().await;
        let mut refused = warned.into_inner();
        match received {
            Ok(true) => {}
            Ok(false) => {
                let set = set_properties(self.pool, dataset, &properties).await;
                refused.extend(set.map_err(|error| ReceiveError::new(action, error))?);
            }
            Err(error) => {
                if self.is_there(&error, header, dataset).await? {
                    self.tell(format!("snap {target} already exists; ignoring"));
                    skip_stream(&mut self.reader).map_err(failed)?;
                    return Ok(Received::Skipped);
                }
                let has_come = progress.bytes.load(std::sync::atomic::Ordering::Relaxed) > 0;
                return Err(self.told(error, action, dataset, has_come).await);
            }
        }
        for (property, why) in refused {
            self.caller.told(Told::Err(format!("cannot receive {property} property on {dataset}: {why}")));
        }
        self.reserve(dataset, &properties).await;
        self.finish(&target, sent).await.map_err(|error| ReceiveError::new(action, error))?;
        if self.outcome.datasets.last().map(String::as_str) != Some(dataset) {
            self.outcome.datasets.push(dataset.to_owned());
        }
        let took = (self.pool.handle().now() - began).max(Duration::from_nanos(1)).as_secs_f64();
        let bytes = progress.bytes.load(std::sync::atomic::Ordering::Relaxed);
        let rate = (bytes as f64 / took) as u64;
        self.tell(format!("received {} stream in {took:.2} seconds ({}/sec)", nicebytes(bytes), nicebytes(rate)));
        Ok(Received::Now)
    }

    /// Why a dataset could not be received into, as far as that is known before anything has come.
    async fn refused(&self, dataset: &str, wants_new: bool) -> Result<Option<ReceiveRefusal>, ReceiveError> {
        let is_there = self.exists(dataset).await?;
        Ok(match (wants_new, is_there) {
            (true, true) if !self.request.is_forced => Some(ReceiveRefusal::Overwrites(dataset.to_owned())),
            (true, false) if self.request.naming != Naming::WithoutPool => match parent_and_last(dataset) {
                Some((above, _)) if !self.exists(above).await? => Some(ReceiveRefusal::Missing(above.to_owned())),
                _ => None,
            },
            (false, false) => Some(ReceiveRefusal::Missing(dataset.to_owned())),
            _ => None,
        })
    }

    /// The snapshot that a clone begins as.
    async fn origin(&mut self, header: &Header, target: &str) -> Result<Option<String>, ReceiveError> {
        if let Some(origin) = &self.request.origin {
            let origin = origin.clone();
            if !self.exists(&origin).await? {
                return Err(ReceiveError::new(ACTION, format!("specified origin fs ({origin}) does not exist")));
            }
            self.tell(format!("using provided clone origin {origin}"));
            return Ok(Some(origin));
        }
        if !header.begin.flags.contains(BeginFlags::CLONE) || header.is_resuming() {
            return Ok(None);
        }
        match self.by_guid(header.begin.from_guid.0, target).await? {
            Some(origin) => {
                self.tell(format!("found clone origin {origin}"));
                Ok(Some(origin))
            }
            None => Err(ReceiveError::new(ACTION, format!("local origin for clone {target} does not exist"))),
        }
    }

    /// Looks by guid for a dataset that has another name here: the parent of a new one, or the one that a stream builds on.
    async fn find_place(
        &mut self,
        header: &Header,
        target: &mut String,
        wants_new: bool,
        top: &str,
        sent_name: &str,
        sent: Option<(&Sent, &str)>,
    ) -> Result<(), ReceiveError> {
        let (dataset, snapshot) = target.split_once('@').expect("checked: it is a snapshot's name");
        if wants_new {
            if let Some((above, last)) = parent_and_last(dataset)
                && let Some((sent, _)) = sent
                && !self.exists(above).await?
                && let Some(parent) = self.by_guid(sent.parent_from, above).await?
                && let Some((parent, _)) = parent.split_once('@')
            {
                *target = format!("{parent}/{last}@{snapshot}");
            }
            return Ok(());
        }
        let may_move = self.request.naming != Naming::Exact || is_below(sent_name, top);
        if may_move
            && !self.exists(dataset).await?
            && let Some(source) = self.by_guid(header.begin.from_guid.0, dataset).await?
            && let Some((found, _)) = source.split_once('@')
        {
            *target = format!("{found}@{snapshot}");
        }
        Ok(())
    }

    /// Makes what is missing between the name that was given and a new dataset.
    async fn make_parents(&mut self, dataset: &str, action: &str) -> Result<(), ReceiveError> {
        let Some(above) = parent_of(dataset) else { return Ok(()) };
        if above.len() <= self.request.target.len() || self.exists(above).await? {
            return Ok(());
        }
        let made = create_filesystem_of(self.pool, above, Vec::new(), true, self.request.owner).await;
        made.map(drop).map_err(|error| ReceiveError::new(action, error))
    }

    /// Properties that were named are such of datasets of these types. In a tree of both, those of the other type are left out.
    fn check_properties(
        &mut self,
        dataset: &str,
        types: Types,
        is_recursive: bool,
        is_raw: bool,
        action: &str,
    ) -> Result<(), ReceiveError> {
        let named = self.request.encryption.iter().chain(&self.request.excluded);
        if let Some(name) = named.filter(|_| is_raw).find(|name| OF_ENCRYPTION.contains(&name.as_str())) {
            let why = format!("encryption property '{name}' cannot be set or excluded for raw streams.");
            return Err(ReceiveError::new(action, why));
        }
        let foreign = |name: &&str| !applies(name, types);
        let given = self.request.overrides.iter().map(|(name, _)| name.as_str());
        if let Some(name) = given.filter(|_| !is_recursive).find(foreign) {
            let why = format!("property '{name}' does not apply to datasets of this type");
            return Err(ReceiveError::new(action, why));
        }
        for name in self.request.excluded.iter().map(String::as_str).filter(foreign) {
            let text = format!("Warning: {dataset}: property '{name}' does not apply to datasets of this type");
            self.caller.told(Told::Err(text));
        }
        Ok(())
    }

    /// The properties that a dataset of these types gets.
    fn properties(&self, dataset: &str, types: Types, sent: Option<&Sent>) -> Properties {
        let request = self.request;
        let is_top = self.outcome.datasets.first().is_none_or(|first| first == dataset);
        // Below the top what is set there comes from there, or is as it is by default.
        let is_from_top = |name: &str| !is_top && request.overrides.iter().any(|(other, _)| other == name);
        let is_excluded = |name: &str| request.excluded.iter().any(|other| other == name);
        let is_inherited =
            |name: &str| cenote_props::dataset::find(name).is_none_or(cenote_props::Property::is_inheritable);
        let mut received = sent.and_then(|sent| sent.properties.clone());
        let mut hidden = Vec::new();
        if let Some(list) = &mut received {
            for (name, _) in list.iter().filter(|(name, _)| is_excluded(name) || is_from_top(name)) {
                hidden.push((name.clone(), is_excluded(name)));
            }
            // Properties that are not inherited cannot be hidden by a value above: they do not come.
            list.retain(|(name, _)| is_inherited(name) || !hidden.iter().any(|(other, _)| other == name));
            hidden.retain(|(name, _)| is_inherited(name));
        }
        let local = request.overrides.iter().filter(|(name, _)| is_top && applies(name, types));
        let (reserved, local) = local.cloned().partition(|(name, _): &Setting| name == "refreservation");
        Properties { local, reserved, hidden, received }
    }

    /// Whether a stream was refused because its very snapshot is there.
    async fn is_there(&self, error: &ReceiverError, header: &Header, dataset: &str) -> Result<bool, ReceiveError> {
        let ReceiverError::Spa(error) = error else { return Ok(false) };
        let SpaError::Receive(refusal) = error.as_ref() else { return Ok(false) };
        if !matches!(refusal, ReceiveRefusal::Exists(_)) || !self.exists(dataset).await? {
            return Ok(false);
        }
        let looked = async {
            let dsl = self.pool.dsl()?;
            let snapshots = dsl.snapshots(&dsl.dataset(dataset).await?).await?;
            Ok::<_, crate::AdminError>(snapshots.iter().any(|snapshot| snapshot.phys.guid == header.begin.to_guid))
        };
        looked.await.map_err(|error| ReceiveError::new(ACTION, error))
    }

    /// The words for a stream that is not received.
    async fn told(&self, error: ReceiverError, action: &str, dataset: &str, has_come: bool) -> ReceiveError {
        const BROKEN: &str = "checksum mismatch or incomplete stream";
        let (why, why_kept) = match &error {
            ReceiverError::Spa(spa) => match spa.as_ref() {
                SpaError::Receive(ReceiveRefusal::Exists(name)) => {
                    return ReceiveError::new(&format!("cannot restore to {name}"), "destination already exists");
                }
                // Before anything of this stream came; what may be kept is of another one.
                SpaError::Receive(_) if !has_come => return ReceiveError::new(action, error),
                _ => (error.to_string(), error.to_string()),
            },
            ReceiverError::Stream(SendError::Truncated { .. }) => ("incomplete stream".to_owned(), BROKEN.to_owned()),
            ReceiverError::Stream(SendError::Checksum { .. }) => {
                (format!("checksum mismatch ({error})"), BROKEN.to_owned())
            }
            _ => (error.to_string(), error.to_string()),
        };
        ReceiveError::new(
            action,
            match self.resume_token(dataset).await {
                None => why,
                Some(token) => format!(
                    "{why_kept}.\nPartially received snapshot is saved.\nA resuming stream can be \
                     generated on the sending system by running:\n    zfs send -t {token}"
                ),
            },
        )
    }

    /// Where to go on with a stream that has broken off, if that was wanted.
    async fn resume_token(&self, dataset: &str) -> Option<String> {
        if !self.request.is_resumable {
            return None;
        }
        let dsl = self.pool.dsl().ok()?;
        let dataset = dsl.dataset(dataset).await.ok()?;
        receive_resume_token(&dsl, &dataset).await.ok()?
    }

    /// Reserves as much as was asked for: it depends on a volume's size, and on the room that is left.
    async fn reserve(&mut self, dataset: &str, properties: &Properties) {
        for setting in properties.reserved.iter().cloned() {
            let set = crate::set_properties(self.pool, &[dataset.to_owned()], &[setting]).await;
            if let Err(error) = set {
                self.caller.told(Told::Err(error.to_string()));
            }
        }
    }

    /// Properties and holds of the snapshot.
    async fn finish(&mut self, target: &str, sent: Option<(&Sent, &str)>) -> Result<(), crate::AdminError> {
        let Some((sent, name)) = sent else { return Ok(()) };
        let properties = sent.properties_of(name).to_vec();
        if !properties.is_empty() {
            let (target, snapshot) = (target.to_owned(), target);
            let set = self.pool.change(move |syncer| {
                Box::pin(async move { syncer.receive_snapshot_properties(&target, &properties).await })
            });
            for (property, why) in set.await? {
                let text = format!("cannot receive {property} property on {snapshot}: {why}");
                self.caller.told(Told::Err(text));
            }
        }
        if !self.request.skips_holds {
            for tag in sent.holds_of(name) {
                crate::hold(self.pool, tag, &[target.to_owned()]).await?;
            }
        }
        Ok(())
    }
}

/// Whether datasets of these types have such a property; of users' own all have.
fn applies(name: &str, types: Types) -> bool {
    cenote_props::dataset::find(name).is_none_or(|property| property.types.intersects(types))
}

/// The properties that a dataset gets with a stream.
#[derive(Clone, Debug)]
struct Properties {
    /// Set here.
    local: Vec<Setting>,
    /// Of those what is set when all has come.
    reserved: Vec<Setting>,
    /// Inherited, whatever came; each with whether a value that was set here stays in force all the same.
    hidden: Vec<(String, bool)>,
    /// That came; `None` if the stream has none.
    received: Option<Vec<Setting>>,
}

/// Sets them. Those that are refused come back, each with the reason.
async fn set_properties(
    pool: &cenote_spa::Pool,
    dataset: &str,
    properties: &Properties,
) -> Result<Vec<(String, String)>, SpaError> {
    let (dataset, properties) = (dataset.to_owned(), properties.clone());
    if properties.local.is_empty() && properties.received.is_none() {
        return Ok(Vec::new());
    }
    let set = pool.change(move |syncer| {
        Box::pin(async move {
            let mut refused = Vec::new();
            if let Some(received) = &properties.received {
                let received = syncer.receive_properties(&dataset, received).await?;
                refused.extend(received.into_iter().map(|(name, error)| (name, error.to_string())));
            }
            for (name, keeps_own) in &properties.hidden {
                let is_own = *keeps_own && syncer.has_own_property(&dataset, name).await?;
                if !is_own {
                    syncer.change_property(&dataset, name, None).await?;
                }
            }
            for (name, value) in &properties.local {
                match syncer.check_change_property(&dataset, name, Some(value)).await {
                    Ok(_) => syncer.change_property(&dataset, name, Some(value)).await?,
                    Err(error) => refused.push((name.clone(), error.to_string())),
                }
            }
            Ok::<_, SpaError>(refused)
        })
    });
    set.await
}
