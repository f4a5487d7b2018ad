//! Layers that this node has unmounted and that the holder still fills: somebody may read them.

use std::collections::{HashMap, HashSet};
use std::io;

use crate::store::Gone;

/// By the holder's numbers.
#[derive(Default)]
pub struct Unclosed(HashMap<u32, Layer>);

struct Layer {
    digest: String,
    /// What was mounted of it. What cannot be watched is never known to be gone.
    systems: Vec<Option<Gone>>,
}

impl Unclosed {
    /// Nobody mounts from this one any more. `system`: what was mounted last, if it was.
    pub fn add(&mut self, number: u32, digest: &str, system: Option<io::Result<Gone>>) {
        let layer = self.0.entry(number).or_insert_with(|| Layer {
            digest: digest.into(),
            systems: Vec::new(),
        });
        match system {
            None => {}
            Some(Ok(gone)) => layer.systems.push(Some(gone)),
            Some(Err(error)) => {
                tracing::warn!(layer = digest, "stays with the holder: {error}");
                layer.systems.push(None);
            }
        }
    }

    /// Whether nobody can read this one any more.
    pub fn is_unread(&mut self, number: u32) -> bool {
        self.0.get_mut(&number).is_none_or(|layer| {
            let there = |gone: &Option<Gone>| !gone.as_ref().is_some_and(Gone::has_come);
            layer.systems.retain(there);
            layer.systems.is_empty()
        })
    }

    /// Those that nobody can read and that are not `mounted` again.
    pub fn free(&mut self, mounted: &HashSet<u32>) -> Vec<(u32, String)> {
        let numbers: Vec<u32> = self.0.keys().copied().collect();
        let free = numbers
            .into_iter()
            .filter(|number| self.is_unread(*number) && !mounted.contains(number));
        let free: Vec<u32> = free.collect();
        free.into_iter()
            .map(|number| (number, self.0[&number].digest.clone()))
            .collect()
    }

    /// The holder has let go of it.
    pub fn closed(&mut self, number: u32) {
        self.0.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(unclosed: &mut Unclosed, mounted: &[u32]) -> Vec<(u32, String)> {
        unclosed.free(&mounted.iter().copied().collect())
    }

    /// A holder that does not answer is told again; what it has been told is forgotten.
    #[test]
    fn told_until_it_is_heard() {
        let mut unclosed = Unclosed::default();
        unclosed.add(7, "a", None);
        for _ in 0..2 {
            assert_eq!(free(&mut unclosed, &[]), [(7, "a".to_owned())]);
        }
        unclosed.closed(7);
        assert_eq!(free(&mut unclosed, &[]), []);
    }

    /// What is mounted again, and what may still be read, is not let go.
    #[test]
    fn not_while_it_can_be_read() {
        let mut unclosed = Unclosed::default();
        unclosed.add(7, "a", None);
        unclosed.add(8, "b", Some(Err(io::ErrorKind::Other.into())));
        assert_eq!(free(&mut unclosed, &[7]), []);
        assert_eq!(free(&mut unclosed, &[]), [(7, "a".to_owned())]);
    }
}
