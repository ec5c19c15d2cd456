//! Block pointers as text, in the form that zdb prints.

use std::fmt;

use super::{Blkptr, BlkptrKind, DVAS_PER_BLKPTR, FILL, PROP, field};
use crate::endian::Endian;
use crate::enums::{Checksum, Compress};

impl fmt::Debug for Blkptr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blkptr({self})")
    }
}

impl fmt::Display for Blkptr {
    /// One line, as zdb prints block pointers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (level, object_type) = (self.level(), self.dmu_type());
        let compress = self.compress().map_or("unknown", Compress::name);
        let (lsize, birth) = (self.lsize_bytes(), self.logical_birth());
        match self.kind() {
            BlkptrKind::Hole => return write!(f, "HOLE [L{level} {object_type}] size={lsize:x}L birth={birth}L"),
            BlkptrKind::Embedded | BlkptrKind::EmbeddedUnknown(_) | BlkptrKind::Redacted => {
                let etype = field(self.words[PROP], 40, 8);
                let (lsize, psize) = (field(self.words[PROP], 0, 25) + 1, self.embedded_psize_bytes());
                return write!(
                    f,
                    "EMBEDDED [L{level} {object_type}] et={etype} {compress} size={lsize:x}L/{psize:x}P birth={birth}L"
                );
            }
            BlkptrKind::Gang | BlkptrKind::Normal => {}
        }
        let mut copies = 0;
        for index in 0..DVAS_PER_BLKPTR {
            if let Some(dva) = self.dva(index) {
                write!(f, "DVA[{index}]=<{dva}> ")?;
                copies += 1;
            }
        }
        if self.is_encrypted() {
            write!(f, "salt={:x} iv={:x}:{:x} ", self.words[4], self.words[5], field(self.words[FILL], 32, 32))?;
        }
        let crypt = if self.is_encrypted() {
            "encrypted"
        } else if self.is_authenticated() {
            "authenticated"
        } else if self.has_indirect_mac() {
            "indirect-MAC"
        } else {
            "unencrypted"
        };
        let order = match self.byte_order() {
            Endian::Little => "LE",
            Endian::Big => "BE",
        };
        let [c0, c1, c2, c3] = self.checksum_words();
        write!(
            f,
            "[L{level} {object_type}] {} {compress} {crypt} {order} {} {} {} size={lsize:x}L/{:x}P birth={birth}L/{}P \
             fill={} cksum={c0:016x}:{c1:016x}:{c2:016x}:{c3:016x}",
            self.checksum().map_or("unknown", Checksum::name),
            if self.is_gang() { "gang" } else { "contiguous" },
            if self.dedup() { "dedup" } else { "unique" },
            ["zero", "single", "double", "triple"][copies],
            self.psize_bytes(),
            self.physical_birth(),
            self.fill(),
        )
    }
}
