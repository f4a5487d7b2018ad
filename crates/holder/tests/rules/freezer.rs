//! A process that stands still wherever it is, also in the kernel.

use std::fs;
use std::path::PathBuf;
use std::thread;

/// A group of the freezer of cgroup v1: that of v2 waits for ever for a task which waits for an answer. Gone at the end.
pub struct Freezer(PathBuf);

impl Freezer {
    /// Of one process.
    pub fn of(pid: u32) -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("read");
        let mount = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let own = fields[2] == "cgroup" && fields[3].split(',').any(|each| each == "freezer");
            own.then(|| PathBuf::from(fields[1]))
        });
        let group = mount
            .expect("a freezer of cgroup v1")
            .join(format!("dsec-rules-{pid}"));
        fs::create_dir(&group).expect("made");
        let freezer = Self(group);
        freezer.write("cgroup.procs", &pid.to_string());
        freezer
    }

    fn write(&self, name: &str, value: &str) {
        fs::write(self.0.join(name), value).expect("written");
    }

    /// Returns once it stands still.
    pub fn freeze(&self) {
        self.write("freezer.state", "FROZEN");
        while fs::read_to_string(self.0.join("freezer.state")).expect("read") != "FROZEN\n" {
            thread::yield_now();
        }
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.write("freezer.state", "THAWED");
    }
}

/// Its process has ended by then, or is let go.
impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        let _ = fs::remove_dir(&self.0);
    }
}
