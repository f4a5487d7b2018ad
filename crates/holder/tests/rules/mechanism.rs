//! A read waits until its range is there, is refused, or dies.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;

use dsec_holder::fan::{events, Event, Group, EVENT};
use rustix::event::{poll, PollFd, PollFlags};

use super::erofs::{file, pattern, Made};

pub const SIZE: usize = 1 << 20;

/// Waits for events and takes what is there.
pub fn take(group: &Group) -> Vec<Event> {
    let mut waits = [PollFd::new(group, PollFlags::IN)];
    let patience = rustix::time::Timespec {
        tv_sec: 30,
        tv_nsec: 0,
    };
    assert_eq!(poll(&mut waits, Some(&patience)), Ok(1), "no event came");
    let mut buffer = [0; 64 * EVENT];
    let bytes = group.read(&mut buffer).expect("read");
    assert_eq!(bytes % EVENT, 0);
    events(&buffer[..bytes]).collect()
}

/// Fills what events ask for and lets their readers go on, until the group is quiet and `done`.
pub fn fill_until(group: &Group, data: &File, bytes: &[u8], done: impl Fn() -> bool) {
    let mut buffer = [0; 64 * EVENT];
    while !done() {
        let read = group.read(&mut buffer).expect("read");
        for event in events(&buffer[..read]) {
            let from = event.offset as usize;
            let to = (event.offset + event.length).min(bytes.len() as u64) as usize;
            data.write_all_at(&bytes[from..to], from as u64)
                .expect("the descriptor from before the mark may write");
            group.answer(event.fd, None).expect("answered");
            close(event.fd);
        }
        thread::yield_now();
    }
}

/// Lets readers through, whatever is there, until `done`.
pub fn allow_until(group: &Group, done: impl Fn() -> bool) {
    let mut buffer = [0; 64 * EVENT];
    while !done() {
        let read = group.read(&mut buffer).expect("read");
        for event in events(&buffer[..read]) {
            group.answer(event.fd, None).expect("answered");
            close(event.fd);
        }
        thread::yield_now();
    }
}

pub fn close(fd: i32) {
    // SAFETY: the kernel opened it for us with its event.
    unsafe { libc::close(fd) };
}

pub fn marked(made: &Made) -> (Group, File, OwnedFd) {
    let group = Group::new().expect("a group");
    let data = made.data();
    group.mark(data.as_fd()).expect("marked");
    let mount = made.mount().expect("mounted");
    (group, data, mount)
}

/// A reader in a process of its own.
pub fn reader(mount: BorrowedFd<'_>) -> Child {
    let number = mount.as_raw_fd();
    let mut command = Command::new("cat");
    command
        .arg(format!("/proc/self/fd/{number}/f"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // SAFETY: a plain fcntl between fork and exec.
    unsafe {
        command.pre_exec(move || {
            libc::fcntl(number, libc::F_SETFD, 0);
            Ok(())
        });
    }
    command.spawn().expect("started")
}

/// Every byte read through EROFS is the one that was filled, though nothing was there before it was asked for.
#[test]
fn a_read_waits_for_its_range() {
    let made = Made::sparse(SIZE);
    let (group, data, mount) = marked(&made);
    let path = file(&mount);
    let reading = thread::spawn(move || std::fs::read(path));
    fill_until(&group, &data, &made.bytes, || reading.is_finished());
    let read = reading.join().expect("ended").expect("read");
    assert!(read == pattern(SIZE));
}

/// A refusal is an I/O error of that read; a later one of the same range finds what has been filled meanwhile.
#[test]
fn a_refusal_is_an_error_of_that_read_only() {
    let made = Made::sparse(SIZE);
    let (group, data, mount) = marked(&made);
    let path = file(&mount);
    let open = File::open(&path).expect("opened");
    let reading = thread::spawn(move || open.read_exact_at(&mut [0; 4096], 0));
    while !reading.is_finished() {
        let mut buffer = [0; EVENT];
        let read = group.read(&mut buffer).expect("read");
        for event in events(&buffer[..read]) {
            let errno = Some(libc::EIO as u8);
            group.answer(event.fd, errno).expect("answered");
            close(event.fd);
        }
        thread::yield_now();
    }
    let refused = reading.join().expect("ended").expect_err("refused");
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    let again = thread::spawn(move || std::fs::read(path));
    fill_until(&group, &data, &made.bytes, || again.is_finished());
    assert!(again.join().expect("ended").expect("read") == pattern(SIZE));
}

/// A reader that waits can be killed, and its answer may come late.
#[test]
fn a_waiting_reader_can_be_killed() {
    let made = Made::sparse(SIZE);
    let (group, _data, mount) = marked(&made);
    let mut child = reader(mount.as_fd());
    let asked = take(&group);
    assert!(!asked.is_empty());
    child.kill().expect("killed");
    let ended = child.wait().expect("ended");
    assert!(!ended.success());
    for event in asked {
        group.answer(event.fd, None).expect("no fault");
        close(event.fd);
    }
}

/// Who read events and is gone leaves readers waiting; a successor with another descriptor table answers them by the
/// numbers that the dead one had.
#[test]
fn a_successor_answers_by_the_old_number() {
    let made = Made::sparse(SIZE);
    let (group, data, mount) = marked(&made);
    let mut child = reader(mount.as_fd());
    let first = take(&group);
    for event in &first {
        // As its holder's death would: the descriptor goes, the question stays.
        close(event.fd);
    }
    assert!(child.try_wait().expect("asked").is_none(), "it waits");
    data.write_all_at(&made.bytes, 0).expect("filled");
    let copy = Group::from(group.as_fd().try_clone_to_owned().expect("a copy"));
    drop(group);
    for event in &first {
        copy.answer(event.fd, None).expect("answered");
    }
    let mut out = child.stdout.take().expect("piped");
    let reading = thread::spawn(move || {
        let mut read = Vec::new();
        out.read_to_end(&mut read).map(|_| read)
    });
    fill_until(&copy, &data, &made.bytes, || reading.is_finished());
    assert!(reading.join().expect("ended").expect("read") == pattern(SIZE));
    assert!(child.wait().expect("ended").success());
}

/// Whoever opens the file after the mark waits as well, writers too: only the descriptor from before is free.
#[test]
fn only_the_earlier_descriptor_is_free() {
    let made = Made::sparse(SIZE);
    let (group, early, _mount) = marked(&made);
    early.write_all_at(b"x", 0).expect("written");
    early.read_exact_at(&mut [0; 1], 0).expect("read");
    let late = made.data();
    let writing = thread::spawn(move || late.write_all_at(b"y", 0));
    let asked = take(&group);
    assert_eq!(asked.len(), 1);
    group.answer(asked[0].fd, None).expect("answered");
    close(asked[0].fd);
    writing.join().expect("ended").expect("written");
}

/// Mounted before the mark, EROFS asks nobody: the reader gets zeros. The order of the loader is the other one.
#[test]
fn a_mount_before_the_mark_reads_zeros() {
    let made = Made::sparse(SIZE);
    let group = Group::new().expect("a group");
    let data = made.data();
    let mount = made.mount().expect("mounted");
    group.mark(data.as_fd()).expect("marked");
    let read = std::fs::read(file(&mount)).expect("read");
    assert!(read.iter().all(|byte| *byte == 0), "not asked, not filled");
    assert_eq!(group.read(&mut [0; EVENT]).expect("read"), 0, "no event");
}

/// A queue that is full lets readers through to what is not there: the loader's has no bound.
#[test]
fn a_bounded_queue_reads_zeros() {
    let made = Made::sparse(SIZE);
    let group = {
        let _two = Bound::lowered_to(2);
        Group::with_bounded_queue().expect("a group")
    };
    group.mark(made.data().as_fd()).expect("marked");
    // A mount each, so that none waits for another's page.
    let mounts: Vec<OwnedFd> = (0..12).map(|_| made.mount().expect("mounted")).collect();
    let (send, done) = std::sync::mpsc::channel();
    for mount in &mounts {
        let (path, send) = (file(mount), send.clone());
        thread::spawn(move || {
            let mut bytes = [0xff; 4096];
            let read = File::open(path).and_then(|file| file.read_exact_at(&mut bytes, 0));
            let _ = send.send(read.map(|()| bytes.iter().all(|byte| *byte == 0)));
        });
    }
    let first = done.recv().expect("one of them").expect("read");
    assert!(first, "nothing was filled, and yet it was let through");
    drop(group);
}

/// How many events a group that is made now may have waiting, put back at the end.
struct Bound(String);

const MOST: &str = "/proc/sys/fs/fanotify/max_queued_events";

impl Bound {
    fn lowered_to(most: u32) -> Self {
        let before = std::fs::read_to_string(MOST).expect("read");
        std::fs::write(MOST, most.to_string()).expect("written");
        Self(before)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        std::fs::write(MOST, &self.0).expect("written");
    }
}
