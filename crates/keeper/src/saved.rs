//! The keeper's state as it crosses an exec in place: plain data, descriptors by number.

use std::path::PathBuf;

use dsec_proto::keeper::{Ended, Service};
use serde::{Deserialize, Serialize};

/// Version of this form; a keeper of another one is not executed in place.
pub(crate) const VERSION: u32 = 2;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Saved {
    pub(crate) version: u32,
    pub(crate) run_dir: String,
    pub(crate) lock: i32,
    pub(crate) listener: i32,
    /// The mount namespace that children with mounts of their own are cloned in.
    pub(crate) nursery: i32,
    pub(crate) children: Vec<SavedChild>,
    pub(crate) objects: Vec<SavedObject>,
    pub(crate) services: Vec<SavedSlot>,
    pub(crate) connections: Vec<SavedConnection>,
    /// (connection, request) to be answered by the new program.
    pub(crate) asker: (u32, u64),
    /// Where tests arm fault points.
    #[serde(default)]
    pub(crate) fault_points: Option<PathBuf>,
}

/// A child whose program runs; none is being set up at that moment.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedChild {
    pub(crate) pid: i32,
    pub(crate) service: bool,
    pub(crate) name: String,
    pub(crate) pidfd: i32,
    pub(crate) channel: Option<i32>,
    pub(crate) report: Option<Vec<u8>>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedObject {
    pub(crate) object_id: String,
    pub(crate) tag: Vec<u8>,
    pub(crate) pid: i32,
    pub(crate) started_ns: u64,
    pub(crate) held: Vec<i32>,
    pub(crate) live: bool,
    pub(crate) ended: Option<Ended>,
    pub(crate) entered: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedSlot {
    pub(crate) definition: Service,
    /// Socket and address, in the order of `definition.listen`.
    pub(crate) listeners: Vec<(i32, String)>,
    pub(crate) stage: SavedStage,
    pub(crate) pid: i32,
    pub(crate) started_ns: u64,
    pub(crate) restarts: u32,
    pub(crate) last_end: Option<Ended>,
    pub(crate) askers: Vec<(u32, u64)>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SavedStage {
    Down(u64),
    Running,
    Stopping(u64),
    Stopped,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedConnection {
    pub(crate) number: u32,
    pub(crate) socket: i32,
    /// `runtime`, `control` or, before hello, nothing.
    pub(crate) role: Option<String>,
    pub(crate) outgoing: Vec<(Vec<u8>, Vec<i32>)>,
}

impl Saved {
    /// Every descriptor that must survive the exec.
    pub(crate) fn descriptors(&self) -> Vec<i32> {
        let mut all = vec![self.lock, self.listener, self.nursery];
        for child in &self.children {
            all.push(child.pidfd);
            all.extend(child.channel);
        }
        all.extend(self.objects.iter().flat_map(|object| &object.held));
        for slot in &self.services {
            all.extend(slot.listeners.iter().map(|(socket, _)| socket));
        }
        for connection in &self.connections {
            all.push(connection.socket);
            all.extend(connection.outgoing.iter().flat_map(|(_, fds)| fds));
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Read the state; another version is refused.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let saved: Self = rmp_serde::from_slice(bytes).map_err(|error| error.to_string())?;
        if saved.version != VERSION {
            return Err(format!(
                "the state has version {}, not {VERSION}",
                saved.version
            ));
        }
        Ok(saved)
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, String> {
        rmp_serde::to_vec_named(self).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::{Saved, SavedChild, SavedConnection, SavedObject, VERSION};

    fn sample() -> Saved {
        Saved {
            version: VERSION,
            run_dir: "/run/dsec/local".to_owned(),
            lock: 3,
            listener: 4,
            nursery: 5,
            children: vec![SavedChild {
                pid: 77,
                service: false,
                name: "exec".to_owned(),
                pidfd: 9,
                channel: Some(10),
                report: Some(vec![1, 0xff]),
            }],
            objects: vec![SavedObject {
                object_id: "exec".to_owned(),
                tag: vec![0, 255],
                pid: 77,
                started_ns: 5,
                held: vec![12, 12, 11],
                live: true,
                ended: None,
                entered: Some("init".to_owned()),
            }],
            services: Vec::new(),
            connections: vec![SavedConnection {
                number: 2,
                socket: 13,
                role: Some("runtime".to_owned()),
                outgoing: vec![(vec![7], vec![14])],
            }],
            asker: (2, 6),
            fault_points: None,
        }
    }

    /// The state is the same on the other side.
    #[test]
    fn round_trip() {
        let bytes = sample().encode().expect("encodes");
        assert_eq!(Saved::decode(&bytes), Ok(sample()));
    }

    /// Every descriptor is named once.
    #[test]
    fn descriptors_are_complete() {
        assert_eq!(sample().descriptors(), [3, 4, 5, 9, 10, 11, 12, 13, 14]);
    }

    /// Another version and a damaged state are refused.
    #[test]
    fn refuses_what_it_does_not_know() {
        let other = Saved {
            version: VERSION + 1,
            ..sample()
        };
        assert!(Saved::decode(&other.encode().expect("encodes")).is_err());
        assert!(Saved::decode(b"\xc1").is_err());
    }
}
