//! File operations from outside.

use super::node::Node;

/// What is written is read back, by whom it may be.
#[test]
fn bytes_there_and_back() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let bytes: Vec<u8> = (0..3_000_000_u32)
        .map(|number| (number / 7 % 251) as u8)
        .collect();
    let report = client
        .write(&sandbox, "/tmp/f", "u", &bytes)
        .expect("is written");
    assert_eq!(
        (report.bytes, report.size, report.mode),
        (3_000_000, 3_000_000, 0o640)
    );
    assert_eq!(
        client.sh(&sandbox, "stat -c '%u %g %a' /tmp/f").1.stdout(),
        "1000 1000 640\n"
    );
    let (report, heard) = client.read(&sandbox, "/tmp/f", "");
    assert_eq!(report.expect("is read").size, 3_000_000);
    assert!(heard.bytes[1] == bytes);
    client
        .write(&sandbox, "/empty", "", b"")
        .expect("is written");
    assert_eq!(
        client
            .read(&sandbox, "/empty", "")
            .0
            .expect("is read")
            .bytes,
        0
    );
    node.down();
}

/// Failures are those of the file system; a FIFO does not hang anybody.
#[test]
fn failures_are_the_file_systems() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    client.sh(
        &sandbox,
        "mkfifo /fifo; echo s > /secret; stat /secret; busybox chmod 600 /secret",
    );
    let mut read =
        |path: &str, user: &str| client.read(&sandbox, path, user).0.expect_err("fails").code;
    assert_eq!(read("/nowhere", ""), "file_missing");
    assert_eq!(read("/tmp", ""), "file_is_directory");
    assert_eq!(read("/etc/passwd/x", ""), "file_not_directory");
    assert_eq!(read("/secret", "u"), "file_denied");
    assert_eq!(read("/fifo", ""), "file_error");
    assert_eq!(
        client
            .write(&sandbox, "/root/x", "u", b"x")
            .expect_err("fails")
            .code,
        "file_denied"
    );
    node.down();
}
