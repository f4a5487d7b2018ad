//! Limits hold, and hitting them is told.

use super::client::exec_spec;
use super::node::Node;

/// A child killed for want of memory is counted, though its parent goes on and exits with 0.
#[test]
fn memory_is_limited() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    // One call of the kernel takes it all: a program that runs meanwhile may be read anew for long before memory is out.
    let (end, heard) = client.sh(
        &sandbox,
        "dd if=/dev/zero of=/dev/null bs=200000000 count=1; echo alive",
    );
    assert!(heard.stdout().ends_with("alive\n"), "{heard:?}");
    assert_eq!((end.exit_code, end.oom_kills), (Some(0), 1));
    let (end, _) = client.sh(&sandbox, "true");
    assert_eq!(end.oom_kills, 0, "another exec is not to blame");
    assert_eq!(client.usage(&sandbox).oom_kills, 1);
    node.down();
}

/// The number of processes is limited, and the fork that failed is told.
#[test]
fn processes_are_limited() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let spec = exec_spec(
        &sandbox,
        &["sh", "-c", "for i in $(seq 50); do sleep 100 & done"],
    );
    let end = client.exec(&spec).0.expect("runs");
    assert_eq!(end.quota_hits, ["pids"]);
    client.kill(&spec, None, 0).expect("the rest is killed");
    assert_eq!(
        client.sh(&sandbox, "true").0.quota_hits,
        Vec::<String>::new()
    );
    node.down();
}

/// Space is limited, in bytes and in files; what is deleted can be used again.
#[test]
fn disk_is_limited() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let (end, heard) = client.sh(&sandbox, "dd if=/dev/zero of=/big bs=64k");
    assert!(
        heard.stderr().contains("quota exceeded"),
        "{}",
        heard.stderr()
    );
    assert_eq!(end.quota_hits, ["disk"]);
    assert!(client.usage(&sandbox).disk_bytes.expect("is counted") <= 8 << 20);
    let (end, _) = client.sh(&sandbox, "rm /big; sync; echo small > /small");
    assert_eq!((end.exit_code, end.quota_hits.len()), (Some(0), 0));
    let (end, _) = client.sh(&sandbox, "i=0; while mkdir /d$i; do i=$((i+1)); done");
    assert_eq!(end.quota_hits, ["disk"]);
    node.down();
}
