//! Listening sockets of the services, made once and kept over their restarts.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::rc::Rc;

use dsec_proto::keeper::Listen;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    bind, listen, socket_with, sockopt, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::note::StartError;

const BACKLOG: i32 = 1024;
/// Exit code for an address that is in use.
const IN_USE: u8 = 5;

/// One socket that listens.
#[derive(Clone, Debug)]
pub(crate) struct Listener {
    pub(crate) spec: Listen,
    pub(crate) socket: Rc<OwnedFd>,
    /// `unix:PATH` or `tcp:HOST:PORT`, the port as it came out.
    pub(crate) address: String,
}

impl Listener {
    pub(crate) fn open(spec: &Listen) -> Result<Self, StartError> {
        let (socket, address) = match spec {
            Listen::Unix { path, mode } => (
                unix(Path::new(path), *mode, SocketType::STREAM),
                format!("unix:{path}"),
            ),
            Listen::Tcp { host, port } => tcp(host, *port)?,
        };
        let socket = socket.map_err(|errno| in_use(&address, errno))?;
        let address = match spec {
            Listen::Unix { .. } => address,
            Listen::Tcp { .. } => local_address(&socket).unwrap_or(address),
        };
        Ok(Self {
            spec: spec.clone(),
            socket: Rc::new(socket),
            address,
        })
    }

    /// Name for LISTEN_FDNAMES.
    pub(crate) fn name(&self) -> String {
        match &self.spec {
            Listen::Unix { path, .. } => {
                let name = Path::new(path).file_name().unwrap_or_default();
                name.to_string_lossy().replace(':', "_")
            }
            Listen::Tcp { .. } => "tcp".to_owned(),
        }
    }

    /// Take the socket's file away; what has no file needs nothing.
    pub(crate) fn remove_file(&self) {
        if let Listen::Unix { path, .. } = &self.spec {
            let _gone = std::fs::remove_file(path);
        }
    }
}

fn in_use(address: &str, errno: Errno) -> StartError {
    StartError {
        exit_code: if errno == Errno::ADDRINUSE { IN_USE } else { 6 },
        code: if errno == Errno::ADDRINUSE {
            "address_in_use"
        } else {
            "cannot_listen"
        },
        message: format!("cannot listen on {address}: {errno}"),
        subject: address.to_owned(),
    }
}

/// A listening Unix socket; a socket file that is there already is stale (the run directory is locked).
pub(crate) fn unix(path: &Path, mode: u32, kind: SocketType) -> Result<OwnedFd, Errno> {
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        rustix::fs::unlink(path)?;
    }
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    // Nobody connects before the mode is right.
    let umask = rustix::process::umask(Mode::from_raw_mode(0o777));
    let bound = bind(&socket, &address);
    rustix::process::umask(umask);
    bound?;
    rustix::fs::chmod(path, Mode::from_raw_mode(mode & 0o777))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

type Opened = (Result<OwnedFd, Errno>, String);

fn tcp(host: &str, port: u16) -> Result<Opened, StartError> {
    let ip: IpAddr = host
        .parse()
        .map_err(|_| StartError::usage(format!("{host:?} is no IP address to listen on")))?;
    let address = SocketAddr::new(ip, port);
    Ok((tcp_socket(&address), format!("tcp:{address}")))
}

fn tcp_socket(address: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn local_address(socket: &OwnedFd) -> Option<String> {
    let address = rustix::net::getsockname(socket).ok()?;
    let address: SocketAddr = address.try_into().ok()?;
    Some(format!("tcp:{address}"))
}
