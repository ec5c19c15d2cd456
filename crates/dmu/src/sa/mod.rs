//! System attributes: the named attributes of an object, packed into its bonus and spill.
//!
//! An objset with system attributes has a *registry* (name -> number, length, kind) and *layouts* (number -> list of
//! attributes), both in ZAPs; an object's bonus begins with the number of the layout that it is packed by, and what does
//! not fit follows in a spill block with a layout of its own. The old znode is treated as one more, fixed layout, so
//! that what is above sees attributes only.
//!
//! ```text
//! SaTables    registry and layouts of an objset                    read once; layouts are added where it is open
//! SaRecord    the attributes of one object, copied out             those that nobody here knows included, in their order
//! SaForm      how a record is packed: layouts of bonus and spill
//! SaHandle    the attributes of one object with their form         writes a changed record into the object
//! ```
//!
//! **Changing.** A record is changed in memory. If its shape (which attributes, of which lengths) is that of before, it has its
//! form; otherwise [`SaTables::form`] finds one, and where a layout is missing [`SaTables::adding`] adds it. Layouts are added under
//! a lock that is taken before the txg, as all locks are; one that is never used does no harm. [`SaHandle::store`] then packs the
//! record into the object.

mod form;
mod handle;
mod record;
mod tables;

pub use self::form::{SaForm, bonus_room_bytes, bonus_room_of};
pub use self::handle::SaHandle;
pub use self::record::{NotRegistered, SaRecord, words};
pub use self::tables::{AddingLayouts, SaTables};
