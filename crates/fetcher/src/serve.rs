//! The fetcher's life: store, privileges, and one holder after the other.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use dsec_proto::loading::{FromFetcher, ToFetcher};
use dsec_proto::packet;
use dsec_session::unprivileged;
use rustix::process::{getrlimit, setrlimit, Resource};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use crate::config::Config;
use crate::confined::confine;
use crate::fetcher::Fetcher;
use crate::placing::Placing;
use crate::store::{Stores, AT_ONCE};

/// Threads for what blocks, besides those that a store that hangs may keep.
const THREADS: usize = 40;

/// Serves `fetcher.sock` (descriptor 3) as user `uid`, until killed.
///
/// # Errors
/// What kept it from coming up.
pub fn serve(uid: u32, config: &Path) -> Result<(), String> {
    if std::env::var("LISTEN_FDNAMES").unwrap_or_default() != "fetcher.sock" {
        return Err("started without its socket: the keeper passes it as descriptor 3".into());
    }
    // SAFETY: LISTEN_FDNAMES says that it is ours; nothing else has taken it yet.
    let listener = unsafe { OwnedFd::from_raw_fd(3) };
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC)
        .map_err(|error| error.to_string())?;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).map_err(|error| error.to_string())?;
    let config = Config::read(config)?;
    if let Some(directory) = &config.fault_points {
        tracing::warn!("fault points are on: {}", directory.display());
        dsec_fault::turn_on(directory).map_err(|error| error.to_string())?;
    }
    let stores = Stores::open(&config.stores)?;
    unprivileged::become_user(uid).map_err(|error| format!("becoming user {uid}: {error}"))?;
    confine(config.fault_points.is_some()).map_err(|error| format!("the filter: {error}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(THREADS + config.stores.len() * AT_ONCE)
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let placing = Placing::start().map_err(|error| error.to_string())?;
    let fetcher = Fetcher::new(stores, placing, Duration::from_secs(config.patience_s));
    let local = tokio::task::LocalSet::new();
    local
        .block_on(&runtime, run(fetcher, listener))
        .map_err(|error| error.to_string())
}

async fn run(fetcher: Rc<Fetcher>, listener: OwnedFd) -> io::Result<()> {
    let listener = std::os::unix::net::UnixListener::from(listener);
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    tokio::task::spawn_local(Rc::clone(&fetcher).tick());
    tracing::info!("serving");
    let mut present: Option<tokio::task::JoinHandle<()>> = None;
    loop {
        match listener.accept().await {
            // A newer holder takes the place of the one before.
            Ok((stream, _)) if stream.peer_cred().is_ok_and(|peer| peer.uid() == 0) => {
                if let Some(former) = present.take() {
                    former.abort();
                }
                let fetcher = Rc::clone(&fetcher);
                present = Some(tokio::task::spawn_local(async move {
                    let broken = talk(&fetcher, stream).await;
                    tracing::warn!("the holder is gone: {broken:?}");
                }));
            }
            Ok(_) => tracing::warn!("refused a caller that is not root"),
            Err(error) => {
                tracing::warn!("accept: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn talk(fetcher: &Rc<Fetcher>, stream: UnixStream) -> io::Result<()> {
    let mut byte = Vec::new();
    let receive = || packet::receive(&stream.as_fd(), &mut byte);
    let mut fds = stream.async_io(Interest::READABLE, receive).await?;
    let socket = fds.pop().ok_or(io::ErrorKind::UnexpectedEof)?;
    // SAFETY: an OwnedFd keeps its descriptor open for as long as it lives, and AsyncFd keeps its owner.
    let socket =
        unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE | Interest::WRITABLE) }
            .map_err(io::Error::from)?;
    let queue = fetcher.has_holder();
    tokio::select! {
        ended = speak(&socket, queue) => ended,
        ended = hear(fetcher, &socket) => ended,
    }
}

async fn speak(
    socket: &AsyncFd<OwnedFd>,
    mut queue: mpsc::UnboundedReceiver<FromFetcher>,
) -> io::Result<()> {
    while let Some(message) = queue.recv().await {
        let bytes = rmp_serde::to_vec_named(&message).map_err(io::Error::other)?;
        let send = |fd: &OwnedFd| packet::send(fd.as_fd(), &bytes, &[] as &[BorrowedFd<'_>]);
        socket.async_io(Interest::WRITABLE, send).await?;
    }
    Ok(())
}

async fn hear(fetcher: &Rc<Fetcher>, socket: &AsyncFd<OwnedFd>) -> io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let receive = |fd: &OwnedFd| packet::receive(fd, &mut buffer);
        let fds = socket.async_io(Interest::READABLE, receive).await?;
        if buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let said: ToFetcher = rmp_serde::from_slice(&buffer).map_err(io::Error::other)?;
        fetcher.hear(said, fds).await.map_err(io::Error::other)?;
    }
}
