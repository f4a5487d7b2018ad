//! The proxy's life: sockets, privileges, and the loops that accept.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use dsec_session::unprivileged;
use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;
use tokio::net::{UnixListener, UnixStream};

use crate::config::Config;
use crate::confined::{confine, confine_to_names};
use crate::state::State;
use crate::{connect, link, port};

/// For the head of a request, and for the next one on an idle connection.
const HEAD_PATIENCE: Duration = Duration::from_secs(15);
const MAX_HEADERS: usize = 128;
const MAX_HEAD: usize = 64 * 1024;
/// Descriptors that nothing is counted for: the process's own, and those of what is brief.
const SPARE: u64 = 1024;

/// Serves `proxy.sock` (descriptor 3) and `ports.sock` (4) as the configured user, until killed.
///
/// # Errors
/// What kept it from coming up.
pub fn serve(config: &Path) -> Result<(), String> {
    let config = Config::read(config)?;
    let named = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    if named != "proxy.sock:ports.sock" {
        return Err(
            "started without its sockets: the keeper passes them as descriptors 3 and 4".into(),
        );
    }
    let sockets = [inherited(3), inherited(4)];
    raise_descriptor_limit();
    connect::read_roots();
    if let Some(directory) = &config.fault_points {
        tracing::warn!("fault points are on: {}", directory.display());
        dsec_fault::turn_on(directory).map_err(|error| error.to_string())?;
    }
    let faults = config.fault_points.as_deref();
    let confined = confine_to_names(faults).map_err(|error| format!("confining files: {error}"))?;
    if !confined {
        tracing::warn!("this kernel has no Landlock: what anybody may read can be read");
    }
    let uid = config.uid;
    unprivileged::become_user(uid).map_err(|error| format!("becoming user {uid}: {error}"))?;
    confine(faults.is_some()).map_err(|error| format!("the filter: {error}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let local = tokio::task::LocalSet::new();
    local
        .block_on(&runtime, run(sockets, config))
        .map_err(|error| error.to_string())
}

fn inherited(number: i32) -> OwnedFd {
    // SAFETY: LISTEN_FDNAMES says that it is ours; nothing else has taken it yet. A plain fcntl, so that no child
    // inherits it.
    unsafe {
        libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC);
        OwnedFd::from_raw_fd(number)
    }
}

fn descriptor_limit() -> libc::rlimit {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid place for the result.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit
}

fn raise_descriptor_limit() {
    let mut limit = descriptor_limit();
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: a limit that outlives its call; when it is refused the lower one holds.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
}

async fn run([control, ports]: [OwnedFd; 2], config: Config) -> io::Result<()> {
    let state = Rc::new(State::default());
    state.resolvers.replace(Rc::new(config.resolvers));
    state.ports_domain.replace(config.ports_domain.into());
    let (control, ports) = (listener(control)?, listener(ports)?);
    tokio::task::spawn_local(link::report(Rc::clone(&state)));
    tracing::info!("serving");
    tokio::join!(
        accept(control, 0, |stream| drop(tokio::task::spawn_local(
            link::serve(Rc::clone(&state), stream)
        ))),
        accept(ports, config.ports_uid, |stream| port::serve(
            &state, stream
        )),
    );
    Ok(())
}

fn listener(fd: OwnedFd) -> io::Result<UnixListener> {
    let listener = std::os::unix::net::UnixListener::from(fd);
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Only root and `user` may connect: the sockets' modes say so, and so do the peers' credentials.
async fn accept(listener: UnixListener, user: u32, begin: impl Fn(UnixStream)) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match stream.peer_cred() {
                Ok(peer) if peer.uid() == 0 || peer.uid() == user => begin(stream),
                peer => tracing::warn!("refused a caller: {:?}", peer.map(|peer| peer.uid())),
            },
            Err(error) => {
                tracing::warn!(socket = listener.as_raw_fd(), "accept: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// A server of one connection, with limits against heads that are long or slow.
#[must_use]
pub fn http() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .max_headers(MAX_HEADERS)
        .max_header_size(MAX_HEAD)
        .max_buf_size(2 * MAX_HEAD);
    builder
}

/// Descriptors of a connection or a question, counted against the process's while this lives.
pub struct Counted(Rc<State>, u64);

impl Counted {
    /// So many more, if there is room for them beside those of the sandboxes themselves.
    #[must_use]
    pub fn new(state: &Rc<State>, descriptors: u64) -> Option<Self> {
        let most = descriptor_limit().rlim_cur.saturating_sub(SPARE);
        let used = state.descriptors.get() + descriptors;
        if used + state.held() > most {
            return None;
        }
        state.descriptors.set(used);
        Some(Self(Rc::clone(state), descriptors))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.descriptors.set(self.0.descriptors.get() - self.1);
    }
}
