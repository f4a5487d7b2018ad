//! Plans and roots for the tests.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{lchown, symlink};
use std::path::{Path, PathBuf};

use dsec_session::plan::{
    Clone3, End, Exec, FileOp, IdRange, Ids, Mount, Namespace, Plan, Source, Step, Tree,
};
use rustix::fs::{Mode, OFlags, CWD};
use rustix::mount::{
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, open_tree, FsMountFlags, FsOpenFlags,
    MountAttrFlags, OpenTreeFlags,
};
use serde_bytes::ByteBuf;

use super::node::INIT;

pub const START: u32 = 0x5100_0000;
pub const COUNT: u32 = 65_536;
pub const BUSYBOX: &str = "/bin/busybox";
const APPLETS: [&str; 14] = [
    "sh", "cat", "echo", "id", "ls", "sleep", "true", "mount", "hostname", "readlink", "kill",
    "ps", "mkdir", "env",
];

pub fn bytes(text: &str) -> ByteBuf {
    ByteBuf::from(text.as_bytes().to_vec())
}

/// A pipe: read end, write end.
pub fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe")
}

/// A pipe whose writer waits: a step that writes to it goes no further until somebody reads or closes.
pub fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = pipe();
    rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).expect("non-blocking");
    while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, OFlags::empty()).expect("blocking");
    (reader, writer)
}

/// Everything until the end of the pipe.
pub fn read_all(pipe: OwnedFd) -> String {
    let bytes = read_bytes(pipe);
    String::from_utf8(bytes).expect("text")
}

pub fn read_bytes(pipe: OwnedFd) -> Vec<u8> {
    use std::io::Read;
    let mut bytes = Vec::new();
    fs::File::from(pipe).read_to_end(&mut bytes).expect("read");
    bytes
}

/// A program on the host.
pub fn host(argv: &[&str], fds: &[(u16, i32)]) -> Plan {
    Plan {
        clone: Clone3::default(),
        steps: vec![Step::Setsid],
        end: End::Exec(exec(argv, fds)),
    }
}

pub fn exec(argv: &[&str], fds: &[(u16, i32)]) -> Exec {
    Exec {
        programs: vec![bytes(argv[0])],
        file: None,
        argv: argv.iter().map(|argument| bytes(argument)).collect(),
        env: vec![bytes("PATH=/bin:/usr/bin")],
        fds: fds.to_vec(),
    }
}

/// A detached tmpfs that the sandbox's root owns, and a path by which it can be filled.
pub fn tmpfs() -> (OwnedFd, PathBuf) {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).expect("tmpfs");
    for (key, value) in [
        ("mode", "0755".to_owned()),
        ("uid", START.to_string()),
        ("gid", START.to_string()),
    ] {
        fsconfig_set_string(&context, key, value).expect("an option");
    }
    fsconfig_create(&context).expect("created");
    let tree = fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )
    .expect("mounted");
    let path = PathBuf::from(format!("/proc/self/fd/{}", tree.as_raw_fd()));
    (tree, path)
}

/// Write a file of the sandbox's root user.
pub fn file(path: &Path, content: &str) {
    fs::write(path, content).expect("written");
    own(path);
}

pub fn own(path: &Path) {
    lchown(path, Some(START), Some(START)).expect("owned");
}

pub fn dir(path: &Path) {
    fs::create_dir(path).expect("made");
    own(path);
}

pub fn link(target: &str, path: &Path) {
    symlink(target, path).expect("linked");
    own(path);
}

/// A root with busybox, passwd and group; `shape` changes it before it is used.
pub fn root(shape: impl FnOnce(&Path)) -> OwnedFd {
    let busybox =
        fs::read(BUSYBOX).expect("this test needs busybox-static: apt-get install busybox-static");
    let (tree, path) = tmpfs();
    for name in ["bin", "etc", "root", "home"] {
        dir(&path.join(name));
    }
    let program = path.join("bin/busybox");
    fs::write(&program, busybox).expect("written");
    own(&program);
    fs::set_permissions(
        &program,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .expect("executable");
    for applet in APPLETS {
        link("busybox", &path.join("bin").join(applet));
    }
    file(
        &path.join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001:app:/home:/bin/sh\n",
    );
    file(&path.join("etc/group"), "root:x:0:\nstaff:x:50:app\n");
    shape(&path);
    tree
}

fn device(path: &str) -> OwnedFd {
    open_tree(
        CWD,
        path,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )
    .expect("cloned")
}

fn mount(target: &str, source: Source, optional: bool) -> Mount {
    Mount {
        target: target.to_owned(),
        source,
        optional,
    }
}

pub fn new(kind: &str, options: &[(&str, &str)], attributes: u64) -> Source {
    Source::New {
        kind: kind.to_owned(),
        options: options
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        attributes,
    }
}

const NOSUID_NODEV_NOEXEC: u64 = 0x2 | 0x4 | 0x8;

/// The usual mounts; descriptor 0 is the root, 1 /dev/null, 2 init.
pub fn usual_mounts() -> Vec<Mount> {
    vec![
        mount(
            "/proc",
            new("proc", &[("hidepid", "invisible")], NOSUID_NODEV_NOEXEC),
            false,
        ),
        mount(
            "/dev",
            new("tmpfs", &[("mode", "0755"), ("size", "64k")], 0x2),
            false,
        ),
        mount("/dev/null", Source::Detached(1), false),
        mount(
            "/dev/pts",
            new(
                "devpts",
                &[("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620")],
                0x2 | 0x8,
            ),
            false,
        ),
        mount(
            "/dev/shm",
            new(
                "tmpfs",
                &[("mode", "1777"), ("size", "1m")],
                NOSUID_NODEV_NOEXEC,
            ),
            false,
        ),
        mount(
            "/dev/mqueue",
            new("mqueue", &[], NOSUID_NODEV_NOEXEC),
            false,
        ),
        mount("/proc/kcore", Source::Masked, true),
        mount("/proc/timer_list", Source::Masked, true),
        mount("/proc/acpi", Source::Masked, true),
        mount("/proc/no-such-thing", Source::Masked, true),
        mount("/sys/firmware", Source::Masked, true),
        mount("/proc/scsi", Source::Masked, true),
        mount("/proc/fs", Source::Masked, true),
        mount("/proc/sys", Source::ReadOnly, true),
    ]
}

/// The init's image: unreadable, so that it is non-dumpable from its first instruction.
pub fn init_image() -> OwnedFd {
    let memfd = rustix::fs::memfd_create(
        "init",
        rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING,
    )
    .expect("a memfd");
    let image = fs::read(INIT).expect("init is built");
    rustix::io::write(&memfd, &image).expect("written");
    rustix::fs::fchmod(&memfd, Mode::from_raw_mode(0o111)).expect("unreadable");
    let seals =
        rustix::fs::SealFlags::WRITE | rustix::fs::SealFlags::GROW | rustix::fs::SealFlags::SHRINK;
    rustix::fs::fcntl_add_seals(&memfd, seals).expect("sealed");
    memfd
}

/// A sandbox on this root: its plan and descriptors.
pub fn sandbox(root: OwnedFd, extra: Vec<Mount>) -> (Plan, Vec<OwnedFd>) {
    let mut mounts = usual_mounts();
    mounts.extend(extra);
    let plan = Plan {
        clone: Clone3 {
            new: vec![
                Namespace::User,
                Namespace::Pid,
                Namespace::Mount,
                Namespace::Uts,
                Namespace::Ipc,
            ],
            enter: None,
            cgroup: None,
            ids: Some(IdRange {
                start: START,
                count: COUNT,
            }),
            net: None,
        },
        steps: vec![
            Step::Setsid,
            Step::MountTree(Tree { root: 0, mounts }),
            Step::PivotRoot,
            Step::Hostname("box".to_owned()),
            Step::Caps { keep: 0 },
            Step::Ids(Some(Ids {
                uid: 0,
                gid: 0,
                groups: vec![],
            })),
        ],
        end: End::Exec(Exec {
            programs: vec![],
            file: Some(2),
            argv: vec![bytes("init")],
            env: vec![],
            fds: vec![],
        }),
    };
    (plan, vec![root, device("/dev/null"), init_image()])
}

/// Capabilities of Docker's default.
pub const DOCKER_CAPS: u64 = 0xa804_25fb;

fn entering(init: &str) -> (Clone3, Vec<Step>) {
    let clone = Clone3 {
        enter: Some(init.to_owned()),
        ..Clone3::default()
    };
    let kinds = vec![
        Namespace::User,
        Namespace::Mount,
        Namespace::Uts,
        Namespace::Ipc,
    ];
    let steps = vec![
        Step::Setsid,
        Step::Enter {
            object_id: init.to_owned(),
            kinds,
        },
    ];
    (clone, steps)
}

/// A program in a sandbox, as a user by IDs.
pub fn inside(init: &str, argv: &[&str], fds: &[(u16, i32)], uid: u32) -> Plan {
    let (clone, mut steps) = entering(init);
    steps.extend([
        Step::Caps { keep: DOCKER_CAPS },
        Step::Ids(Some(Ids {
            uid,
            gid: uid,
            groups: vec![uid],
        })),
        Step::Chdir {
            path: b"/".to_vec(),
            create: false,
        },
    ]);
    Plan {
        clone,
        steps,
        end: End::Exec(exec(argv, fds)),
    }
}

/// A program in a sandbox, as a user by name.
pub fn inside_as(init: &str, argv: &[&str], fds: &[(u16, i32)], user: &str, owned: &[u16]) -> Plan {
    let (clone, mut steps) = entering(init);
    steps.extend([
        Step::ResolveUser {
            user: user.to_owned(),
            start: START,
            owned: owned.to_vec(),
        },
        Step::Caps { keep: DOCKER_CAPS },
        Step::Ids(None),
    ]);
    Plan {
        clone,
        steps,
        end: End::Exec(exec(argv, fds)),
    }
}

/// A file operation in a sandbox.
pub fn file_op(init: &str, op: FileOp, uid: u32) -> Plan {
    let (clone, mut steps) = entering(init);
    steps.extend([
        Step::Caps { keep: DOCKER_CAPS },
        Step::Ids(Some(Ids {
            uid,
            gid: uid,
            groups: vec![uid],
        })),
    ]);
    Plan {
        clone,
        steps,
        end: End::File(op),
    }
}

/// A copy of a descriptor, to be sent away.
pub fn copy(fd: impl AsFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(fd, 3).expect("copied")
}
