//! Counts of schedules.

/// The counts of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Steps.
    pub steps: u64,
    /// Txgs that were written.
    pub txgs: u64,
    /// Of the steps, failures of disks.
    pub failures: u64,
    /// Of these, verbs that were carried out.
    pub verbs: u64,
    /// Verbs that were refused.
    pub refused: u64,
    /// Of the steps, power cuts.
    pub cuts: u64,
    /// Of the verbs, evacuations, expansions and splits that began, and returns to checkpoints.
    pub reshapes: [u64; 4],
    /// Resilvers and rebuilds that had ended whenever one looked.
    pub resilvers: u64,
    /// The most slots of a vdev that were unsound at once.
    pub unsound_max: u64,
    /// Blocks of the client that were compared.
    pub compared: u64,
    /// Exported pools whose leaves were compared with what the pool says of them, before the end.
    pub checked: u64,
    /// Blocks that were destroyed in the end, in more columns than redundancy makes up for.
    pub lost: u64,
}

impl Done {
    /// Adds another one's.
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.txgs += other.txgs;
        self.failures += other.failures;
        self.verbs += other.verbs;
        self.refused += other.refused;
        self.cuts += other.cuts;
        self.reshapes.iter_mut().zip(other.reshapes).for_each(|(sum, more)| *sum += more);
        self.resilvers += other.resilvers;
        self.unsound_max = self.unsound_max.max(other.unsound_max);
        self.compared += other.compared;
        self.checked += other.checked;
        self.lost += other.lost;
    }
}
