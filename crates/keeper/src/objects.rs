//! What the keeper holds for the runtime: processes and descriptors, with tags, until they are acknowledged.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use dsec_proto::keeper::{self, Answer, Ended};

use crate::connections::Asker;

/// Bytes of a page of `List`, well below a packet.
const PAGE_BYTES: usize = 48 * 1024;
/// What an object takes on the wire beside its tag, its ID and its report.
const OBJECT_BYTES: usize = 256;
/// Longest object ID.
pub(crate) const MAX_ID_BYTES: usize = 256;

/// How far an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No process, only descriptors.
    Kept,
    /// Its process is being set up; these are told how it went.
    SettingUp(Vec<Asker>),
    /// Its process runs.
    Live,
    /// Its process has ended.
    Ended(Ended),
}

#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) tag: Vec<u8>,
    /// PID of its process, 0 without one.
    pub(crate) pid: i32,
    pub(crate) started_ns: u64,
    pub(crate) held: Vec<Rc<OwnedFd>>,
    pub(crate) state: State,
    /// The object whose namespaces its process entered.
    pub(crate) entered: Option<String>,
}

impl Object {
    pub(crate) fn has_live_process(&self) -> bool {
        matches!(self.state, State::SettingUp(_) | State::Live)
    }

    pub(crate) fn spawned(&self, existing: bool) -> Answer {
        Answer::Spawned {
            pid: self.pid,
            started_ns: self.started_ns,
            existing,
        }
    }

    fn shown(&self, object_id: &str) -> keeper::Object {
        keeper::Object {
            object_id: object_id.to_owned(),
            tag: self.tag.clone(),
            pid: self.pid,
            started_ns: self.started_ns,
            ended: match &self.state {
                State::Ended(ended) => Some(ended.clone()),
                _ => None,
            },
        }
    }
}

/// All of them, by ID.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) by_id: BTreeMap<String, Object>,
    /// How many were forgotten since the heap was trimmed.
    pub(crate) released: usize,
}

impl Objects {
    pub(crate) fn get(&self, object_id: &str) -> Option<&Object> {
        self.by_id.get(object_id)
    }

    pub(crate) fn get_mut(&mut self, object_id: &str) -> Option<&mut Object> {
        self.by_id.get_mut(object_id)
    }

    pub(crate) fn any_live(&self) -> bool {
        self.by_id.values().any(Object::has_live_process)
    }

    /// The page of `List` after an ID, of those that the asker sees.
    pub(crate) fn page(&self, after: Option<&str>, sees: impl Fn(&str) -> bool) -> Answer {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut objects = Vec::new();
        let mut bytes = 0;
        let mut more = false;
        for (object_id, object) in self.by_id.range::<str, _>((start, Bound::Unbounded)) {
            if !sees(object_id) {
                continue;
            }
            let shown = object.shown(object_id);
            bytes += OBJECT_BYTES + object_id.len() + shown.tag.len() + ended_bytes(&shown);
            if bytes > PAGE_BYTES && !objects.is_empty() {
                more = true;
                break;
            }
            objects.push(shown);
        }
        Answer::Objects { objects, more }
    }
}

fn ended_bytes(object: &keeper::Object) -> usize {
    object.ended.as_ref().map_or(0, |ended| {
        let message = ended
            .failure
            .as_ref()
            .map_or(0, |failure| failure.message.len());
        message + ended.report.as_ref().map_or(0, Vec::len)
    })
}

#[cfg(test)]
mod tests {
    use dsec_proto::keeper::{Answer, Message, MAX_PACKET, MAX_TAG};

    use super::{Object, Objects, State};

    fn full(count: usize) -> Objects {
        let mut objects = Objects::default();
        for number in 0..count {
            let object = Object {
                tag: vec![0xff; MAX_TAG],
                pid: i32::MAX,
                started_ns: u64::MAX,
                held: Vec::new(),
                state: State::Live,
                entered: None,
            };
            objects.by_id.insert(format!("{number:0200}"), object);
        }
        objects
    }

    /// Pages bring every object once, in order, and each fits a packet.
    #[test]
    fn pages_are_complete_and_fit() {
        let objects = full(100);
        let mut seen = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let answer = objects.page(after.as_deref(), |_| true);
            let message = Message::Reply {
                id: u64::MAX,
                result: Ok(answer.clone()),
            };
            assert!(rmp_serde::to_vec_named(&message).expect("encodes").len() <= MAX_PACKET);
            let Answer::Objects {
                objects: page,
                more,
            } = answer
            else {
                panic!("no page");
            };
            seen.extend(page.into_iter().map(|object| object.object_id));
            after = seen.last().cloned();
            if !more {
                break;
            }
        }
        assert!(seen.iter().eq(objects.by_id.keys()));
    }
}
