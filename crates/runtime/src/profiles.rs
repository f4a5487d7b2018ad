//! Isolation profiles by name: the filter, the capabilities and the masks of a sandbox's processes.

use std::io;

use dsec_session::plan::Step;
use serde::{Deserialize, Serialize};

use crate::kernel::seccomp;

/// How a sandbox is held. What each opens or closes is argued in `docs/security.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProfileName {
    /// What programs of images need.
    #[default]
    Default,
    /// Nothing can be gained by executing something, and less of the kernel is within reach.
    Strict,
    /// Containers within the sandbox, made by anybody in it.
    Nested,
}

impl ProfileName {
    /// The profile of this name.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        match text {
            "default" => Some(Self::Default),
            "strict" => Some(Self::Strict),
            "nested" => Some(Self::Nested),
            _ => None,
        }
    }
}

/// Docker's default set without NET_RAW and MKNOD, neither of which could do anything here: CHOWN, DAC_OVERRIDE, FOWNER,
/// FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, SYS_CHROOT, AUDIT_WRITE, SETFCAP.
const CAPABILITIES: u64 = bits(&[0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 29, 31]);
/// CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID: what installing packages and becoming a user take.
const FEW_CAPABILITIES: u64 = bits(&[0, 1, 3, 5, 6, 7]);

const fn bits(numbers: &[u32]) -> u64 {
    let mut bits = 0;
    let mut at = 0;
    while at < numbers.len() {
        bits |= 1 << numbers[at];
        at += 1;
    }
    bits
}

/// Covered, in every profile.
pub(crate) const MASKED: [&str; 18] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/kmsg",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    // The loop devices name the files of all nodes' pools.
    "/sys/devices/virtual/block",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/fs/btrfs",
];
/// Read-only, in every profile.
pub(crate) const READ_ONLY: [&str; 6] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    // Whoever writes there has the kernel watch the machine for it.
    "/proc/pressure",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// What every process of a sandbox gets.
pub struct Profile {
    /// The filter program, and the one whose refusals are on record.
    seccomp: Vec<u8>,
    listened: Option<Vec<u8>>,
    /// RLIMIT_NOFILE.
    descriptors: u64,
    /// What root holds, and set-user-ID programs may gain.
    capabilities: u64,
    /// Whether nothing can be gained at all.
    no_new_privs: bool,
    /// Whether new user namespaces may mount a /proc of their own.
    pub(crate) nests: bool,
}

impl Profile {
    /// A profile, with this RLIMIT_NOFILE. `listens`: refused calls can be on record.
    #[must_use]
    pub fn new(name: ProfileName, descriptors: u64, listens: bool) -> Self {
        let strict = name == ProfileName::Strict;
        Self {
            seccomp: seccomp::filter(name, false),
            listened: listens.then(|| seccomp::filter(name, true)),
            descriptors,
            capabilities: if strict {
                FEW_CAPABILITIES
            } else {
                CAPABILITIES
            },
            no_new_privs: strict,
            nests: name == ProfileName::Nested,
        }
    }

    pub(crate) fn rlimits(&self) -> Step {
        let files = (libc::RLIMIT_NOFILE, self.descriptors, self.descriptors);
        // 1, not 0: with that alone the kernel does not start the machine's `core_pattern` program either.
        Step::Rlimits(vec![files, (libc::RLIMIT_CORE, 1, 1)])
    }

    pub(crate) fn filter(&self) -> Step {
        Step::Seccomp {
            program: self.seccomp.clone(),
            listen: false,
        }
    }

    /// The same, of programs whose refused calls are on record, where that can be.
    pub(crate) fn recording_filter(&self) -> Step {
        self.listened.as_ref().map_or_else(
            || self.filter(),
            |program| Step::Seccomp {
                program: program.clone(),
                listen: true,
            },
        )
    }

    /// What bounds its privileges, before it takes its IDs.
    pub(crate) fn bounds(&self) -> impl Iterator<Item = Step> {
        let caps = Step::Caps {
            keep: self.capabilities,
        };
        self.no_new_privs
            .then_some(Step::NoNewPrivs)
            .into_iter()
            .chain([caps])
    }
}

/// All profiles, made once.
pub struct Profiles([Profile; 3]);

impl Profiles {
    /// As [`Profile::new`].
    #[must_use]
    pub fn new(descriptors: u64, listens: bool) -> Self {
        let all = [
            ProfileName::Default,
            ProfileName::Strict,
            ProfileName::Nested,
        ];
        Self(all.map(|name| Profile::new(name, descriptors, listens)))
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, name: ProfileName) -> &Profile {
        &self.0[name as usize]
    }
}

/// Whether user namespaces within sandboxes have rights on this machine.
///
/// # Errors
/// The setting that takes them away.
pub fn nesting() -> io::Result<()> {
    for (name, off) in [
        ("kernel/unprivileged_userns_clone", "0"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1"),
    ] {
        match std::fs::read_to_string(format!("/proc/sys/{name}")) {
            Ok(text) if text.trim() == off => {
                let name = name.replace('/', ".");
                return Err(io::Error::other(format!("{name} is {off} on this node")));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What lets a process reach beyond its container is not among the capabilities, and strict has no others than the default.
    #[test]
    fn no_dangerous_capabilities() {
        let (sys_module, sys_rawio, sys_ptrace, sys_admin, net_admin, mknod) =
            (16, 17, 19, 21, 12, 27);
        for capability in [
            sys_module, sys_rawio, sys_ptrace, sys_admin, net_admin, mknod,
        ] {
            assert_eq!(CAPABILITIES & (1 << capability), 0, "{capability}");
        }
        assert_eq!(FEW_CAPABILITIES & !CAPABILITIES, 0);
    }

    /// Each name finds its own profile, and no other text does.
    #[test]
    fn names_are_found() {
        let profiles = Profiles::new(9, true);
        let of = |text| ProfileName::of(text).map(|name| profiles.get(name));
        let facts = |profile: &Profile| (profile.no_new_privs, profile.nests);
        assert_eq!(of("default").map(facts), Some((false, false)));
        assert_eq!(of("strict").map(facts), Some((true, false)));
        assert_eq!(of("nested").map(facts), Some((false, true)));
        assert!(["", "Default", "unconfined"]
            .map(of)
            .iter()
            .all(Option::is_none));
    }
}
