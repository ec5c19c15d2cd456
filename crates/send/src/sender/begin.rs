//! The list in a stream's BEGIN record.

use cenote_dsl::Encryption;
use cenote_format::Endian;
use cenote_format::dsl::{CryptoKeyPhys, KeyFormat, crypto_key, dataset_field};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_spa::View;

use super::error::SenderError;
use super::source::{Base, Source};

/// The version of the encryption format that can be sent raw.
const KEY_VERSION: u64 = 1;

/// The list that BEGIN carries as its payload; empty if there is nothing in it. `redacted`: the snapshots that the stream is redacted with
/// respect to; `from_redacted`: those of the incremental source.
pub(super) fn payload(
    redacted: Option<Vec<u64>>,
    from_redacted: Option<Vec<u64>>,
    resume: Option<(u64, u64)>,
    key: Option<NvList>,
) -> Vec<u8> {
    let mut list = NvList::new();
    if let Some(snapshots) = redacted {
        list.push("redact_snaps", NvValue::Uint64Array(snapshots));
    }
    if let Some(snapshots) = from_redacted {
        list.push("redact_from_snaps", NvValue::Uint64Array(snapshots));
    }
    if let Some((object, offset)) = resume {
        list.push("resume_object", object);
        list.push("resume_offset", offset);
    }
    if let Some(key) = key {
        list.push("crypt_keydata", key);
    }
    if list.is_empty() {
        return Vec::new();
    }
    // Native encoding, as in every OpenZFS up to 2.4, so that streams are equal byte for byte. OpenZFS's development version uses XDR, which
    // machines with the other byte order can read too; receivers accept both. The native form is always a multiple of 8 bytes.
    list.emit_native(Endian::Little)
}

/// The wrapped key of a dataset that is sent raw, and the parameters of its meta-dnode.
pub(super) async fn key(pool: &View, source: &Source, base: Option<&Base>) -> Result<NvList, SenderError> {
    let dsl = pool.dsl();
    let invalid = |what| SenderError::Invalid { dataset: source.name(), what };
    let encryption = dsl.encryption(&source.dataset.dir).await?.ok_or_else(|| invalid("not encrypted"))?;
    let Encryption { phys, root, .. } = encryption;
    if phys.version != KEY_VERSION {
        return Err(invalid("encrypted in a form that cannot be sent raw"));
    }
    // Early versions did not store these with every key.
    let root = dsl.dir(&root).await?;
    let format = dsl.key_format(&root).await?;
    let (iterations, salt) = if format == KeyFormat::Passphrase {
        (
            dsl.key_field(&root, crypto_key::PBKDF2_ITERATIONS).await?,
            dsl.key_field(&root, crypto_key::PBKDF2_SALT).await?,
        )
    } else {
        (0, 0)
    };
    let ivset_guid = dsl.dataset_field(&source.dataset, dataset_field::IVSET_GUID).await?.unwrap_or(0);
    let objset = source.objset.phys();
    let meta = &objset.meta_dnode;
    let CryptoKeyPhys { suite, guid, version, iv, mac, master_key, hmac_key, .. } = &phys;
    let mut list = NvList::new();
    list.push(crypto_key::SUITE, suite.number());
    list.push(crypto_key::GUID, guid.0);
    list.push(crypto_key::VERSION, *version);
    list.push(crypto_key::MASTER_KEY, NvValue::Uint8Array(master_key.to_vec()));
    list.push(crypto_key::HMAC_KEY, NvValue::Uint8Array(hmac_key.to_vec()));
    list.push(crypto_key::IV, NvValue::Uint8Array(iv.to_vec()));
    list.push(crypto_key::MAC, NvValue::Uint8Array(mac.to_vec()));
    list.push("portable_mac", NvValue::Uint8Array(objset.portable_mac.to_vec()));
    list.push(crypto_key::KEY_FORMAT, format.number());
    list.push(crypto_key::PBKDF2_ITERATIONS, iterations);
    list.push(crypto_key::PBKDF2_SALT, salt);
    list.push("mdn_checksum", u64::from(meta.checksum));
    list.push("mdn_compress", u64::from(meta.compress));
    list.push("mdn_nlevels", u64::from(meta.levels));
    list.push("mdn_blksz", u64::from(meta.data_block_bytes()));
    list.push("mdn_indblkshift", u64::from(meta.indirect_block_shift));
    list.push("mdn_nblkptr", u64::from(meta.blkptr_count));
    list.push("mdn_maxblkid", meta.max_block_id);
    list.push("to_ivset_guid", ivset_guid);
    list.push("from_ivset_guid", base.map_or(0, |base| base.ivset_guid));
    Ok(list)
}
