//! Layers that became complete. Their mark is gone, but a read that met it may still send its event, to whichever holder
//! lives by then: it is let through because the keeper has these names.

use std::collections::VecDeque;
use std::io;

use dsec_proto::keeper::Object;
use serde::{Deserialize, Serialize};

use crate::keeper::Keeper;

/// What they are kept as, in the tag.
const NAME: &str = "holder/complete";
/// As many as a tag holds. Between the event of the oldest and now so many others were filled from end to end.
const MOST: usize = 128;

/// One that became complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct One {
    number: u32,
    /// Device and inode of its data.
    file: (u64, u64),
}

/// The last ones.
#[derive(Debug, Default)]
pub struct Complete(VecDeque<One>);

impl Complete {
    /// Those of a dead holder.
    ///
    /// # Errors
    /// When the keeper holds something else.
    pub fn take_up(objects: &[Object]) -> io::Result<Self> {
        let kept = objects.iter().find(|object| object.object_id == NAME);
        let all = kept.map(|object| rmp_serde::from_slice(&object.tag));
        Ok(Self(
            all.transpose()
                .map_err(io::Error::other)?
                .unwrap_or_default(),
        ))
    }

    fn keep(&self, keeper: &mut Keeper) -> io::Result<()> {
        let tag = rmp_serde::to_vec(&self.0).map_err(io::Error::other)?;
        keeper.put(NAME, tag, &[])
    }

    fn note(&mut self, number: u32, file: (u64, u64)) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(One { number, file });
    }

    /// This one did. It is on record when this returns.
    ///
    /// # Errors
    /// What the keeper says.
    pub fn add(&mut self, keeper: &mut Keeper, number: u32, file: (u64, u64)) -> io::Result<()> {
        if !self.has(number) {
            self.note(number, file);
            self.keep(keeper)?;
        }
        Ok(())
    }

    /// This file is another layer's: what was there is gone.
    ///
    /// # Errors
    /// What the keeper says.
    pub fn remove(&mut self, keeper: &mut Keeper, file: (u64, u64)) -> io::Result<()> {
        if self.has_file(file) {
            self.0.retain(|one| one.file != file);
            self.keep(keeper)?;
        }
        Ok(())
    }

    /// Whether the layer of this number did.
    #[must_use]
    pub fn has(&self, number: u32) -> bool {
        self.0.iter().any(|one| one.number == number)
    }

    /// Whether the layer that this file is the data of did.
    #[must_use]
    pub fn has_file(&self, file: (u64, u64)) -> bool {
        self.0.iter().any(|one| one.file == file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last ones are known to a successor, by number and by file, and as many as there can be fit into a tag.
    #[test]
    fn known_to_a_successor() {
        let mut complete = Complete::default();
        let last = u32::MAX - 1;
        for number in last - 200..=last {
            complete.note(number, (u64::MAX, u64::MAX - u64::from(last - number)));
        }
        let tag = rmp_serde::to_vec(&complete.0).expect("encodes");
        assert!(tag.len() <= dsec_proto::keeper::MAX_TAG, "{}", tag.len());
        let object = Object {
            object_id: NAME.into(),
            tag,
            pid: 0,
            started_ns: 0,
            ended: None,
        };
        let next = Complete::take_up(&[object]).expect("taken up");
        assert!(next.has(last) && next.has_file((u64::MAX, u64::MAX)));
        assert!(!next.has(last - 200) && !next.has_file((1, 1)));
        assert!(Complete::take_up(&[]).is_ok_and(|none| none.0.is_empty()));
    }
}
