//! File operations: forked code that reads or replaces one file with the caller's IDs.

use dsec_proto::keeper::Refusal;
use dsec_session::plan::{FileOp, FileReport};
use rustix::io::Errno;

use super::client::Client;
use super::plans::{dir, file, file_op, link, pipe, read_bytes};
use super::sandbox::{script, with_sandbox};

fn read(path: &str, offset: u64, limit: Option<u64>) -> FileOp {
    FileOp::Read {
        path: path.into(),
        offset,
        limit,
        output: 0,
    }
}

fn report(runtime: &mut Client) -> FileReport {
    let end = runtime.ended("op");
    assert_eq!(end.exit_code, Some(0));
    runtime.ack("op").expect("acknowledged");
    rmp_serde::from_slice(&end.report.expect("a report")).expect("decodes")
}

fn read_file(runtime: &mut Client, op: FileOp, uid: u32) -> Result<(Vec<u8>, FileReport), Refusal> {
    let (reader, writer) = pipe();
    runtime.spawn("op", file_op("init", op, uid), &[writer])?;
    let bytes = read_bytes(reader);
    Ok((bytes, report(runtime)))
}

fn errno(result: Result<impl std::fmt::Debug, Refusal>) -> Errno {
    let failure = result.expect_err("refused").failure.expect("the step");
    assert_eq!(failure.step, "file", "{failure:?}");
    Errno::from_raw_os_error(failure.errno)
}

/// A file is read whole or in part, and its size and mode are told.
#[test]
fn reads_files() {
    let big = "0123456789".repeat(100_000);
    let (_node, mut runtime) = with_sandbox(|path| {
        file(&path.join("etc/big"), &big);
        link("big", &path.join("etc/link"));
    });
    let (bytes, report) = read_file(&mut runtime, read("/etc/link", 0, None), 1000).expect("read");
    assert!(bytes == big.as_bytes());
    assert_eq!(
        report,
        FileReport {
            errno: 0,
            bytes: 1_000_000,
            size: 1_000_000,
            mode: 0o644,
            ..FileReport::default()
        }
    );
    let part = read_file(&mut runtime, read("/etc/big", 999_995, Some(3)), 0).expect("read");
    assert_eq!(part.0, b"567");
    let beyond = read_file(&mut runtime, read("/etc/big", 2_000_000, None), 0).expect("read");
    assert_eq!((beyond.0.len(), beyond.1.errno), (0, 0));
    let far = read_file(&mut runtime, read("/etc/big", u64::MAX, None), 0).expect("read");
    assert_eq!((far.0.len(), far.1.errno), (0, 0));
}

/// What is no regular file, may not be read, or belongs to the helper itself, is refused.
#[test]
fn refuses_to_read() {
    let (_node, mut runtime) = with_sandbox(|path| {
        file(&path.join("etc/secret"), "x");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(path.join("etc/secret"), mode).expect("private");
        let fifo = rustix::fs::Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path.join("etc/fifo"),
            rustix::fs::FileType::Fifo,
            fifo,
            0,
        )
        .expect("made");
        link("/proc/self/mem", &path.join("etc/mem"));
    });
    let mut errno_of = |path: &str, uid| errno(read_file(&mut runtime, read(path, 0, None), uid));
    assert_eq!(errno_of("/etc/none", 0), Errno::NOENT);
    assert_eq!(errno_of("/etc", 0), Errno::ISDIR);
    assert_eq!(errno_of("/etc/fifo", 0), Errno::INVAL);
    assert_eq!(errno_of("/dev/null", 0), Errno::INVAL);
    assert_eq!(errno_of("/etc/secret", 1000), Errno::ACCESS);
    assert_eq!(errno_of("/proc/self/exe", 0), Errno::LOOP);
    for path in [
        "/proc/self/mem",
        "/proc/thread-self/environ",
        "/etc/mem",
        "/proc/self/maps",
    ] {
        assert_eq!(errno_of(path, 0), Errno::ACCESS, "{path}");
    }
}

fn write(path: &str, mode: Option<u32>, parents: bool, length: u64) -> FileOp {
    FileOp::Write {
        path: path.into(),
        mode,
        parents,
        length,
        input: 0,
    }
}

fn write_file(
    runtime: &mut Client,
    op: FileOp,
    content: &str,
    uid: u32,
) -> Result<FileReport, Refusal> {
    let (reader, writer) = pipe();
    rustix::io::write(&writer, content.as_bytes()).expect("written");
    drop(writer);
    runtime.spawn("op", file_op("init", op, uid), &[reader])?;
    Ok(report(runtime))
}

/// A new file gets the mode asked for, and its missing directories; links at the end are followed.
#[test]
fn writes_new_files() {
    let (_node, mut runtime) = with_sandbox(|path| link("../root/there", &path.join("etc/link")));
    let report = write_file(
        &mut runtime,
        write("/root/a/b/c", Some(0o750), true, 5),
        "hello",
        0,
    )
    .expect("written");
    assert_eq!(
        report,
        FileReport {
            errno: 0,
            bytes: 5,
            size: 5,
            mode: 0o750,
            ..FileReport::default()
        }
    );
    write_file(&mut runtime, write("/etc/link", None, false, 4), "link", 0).expect("written");
    let seen = script(
        &mut runtime,
        "cat /root/a/b/c /root/there; ls -l /root/there | cut -c 1-10; ls -A /root/a/b /root",
    );
    assert_eq!(
        seen,
        "hellolink-rw-r--r--\n/root:\na\nthere\n\n/root/a/b:\nc\n"
    );
}

/// An existing file keeps its owner and, unless told otherwise, its mode.
#[test]
fn replaces_files() {
    let (_node, mut runtime) = with_sandbox(|path| file(&path.join("etc/conf"), "old"));
    script(&mut runtime, "chmod 640 /etc/conf; chown 7:8 /etc/conf");
    write_file(&mut runtime, write("/etc/conf", None, false, 3), "new", 0).expect("written");
    assert_eq!(
        script(
            &mut runtime,
            "cat /etc/conf; ls -ln /etc/conf | cut -c 1-26"
        ),
        "new-rw-r-----    1 7        8\n"
    );
    write_file(
        &mut runtime,
        write("/etc/conf", Some(0o600), false, 3),
        "two",
        0,
    )
    .expect("written");
    assert!(script(&mut runtime, "ls -ln /etc/conf").starts_with("-rw-------    1 7        8"));
}

/// Too few bytes replace nothing, and no draft is left.
#[test]
fn short_input_replaces_nothing() {
    let (_node, mut runtime) = with_sandbox(|path| file(&path.join("root/conf"), "old"));
    let report =
        write_file(&mut runtime, write("/root/conf", None, false, 9), "new", 0).expect("begun");
    assert_eq!(
        (report.errno, report.bytes),
        (Errno::NODATA.raw_os_error(), 3)
    );
    assert_eq!(
        script(&mut runtime, "cat /root/conf; ls -A /root"),
        "oldconf\n"
    );
}

/// Only what the user may write is replaced, and nothing but regular files.
#[test]
fn refuses_to_write() {
    let (_node, mut runtime) = with_sandbox(|path| {
        dir(&path.join("open"));
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(path.join("open"), everybody).expect("open to all");
        file(&path.join("open/roots"), "x");
        link("loop", &path.join("open/loop"));
    });
    let mut errno_of = |path: &str, uid| {
        errno(write_file(
            &mut runtime,
            write(path, None, false, 1),
            "y",
            uid,
        ))
    };
    assert_eq!(errno_of("/etc/new", 1000), Errno::ACCESS);
    assert_eq!(errno_of("/open/roots", 1000), Errno::ACCESS);
    assert_eq!(errno_of("/open/loop", 0), Errno::LOOP);
    assert_eq!(errno_of("/dev/null", 0), Errno::INVAL);
    assert_eq!(errno_of("/etc", 0), Errno::ISDIR);
    assert_eq!(errno_of("/none/x", 0), Errno::NOENT);
    assert_eq!(errno_of("/etc/passwd/x", 0), Errno::NOTDIR);
    write_file(&mut runtime, write("/open/mine", None, false, 1), "y", 1000).expect("written");
    assert_eq!(
        script(&mut runtime, "ls -n /open/mine | cut -c 1-20"),
        "-rw-r--r--    1 1000\n"
    );
}
