//! What has happened in a session: appended to a file beside its output before it is acted on, so that a successor knows it.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use dsec_proto::session::RunEnd;
use serde::{Deserialize, Serialize};

/// Its name in the exec's output directory.
const NAME: &str = "runs";

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// A run is about to begin: its script is in its place.
    Begun(Run),
    /// The current run is about to be interrupted.
    Stopping {
        /// `timeout` or `cancelled`.
        cause: String,
        /// When its processes are killed.
        kill_at: u64,
    },
    /// The current run ended.
    Ended {
        /// How.
        end: RunEnd,
        /// The session's counters then.
        counters: Counters,
    },
    /// A run that is not to begin.
    Cancelled(String),
}

/// The run that the shell has. Times are CLOCK_BOOTTIME nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Counts from 1.
    pub number: u64,
    /// Its ID.
    pub run_id: String,
    /// When it began.
    pub started_ns: u64,
    /// When its time is over.
    pub timeout_at: Option<u64>,
    /// Between SIGTERM and the kill.
    pub grace_ns: u64,
    /// (PID, start time) of what earlier runs left in the background, to be spared.
    pub older: Vec<(i32, u64)>,
    /// Why it is being interrupted, and when that gets serious.
    pub stopping: Option<(String, u64)>,
    /// Its standard error is the descriptor of its standard output.
    #[serde(default)]
    pub merged: bool,
}

/// Counters of the session's exec, to be compared at the end of each run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// OOM kills in its group.
    pub oom_kills: u64,
    /// Refused forks in the sandbox.
    pub pids_refused: u64,
    /// CPU time of its group.
    pub cpu_ns: u64,
}

/// What all entries come to.
#[derive(Debug, Default)]
pub struct State {
    /// Number of the last run that began.
    pub number: u64,
    /// Its status, once it has one.
    pub last: i32,
    /// Where the next run's output begins.
    pub marks: [u64; 2],
    /// As they were at the end of the last run.
    pub counters: Counters,
    /// The run that has begun and not ended.
    pub current: Option<Run>,
    /// Those that have ended, by ID.
    pub ended: HashMap<String, RunEnd>,
    /// Those that are not to begin.
    pub cancelled: HashSet<String>,
}

impl State {
    /// Takes an entry in.
    pub fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Begun(run) => {
                self.number = run.number;
                self.current = Some(run);
            }
            Entry::Stopping { cause, kill_at } => {
                if let Some(run) = &mut self.current {
                    run.stopping = Some((cause, kill_at));
                }
            }
            Entry::Ended { end, counters } => {
                // One that never began has taken nothing of the output.
                if self.current.take().is_some() {
                    self.marks = [
                        end.stdout_from + end.stdout_total,
                        end.stderr_from + end.stderr_total,
                    ];
                    self.last = end.exit_code.unwrap_or(0);
                    self.counters = counters;
                }
                self.ended.insert(end.run_id.clone(), end);
            }
            Entry::Cancelled(run_id) => {
                self.cancelled.insert(run_id);
            }
        }
    }
}

/// The file.
#[derive(Debug)]
pub struct Book(File);

impl Book {
    /// Opens it, and reads what a former runtime wrote.
    ///
    /// # Errors
    /// When the data directory cannot take it.
    pub fn open(directory: &Path, counters: Counters) -> io::Result<(Self, State)> {
        std::fs::create_dir_all(directory)?;
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(directory.join(NAME))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok((Self(file), replayed(&bytes, counters)))
    }

    /// Appends an entry, whole.
    ///
    /// # Errors
    /// When the data directory cannot take it.
    pub fn append(&self, entry: &Entry) -> io::Result<()> {
        let body = rmp_serde::to_vec_named(entry).map_err(io::Error::other)?;
        let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
        bytes.extend(body);
        (&self.0).write_all(&bytes)
    }
}

/// What happened in a session that may be over for long; `None` for what is no session.
#[must_use]
pub fn past(directory: &Path) -> Option<State> {
    let bytes = std::fs::read(directory.join(NAME)).ok()?;
    Some(replayed(&bytes, Counters::default()))
}

fn replayed(bytes: &[u8], counters: Counters) -> State {
    let mut state = State {
        counters,
        ..State::default()
    };
    for entry in entries(bytes) {
        state.apply(entry);
    }
    state
}

/// Whole entries; one that is cut short was never acted on.
fn entries(mut bytes: &[u8]) -> Vec<Entry> {
    let mut found = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<4>() {
        let length = u32::from_be_bytes(*head) as usize;
        let Some(body) = rest.get(..length) else {
            break;
        };
        match rmp_serde::from_slice(body) {
            Ok(entry) => found.push(entry),
            Err(error) => tracing::error!("an entry that cannot be read: {error}"),
        }
        bytes = &rest[length..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_run(number: u64, run_id: &str) -> Run {
        Run {
            number,
            run_id: run_id.into(),
            started_ns: 1,
            timeout_at: Some(2),
            grace_ns: 3,
            older: vec![(4, 5)],
            stopping: None,
            merged: true,
        }
    }

    fn an_end(run_id: &str, exit_code: i32) -> RunEnd {
        RunEnd {
            run_id: run_id.into(),
            ended: "exited".into(),
            exit_code: Some(exit_code),
            signal: None,
            oom_kills: 0,
            quota_hits: Vec::new(),
            stdout_from: 10,
            stdout_total: 5,
            stderr_from: 0,
            stderr_total: 1,
            started_at: 1.0,
            duration_ns: 2,
            usage: Default::default(),
            closed: false,
            merged: false,
        }
    }

    /// What was written comes back as the same state, but for an entry that was cut short.
    #[test]
    fn a_successor_finds_what_happened() {
        let directory = std::env::temp_dir().join(format!("dsec-book-{}", std::process::id()));
        let (book, _) = Book::open(&directory, Counters::default()).expect("opens");
        let counters = Counters {
            oom_kills: 1,
            pids_refused: 2,
            cpu_ns: 3,
        };
        let written = [
            Entry::Begun(a_run(1, "one")),
            Entry::Ended {
                end: an_end("one", 7),
                counters,
            },
            Entry::Cancelled("never".into()),
            Entry::Ended {
                end: an_end("never", 0),
                counters: Counters::default(),
            },
            Entry::Begun(a_run(2, "two")),
            Entry::Stopping {
                cause: "timeout".into(),
                kill_at: 9,
            },
        ];
        for entry in &written {
            book.append(entry).expect("appends");
        }
        (&book.0).write_all(&[0, 0, 0, 9, 1]).expect("writes");
        let (_, state) = Book::open(&directory, Counters::default()).expect("opens again");
        std::fs::remove_dir_all(&directory).expect("removes");
        assert_eq!((state.number, state.last), (2, 7));
        assert_eq!(state.marks, [15, 1]);
        assert_eq!(state.counters, counters);
        assert!(state.cancelled.contains("never") && state.ended.contains_key("one"));
        let current = state.current.expect("a run is under way");
        assert_eq!(current.stopping, Some(("timeout".into(), 9)));
        assert!(current.merged);
    }
}
