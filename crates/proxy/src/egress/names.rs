//! What a sandbox was told about names. Pure but for the time that it is given.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Programs keep answers for longer than they should.
const GRACE: Duration = Duration::from_secs(3600);
/// Most names that are remembered; the one that is over first goes first.
const MOST: usize = 4096;

/// What a name has been said to be.
#[derive(Clone, Debug)]
struct Known {
    addresses: Vec<IpAddr>,
    fresh_until: Instant,
}

/// Names by their question, and their addresses.
#[derive(Default)]
pub struct Names(HashMap<(String, u16), Known>);

impl Names {
    /// Remembers an answer.
    pub fn learn(
        &mut self,
        name: &str,
        kind: u16,
        addresses: &[IpAddr],
        ttl: Duration,
        now: Instant,
    ) {
        if self.0.len() >= MOST {
            self.0.retain(|_, known| known.fresh_until + GRACE > now);
            if self.0.len() >= MOST {
                let first = self.0.iter().min_by_key(|(_, known)| known.fresh_until);
                if let Some(key) = first.map(|(key, _)| key.clone()) {
                    self.0.remove(&key);
                }
            }
        }
        let known = Known {
            addresses: addresses.to_vec(),
            fresh_until: now + ttl,
        };
        self.0.insert((name.to_owned(), kind), known);
    }

    /// An answer that still holds, and for how long.
    #[must_use]
    pub fn fresh(&self, name: &str, kind: u16, now: Instant) -> Option<(Vec<IpAddr>, Duration)> {
        let known = self.0.get(&(name.to_owned(), kind))?;
        let left = known.fresh_until.checked_duration_since(now)?;
        (!left.is_zero()).then(|| (known.addresses.clone(), left))
    }

    /// Whether a name was said to have this address.
    #[must_use]
    pub fn has(&self, name: &str, address: IpAddr, now: Instant) -> bool {
        self.of_name(name, now).contains(&address)
    }

    /// All addresses that a name was said to have.
    #[must_use]
    pub fn of_name(&self, name: &str, now: Instant) -> Vec<IpAddr> {
        let kinds = [super::dns::A, super::dns::AAAA];
        let known = kinds
            .iter()
            .filter_map(|kind| self.0.get(&(name.to_owned(), *kind)));
        known
            .filter(|known| known.fresh_until + GRACE > now)
            .flat_map(|known| known.addresses.clone())
            .collect()
    }

    /// The names that were said to have this address, in a fixed order.
    #[must_use]
    pub fn of_address(&self, address: IpAddr, now: Instant) -> Vec<String> {
        let named = self.0.iter().filter(|(_, known)| {
            known.fresh_until + GRACE > now && known.addresses.contains(&address)
        });
        let mut names: Vec<String> = named.map(|((name, _), _)| name.clone()).collect();
        names.sort();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer holds for its time, is remembered a while longer, and then is forgotten; the oldest go when there are many.
    #[test]
    fn remembered() {
        let now = Instant::now();
        let one: IpAddr = "192.0.2.1".parse().expect("is one");
        let mut names = Names::default();
        names.learn("a.test", 1, &[one], Duration::from_secs(10), now);
        assert!(names
            .fresh("a.test", 1, now + Duration::from_secs(9))
            .is_some());
        assert!(names
            .fresh("a.test", 1, now + Duration::from_secs(10))
            .is_none());
        assert!(names.has("a.test", one, now + Duration::from_secs(60)));
        assert!(!names.has("a.test", one, now + GRACE + Duration::from_secs(11)));
        assert_eq!(names.of_address(one, now), ["a.test"]);
        for number in 0..2 * MOST {
            names.learn(
                &format!("{number}.test"),
                1,
                &[one],
                Duration::from_secs(20),
                now,
            );
        }
        assert!(names.0.len() <= MOST && !names.has("a.test", one, now));
    }
}
