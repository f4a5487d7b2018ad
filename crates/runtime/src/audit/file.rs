//! The events of one sandbox in a file beside the sockets: places of a fixed size, made with the first event, so that
//! no death of the runtime takes one with it, and a sandbox without events has none.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use dsec_proto::audit::{AuditEvent, KEPT};
use serde::{Deserialize, Serialize};

use super::book::Seen;

const PLACE: usize = 640;
const LENGTH: usize = 2;

#[derive(Serialize, Deserialize)]
struct Placed {
    event: AuditEvent,
    seen: Seen,
}

/// Writes an event into its place.
///
/// # Errors
/// The errno.
pub fn write(path: &Path, event: AuditEvent, seen: Seen) -> io::Result<()> {
    let number = event.number;
    let mut bytes = rmp_serde::to_vec_named(&Placed { event, seen }).map_err(io::Error::other)?;
    if bytes.len() > PLACE - LENGTH {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let length = (bytes.len() as u16).to_le_bytes();
    bytes.splice(0..0, length);
    bytes.resize(PLACE, 0);
    let open = || {
        let mut options = File::options();
        options.write(true).create(true).truncate(false).open(path)
    };
    let file = match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::create_dir_all(path.parent().unwrap_or(path))?;
            open()?
        }
        other => other?,
    };
    file.write_all_at(&bytes, number % KEPT * PLACE as u64)
}

/// What stands in it, in any order, and how far counters were noted. Nothing without a file.
#[must_use]
pub fn read(path: &Path) -> (Vec<AuditEvent>, Seen) {
    let bytes = std::fs::read(path).unwrap_or_default();
    let mut placed: Vec<Placed> = bytes.chunks(PLACE).filter_map(of).collect();
    placed.sort_by_key(|placed| placed.event.number);
    let seen = placed.last().map(|placed| placed.seen.clone());
    let events = placed.into_iter().map(|placed| placed.event).collect();
    (events, seen.unwrap_or_default())
}

fn of(place: &[u8]) -> Option<Placed> {
    let length = u16::from_le_bytes([*place.first()?, *place.get(1)?]);
    let bytes = place.get(LENGTH..LENGTH + usize::from(length))?;
    rmp_serde::from_slice(bytes).ok()
}

#[cfg(test)]
mod tests {
    use dsec_proto::audit::AuditKind;

    use super::*;

    /// What was written is read, of more than are kept the latest; a torn place is left out.
    #[test]
    fn written_and_read() {
        let directory = std::env::temp_dir().join(format!("dsec-audit-{}", std::process::id()));
        let path = directory.join("events/sb-1");
        let event = |number| AuditEvent {
            number,
            at: 1.5,
            kind: AuditKind::Limit,
            reason: "memory".into(),
            name: (number % 2 == 0).then(|| "n".repeat(128)),
            exec_id: Some("e".repeat(26)),
            count: u64::MAX,
        };
        let seen = |number| Seen {
            oom_kills: number,
            pids_refused: u64::MAX,
            disk_full: true,
            endpoints: vec![u64::MAX; 16],
        };
        assert_eq!(read(&path), (Vec::new(), Seen::default()));
        for number in 0..KEPT + 5 {
            write(&path, event(number), seen(number)).expect("is written");
        }
        let (events, found) = read(&path);
        assert_eq!(events.len() as u64, KEPT);
        assert_eq!((events[0].clone(), found), (event(5), seen(KEPT + 4)));
        let file = File::options().write(true).open(&path).expect("opens");
        file.write_all_at(&[0xff; PLACE], 0).expect("is written");
        assert_eq!(read(&path).0.len() as u64, KEPT - 1);
        std::fs::remove_dir_all(&directory).expect("is removed");
    }
}
