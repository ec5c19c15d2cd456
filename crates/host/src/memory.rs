//! How much memory the block cache has, unless something else is said.

use std::path::Path;

/// As many bytes as can be named.
#[must_use]
pub fn usable(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// A quarter of the machine's memory, or of what the control group allows.
#[must_use]
pub fn default_cache_bytes() -> usize {
    const UNKNOWN: u64 = 1 << 30;
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total_kib = info
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let machine = total_kib.map_or(UNKNOWN, |kib| kib << 10);
    usable(group_limit().map_or(machine, |limit| limit.min(machine)) / 4)
}

/// The lowest memory limit of the control groups (version 2) that this process is in.
fn group_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let own = root.join(group);
    let limit_of = |dir: &Path| std::fs::read_to_string(dir.join("memory.max")).ok()?.trim().parse::<u64>().ok();
    own.ancestors().take_while(|dir| dir.starts_with(root)).filter_map(limit_of).min()
}
