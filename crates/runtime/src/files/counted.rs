//! How many there are of something, by sandbox.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Counts by sandbox; each ends when its token goes.
#[derive(Default)]
pub struct Counts(Rc<RefCell<HashMap<String, usize>>>);

impl Counts {
    /// How many a sandbox has.
    #[must_use]
    pub fn get(&self, sandbox_id: &str) -> usize {
        self.0.borrow().get(sandbox_id).copied().unwrap_or(0)
    }

    /// One more, until the token is dropped.
    #[must_use]
    pub fn count(&self, sandbox_id: &str) -> Counted {
        *self.0.borrow_mut().entry(sandbox_id.into()).or_insert(0) += 1;
        Counted {
            counts: Rc::clone(&self.0),
            sandbox_id: sandbox_id.into(),
        }
    }
}

/// One that is counted.
pub struct Counted {
    counts: Rc<RefCell<HashMap<String, usize>>>,
    sandbox_id: String,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.counts.borrow_mut();
        if let Some(count) = counts.get_mut(&self.sandbox_id) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.sandbox_id);
            }
        }
    }
}
