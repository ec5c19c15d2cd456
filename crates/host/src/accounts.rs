//! Users and groups of this system, by number.

use std::collections::BTreeMap;

/// A table of the system's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accounts {
    /// `/etc/passwd`.
    Users,
    /// `/etc/group`.
    Groups,
}

impl Accounts {
    /// Names by number; none where the table cannot be read. Of several names of a number the first.
    pub fn names(self) -> BTreeMap<u64, String> {
        let mut names = BTreeMap::new();
        for (name, number) in self.entries() {
            names.entry(number).or_insert(name);
        }
        names
    }

    /// The number of a name.
    pub fn number(self, name: &str) -> Option<u64> {
        self.entries().into_iter().find(|(found, _)| found == name).map(|(_, number)| number)
    }

    /// Names and numbers, in the table's order.
    fn entries(self) -> Vec<(String, u64)> {
        let path = match self {
            Self::Users => "/etc/passwd",
            Self::Groups => "/etc/group",
        };
        let text = std::fs::read(path).unwrap_or_default();
        let entry = |line: &str| {
            let mut fields = line.split(':');
            Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?))
        };
        String::from_utf8_lossy(&text).lines().filter_map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers_and_numbers_names() {
        assert_eq!(Accounts::Users.number("root"), Some(0));
        assert_eq!(Accounts::Users.names().get(&0).map(String::as_str), Some("root"));
        assert_eq!(Accounts::Groups.number("no such group"), None);
    }
}
