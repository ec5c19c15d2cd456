//! Goal: the parts of a fat ZAP — header, pointer table in and out of block 0, leaves and their splitting — make a whole
//! that holds thousands of entries. Method: a ZAP in memory built with nothing but this crate's public functions, as the
//! layer that stores ZAPs does it, against a plain map; then the reader's walk over the writer's ZAP. Faults caught:
//! a table indexed by the wrong bits, a sibling that the table does not point to, an external table misplaced.

use std::collections::{BTreeMap, BTreeSet};

use cenote_format::Endian;
use cenote_format::zap::{
    FatHeader, Leaf, LeafEdit, NormFlags, PointerPlace, PointerTable, ZapEditError, ZapFlags, ZapKey, ZapValue,
    double_pointers, hash_index,
};
use proptest::prelude::*;

/// Blocks of 512 bytes, so that a few hundred entries suffice to outgrow everything.
const BLOCK_SHIFT: u32 = 9;

struct Zap {
    header: FatHeader,
    blocks: BTreeMap<u64, Vec<u8>>,
    order: Endian,
}

impl Zap {
    fn new(salt: u64, flags: ZapFlags, order: Endian) -> Self {
        let header = FatHeader::new(BLOCK_SHIFT, salt, NormFlags::empty(), flags);
        let mut leaf = vec![0; header.block_size_bytes()];
        LeafEdit::create(&mut leaf, order, 0, 0, false).unwrap();
        let blocks = BTreeMap::from([(0, header.emit_new(order)), (1, leaf)]);
        Self { header, blocks, order }
    }

    fn locate(&self, place: PointerPlace) -> (u64, usize) {
        match place {
            PointerPlace::Embedded { offset } => (0, offset),
            PointerPlace::External { block, offset } => (block, offset),
        }
    }

    fn leaf_of(&self, hash: u64) -> u64 {
        let (block, offset) = self.locate(self.header.pointer_place(hash));
        self.header.leaf_block(&self.blocks[&block], offset, self.order).unwrap()
    }

    /// Doubles the table, all at once.
    fn grow(&mut self) {
        let size = self.header.block_size_bytes();
        let mut old = Vec::new();
        if self.header.is_embedded() {
            old.extend_from_slice(&self.blocks[&0][size / 2..]);
        } else {
            for index in 0..self.header.table.block_count {
                old.extend_from_slice(&self.blocks[&(self.header.table.block + index)]);
            }
        }
        let mut new = vec![0; old.len() * 2];
        double_pointers(&old, &mut new);
        let table = PointerTable {
            block: self.header.free_block,
            block_count: (new.len() / size) as u64,
            shift: self.header.table.shift + 1,
            next_block: 0,
            blocks_copied: 0,
        };
        for (index, block) in new.chunks(size).enumerate() {
            self.blocks.insert(table.block + index as u64, block.to_vec());
        }
        self.header.free_block += table.block_count;
        self.header.table = table;
    }

    fn split(&mut self, number: u64) {
        let leaf = Leaf::parse(&self.blocks[&number], self.order).unwrap();
        if u64::from(leaf.header().prefix_len) == self.header.table.shift {
            self.grow();
        }
        let sibling_number = self.header.free_block;
        self.header.free_block += 1;
        self.header.leaf_count += 1;
        let mut sibling = vec![0; self.header.block_size_bytes()];
        let block = self.blocks.get_mut(&number).unwrap();
        let mut edit = LeafEdit::open(block, self.order).unwrap();
        let head = *edit.split(&mut sibling).unwrap().header();
        self.blocks.insert(sibling_number, sibling);
        // All pointers of the sibling's prefix.
        let spare_bits = self.header.table.shift - u64::from(head.prefix_len);
        for index in head.prefix << spare_bits..(head.prefix + 1) << spare_bits {
            let (block, offset) = self.locate(self.header.index_place(index));
            let bytes = self.order.bytes64(sibling_number);
            self.blocks.get_mut(&block).unwrap()[offset..offset + 8].copy_from_slice(&bytes);
        }
    }

    fn insert(&mut self, key: ZapKey<'_>, value: &ZapValue) -> bool {
        let hash = self.header.hasher().key(key);
        loop {
            let number = self.leaf_of(hash);
            let mut edit = LeafEdit::open(self.blocks.get_mut(&number).unwrap(), self.order).unwrap();
            match edit.insert(hash, key, None, value) {
                Ok(_) => {
                    self.header.entry_count += 1;
                    return true;
                }
                Err(ZapEditError::Exists) => return false,
                Err(ZapEditError::Full) => self.split(number),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn lookup(&self, key: ZapKey<'_>) -> Option<ZapValue> {
        let hash = self.header.hasher().key(key);
        let leaf = Leaf::parse(&self.blocks[&self.leaf_of(hash)], self.order).unwrap();
        leaf.lookup(hash, key).unwrap().map(|entry| entry.value().unwrap())
    }

    fn remove(&mut self, key: ZapKey<'_>) -> Option<ZapValue> {
        let hash = self.header.hasher().key(key);
        let number = self.leaf_of(hash);
        let mut edit = LeafEdit::open(self.blocks.get_mut(&number).unwrap(), self.order).unwrap();
        let value = edit.remove(hash, key).ok()?;
        self.header.entry_count -= 1;
        Some(value)
    }

    /// Reads the ZAP from its blocks alone.
    fn check(&mut self, model: &BTreeMap<Vec<u8>, ZapValue>) {
        let header = self.header.clone();
        header.emit_into(self.blocks.get_mut(&0).unwrap(), self.order);
        assert_eq!(FatHeader::parse(&self.blocks[&0], self.order).unwrap(), header);
        let mut leaves = BTreeSet::new();
        for index in 0..header.pointer_count() {
            let (block, offset) = self.locate(header.index_place(index));
            let number = header.leaf_block(&self.blocks[&block], offset, self.order).unwrap();
            let leaf = Leaf::parse(&self.blocks[&number], self.order).unwrap();
            let hash = index << (64 - header.table.shift);
            assert_eq!(hash_index(hash, u32::from(leaf.header().prefix_len)), leaf.header().prefix);
            leaves.insert(number);
        }
        let mut found = BTreeMap::new();
        for number in &leaves {
            let leaf = Leaf::parse(&self.blocks[number], self.order).unwrap();
            leaf.check().unwrap();
            for entry in leaf.entries().map(Result::unwrap) {
                found.insert(entry.name().unwrap(), entry.value().unwrap());
            }
        }
        assert_eq!(&found, model);
        assert_eq!(header.leaf_count, leaves.len() as u64);
        assert_eq!(header.entry_count, model.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_fat_zap_of_our_making_behaves_like_a_map(
        salt in 1_u64..,
        wide in any::<bool>(),
        big in any::<bool>(),
        operations in proptest::collection::vec((0_u32..800, 0_u8..5), 600..900),
    ) {
        let order = if big { Endian::Big } else { Endian::Little };
        let flags = if wide { ZapFlags::HASH64 } else { ZapFlags::empty() };
        let mut zap = Zap::new(salt, flags, order);
        let mut model = BTreeMap::new();
        for (number, operation) in operations {
            let name = format!("a name of some length {number}").into_bytes();
            let key = ZapKey::Name(&name);
            prop_assert_eq!(zap.lookup(key), model.get(&name).cloned());
            if operation == 0 {
                prop_assert_eq!(zap.remove(key), model.remove(&name));
            } else {
                let value = ZapValue::from_u64s(&[u64::from(number), u64::from(operation)]);
                prop_assert_eq!(zap.insert(key, &value), !model.contains_key(&name));
                model.entry(name).or_insert(value);
            }
        }
        prop_assert!(!zap.header.is_embedded(), "the table outgrew block 0");
        zap.check(&model);
    }
}
