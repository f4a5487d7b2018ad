//! Layers that are mounted, and which of them has not been wanted for longest. Pure.

use std::collections::{HashMap, HashSet};

/// By digest.
#[derive(Default)]
pub struct Ready {
    layers: HashMap<String, Layer>,
    wanted: u64,
}

struct Layer {
    /// The holder's, where it fills the layer and this process mounted it or has asked since.
    number: Option<u32>,
    /// How often any had been wanted when this one was.
    last: u64,
}

impl Ready {
    /// Those that a former runtime mounted.
    pub fn of(found: &[String]) -> Self {
        let mut ready = Self::default();
        found.iter().for_each(|digest| ready.add(digest, None));
        ready
    }

    /// Whether it is mounted, for somebody who wants it now.
    pub fn want(&mut self, digest: &str) -> bool {
        self.wanted += 1;
        let found = self.layers.get_mut(digest);
        found.map(|layer| layer.last = self.wanted).is_some()
    }

    /// It is mounted.
    pub fn add(&mut self, digest: &str, number: Option<u32>) {
        let last = self.wanted;
        self.layers.insert(digest.into(), Layer { number, last });
    }

    /// It is not mounted any more.
    pub fn remove(&mut self, digest: &str) {
        self.layers.remove(digest);
    }

    /// The holder's number of one that is mounted, if that is known.
    pub fn number(&self, digest: &str) -> Option<Option<u32>> {
        self.layers.get(digest).map(|layer| layer.number)
    }

    /// All numbers that are known.
    pub fn numbers(&self) -> HashSet<u32> {
        let layers = self.layers.values();
        layers.filter_map(|layer| layer.number).collect()
    }

    /// All of them, the longest unwanted first.
    pub fn digests(&self) -> Vec<String> {
        let mut all: Vec<(u64, &String)> = self
            .layers
            .iter()
            .map(|(digest, layer)| (layer.last, digest))
            .collect();
        all.sort_unstable();
        all.into_iter().map(|(_, digest)| digest.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was wanted again comes after what was not, and what a former runtime mounted before both.
    #[test]
    fn the_longest_unwanted_first() {
        let mut ready = Ready::of(&["former".to_owned()]);
        for (number, digest) in ["a", "b", "c"].into_iter().enumerate() {
            assert!(!ready.want(digest));
            ready.add(digest, Some(number as u32));
        }
        assert!(ready.want("a"));
        assert_eq!(ready.digests(), ["former", "b", "c", "a"]);
        ready.remove("b");
        assert_eq!(ready.digests(), ["former", "c", "a"]);
        assert_eq!(ready.numbers(), HashSet::from([0, 2]));
        assert_eq!(
            (ready.number("former"), ready.number("b")),
            (Some(None), None)
        );
    }
}
