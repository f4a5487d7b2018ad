//! Whose bytes an exec's input is made of.
//!
//! Each writer counts its own: whoever attaches later cannot know what others have sent, and a frame that is repeated after
//! a lost connection must be known again. One writes at a time. Its count is what it had when its turn began, and what the
//! input as a whole has taken since; so only the turns need to be recorded, and an exec with one writer records nothing.

use std::cell::{Cell, RefCell};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dsec_proto::error::{WireError, WireResult};

/// Most writers of one exec.
const MOST: usize = 4096;
/// Bytes of the record for each writer; the first so many are the number of the one whose turn it is.
const SLOT: usize = 24;

/// One writer, in the order of their coming.
#[derive(Clone, Copy)]
struct Writer {
    id: u64,
    /// Its count when its turn began, or ended.
    count: u64,
    /// The input's total then.
    total: u64,
}

/// All of them.
pub struct Writers {
    record: PathBuf,
    known: RefCell<Vec<Writer>>,
    turn: Cell<usize>,
}

impl Writers {
    /// Those of an exec, as a former runtime may have recorded them.
    #[must_use]
    pub fn find(directory: &Path) -> Self {
        let record = directory.join("0");
        let bytes = std::fs::read(&record).unwrap_or_default();
        let mut slots = bytes.chunks_exact(SLOT).map(numbers);
        let turn = slots.next().map_or(0, |[turn, ..]| turn as usize);
        let mut known: Vec<Writer> = slots
            .map(|[id, count, total]| Writer { id, count, total })
            .collect();
        if known.is_empty() {
            known.push(Writer {
                id: 0,
                count: 0,
                total: 0,
            });
        }
        let turn = Cell::new(turn.min(known.len() - 1));
        Self {
            record,
            known: RefCell::new(known),
            turn,
        }
    }

    /// Bytes of a writer that were taken, when the input as a whole has taken `total`.
    #[must_use]
    pub fn taken(&self, id: u64, total: u64) -> u64 {
        let known = self.known.borrow();
        let Some(at) = known.iter().position(|writer| writer.id == id) else {
            return 0;
        };
        let writer = known[at];
        let since = if at == self.turn.get() {
            total - writer.total
        } else {
            0
        };
        writer.count + since
    }

    /// Lets a writer's turn begin, at a `total` at which nobody's bytes are on their way.
    ///
    /// # Errors
    /// `conflict` for one writer too many, `node_error` when it cannot be recorded.
    pub fn begin(&self, id: u64, total: u64) -> WireResult<()> {
        let before = self.turn.get();
        if self.known.borrow()[before].id == id {
            return Ok(());
        }
        let count = self.taken(id, total);
        let ended = self.taken(self.known.borrow()[before].id, total);
        let mut known = self.known.borrow_mut();
        let at = match known.iter().position(|writer| writer.id == id) {
            Some(at) => at,
            None if known.len() < MOST => known.len(),
            None => {
                let text = format!("more than {MOST} have written to this exec");
                return Err(WireError::new("conflict", text));
            }
        };
        known[before].count = ended;
        known[before].total = total;
        let writer = Writer { id, count, total };
        if at < known.len() {
            known[at] = writer;
        } else {
            known.push(writer);
        }
        // In this order, so that whatever was written last, all counts are right at this total.
        let recorded = self
            .write(before + 1, [known[before].id, ended, total])
            .and_then(|()| self.write(at + 1, [id, count, total]))
            .and_then(|()| self.write(0, [at as u64, 0, 0]));
        recorded.map_err(|error| WireError::node("stdin", error.to_string()))?;
        self.turn.set(at);
        Ok(())
    }

    fn write(&self, slot: usize, numbers: [u64; 3]) -> io::Result<()> {
        if let Some(directory) = self.record.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.record)?;
        let bytes = numbers.map(u64::to_le_bytes).concat();
        file.write_all_at(&bytes, (slot * SLOT) as u64)
    }
}

fn numbers(slot: &[u8]) -> [u64; 3] {
    [0, 8, 16].map(|at| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&slot[at..at + 8]);
        u64::from_le_bytes(bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::{Writers, MOST};

    fn scratch() -> std::path::PathBuf {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        std::env::temp_dir().join(format!("dsec-writers-{}-{number}", std::process::id()))
    }

    /// Turns of three writers: each one's count is its own, and the same for a successor at any moment.
    #[test]
    fn counts_are_apart() {
        let directory = scratch();
        let writers = Writers::find(&directory);
        let mut total = 0;
        let mut wanted = [(0, 0), (7, 0), (u64::MAX, 0)];
        for (turn, length) in [
            (0, 5),
            (0, 1),
            (1, 3),
            (2, 9),
            (1, 4),
            (1, 1),
            (0, 2),
            (2, 1),
        ] {
            let (id, count) = &mut wanted[turn];
            writers.begin(*id, total).expect("its turn");
            total += length;
            *count += length;
            let successor = Writers::find(&directory);
            for (id, count) in wanted {
                assert_eq!(writers.taken(id, total), count);
                assert_eq!(successor.taken(id, total), count);
            }
        }
        assert_eq!(writers.taken(99, total), 0);
        std::fs::remove_dir_all(directory).expect("is there");
    }

    /// Whoever started the exec alone needs no record.
    #[test]
    fn one_writer_records_nothing() {
        let directory = scratch();
        let writers = Writers::find(&directory);
        writers.begin(0, 0).expect("its turn");
        writers.begin(0, 10).expect("its turn");
        assert_eq!(writers.taken(0, 25), 25);
        assert!(!directory.exists());
    }

    /// Their number is bounded, and those that are known go on.
    #[test]
    fn not_too_many() {
        let directory = scratch();
        let writers = Writers::find(&directory);
        for id in 1..MOST as u64 {
            writers.begin(id, 0).expect("its turn");
        }
        assert_eq!(
            writers.begin(1 << 40, 0).expect_err("too many").code,
            "conflict"
        );
        writers.begin(5, 0).expect("its turn");
        std::fs::remove_dir_all(directory).expect("is there");
    }
}
