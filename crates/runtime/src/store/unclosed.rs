//! Layers that this node has unmounted and that the holder still fills: somebody may read them.

use std::collections::{HashMap, HashSet};
use std::io;

use super::gone::Gone;

/// How long an unmounted file system may take to go before others have their turn.
const GONE_MS: i32 = 2000;

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
            Some(Ok(gone)) if gone.within(GONE_MS) => {}
            Some(Ok(gone)) => layer.systems.push(Some(gone)),
            Some(Err(error)) => {
                tracing::warn!(layer = digest, "stays with the holder: {error}");
                layer.systems.push(None);
            }
        }
    }

    /// Lets go of those that nobody can read and that are not `mounted` again. What fails is tried again the next time.
    pub fn close(
        &mut self,
        mounted: &HashSet<u32>,
        mut close: impl FnMut(&str, u32) -> io::Result<()>,
    ) {
        for layer in self.0.values_mut() {
            let there = |gone: &Option<Gone>| !gone.as_ref().is_some_and(|gone| gone.within(0));
            layer.systems.retain(there);
        }
        let free = |(number, layer): (&u32, &Layer)| {
            (layer.systems.is_empty() && !mounted.contains(number)).then_some(*number)
        };
        let free: Vec<u32> = self.0.iter().filter_map(free).collect();
        for number in free {
            let digest = &self.0[&number].digest;
            if let Err(error) = close(digest, number) {
                tracing::warn!(layer = digest, "stays with the holder for now: {error}");
                break;
            }
            self.0.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those whose numbers are told to the holder.
    fn closed(unclosed: &mut Unclosed, mounted: &[u32]) -> Vec<(String, u32)> {
        let mut told = Vec::new();
        unclosed.close(&mounted.iter().copied().collect(), |digest, number| {
            told.push((digest.to_owned(), number));
            Ok(())
        });
        told
    }

    /// A holder that does not answer is told again; what it has been told is forgotten.
    #[test]
    fn told_until_it_is_heard() {
        let mut unclosed = Unclosed::default();
        unclosed.add(7, "a", None);
        unclosed.close(&HashSet::new(), |_, _| Err(io::ErrorKind::TimedOut.into()));
        assert_eq!(closed(&mut unclosed, &[]), [("a".to_owned(), 7)]);
        assert_eq!(closed(&mut unclosed, &[]), []);
    }

    /// What is mounted again, and what may still be read, is not let go.
    #[test]
    fn not_while_it_can_be_read() {
        let mut unclosed = Unclosed::default();
        unclosed.add(7, "a", None);
        unclosed.add(8, "b", Some(Err(io::ErrorKind::Other.into())));
        assert_eq!(closed(&mut unclosed, &[7]), []);
        assert_eq!(closed(&mut unclosed, &[]), [("a".to_owned(), 7)]);
    }
}
