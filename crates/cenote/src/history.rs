//! The history of a pool, which is stored in it.

use std::time::SystemTime;

use cenote_format::nvlist::NvList;

use crate::error::Error;
use crate::metadata::seconds;
use crate::pool::Pool;
use crate::raise::Raise as _;

/// An entry of a pool's history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HistoryEvent {
    /// A command line, such as `zfs snapshot tank/home@monday`, and the user's number.
    Command {
        /// The line.
        line: String,
        /// The user, if it is recorded.
        uid: Option<u64>,
    },
    /// A change by the pool itself.
    Internal {
        /// Its name, such as `snapshot`.
        name: String,
        /// The txg in which it was made.
        txg: u64,
        /// The dataset, if it concerns one.
        dataset: Option<String>,
        /// More about it.
        text: String,
    },
    /// A record of another form, such as those of system calls, by its name.
    Other(String),
}

/// A record of a pool's history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryRecord {
    /// The time of the event.
    pub time: SystemTime,
    /// The host that recorded it.
    pub host: Option<String>,
    /// The event.
    pub event: HistoryEvent,
}

impl HistoryRecord {
    fn of(record: &NvList) -> Self {
        let text = |name: &str| record.str(name).map(str::to_owned);
        let event = if let Some(line) = text("history command") {
            HistoryEvent::Command { line, uid: record.u64("history who") }
        } else if let Some(name) = text("internal_name") {
            let txg = record.u64("history txg").unwrap_or(0);
            let text_of = text("history internal str").unwrap_or_default();
            HistoryEvent::Internal { name, txg, dataset: text("dsname"), text: text_of }
        } else {
            HistoryEvent::Other(text("ioctl").or_else(|| text("history internal str")).unwrap_or_default())
        };
        Self { time: seconds(record.u64("history time").unwrap_or(0)), host: text("history hostname"), event }
    }
}

impl Pool {
    /// Its history, the oldest record first. The pool overwrites old ones, except that of its creation.
    ///
    /// # Errors
    /// It cannot be read.
    ///
    /// ```
    /// # use cenote::{CreateOptions, Error, HistoryEvent, Runtime};
    /// # fn main() -> Result<(), Error> {
    /// # let runtime = Runtime::simulated(1);
    /// # runtime.add_disk("/a", 128 << 20);
    /// # runtime.block_on(async {
    /// # let pool = CreateOptions::new(["/a"]).create(&runtime, "tank").await?;
    /// pool.create_filesystem("tank/home", &[]).await?;
    /// pool.record_command("my-backup --nightly").await?;
    /// let history = pool.history().await?;
    /// let has = |wanted: &dyn Fn(&HistoryEvent) -> bool| history.iter().any(|record| wanted(&record.event));
    /// assert!(has(&|event| matches!(event, HistoryEvent::Internal { name, .. } if name == "create")));
    /// assert!(has(&|event| matches!(event, HistoryEvent::Command { line, .. } if line == "my-backup --nightly")));
    /// # pool.export().await
    /// # })
    /// # }
    /// ```
    pub async fn history(&self) -> Result<Vec<HistoryRecord>, Error> {
        let (view, mut records) = (self.view().await?, Vec::new());
        view.history(|record| records.push(HistoryRecord::of(&record))).await.raised()?;
        Ok(records)
    }

    /// Records a line in its history, as commands of OpenZFS do. The library itself records changes, not calls.
    ///
    /// # Errors
    /// [`ReadOnly`](crate::ErrorKind::ReadOnly): the pool is.
    pub async fn record_command(&self, line: &str) -> Result<(), Error> {
        let (spa, line, user) = (self.writable()?, line.to_owned(), u64::from(self.owner().uid));
        spa.change(move |syncer| Box::pin(async move { syncer.record_command(&line, user).await })).await.raised()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_any_form_have_a_time_and_an_event() {
        let record = |pairs: &[(&str, &str)]| {
            let mut list = NvList::new();
            pairs.iter().for_each(|(name, value)| list.push(*name, *value));
            list.push("history time", 5_u64);
            HistoryRecord::of(&list)
        };
        let found = record(&[("history command", "zpool create a"), ("history hostname", "h")]);
        assert_eq!(found.time, seconds(5));
        assert_eq!(found.host.as_deref(), Some("h"));
        assert_eq!(found.event, HistoryEvent::Command { line: "zpool create a".to_owned(), uid: None });
        let found = record(&[("internal_name", "snapshot"), ("dsname", "a@1"), ("history internal str", "x")]);
        let (name, dataset, text) = ("snapshot".to_owned(), Some("a@1".to_owned()), "x".to_owned());
        assert_eq!(found.event, HistoryEvent::Internal { name, txg: 0, dataset, text });
        assert_eq!(record(&[("ioctl", "snapshot")]).event, HistoryEvent::Other("snapshot".to_owned()));
        assert_eq!(HistoryRecord::of(&NvList::new()).event, HistoryEvent::Other(String::new()));
    }
}
