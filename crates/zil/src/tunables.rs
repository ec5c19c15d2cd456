//! Tunables of intent logs, under OpenZFS's names and with its defaults.

cenote_kstat::tunables! {
    /// The pace of intent logs.
    #[derive(Copy)]
    pub struct ZilTunables {
        /// Part of a log block's recent latency for which a block waits at most for records of others: only while blocks ahead of it wait for
        /// a flush, which it would miss anyway (OpenZFS waits in any case, and for 10 %).
        zfs_commit_timeout_pct: u64 = 100, "%", Number(0, 10_000), AtOpen;
        /// From so many bytes on a write is logged by reference: its block is stored where it stays. Not where a log device is, and see
        /// `zil_special_is_slog`; a dataset with `logbias=throughput` logs all writes so.
        zfs_immediate_write_sz: u64 = 32_768, "bytes", Number(0, 1 << 40), AtOpen;
        /// Special devices are as fast as a log device: a write is logged by reference only if its block goes to them itself.
        zil_special_is_slog: bool = true, "", Switch, AtOpen;
        /// Largest block of a log, in whole 4 KiB; only a record that needs a larger one gets it.
        zil_maxblocksize: u64 = 131_072, "bytes", Number(12_288, 131_072), AtOpen;
        /// UNSAFE: log blocks are written, and the devices are not told to make them stable. With a volatile write cache a power cut
        /// takes what clients were told is on disk.
        zil_nocacheflush: bool = false, "", Switch, AtOpen;
    }
}
