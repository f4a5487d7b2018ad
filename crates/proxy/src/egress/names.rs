//! What a sandbox was told about names. Pure but for the time that it is given.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Programs keep answers for longer than they should.
const GRACE: Duration = Duration::from_secs(3600);
/// Most names that are remembered.
const MOST: usize = 4096;
/// Most bytes that are remembered, about. Beyond either, those that are over first go first.
const MOST_BYTES: usize = 1 << 20;
/// Most addresses of one name: those of former answers, which rotate, are among them.
const MOST_ADDRESSES: usize = 64;
/// Most names of one address that are found by it, the latest ones.
const MOST_NAMES: usize = 64;

/// Names that another one leads to.
pub type Aliases = Rc<[String]>;

/// An address that a name was said to have.
#[derive(Clone, Debug)]
struct Said {
    address: IpAddr,
    /// By way of these.
    aliases: Aliases,
    until: Instant,
}

/// What a name has been said to be.
#[derive(Debug, Default)]
struct Known {
    /// The latest answer.
    latest: Vec<IpAddr>,
    aliases: Aliases,
    until: Option<Instant>,
    /// All answers that are not forgotten.
    said: Vec<Said>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The name's addresses.
    pub addresses: Vec<IpAddr>,
    /// The names by way of which it has them.
    pub aliases: Aliases,
    /// For how long.
    pub lasts: Duration,
}

/// Names by their question, and their addresses.
#[derive(Default)]
pub struct Names {
    known: HashMap<(String, u16), Known>,
    /// The names of each address, the latest last.
    of: HashMap<IpAddr, VecDeque<String>>,
    bytes: usize,
}

impl Known {
    fn bytes(&self, name: &str) -> usize {
        let mut bytes = 256 + 2 * name.len() + size_of_val(&*self.latest);
        let mut before: Option<&Aliases> = None;
        for said in &self.said {
            bytes += size_of::<Said>() + 64 + name.len();
            if before.is_none_or(|before| !Rc::ptr_eq(before, &said.aliases)) {
                bytes += said
                    .aliases
                    .iter()
                    .map(|alias| 24 + alias.len())
                    .sum::<usize>();
            }
            before = Some(&said.aliases);
        }
        bytes
    }

    fn over(&self) -> Option<Instant> {
        self.said
            .iter()
            .map(|said| said.until)
            .chain(self.until)
            .max()
    }
}

impl Names {
    /// Remembers an answer, beside former ones.
    pub fn learn(&mut self, name: &str, kind: u16, answer: &Answer, now: Instant) {
        self.make_room(now);
        let mut known = self.take(name, kind).unwrap_or_default();
        let until = now + answer.lasts;
        known.latest.clone_from(&answer.addresses);
        known.aliases = Rc::clone(&answer.aliases);
        known.until = Some(until);
        known
            .said
            .retain(|said| said.until + GRACE > now && !answer.addresses.contains(&said.address));
        known.said.sort_by_key(|said| said.until);
        let room = MOST_ADDRESSES.saturating_sub(answer.addresses.len());
        let many = known.said.len().saturating_sub(room);
        known.said.drain(..many);
        for address in answer.addresses.iter().take(MOST_ADDRESSES) {
            known.said.push(Said {
                address: *address,
                aliases: Rc::clone(&answer.aliases),
                until,
            });
        }
        self.put(name, kind, known);
    }

    fn put(&mut self, name: &str, kind: u16, known: Known) {
        self.bytes += known.bytes(name);
        for said in &known.said {
            let names = self.of.entry(said.address).or_default();
            if names.len() >= MOST_NAMES {
                names.pop_front();
            }
            names.push_back(name.to_owned());
        }
        self.known.insert((name.to_owned(), kind), known);
    }

    fn take(&mut self, name: &str, kind: u16) -> Option<Known> {
        let known = self.known.remove(&(name.to_owned(), kind))?;
        self.bytes -= known.bytes(name);
        for said in &known.said {
            if let Some(names) = self.of.get_mut(&said.address) {
                names.retain(|each| each != name);
                if names.is_empty() {
                    self.of.remove(&said.address);
                }
            }
        }
        Some(known)
    }

    /// For one more; an eighth goes at a time, so that who asks for very many names makes nobody search for each.
    fn make_room(&mut self, now: Instant) {
        if self.known.len() < MOST && self.bytes < MOST_BYTES {
            return;
        }
        let over = |known: &Known| known.over().unwrap_or(now);
        let mut all: Vec<_> = self
            .known
            .iter()
            .map(|(key, known)| (over(known), key.clone()))
            .collect();
        all.sort_unstable();
        let many = all.len() / 8 + 1;
        for (_, (name, kind)) in all.into_iter().take(many) {
            self.take(&name, kind);
        }
    }

    /// An answer that still holds, and for how long.
    #[must_use]
    pub fn fresh(&self, name: &str, kind: u16, now: Instant) -> Option<Answer> {
        let known = self.known.get(&(name.to_owned(), kind))?;
        let lasts = known.until?.checked_duration_since(now)?;
        (!lasts.is_zero()).then(|| Answer {
            addresses: known.latest.clone(),
            aliases: Rc::clone(&known.aliases),
            lasts,
        })
    }

    fn said<'a>(&'a self, name: &str, now: Instant) -> impl Iterator<Item = &'a Said> {
        let kinds = [super::dns::A, super::dns::AAAA];
        let known = kinds.map(|kind| self.known.get(&(name.to_owned(), kind)));
        let said = known.into_iter().flatten().flat_map(|known| &known.said);
        said.filter(move |said| said.until + GRACE > now)
    }

    /// By way of which names a name was said to have this address; `None` when it was not.
    #[must_use]
    pub fn way(&self, name: &str, address: IpAddr, now: Instant) -> Option<Aliases> {
        let mut said = self.said(name, now);
        said.find(|said| said.address == address)
            .map(|said| Rc::clone(&said.aliases))
    }

    /// All addresses that a name was said to have, the latest first, each with the names by way of which it has them.
    #[must_use]
    pub fn of_name(&self, name: &str, now: Instant) -> Vec<(IpAddr, Aliases)> {
        let mut said: Vec<_> = self.said(name, now).collect();
        said.sort_by_key(|said| std::cmp::Reverse(said.until));
        said.into_iter()
            .map(|said| (said.address, Rc::clone(&said.aliases)))
            .collect()
    }

    /// The names that were said to have this address, in a fixed order, at most some.
    #[must_use]
    pub fn of_address(&self, address: IpAddr, now: Instant) -> Vec<String> {
        let named = self.of.get(&address).into_iter().flatten();
        let mut names: Vec<String> = named
            .filter(|name| self.way(name, address, now).is_some())
            .cloned()
            .collect();
        names.sort();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from(0x0a00_0000 + number).into()
    }

    fn answer(addresses: &[IpAddr], aliases: &[&str], seconds: u64) -> Answer {
        Answer {
            addresses: addresses.to_vec(),
            aliases: aliases.iter().map(|each| (*each).to_owned()).collect(),
            lasts: Duration::from_secs(seconds),
        }
    }

    /// An answer holds for its time, is remembered a while longer, and then is forgotten.
    #[test]
    fn remembered() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let one = address(1);
        let mut names = Names::default();
        names.learn("a.test", 1, &answer(&[one], &["b.test"], 10), now);
        assert_eq!(
            names.fresh("a.test", 1, now),
            Some(answer(&[one], &["b.test"], 10))
        );
        assert!(names.fresh("a.test", 1, after(9)).is_some());
        assert!(names.fresh("a.test", 1, after(10)).is_none());
        let way = names.way("a.test", one, after(60)).expect("is known");
        assert_eq!(&*way, ["b.test".to_owned()]);
        assert!(names
            .way("a.test", one, now + GRACE + Duration::from_secs(11))
            .is_none());
        assert_eq!(names.of_address(one, now), ["a.test"]);
        assert_eq!(names.of_address(address(2), now), [""; 0]);
    }

    /// A name whose answers rotate has all its addresses, each until its own end and by its own way; of very many the
    /// latest.
    #[test]
    fn rotating() {
        let now = Instant::now();
        let mut names = Names::default();
        for number in 0..4 {
            let at = now + Duration::from_secs(u64::from(number));
            let way = format!("edge{number}.test");
            names.learn("a.test", 1, &answer(&[address(number)], &[&way], 5), at);
        }
        assert_eq!(
            names.fresh("a.test", 1, now).map(|it| it.addresses),
            Some(vec![address(3)])
        );
        for number in 0..4 {
            let way = names.way("a.test", address(number), now).expect("is known");
            assert_eq!(&*way, [format!("edge{number}.test")]);
            assert_eq!(names.of_address(address(number), now), ["a.test"]);
        }
        let late = now + GRACE + Duration::from_millis(6500);
        assert!(names.way("a.test", address(1), late).is_none());
        assert!(names.way("a.test", address(2), late).is_some());
        for number in 0..1000 {
            let at = now + Duration::from_secs(u64::from(number));
            names.learn("a.test", 1, &answer(&[address(number)], &[], 5), at);
        }
        let all = names.of_name("a.test", now + Duration::from_secs(1000));
        assert_eq!(all.len(), MOST_ADDRESSES);
        assert_eq!(all[0].0, address(999));
        assert_eq!(names.of_address(address(0), now), [""; 0]);
        assert_eq!(names.of.len(), MOST_ADDRESSES);
    }

    /// Who asks for very many names, or for names with very much behind them, makes only its own be forgotten, the oldest
    /// first, and what is remembered has a bound.
    #[test]
    fn bounded() {
        let now = Instant::now();
        let mut names = Names::default();
        let long = "x".repeat(250);
        let far: Vec<&str> = vec![&long; 15];
        for number in 0..3 * MOST as u32 {
            let at = now + Duration::from_secs(u64::from(number));
            let aliases = if number % 2 == 0 { &far[..] } else { &[] };
            names.learn(
                &format!("{number}.test"),
                1,
                &answer(&[address(7)], aliases, 20),
                at,
            );
            assert!(names.known.len() <= MOST && names.bytes < MOST_BYTES + 8192);
        }
        let end = now + Duration::from_secs(3 * MOST as u64);
        let latest = format!("{}.test", 3 * MOST - 1);
        assert!(names.way(&latest, address(7), end).is_some());
        assert!(names.way("0.test", address(7), now).is_none());
        assert!(names.of_address(address(7), now).len() <= MOST_NAMES);
        let kept: Vec<_> = names.known.keys().cloned().collect();
        for (name, kind) in kept {
            names.take(&name, kind);
        }
        assert_eq!((names.bytes, names.of.len()), (0, 0));
    }
}
