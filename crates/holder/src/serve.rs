//! The loop: events, the fetcher, runtimes, the keeper.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{poll, PollFd, PollFlags};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{accept_with, SocketFlags};
use rustix::time::Timespec;

use crate::confined::confine;
use crate::holder::Holder;
use crate::keeper::Keeper;
use crate::link::Link;
use crate::table;

/// Most runtimes, and most connections that have not said who they are.
const MOST: usize = 16;
const SECOND: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// Between attempts to reach the fetcher, whose socket is the keeper's and takes callers while no fetcher lives.
const AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Serves `holder.sock` (descriptor 3) until killed. `faults`: where tests arm fault points.
///
/// # Errors
/// What kept it from coming up, or from going on.
pub fn serve(keeper: &Path, fetcher: &Path, faults: Option<&Path>) -> Result<(), String> {
    if std::env::var("LISTEN_FDNAMES").unwrap_or_default() != "holder.sock" {
        return Err("started without its socket: the keeper passes it as descriptor 3".into());
    }
    // It must outlive the keeper by a moment, see below.
    let stays = rustix::process::set_parent_process_death_signal(None);
    stays.map_err(|error| error.to_string())?;
    table::prepare().map_err(|error| error.to_string())?;
    if let Some(directory) = faults {
        tracing::warn!("fault points are on: {}", directory.display());
        let opened = std::fs::File::open(directory).and_then(|file| table::aside(file.into()));
        dsec_fault::turn_on_in(opened.map_err(|error| error.to_string())?);
    }
    // SAFETY: LISTEN_FDNAMES says that it is ours; nothing else has taken it yet.
    let listener = table::aside(unsafe { OwnedFd::from_raw_fd(3) });
    let begin = || {
        let listener = listener?;
        rustix::io::ioctl_fionbio(&listener, true)?;
        Ok(Serving {
            holder: Holder::begin(Keeper::connect(keeper)?)?,
            fetcher: fetcher.to_owned(),
            listener,
            strangers: Vec::new(),
            next: 1,
        })
    };
    let mut serving = begin().map_err(|error: io::Error| error.to_string())?;
    confine(faults.is_some()).map_err(|error| format!("giving up privileges: {error}"))?;
    loop {
        if let Err(error) = serving.turn() {
            serving.holder.keeper.outlive();
            return Err(error.to_string());
        }
    }
}

struct Serving {
    holder: Holder,
    fetcher: PathBuf,
    listener: OwnedFd,
    /// Connections whose packet socket has not come yet.
    strangers: Vec<OwnedFd>,
    next: u64,
}

impl Serving {
    fn turn(&mut self) -> io::Result<()> {
        if self.holder.fetcher.is_none() {
            if let Ok(link) = Link::dial(&self.fetcher) {
                self.holder.has_fetcher(link);
            }
        }
        self.wait()?;
        self.holder.take_events()?;
        self.hear_fetcher()?;
        self.hear_runtimes()?;
        self.accept();
        self.holder.refuse_late()
    }

    /// Waits until something can be done.
    fn wait(&self) -> io::Result<()> {
        let holder = &self.holder;
        let both = |link: &Link| match link.has_unsent() {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        let mut waits = vec![
            PollFd::new(&self.listener, PollFlags::IN),
            PollFd::new(&holder.keeper, PollFlags::IN),
        ];
        if holder.journal.has_room() {
            waits.push(PollFd::new(&holder.group, PollFlags::IN));
        }
        let links = holder.fetcher.iter().chain(holder.runtimes.values());
        waits.extend(links.map(|link| PollFd::from_borrowed_fd(link.as_fd(), both(link))));
        let strangers = self.strangers.iter();
        waits.extend(strangers.map(|stream| PollFd::new(stream, PollFlags::IN)));
        let longest = match holder.fetcher {
            Some(_) => SECOND,
            None => AGAIN,
        };
        match poll(&mut waits, Some(&longest)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if waits[1].revents().is_empty() {
            return Ok(());
        }
        drop(waits);
        // It says nothing that it is not asked for.
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    fn hear_fetcher(&mut self) -> io::Result<()> {
        while let Some(link) = &mut self.holder.fetcher {
            let heard = link.flush().and_then(|()| link.hear());
            match heard {
                Ok(Some((said, _))) => self.holder.hear_fetcher(said)?,
                Ok(None) => break,
                Err(error) => self.holder.lost_fetcher(&error),
            }
        }
        Ok(())
    }

    fn hear_runtimes(&mut self) -> io::Result<()> {
        let numbers: Vec<u64> = self.holder.runtimes.keys().copied().collect();
        for number in numbers {
            while let Some(link) = self.holder.runtimes.get_mut(&number) {
                let heard = link.flush().and_then(|()| link.hear());
                match heard {
                    Ok(Some((said, fds))) => self.holder.hear_runtime(number, said, fds)?,
                    Ok(None) => break,
                    Err(_) => drop(self.holder.runtimes.remove(&number)),
                }
            }
        }
        Ok(())
    }

    /// Only root may connect: the socket's mode says so, and so do the peers' credentials.
    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(stream) = accept_with(&self.listener, flags) {
            let root = socket_peercred(&stream).is_ok_and(|peer| peer.uid.is_root());
            let room = self.strangers.len() + self.holder.runtimes.len() < MOST;
            if let (true, true, Ok(stream)) = (root, room, table::aside(stream)) {
                self.strangers.push(stream);
            }
        }
        for stream in std::mem::take(&mut self.strangers) {
            match Link::accept(&stream) {
                Ok(link) => {
                    self.holder.runtimes.insert(self.next, link);
                    self.next += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.strangers.push(stream);
                }
                Err(error) => tracing::warn!("a caller said nothing: {error}"),
            }
        }
    }
}
