//! What goes wrong beyond reads, each shown by doing it: the loader does the other thing.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::{env, thread};

use dsec_holder::fan::{Group, EVENT};

use super::erofs::{file, pattern, Made};
use super::freezer::Freezer;
use super::mapped::Mapped;
use super::mechanism::{allow_until, close, fill_until, marked, reader, take, SIZE};

const PAGE: usize = 4096;
/// Set in a process that runs one test.
const ALONE: &str = "DSEC_RULES_ALONE";

/// Says of a range of a file that nothing is there.
fn punch(file: &File, size: usize) {
    let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: plain numbers.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), how, 0, size as libc::off_t) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

fn is_quiet(group: &Group) -> bool {
    group.read(&mut [0; EVENT]).expect("read") == 0
}

/// A reader that has been let through and stands still before it reads: what is taken away in between it reads as zeros.
/// So only whole layers that nobody has mounted are evicted.
#[test]
fn a_hole_under_a_live_mount_reads_zeros() {
    let made = Made::sparse(PAGE);
    let (group, data, mount) = marked(&made);
    let child = reader(mount.as_fd());
    let asked = take(&group);
    let frozen = Freezer::of(child.id());
    frozen.freeze();
    data.write_all_at(&made.bytes, 0).expect("filled");
    for event in asked {
        group.answer(event.fd, None).expect("answered");
        close(event.fd);
    }
    punch(&data, made.bytes.len());
    frozen.thaw();
    let reading = thread::spawn(move || child.wait_with_output());
    allow_until(&group, || reading.is_finished());
    let read = reading.join().expect("ended").expect("read");
    assert!(read.status.success(), "nobody told it");
    assert_eq!(read.stdout, [0; PAGE]);
}

/// A hole punched through a descriptor from after the mark waits for an answer itself, like a write.
#[test]
fn a_later_descriptor_cannot_punch() {
    let made = Made::sparse(SIZE);
    let (group, early, _mount) = marked(&made);
    punch(&early, SIZE);
    assert!(is_quiet(&group), "the earlier one is free");
    let late = made.data();
    let punching = thread::spawn(move || punch(&late, SIZE));
    let asked = take(&group);
    assert!(!punching.is_finished());
    for event in asked {
        group.answer(event.fd, None).expect("answered");
        close(event.fd);
    }
    allow_until(&group, || punching.is_finished());
    punching.join().expect("punched");
}

/// Whoever maps the marked file itself asks once, for all of it, and never again: what is not there then is zeros. So the
/// loader shows that file to EROFS only.
#[test]
fn a_mapping_of_the_marked_file_asks_once() {
    let made = Made::sparse(SIZE);
    let (group, _data, _mount) = marked(&made);
    let late = made.data();
    let mapping = thread::spawn(move || Mapped::of(&late, SIZE));
    let asked = take(&group);
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].offset, 0);
    assert!(asked[0].length >= SIZE as u64);
    group.answer(asked[0].fd, None).expect("answered");
    close(asked[0].fd);
    let mapped = mapping.join().expect("mapped");
    assert!(mapped.bytes().iter().all(|byte| *byte == 0));
    assert!(is_quiet(&group), "no fault asks");
}

/// A mapping of a file in the mount asks at its faults, and has the right bytes.
#[test]
fn a_fault_through_erofs_asks() {
    let made = Made::sparse(SIZE);
    let (group, data, mount) = marked(&made);
    let path = file(&mount);
    let reading = thread::spawn(move || {
        let mapped = Mapped::of(&File::open(path).expect("opened"), SIZE);
        mapped.bytes()
    });
    fill_until(&group, &data, &made.bytes, || reading.is_finished());
    assert!(reading.join().expect("ended") == pattern(SIZE));
}

/// A program of which nothing is there is started from the mount, and runs.
#[test]
fn a_program_is_filled_as_it_runs() {
    let made = Made::without_data(&fs::read("/bin/true").expect("read"));
    let (group, data, mount) = marked(&made);
    let path = file(&mount);
    let running = thread::spawn(move || Command::new(path).status());
    fill_until(&group, &data, &made.bytes, || running.is_finished());
    let status = running.join().expect("ended").expect("started");
    assert!(status.success(), "{status}");
}

/// A marked file that is all there: each read of it waits for an answer all the same. Unmarked, nobody is asked: so the mark
/// goes when a layer is complete.
#[test]
fn a_mark_on_a_complete_file_is_in_the_way() {
    let made = Made::sparse(SIZE);
    let (group, data, mount) = marked(&made);
    data.write_all_at(&made.bytes, 0).expect("filled");
    let path = file(&mount);
    let reading = thread::spawn(move || fs::read(path));
    let asked = take(&group);
    assert!(!asked.is_empty());
    assert!(!reading.is_finished(), "it waits for what is there");
    for event in asked {
        group.answer(event.fd, None).expect("answered");
        close(event.fd);
    }
    allow_until(&group, || reading.is_finished());
    assert!(reading.join().expect("ended").expect("read") == pattern(SIZE));
    group.unmark(data.as_fd()).expect("unmarked");
    let again = made.mount().expect("mounted");
    assert!(fs::read(file(&again)).expect("read") == pattern(SIZE));
    assert!(is_quiet(&group));
}

/// Read through EROFS the data is in memory twice, as pages of the mount and of the file behind it; mounted with
/// `directio`, as layers are, once.
#[test]
fn without_directio_data_is_cached_twice() {
    for (direct, pages) in [(false, SIZE / PAGE), (true, 0)] {
        let made = Made::sparse(SIZE);
        let data = made.data();
        data.write_all_at(&made.bytes, 0).expect("written");
        data.sync_data().expect("flushed");
        // SAFETY: plain numbers.
        unsafe { libc::posix_fadvise(data.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        let behind = Mapped::of(&data, SIZE);
        assert_eq!(behind.pages_in_memory(), 0, "before");
        let mount = made.mount_with(direct).expect("mounted");
        assert!(fs::read(file(&mount)).expect("read") == pattern(SIZE));
        assert_eq!(behind.pages_in_memory(), pages, "directio: {direct}");
    }
}

/// A loader that has no descriptor left for an event denies it, though it would have filled it: its reader gets an error,
/// though nothing is wrong. So the holder takes no more events at once than it has descriptors for.
#[test]
fn a_loader_without_descriptors_denies() {
    if env::var_os(ALONE).is_none() {
        // Descriptors are the process's: only one of its own may run out of them.
        let mut again = Command::new(env::current_exe().expect("a program"));
        again.args(["--exact", "traps::a_loader_without_descriptors_denies"]);
        let ended = again.env(ALONE, "1").output().expect("started");
        assert!(ended.status.success(), "{ended:?}");
        return;
    }
    let made = Made::sparse(SIZE);
    let (group, data, mount) = marked(&made);
    let open = File::open(file(&mount)).expect("opened");
    let second = open.try_clone().expect("a copy");
    let reading = thread::spawn(move || open.read_exact_at(&mut [0; PAGE], 0));
    let before = limit_descriptors(None);
    limit_descriptors(Some(0));
    while !reading.is_finished() {
        // The event is lost by this: nobody can answer it any more.
        let _ = group.read(&mut [0; EVENT]);
        thread::yield_now();
    }
    limit_descriptors(Some(before));
    let denied = reading.join().expect("ended").expect_err("denied");
    // The kernel says EPERM, and EROFS makes this of it.
    assert_eq!(denied.raw_os_error(), Some(libc::EIO));
    let again = thread::spawn(move || {
        let mut bytes = [0; PAGE];
        second.read_exact_at(&mut bytes, 0).map(|()| bytes)
    });
    fill_until(&group, &data, &made.bytes, || again.is_finished());
    let read = again.join().expect("ended").expect("read");
    assert!(read == pattern(PAGE)[..]);
}

/// Sets how many descriptors this process may have, if that is said; returns how many it could have before.
fn limit_descriptors(most: Option<u64>) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: room for the answer.
    let told = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(told, 0, "told");
    let before = limit.rlim_cur;
    if let Some(most) = most {
        limit.rlim_cur = most;
        // SAFETY: a whole structure.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        assert_eq!(set, 0, "set");
    }
    before
}
