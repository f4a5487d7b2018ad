//! Frames and packets of the node's own sockets.

use dsec_proto::frame::{self, Incoming};
use dsec_proto::{egress, holding, keeper, loading, net, proxy, runtime, session, snapshots};
use dsec_runtime::{check, net as sandbox_net};
use dsec_session::plan::{FileReport, Plan};
use dsec_session::status::Status;
use serde::de::DeserializeOwned;
use serde::Serialize;

/// A frame of `runtime.sock`: written anew it says the same.
pub(crate) fn frames(bytes: &[u8]) {
    let Ok((stream, incoming)) = frame::decode(bytes) else {
        return;
    };
    let again = match incoming {
        Incoming::Data {
            channel,
            offset,
            bytes,
        } => {
            let whole = frame::data(stream, channel, offset, bytes);
            let head = frame::data_head(stream, channel, offset, bytes.len() as u32);
            assert_eq!(whole, [&head, bytes].concat());
            whole
        }
        Incoming::Until { channel, offset } => frame::until(stream, channel, offset),
        Incoming::Close => frame::close(stream),
        Incoming::Open { .. } | Incoming::Part { .. } => return,
    };
    let length = u32::from_be_bytes([again[0], again[1], again[2], again[3]]);
    assert_eq!(length as usize, again.len() - 4);
    assert_eq!(frame::decode(&again[4..]), Ok((stream, incoming)));
}

/// What a type says is what it says when it was written and read once more.
fn stable<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let read: T = rmp_serde::from_slice(bytes).ok()?;
    let written = rmp_serde::to_vec_named(&read).expect("is written");
    let again: T = rmp_serde::from_slice(&written).expect("is read again");
    let twice = rmp_serde::to_vec_named(&again).expect("is written again");
    assert_eq!(written, twice);
    Some(read)
}

fn params<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let read: T = frame::params(bytes).ok()?;
    stable::<T>(bytes).map(|_| read)
}

/// Parameters of methods, each by the type that the first byte says, and the checks of what is read.
pub(crate) fn requests(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    match kind % 16 {
        0 => drop(params::<runtime::SandboxSpec>(rest).map(|spec| check::sandbox(&spec, "local"))),
        1 => drop(params::<runtime::ExecStart>(rest)),
        2 => drop(params::<runtime::ExecSpec>(rest).map(|spec| check::exec(&spec))),
        3 => drop(params::<runtime::ExecAttach>(rest)),
        4 => drop(params::<runtime::ExecKill>(rest)),
        5 => drop(params::<runtime::FileRead>(rest)),
        6 => drop(params::<runtime::FileCalling>(rest)),
        7 => drop(params::<runtime::Transfer>(rest)),
        8 => drop(params::<net::NetSet>(rest).map(|set| {
            let _ = sandbox_net::check_endpoints(&set.endpoints);
        })),
        9 => drop(params::<session::SessionRun>(rest)),
        10 => drop(params::<holding::JobLease>(rest).map(|asked| check::lease(&asked))),
        11 => drop(params::<snapshots::SnapshotMake>(rest)),
        12 => drop(params::<egress::EventsAsked>(rest)),
        13 => drop(params::<runtime::OutputRead>(rest)),
        14 => drop(params::<runtime::FileWatch>(rest)),
        _ => drop(params::<runtime::ToolRun>(rest)),
    }
}

/// Packets of `keeper.sock`, plans, and what children and file operations report.
pub(crate) fn keeper_packets(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    match kind % 5 {
        0 => drop(stable::<keeper::Request>(rest)),
        1 => drop(stable::<keeper::Message>(rest)),
        2 => drop(stable::<Status>(rest)),
        3 => drop(stable::<FileReport>(rest)),
        _ => {
            let Some(plan) = stable::<Plan>(rest) else {
                return;
            };
            let _ = dsec_session::check::objects(&plan).count();
            if dsec_session::check::check(&plan, 4).is_ok() {
                let resolving = dsec_session::check::resolving(&plan);
                assert!(resolving.is_none_or(|(start, _)| start > 0));
            }
        }
    }
}

/// Packets between runtime, proxy, holder and fetcher.
pub(crate) fn peer_packets(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    match kind % 6 {
        0 => drop(stable::<proxy::ToProxy>(rest)),
        1 => drop(stable::<proxy::ToRuntime>(rest)),
        2 => drop(stable::<loading::ToHolder>(rest)),
        3 => drop(stable::<loading::FromHolder>(rest)),
        4 => drop(stable::<loading::ToFetcher>(rest)),
        _ => drop(stable::<loading::FromFetcher>(rest)),
    }
}
