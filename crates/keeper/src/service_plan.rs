//! The spawn plan of a service.

use std::os::fd::OwnedFd;

use dsec_proto::keeper::Service;
use dsec_session::plan::{Clone3, End, Exec, Failure, FdIndex, Plan, Step};
use rustix::fs::{Mode, OFlags};

use crate::listeners::Listener;

/// First descriptor number of the listening sockets.
const LISTEN_START: i32 = 3;

/// A plan and its descriptors.
pub(crate) fn build(
    service: &Service,
    listeners: &[Listener],
) -> Result<(Plan, Vec<OwnedFd>), Failure> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    let mut fds = vec![open(&service.log, flags)?];
    for file in &service.cgroups {
        fds.push(open(file, OFlags::WRONLY)?);
    }
    let groups: Vec<FdIndex> = (1..).take(service.cgroups.len()).collect();
    let mut mapped: Vec<(FdIndex, i32)> = vec![(0, 1), (0, 2)];
    for (number, listener) in (LISTEN_START..).zip(listeners) {
        let copy = rustix::io::fcntl_dupfd_cloexec(&listener.socket, LISTEN_START)
            .map_err(|errno| failure(&listener.address, errno))?;
        mapped.push((FdIndex::try_from(fds.len()).unwrap_or(FdIndex::MAX), number));
        fds.push(copy);
    }
    let program = service.argv.first().cloned().unwrap_or_default();
    let plan = Plan {
        clone: Clone3::default(),
        steps: vec![
            Step::Setsid,
            Step::JoinCgroups(groups),
            Step::ParentDeathSignal(libc::SIGTERM),
        ],
        end: End::Exec(Exec {
            programs: vec![bytes(program)],
            file: None,
            argv: service.argv.iter().cloned().map(bytes).collect(),
            env: environment(service, listeners)
                .into_iter()
                .map(bytes)
                .collect(),
            fds: mapped,
        }),
    };
    Ok((plan, fds))
}

fn bytes(text: String) -> serde_bytes::ByteBuf {
    serde_bytes::ByteBuf::from(text.into_bytes())
}

fn environment(service: &Service, listeners: &[Listener]) -> Vec<String> {
    let mut env: Vec<String> = service
        .env
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if !listeners.is_empty() {
        let names: Vec<String> = listeners.iter().map(Listener::name).collect();
        env.push(format!("LISTEN_FDS={}", listeners.len()));
        env.push(format!("LISTEN_FDNAMES={}", names.join(":")));
    }
    env
}

fn open(path: &str, flags: OFlags) -> Result<OwnedFd, Failure> {
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NOCTTY, mode)
        .map_err(|errno| failure(path, errno))
}

fn failure(what: &str, errno: rustix::io::Errno) -> Failure {
    Failure {
        step: "service".to_owned(),
        errno: errno.raw_os_error(),
        message: format!("open {what}"),
    }
}
