//! What is noted of one sandbox. Pure: neither a clock nor a file.
//!
//! The first time that something happens is an event at once. What is the same follows as one event with a count, at
//! the end of a second; after that, for as long as it goes on, at the end of two, four, … seconds. So a fork bomb is a
//! handful of events whose counts add up, and an event does not change once somebody has seen it.

use std::collections::VecDeque;

use dsec_proto::audit::{AuditEvent, AuditKind, AuditRecord, KEPT};
use serde::{Deserialize, Serialize};

/// How long the same is gathered at first, and at most.
const FIRST_NS: u64 = 1_000_000_000;
const MOST_NS: u64 = 60 * FIRST_NS;
/// Different things that are gathered at a time: with one more, the one that would be told next is told now.
const MOST_OPEN: usize = 64;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct What {
    /// What it is about.
    pub kind: AuditKind,
    /// Why.
    pub reason: &'static str,
    /// To or with what.
    pub name: Option<String>,
    /// The exec or run, where that is known.
    pub exec_id: Option<String>,
    /// What counts it besides.
    pub counter: Counter,
}

/// A counter that outlives the runtime, in which a successor finds what was noted of it and not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Nobody's.
    None,
    /// [`Seen::oom_kills`].
    OomKills,
    /// [`Seen::pids_refused`].
    PidsRefused,
    /// Of [`Seen::endpoints`] that one.
    Endpoint(usize),
}

/// A new event.
#[derive(Clone, Debug)]
pub struct Told {
    /// It.
    pub event: AuditEvent,
    /// How far the events up to this one tell of the counters.
    pub seen: Seen,
}

/// A moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// CLOCK_BOOTTIME.
    pub boot_ns: u64,
    /// Unix time, seconds.
    pub unix: f64,
}

/// How far the kernel's and the proxy's counters were noted. How far they were told is written with each event, so that a
/// successor notes nothing twice, and anew what was being gathered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// OOM kills of the sandbox, those of its execs among them.
    pub oom_kills: u64,
    /// Refused forks.
    pub pids_refused: u64,
    /// Whether the disk was full.
    pub disk_full: bool,
    /// What each endpoint has refused.
    pub endpoints: Vec<u64>,
}

/// Something that is being gathered.
#[derive(Debug)]
struct Open {
    what: What,
    until_ns: u64,
    wide_ns: u64,
    more: u64,
    at: f64,
}

/// The latest events of a sandbox, and what will become one.
#[derive(Debug, Default)]
pub struct Book {
    latest: VecDeque<AuditEvent>,
    next: u64,
    open: Vec<Open>,
    /// How far counters were noted.
    pub seen: Seen,
    /// How far events tell of them.
    told: Seen,
}

impl Seen {
    fn counted(&mut self, counter: Counter, more: u64) {
        let counted = match counter {
            Counter::None => return,
            Counter::OomKills => &mut self.oom_kills,
            Counter::PidsRefused => &mut self.pids_refused,
            Counter::Endpoint(index) => {
                self.endpoints
                    .resize(self.endpoints.len().max(index + 1), 0);
                &mut self.endpoints[index]
            }
        };
        *counted += more;
    }
}

impl Book {
    /// As a former runtime left it.
    #[must_use]
    pub fn again(mut events: Vec<AuditEvent>, seen: Seen) -> Self {
        events.sort_by_key(|event| event.number);
        Self {
            next: events.last().map_or(0, |last| last.number + 1),
            latest: events.into(),
            open: Vec::new(),
            told: seen.clone(),
            seen,
        }
    }

    /// It happened so often. What has become an event by that is returned.
    pub fn note(&mut self, what: What, count: u64, now: Moment) -> Vec<Told> {
        if let Some(open) = self.open.iter_mut().find(|open| open.what == what) {
            open.more += count;
            open.at = now.unix;
            return Vec::new();
        }
        let mut told = Vec::new();
        if self.open.len() >= MOST_OPEN {
            let first = (0..self.open.len()).min_by_key(|at| self.open[*at].until_ns);
            let open = first.map(|at| self.open.swap_remove(at));
            told.extend(open.and_then(|open| self.close(open)));
        }
        told.push(self.tell(&what, count, now.unix));
        self.open.push(Open {
            what,
            until_ns: now.boot_ns + FIRST_NS,
            wide_ns: FIRST_NS,
            more: 0,
            at: now.unix,
        });
        told
    }

    /// Makes events of what was gathered for long enough, or, with `all`, of everything.
    pub fn settle(&mut self, now: Moment, all: bool) -> Vec<Told> {
        let mut told = Vec::new();
        for mut open in std::mem::take(&mut self.open) {
            if !all && open.until_ns > now.boot_ns {
                self.open.push(open);
            } else if all {
                told.extend(self.close(open));
            } else if open.more > 0 {
                told.push(self.tell(&open.what, open.more, open.at));
                open.more = 0;
                open.wide_ns = (open.wide_ns * 2).min(MOST_NS);
                open.until_ns = now.boot_ns + open.wide_ns;
                self.open.push(open);
            }
        }
        told
    }

    fn close(&mut self, open: Open) -> Option<Told> {
        (open.more > 0).then(|| self.tell(&open.what, open.more, open.at))
    }

    fn tell(&mut self, what: &What, count: u64, at: f64) -> Told {
        let event = AuditEvent {
            number: self.next,
            at,
            kind: what.kind,
            reason: what.reason.into(),
            name: what.name.clone(),
            exec_id: what.exec_id.clone(),
            count,
        };
        self.next += 1;
        self.latest.push_back(event.clone());
        if self.latest.len() as u64 > KEPT {
            self.latest.pop_front();
        }
        self.told.counted(what.counter, count);
        self.told.disk_full = self.seen.disk_full;
        Told {
            event,
            seen: self.told.clone(),
        }
    }

    /// Whether this has been told and is still kept.
    #[must_use]
    pub fn has_told(&self, kind: AuditKind, reason: &str, name: &str, exec_id: &str) -> bool {
        self.latest.iter().any(|event| {
            (event.kind, event.reason.as_str()) == (kind, reason)
                && event.name.as_deref() == Some(name)
                && event.exec_id.as_deref() == Some(exec_id)
        })
    }

    /// Whether something is being gathered.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// The latest events from a number on, at most so many.
    #[must_use]
    pub fn record(&self, from: u64, most: u64) -> AuditRecord {
        let first = from.max(self.next.saturating_sub(most));
        let wanted = self.latest.iter().filter(|event| event.number >= first);
        AuditRecord {
            events: self.next,
            latest: wanted.cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = FIRST_NS;

    fn at(second: u64) -> Moment {
        Moment {
            boot_ns: second * SECOND,
            unix: second as f64,
        }
    }

    fn what(name: &str) -> What {
        What {
            kind: AuditKind::Syscall,
            reason: "mount",
            name: Some(name.into()),
            exec_id: None,
            counter: Counter::None,
        }
    }

    /// A million of the same are few events, and nothing of the count is lost.
    #[test]
    fn the_same_is_gathered() {
        let mut book = Book::default();
        let mut told = Vec::new();
        for second in 0..1000 {
            for _ in 0..1000 {
                told.extend(book.note(what("mount"), 1, at(second)));
            }
            told.extend(book.settle(at(second), false));
        }
        told.extend(book.settle(at(1000), true));
        assert!(told.len() < 30, "{}", told.len());
        let told: Vec<_> = told.into_iter().map(|told| told.event).collect();
        assert_eq!((told[0].count, told[0].at), (1, 0.0));
        assert_eq!(told.iter().map(|event| event.count).sum::<u64>(), 1_000_000);
        assert!(!book.is_open());
    }

    /// After a pause the next one is an event at once.
    #[test]
    fn a_pause_ends_it() {
        let mut book = Book::default();
        assert_eq!(book.note(what("mount"), 1, at(0)).len(), 1);
        assert!(book.settle(at(2), false).is_empty());
        assert!(!book.is_open());
        assert_eq!(book.note(what("mount"), 1, at(3)).len(), 1);
    }

    /// However many different things there are, only some are gathered, only the latest kept, and each has its number.
    #[test]
    fn different_things_are_bounded() {
        let mut book = Book::default();
        for number in 0..1000 {
            book.note(what(&number.to_string()), 1, at(0));
            book.note(what(&number.to_string()), 2, at(0));
        }
        assert!(book.open.len() <= MOST_OPEN);
        let record = book.record(0, KEPT);
        assert_eq!(record.latest.len() as u64, KEPT);
        let numbers: Vec<u64> = record.latest.iter().map(|event| event.number).collect();
        assert!(numbers.windows(2).all(|two| two[0] + 1 == two[1]));
        assert_eq!(numbers.last(), Some(&(record.events - 1)));
        assert_eq!(book.record(record.events - 3, KEPT).latest.len(), 3);
        assert_eq!(book.record(0, 5).latest.len(), 5);
    }

    /// A successor goes on with the next number.
    #[test]
    fn taken_up() {
        let mut book = Book::default();
        let events: Vec<_> = (0..3)
            .flat_map(|number| book.note(what(&number.to_string()), 1, at(0)))
            .map(|told| told.event)
            .rev()
            .collect();
        let mut again = Book::again(events, Seen::default());
        assert_eq!(again.note(what("next"), 1, at(1))[0].event.number, 3);
        assert_eq!(again.record(0, KEPT).latest.len(), 4);
    }

    /// What is written with an event leaves out what is still gathered, whatever else is told meanwhile: each of these
    /// is told by a successor, and none that was told before.
    #[test]
    fn gathered_is_not_told() {
        let counting = |counter| What {
            counter,
            ..what(&format!("{counter:?}"))
        };
        let mut book = Book::default();
        for counter in [
            Counter::OomKills,
            Counter::PidsRefused,
            Counter::Endpoint(1),
        ] {
            book.note(counting(counter), 2, at(0));
            book.note(counting(counter), 3, at(0));
        }
        book.seen = Seen {
            oom_kills: 5,
            pids_refused: 5,
            disk_full: true,
            endpoints: vec![0, 5],
        };
        let other = book.note(what("other"), 1, at(0));
        let told = Seen {
            oom_kills: 2,
            pids_refused: 2,
            disk_full: true,
            endpoints: vec![0, 2],
        };
        assert_eq!(other[0].seen, told);
        let rest = book.settle(at(1), true);
        assert_eq!(rest.iter().map(|told| told.event.count).sum::<u64>(), 9);
        assert_eq!(rest.last().map(|told| &told.seen), Some(&book.seen));
    }
}
