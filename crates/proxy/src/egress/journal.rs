//! What did not pass, and what was counted, in the sandbox's journal.

use std::cell::RefCell;
use std::fs::File;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use dsec_proto::egress::{EgressCount, Reason};
use dsec_proto::journal::{self, Noted};

/// A journal that its predecessor may have begun.
pub struct Journal {
    file: File,
    head: RefCell<(EgressCount, u64)>,
}

impl Journal {
    /// Goes on with it.
    #[must_use]
    pub fn new(file: File) -> Self {
        let head = journal::head(&file).unwrap_or_else(|error| {
            tracing::error!("a journal cannot be read: {error}");
            Default::default()
        });
        Self {
            file,
            head: head.into(),
        }
    }

    /// Counts something, before it is acted on.
    pub fn count(&self, change: impl FnOnce(&mut EgressCount)) {
        let mut head = self.head.borrow_mut();
        change(&mut head.0);
        self.write(&head);
    }

    /// Bytes so far, both ways.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let head = self.head.borrow();
        head.0.sent_bytes.saturating_add(head.0.received_bytes)
    }

    /// A connection or a request did not pass, or was cut.
    pub fn refused(&self, reason: Reason, name: Option<&str>, to: Option<(IpAddr, u16)>) {
        self.note(false, reason, name, to);
    }

    /// A name was not answered.
    pub fn name_refused(&self, reason: Reason, name: Option<&str>) {
        self.note(true, reason, name, None);
    }

    fn note(&self, is_name: bool, reason: Reason, name: Option<&str>, to: Option<(IpAddr, u16)>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let at_ns = now.map_or(0, |now| now.as_nanos() as u64);
        let noted = Noted {
            at_ns,
            is_name,
            reason,
            name,
            to,
        };
        let mut head = self.head.borrow_mut();
        if let Err(error) = journal::note(&self.file, head.1, &noted) {
            tracing::error!("a journal cannot be written: {error}");
        }
        head.1 += 1;
        if is_name {
            head.0.names_refused += 1;
        } else {
            head.0.refused += 1;
        }
        self.write(&head);
    }

    fn write(&self, head: &(EgressCount, u64)) {
        if let Err(error) = journal::set_head(&self.file, &head.0, head.1) {
            tracing::error!("a journal cannot be written: {error}");
        }
    }
}
