//! A word that is said once to all who wait for it.

use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::Notify;

/// Whether something is over; clones are the same.
#[derive(Clone, Default)]
pub struct Cut(Rc<(Cell<bool>, Notify)>);

impl Cut {
    /// It is over.
    pub fn cut(&self) {
        self.0 .0.set(true);
        self.0 .1.notify_waiters();
    }

    /// Whether it is.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.0 .0.get()
    }

    /// Returns once it is.
    pub async fn wait(&self) {
        let mut told = std::pin::pin!(self.0 .1.notified());
        told.as_mut().enable();
        if !self.is_cut() {
            told.await;
        }
    }
}
