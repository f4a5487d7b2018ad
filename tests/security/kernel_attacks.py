"""What is tried against the kernel from inside: programs of ``attempt(name, function, …)``, for ``inside.attempts``.

The settings of the machine are opened for writing and not written: where an attack goes through, it changes nothing.
"""

__all__ = [
    "CALLING_CONVENTIONS",
    "DEVICES",
    "IOCTLS",
    "KERNEL_INTERFACES",
    "MOUNTS",
    "NAMESPACES",
    "NETWORK_CONFIGURATION",
    "SECRETS",
    "SETTINGS",
    "SOCKETS",
]

MOUNTS = """
none, tmpfs, mnt = b"none", b"tmpfs", b"/mnt"
attempt("tmpfs", call, 165, none, mnt, tmpfs, 0, 0)
attempt("bind", call, 165, b"/", mnt, none, 4096, 0)
attempt("remount sys", call, 165, none, b"/sys", 0, 32, 0)
attempt("remount proc", call, 165, none, b"/proc/sys", 0, 32 | 4096, 0)
attempt("cgroup v1", call, 165, none, mnt, b"cgroup", 0, b"devices")
attempt("cgroup v2", call, 165, none, mnt, b"cgroup2", 0, 0)
attempt("proc", call, 165, none, mnt, b"proc", 0, 0)
attempt("umount", call, 166, b"/proc/sys", 2)
attempt("umount mask", call, 166, b"/proc/kcore", 2)
attempt("pivot_root", call, 155, b"/", mnt)
attempt("fsopen", call, 430, tmpfs, 0)
attempt("fspick", call, 433, -100, b"/", 0)
attempt("open_tree", call, 428, -100, b"/", 1)
attempt("move_mount", call, 429, -100, b"/proc", -100, mnt, 0)
attempt("mount_setattr", call, 442, -100, b"/", 0, buffer, 32)
attempt("open_tree_attr", call, 467, -100, b"/", 1, buffer, 32)
attempt("statmount", call, 457, buffer, buffer, 4096, 0)
attempt("listmount", call, 458, buffer, buffer, 10, 0)
"""

NAMESPACES = """
kinds = dict(mnt=0x20000, cgroup=0x2000000, uts=0x4000000, ipc=0x8000000, user=0x10000000, pid=0x20000000,
             net=0x40000000, time=0x80)
def clone(flag):
    pid = call(56, flag | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return pid
for name, flag in kinds.items():
    attempt("unshare " + name, call, 272, flag)
    attempt("unshare user and " + name, call, 272, flag | 0x10000000)
    if name != "time":
        attempt("clone " + name, clone, flag)
        attempt("clone user and " + name, clone, flag | 0x10000000)
struct.pack_into("Q", buffer, 0, 0x10000000)
attempt("clone3", call, 435, buffer, 88)
for name in os.listdir("/proc/self/ns"):
    attempt("setns " + name, lambda: call(308, os.open("/proc/self/ns/" + name, 0), 0))
attempt("time offsets", lambda: open("/proc/self/timens_offsets", "w").write("boottime 1 0") and "written")
"""

DEVICES = """
for place in ("/tmp", "/dev/shm", "/dev", "/dev/mqueue"):
    for name, kind, numbers in (("null", stat.S_IFCHR, (1, 3)), ("disk", stat.S_IFBLK, (254, 0)),
                                ("loop", stat.S_IFBLK, (7, 0)), ("mem", stat.S_IFCHR, (1, 1)),
                                ("fuse", stat.S_IFCHR, (10, 229))):
        attempt(f"{place} {name}", os.mknod, f"{place}/x{name}", kind | 0o666, os.makedev(*numbers))
attempt("whiteout", os.mknod, "/tmp/whiteout", stat.S_IFCHR | 0o666, os.makedev(0, 0))
attempt("open null", os.open, "/dev/shm/xnull", os.O_WRONLY)
attempt("remove null", os.unlink, "/dev/null")
attempt("chmod null", os.chmod, "/dev/null", 0)
attempt("link over null", os.symlink, "/tmp", "/dev/console")
"""

KERNEL_INTERFACES = """
handle = ctypes.create_string_buffer(struct.pack("IiII", 8, 1, 1, 0) + bytes(128))
numbers = dict(bpf=(321, 0, buffer, 72), perf=(298, buffer, 0, -1, -1, 0), io_uring=(425, 8, buffer),
    userfaultfd=(323, 0), userfaultfd_user=(323, 1), add_key=(248, b"user", b"x", b"y", 1, -3),
    io_setup=(206, 8, buffer), keyctl=(250, 0, -3, 0),
    request_key=(249, b"user", b"x", 0, -3), handle=(304, 3, handle, 0),
    kexec=(246, 0, 0, 0, 0), kexec_file=(320, 0, 0, 0, 0, 0), reboot=(169, 0xfee1dead, 672274793, 0x1234567, 0),
    swapon=(167, b"/tmp/x", 0), swapoff=(168, b"/tmp/x"), acct=(163, 0), settimeofday=(164, buffer, 0),
    clock_settime=(227, 0, buffer), init_module=(175, buffer, 10, b""), finit_module=(313, 0, b"", 0),
    delete_module=(176, b"x", 0), iopl=(172, 3), ioperm=(173, 0x70, 2, 1), quotactl=(179, 0x80000100, b"/dev/x", 0,
    buffer), fanotify=(300, 0, 0), fanotify_user=(300, 0x200, 0), dcookie=(212, 0, buffer, 100),
    syslog=(103, 3, buffer, 4096),
    sethostname=(170, b"evil", 4), setdomainname=(171, b"evil", 4), kcmp=(312, 1, 1, 0, 0, 0), vhangup=(153,),
    move_pages=(279, 1, 0, 0, 0, 0, 0), mbind=(237, 0, 0, 0, 0, 0, 0), uselib=(134, b"/x"),
    lsm=(461, 0, buffer, buffer, 0),
    fileattr=(469, -100, b"/", buffer, 24, 0), unknown=(999,), negative=(-1,))
for name, arguments in numbers.items():
    attempt(name, call, *arguments)
"""

CALLING_CONVENTIONS = """
for name, number in dict(getpid=39, execve=520, ptrace=521, mount=165, unshare=272).items():
    attempt("x32 " + name, call, 0x40000000 | number, 0, 0, 0)
import mmap, signal
def int80(number):
    pid = os.fork()
    if pid == 0:
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(b"\\x53\\xb8" + struct.pack("I", number) + b"\\x31\\xdb\\xcd\\x80\\x5b\\xc3")
        ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
        os._exit(0)
    return os.waitpid(pid, 0)[1]
for name, number in dict(getpid=20, mount=21, unshare=310, keyctl=288).items():
    found["int80 " + name] = int80(number)
"""

SOCKETS = """
for name, arguments in dict(vsock=(40, 1, 0), packet=(17, 3, 0), raw=(2, 3, 1), raw6=(10, 3, 58), ping=(2, 2, 1),
        alg=(38, 5, 0), tipc=(30, 1, 0), can=(29, 3, 1), bluetooth=(31, 3, 1), xdp=(44, 3, 0), smc=(43, 1, 0),
        kcm=(41, 2, 0), qrtr=(42, 2, 0), rds=(21, 5, 0), rxrpc=(33, 2, 0), nfc=(39, 5, 1), x25=(9, 5, 0),
        sctp=(2, 1, 132), sctp6=(10, 5, 132), dccp=(2, 6, 33), l2tp=(2, 2, 115), udplite=(2, 2, 136),
        smc_ip=(2, 1, 256), uevent=(16, 2, 15), audit=(16, 3, 9), netfilter=(16, 3, 12), generic=(16, 3, 16),
        connector=(16, 2, 11),
        crypto=(16, 3, 21), xfrm=(16, 3, 6), scsi=(16, 3, 18), iscsi=(16, 3, 8), rdma=(16, 3, 20)).items():
    attempt(name, lambda: socket.socket(*arguments).fileno())
"""

NETWORK_CONFIGURATION = """
def control(number, request):
    fcntl.ioctl(socket.socket(), number, request)
def netlink(family, kind, flags, body):
    talk = socket.socket(16, 3, family)
    talk.send(struct.pack("IHHII", 16 + len(body), kind, flags | 5, 1, 0) + body)
    code = struct.unpack("i", talk.recv(8192)[16:20])[0]
    if code:
        raise OSError(-code, "")
attempt("address", control, 0x8916, struct.pack("16sHH4s8x", b"lo", 2, 0, bytes([10, 0, 0, 1])))
attempt("down", control, 0x8914, struct.pack("16sH14x", b"lo", 0))
attempt("bridge", control, 0x89A0, b"br0".ljust(16, b"\\0"))
attempt("nl address", netlink, 0, 20, 0x600, struct.pack("BBBBIHH4s", 2, 8, 0, 0, 1, 8, 2, bytes([10, 0, 0, 1])))
attempt("nl route", netlink, 0, 24, 0x600, struct.pack("BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0))
attempt("nl link", netlink, 0, 16, 0x600, bytes(16) + struct.pack("HH6s2x", 10, 3, b"dummy0"))
attempt("nftables", netlink, 12, (10 << 8) | 16, 0, struct.pack("BBH", 0, 0, socket.htons(10)))
attempt("tun", lambda: os.open("/dev/net/tun", 2))
"""

SETTINGS = """
def write(path, text="1"):
    descriptor = os.open(path, os.O_WRONLY)
    try:
        return os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
def reach(path):
    os.close(os.open(path, os.O_WRONLY))
    return "could be written"
paths = [
    "/proc/sysrq-trigger", "/proc/mtrr", "/sys/power/state", "/sys/kernel/uevent_helper", "/proc/pressure/memory",
]
paths += [f"/proc/sys/{name}" for name in ("kernel/core_pattern", "kernel/modprobe", "kernel/hostname",
    "kernel/ns_last_pid", "kernel/msgmax", "kernel/yama/ptrace_scope", "kernel/sysrq", "vm/drop_caches",
    "vm/overcommit_memory", "net/ipv4/ip_forward", "net/ipv4/ip_unprivileged_port_start", "fs/binfmt_misc/register",
    "fs/suid_dumpable", "user/max_user_namespaces")]
paths += glob.glob("/sys/kernel/mm/*/*")[:20] + glob.glob("/sys/module/*/parameters/*")[:50]
for path in paths:
    if not os.path.isdir(path):
        attempt(path, reach, path)
attempt("uid_map", write, "/proc/self/uid_map", "0 0 1")
attempt("setgroups", write, "/proc/self/setgroups", "allow")
attempt("oom", write, "/proc/self/oom_score_adj", "-1000")
def raise_limit(which):
    try:
        resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except ValueError:
        raise OSError(errno.EPERM, "")
for name in ("RLIMIT_NOFILE", "RLIMIT_MEMLOCK", "RLIMIT_NPROC"):
    attempt(name, raise_limit, getattr(resource, name))
attempt("nice", os.setpriority, 0, 0, -20)
attempt("real time", lambda: os.sched_setscheduler(0, 1, os.sched_param(1)))
for name in ("trusted.overlay.opaque", "trusted.overlay.redirect", "security.selinux", "security.evm"):
    attempt(name, os.setxattr, "/tmp", name, b"y")
found.pop("security.selinux") if found.get("security.selinux", 0) is None else None
"""

SECRETS = """
paths = [f"/proc/{name}" for name in ("kcore", "kallsyms", "kpagecount", "kpageflags", "kpagecgroup", "kmsg", "keys",
    "key-users", "timer_list", "interrupts", "sched_debug", "slabinfo", "vmallocinfo", "pagetypeinfo", "1/environ",
    "1/mem", "1/maps", "1/cmdline", "1/stack")]
paths += ["/dev/kmsg", "/dev/mem", "/dev/port", "/sys/kernel/debug", "/sys/kernel/security", "/sys/kernel/tracing",
    "/sys/firmware", "/sys/fs/cgroup", "/sys/fs/btrfs", "/sys/devices/virtual/block", "/sys/devices/virtual/powercap"]
def read(path):
    return len(os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(100))
for path in paths:
    attempt(path, read, path)
told = glob.glob("/sys/block/*/loop/backing_file") + glob.glob("/sys/devices/virtual/block/*/loop/backing_file")
groups = [line.rstrip().split(":")[2] for line in open("/proc/self/cgroup")]
told += [group for group in groups if group.count("/") > 2 or "dsec" in group]
found["told"] = len(told)
"""

IOCTLS = """
btrfs = lambda number, size, way=1: (way << 30) | (size << 16) | 0x9400 | number
commands = dict(snap_create=btrfs(1, 4096), defrag=btrfs(2, 4096), resize=btrfs(3, 4096), sync=btrfs(8, 0, 0),
    add_device=btrfs(10, 4096), subvol_create=btrfs(14, 4096), snap_destroy=btrfs(15, 4096),
    tree_search=btrfs(17, 4096, 3), ino_lookup=btrfs(18, 4096, 3), space_info=btrfs(20, 16, 3),
    start_sync=btrfs(24, 8, 2), subvol_setflags=btrfs(26, 8), device_info=btrfs(30, 4096, 3),
    fs_info=btrfs(31, 1024, 2), balance=btrfs(32, 1024, 3), send=btrfs(38, 72), quota_ctl=btrfs(40, 16, 3),
    qgroup_assign=btrfs(41, 24), qgroup_limit=btrfs(43, 48, 2), subvol_info=btrfs(60, 504, 2),
    encoded_write=btrfs(64, 128), trim=0xC0185879, freeze=0xC0045877)
refusing = {}
for path in ("/etc/hosts", "/etc/resolv.conf", "/tmp", "/usr/bin/python3"):
    descriptor = os.open(path, os.O_RDONLY)
    for name, command in commands.items():
        attempt(f"{path} {name}", fcntl.ioctl, descriptor, command, bytearray(4096), True)
main, terminal = os.openpty()
attempt("TIOCSTI", fcntl.ioctl, terminal, 0x5412, b"x")
attempt("TIOCSTI high", lambda: call(16, terminal, (1 << 32) | 0x5412, b"x"))
attempt("TIOCLINUX", fcntl.ioctl, terminal, 0x541C, b"\\x02")
open("/tmp/mine", "w").close()
mine = os.open("/tmp/mine", os.O_RDWR)
for name, flag in dict(immutable=0x10, append=0x20, no_cow=0x800000, compressed=4).items():
    attempt(name, lambda: len(fcntl.ioctl(mine, 0x40086602, struct.pack("q", flag))))
for name, command in dict(xfs_swapext=0xC0C0586D, xfs_attributes=0x401C5820, ext4_move_ext=0xC028660F,
                          xfs_freeze=0xC0045877, xfs_bulkstat=0xC0205865).items():
    attempt(name, fcntl.ioctl, mine, command, bytearray(4096), True)
"""
