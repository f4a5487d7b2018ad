//! Programs on the host: what starts, fails, ends and is remembered.

use super::node::Node;
use super::plans::{host, pipe, read_all};

/// A program runs with the descriptors given, and its end is told with its exit code.
#[test]
fn runs_a_program() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let (reader, writer) = pipe();
    let plan = host(
        &[
            "sh",
            "-c",
            "echo hello; ls -l /proc/self/fd | grep -c ' -> '; exit 7",
        ],
        &[(0, 1)],
    );
    runtime.spawn("a", plan, &[writer]).expect("spawned");
    assert_eq!(read_all(reader), "hello\n4\n");
    let end = runtime.ended("a");
    assert_eq!((end.exit_code, end.signal), (Some(7), None));
}
