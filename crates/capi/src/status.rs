//! `cenote_status`: the health of a pool's devices at one moment.

use std::ffi::{CString, c_char};

use cenote::{Health, Vdev};

use crate::border::{Borrowed, Give, In, Out, pointer};
use crate::fault::{Fault, c_text};
use crate::pool::PoolHandle;

struct Row {
    name: CString,
    depth: u32,
    vdev: Vdev,
}

/// The vdevs of a pool from its root on, each before those that it is made of.
pub(crate) struct Status {
    rows: Vec<Row>,
    suspended: Option<CString>,
}

/// A vdev: `cenote_vdev`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CVdev {
    pub(crate) name: *const c_char,
    pub(crate) guid: u64,
    pub(crate) read_errors: u64,
    pub(crate) write_errors: u64,
    pub(crate) checksum_errors: u64,
    pub(crate) health: u32,
    pub(crate) depth: u32,
    pub(crate) is_behind: bool,
}

/// The number of a health: `enum cenote_health`.
pub(crate) fn number(health: Health) -> u32 {
    match health {
        Health::Online => 1,
        Health::Degraded => 2,
        Health::Unavailable => 3,
        Health::Offline => 4,
        Health::Faulted => 5,
        _ => 0,
    }
}

fn collect(vdev: &Vdev, depth: u32, rows: &mut Vec<Row>) {
    rows.push(Row { name: c_text(vdev.name.as_str()), depth, vdev: vdev.clone() });
    vdev.children.iter().for_each(|child| collect(child, depth + 1, rows));
}

pub(crate) fn status(pool: In<PoolHandle>, status: Give<Status>) -> Result<(), Fault> {
    let place = status.get("status")?;
    let now = pool.get("pool")?.pool.status()?;
    let mut rows = Vec::new();
    collect(&now.root, 0, &mut rows);
    place.give(Status { rows, suspended: now.suspended.map(c_text) });
    Ok(())
}

pub(crate) fn suspended(status: In<Status>) -> Borrowed {
    Borrowed::of(status.optional().and_then(|status| status.suspended.as_deref()))
}

pub(crate) fn count(status: In<Status>) -> usize {
    status.optional().map_or(0, |status| status.rows.len())
}

pub(crate) fn vdev(status: In<Status>, index: usize, vdev: Out<CVdev>) -> Result<(), Fault> {
    let (status, place) = (status.get("status")?, vdev.get("vdev")?);
    let row = status.rows.get(index).ok_or_else(|| Fault::misuse(format!("there is no vdev {index}")))?;
    place.put(CVdev {
        name: pointer(Some(&row.name)),
        guid: row.vdev.guid,
        read_errors: row.vdev.read_errors,
        write_errors: row.vdev.write_errors,
        checksum_errors: row.vdev.checksum_errors,
        health: number(row.vdev.health),
        depth: row.depth,
        is_behind: row.vdev.is_behind,
    });
    Ok(())
}
