//! What stays of finished output.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::log::kept;
use super::TAIL;

/// The last bytes of a stream that are kept without a hole, and the offset of the first of them.
///
/// # Errors
/// When a segment cannot be read.
pub fn kept_tail(directory: &Path, channel: u8, most: u64) -> io::Result<(u64, Vec<u8>)> {
    let pieces = kept(directory, channel);
    let total = pieces.last().map_or(0, super::Piece::end);
    let mut first = total;
    for piece in pieces.iter().rev() {
        if piece.end() != first || total - first >= most {
            break;
        }
        first = piece.start;
    }
    first = first.max(total.saturating_sub(most));
    let mut bytes = Vec::new();
    for piece in pieces.iter().filter(|piece| piece.end() > first) {
        let skipped = first.saturating_sub(piece.start);
        let mut part = vec![0; (piece.length - skipped) as usize];
        let file = File::open(directory.join(format!("{channel}.{}", piece.start)))?;
        file.read_exact_at(&mut part, skipped)?;
        bytes.extend(part);
    }
    Ok((first, bytes))
}

/// Cuts both streams of an exec to their last 64 KiB. Offsets stay what they were.
///
/// # Errors
/// When the directory cannot be changed.
pub fn shrink(directory: &Path) -> io::Result<()> {
    for channel in [1, 2] {
        let pieces = kept(directory, channel);
        if pieces.iter().map(|piece| piece.length).sum::<u64>() <= TAIL {
            continue;
        }
        let (first, bytes) = kept_tail(directory, channel, TAIL)?;
        let name = |start: u64| directory.join(format!("{channel}.{start}"));
        let partial = directory.join(format!("{channel}.new"));
        std::fs::write(&partial, bytes)?;
        for piece in pieces {
            std::fs::remove_file(name(piece.start))?;
        }
        std::fs::rename(partial, name(first))?;
    }
    Ok(())
}

/// Deletes all output of a sandbox.
///
/// # Errors
/// When something cannot be deleted; nothing there is no error.
pub fn remove(directory: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
