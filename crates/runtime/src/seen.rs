//! What tools see of the machine follows the limits: how many processors, how much memory. Pure, but for [`Machine::read`].
//!
//! Files take the place of the kernel's own, written once per slot for the limits of its sandbox. They do not move: totals as the
//! limits say, everything else as on a machine that has just been started.

use std::io;

use crate::kernel::sys;

/// What the machine says of itself.
pub struct Machine {
    meminfo: String,
    cpuinfo: String,
    /// Processors that programs of the node may run on.
    usable: u32,
}

/// What a sandbox is shown; `None`: what the machine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    memory_kib: Option<u64>,
    processors: Option<u32>,
}

/// A file that stands for the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// How much memory there is, KiB.
    Memory(u64),
    /// A description of each processor.
    Processors(u32),
    /// Their numbers.
    Range(u32),
}

impl Stand {
    /// Its own name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory(_) => "meminfo",
            Self::Processors(_) => "cpuinfo",
            Self::Range(_) => "range",
        }
    }

    /// Paths of the kernel's.
    #[must_use]
    pub fn targets(self) -> &'static [&'static str] {
        match self {
            Self::Memory(_) => &["/proc/meminfo"],
            Self::Processors(_) => &["/proc/cpuinfo"],
            Self::Range(_) => &[
                "/sys/devices/system/cpu/online",
                "/sys/devices/system/cpu/possible",
                "/sys/devices/system/cpu/present",
            ],
        }
    }
}

impl Shown {
    /// The files that show it.
    pub fn stands(self) -> impl Iterator<Item = Stand> {
        let processors = self
            .processors
            .map(|count| [Stand::Processors(count), Stand::Range(count)]);
        let memory = self.memory_kib.map(Stand::Memory);
        memory.into_iter().chain(processors.into_iter().flatten())
    }
}

impl Machine {
    /// Asks the kernel.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn read() -> io::Result<Self> {
        Ok(Self {
            meminfo: std::fs::read_to_string("/proc/meminfo")?,
            cpuinfo: std::fs::read_to_string("/proc/cpuinfo")?,
            usable: sys::usable_processors()?,
        })
    }

    /// How many processors the programs of a sandbox may run on, if those are not all that the node has.
    #[must_use]
    pub fn processors(&self, cpu_milli: u64) -> Option<u32> {
        let rounded_up = u32::try_from(cpu_milli.div_ceil(1000)).unwrap_or(u32::MAX);
        Some(rounded_up.max(1)).filter(|count| *count < self.usable)
    }

    /// What a sandbox of these limits is shown.
    #[must_use]
    pub fn shown(&self, cpu_milli: u64, memory_bytes: u64) -> Shown {
        let count = self.processors(cpu_milli).unwrap_or(self.usable);
        let memory_kib = memory_bytes / 1024;
        Shown {
            memory_kib: Some(memory_kib).filter(|kib| *kib < total(&self.meminfo)),
            processors: Some(count).filter(|count| *count < blocks(&self.cpuinfo).count() as u32),
        }
    }

    /// All of a file.
    #[must_use]
    pub fn text(&self, stand: Stand) -> String {
        match stand {
            Stand::Memory(kib) => meminfo(&self.meminfo, kib),
            Stand::Processors(count) => cpuinfo(&self.cpuinfo, count),
            Stand::Range(count) => range(count),
        }
    }
}

fn total(meminfo: &str) -> u64 {
    let value = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let number = value.and_then(|value| value.split_ascii_whitespace().next()?.parse().ok());
    number.unwrap_or(u64::MAX)
}

/// The machine's lines in their order, for a machine of so much memory, all of it free, and no swap.
fn meminfo(machine: &str, kib: u64) -> String {
    let mut text = String::with_capacity(machine.len());
    for line in machine.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let mut words = value.split_ascii_whitespace();
        let as_it_is = words.next().unwrap_or("0");
        let number = match key {
            "MemTotal" | "MemFree" | "MemAvailable" | "CommitLimit" => kib.to_string(),
            "VmallocTotal" | "Hugepagesize" => as_it_is.to_owned(),
            // What the kernel has mapped of a memory that is not shown.
            _ if key.starts_with("DirectMap") => continue,
            _ => "0".to_owned(),
        };
        text += &format!("{:<15} {number:>8}", format!("{key}:"));
        text += if words.next().is_some() {
            " kB\n"
        } else {
            "\n"
        };
    }
    text
}

/// The parts of /proc/cpuinfo that are one processor each.
fn blocks(cpuinfo: &str) -> impl Iterator<Item = &str> {
    cpuinfo
        .split_inclusive("\n\n")
        .filter(|block| block.starts_with("processor"))
}

fn cpuinfo(machine: &str, count: u32) -> String {
    blocks(machine).take(count as usize).collect()
}

fn range(count: u32) -> String {
    match count {
        0 | 1 => "0\n".to_owned(),
        more => format!("0-{}\n", more - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        let block = |number| format!("processor\t: {number}\nmodel name\t: A\n\n");
        Machine {
            meminfo: "MemTotal:       24683952 kB\nMemFree:          543210 kB\nMemAvailable:   22388924 kB\n\
                      SwapTotal:       1048572 kB\nSwapFree:        1048572 kB\nCached:         14000000 kB\n\
                      CommitLimit:    12341976 kB\nHugePages_Total:       3\nHugepagesize:       2048 kB\n\
                      DirectMap4k:      131072 kB\n"
                .into(),
            cpuinfo: (0..4).map(block).collect(),
            usable: 4,
        }
    }

    fn texts(machine: &Machine, shown: Shown) -> Vec<(&'static str, String)> {
        let of = |stand: Stand| (stand.name(), machine.text(stand));
        shown.stands().map(of).collect()
    }

    /// A part of a processor counts as one; the files have so many and agree.
    #[test]
    fn processors_are_rounded_up() {
        let machine = machine();
        for (milli, count, range) in [(10, 1, "0\n"), (1000, 1, "0\n"), (1001, 2, "0-1\n")] {
            assert_eq!(machine.processors(milli), Some(count));
            let shown = texts(&machine, machine.shown(milli, u64::MAX));
            assert_eq!(shown[0].1.matches("processor").count(), count as usize);
            assert_eq!(shown[1..], [("range", range.to_owned())]);
        }
    }

    /// Totals are the limit; what is used, cached and swapped is nothing; units and order stay.
    #[test]
    fn memory_is_the_limit() {
        let machine = machine();
        let shown = texts(&machine, machine.shown(4000, 512 << 20));
        let wanted = "MemTotal:         524288 kB\nMemFree:          524288 kB\nMemAvailable:     524288 kB\n\
                      SwapTotal:             0 kB\nSwapFree:              0 kB\nCached:                0 kB\n\
                      CommitLimit:      524288 kB\nHugePages_Total:        0\nHugepagesize:       2048 kB\n";
        assert_eq!(shown, [("meminfo", wanted.to_owned())]);
    }

    /// Limits beyond the machine promise nothing that it does not have: the kernel's own files stay.
    #[test]
    fn a_machine_is_not_made_larger() {
        let machine = machine();
        assert_eq!(machine.processors(4000), None);
        assert_eq!(machine.shown(64_000, 64 << 30), Shown::default());
        assert_eq!(Shown::default().stands().count(), 0);
    }

    /// A node that may not use all processors shows those that it may use, and needs no narrower mask for that.
    #[test]
    fn a_node_on_part_of_a_machine() {
        let part = Machine {
            usable: 2,
            ..machine()
        };
        assert_eq!(part.processors(3000), None);
        let shown = texts(&part, part.shown(3000, u64::MAX));
        assert_eq!(shown[1], ("range", "0-1\n".to_owned()));
    }

    /// What this machine says is understood.
    #[test]
    fn this_machine() {
        let machine = Machine::read().expect("/proc is readable");
        assert!(machine.usable >= 1 && total(&machine.meminfo) < u64::MAX);
        assert!(blocks(&machine.cpuinfo).count() as u32 >= machine.usable);
    }
}
