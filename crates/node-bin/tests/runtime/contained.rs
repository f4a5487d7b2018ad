//! What a sandbox sees and may do. The attacks are in `tests/security`; here are the walls that the runtime builds.

use super::node::Node;

/// Root inside has none of the dangerous powers, and both filters are on.
#[test]
fn powers_are_few() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let status = client.sh(&sandbox, "cat /proc/self/status").1.stdout();
    let line = |name: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(name));
        found.expect("is there").trim().to_owned()
    };
    for set in ["CapPrm:", "CapEff:", "CapBnd:"] {
        let bits = u64::from_str_radix(&line(set), 16).expect("hex");
        assert_eq!(
            bits & !0xa80425fb,
            0,
            "more than Docker's default: {bits:x}"
        );
    }
    assert_eq!(line("CapInh:"), "0000000000000000");
    assert_eq!(
        (line("Seccomp:"), line("Seccomp_filters:")),
        ("2".into(), "1".into())
    );
    for script in [
        "mount -t tmpfs x /tmp",
        "unshare -m true",
        "unshare -U true",
        "echo 1 > /proc/sys/kernel/panic",
    ] {
        assert_ne!(client.sh(&sandbox, script).0.exit_code, Some(0), "{script}");
    }
    node.down();
}

/// A device node that came with an image cannot be opened; the sandbox's own can.
#[test]
fn device_nodes_of_images_are_dead() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let (end, heard) = client.sh(&sandbox, "ls -l /nodes/zero; head -c 1 /nodes/zero");
    assert_ne!(end.exit_code, Some(0));
    assert!(
        heard.stderr().contains("Permission denied"),
        "{}",
        heard.stderr()
    );
    assert_eq!(
        client
            .sh(&sandbox, "head -c 3 /dev/zero | wc -c; echo x > /dev/null")
            .1
            .stdout(),
        "3\n"
    );
    node.down();
}

/// Nothing of the host or of the platform shows: processes, groups, network, names.
#[test]
fn host_is_out_of_sight() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let told = client.sh(&sandbox, "hostname; cat /etc/hosts; ls /sys/class/net; cat /proc/self/cgroup /proc/self/mountinfo").1;
    let told = told.stdout();
    assert!(
        told.starts_with("box\n127.0.0.1\tlocalhost box\n"),
        "{told}"
    );
    assert!(told.contains("\nlo\n"), "{told}");
    for word in ["dsec-test", "/sys/fs/cgroup", "eth0", "upperdir=/tmp"] {
        assert!(!told.contains(word), "{word}: {told}");
    }
    let (_, heard) = client.sh(
        &sandbox,
        "ls -l /proc/self/fd | grep -v -e pipe -e null | grep -c -e socket -e /sys -e anon",
    );
    assert_eq!(
        heard.stdout(),
        "0\n",
        "a descriptor of the platform's is open"
    );
    node.down();
}

/// A low port can be had inside, and nothing outside is reached.
#[test]
fn network_is_its_own() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let script = "nc -l -p 80 > /got & while ! echo hi | nc 127.0.0.1 80; do sleep 0.01; done; wait; cat /got";
    assert_eq!(client.sh(&sandbox, script).1.stdout(), "hi\n");
    assert_ne!(
        client
            .sh(&sandbox, "nc -w 1 169.254.169.254 80 < /dev/null")
            .0
            .exit_code,
        Some(0)
    );
    node.down();
}
