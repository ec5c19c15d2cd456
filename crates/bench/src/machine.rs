//! The machine that figures belong to.

/// Names and values, for a person.
#[must_use]
pub fn machine() -> Vec<(String, String)> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split(':').nth(1).unwrap_or_default().trim().to_owned()
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    [
        ("processor", field(&cpus, "model name")),
        ("cores", cores.to_string()),
        ("memory", field(&read("/proc/meminfo"), "MemTotal")),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("load when it began", read("/proc/loadavg").trim().to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
