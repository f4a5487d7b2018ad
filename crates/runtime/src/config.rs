//! What `dsec up` tells the runtime, one JSON file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Width of the ID range of a sandbox.
pub const RANGE: u32 = 65_536;
/// Most slots of a node: as many ranges belong to it.
pub const MAX_SLOTS: u32 = 4096;

/// The runtime's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of the node, `[a-z0-9]{1,12}`.
    pub node: String,
    /// Sockets and mount points.
    pub run_dir: PathBuf,
    /// Output and pool.
    pub data_dir: PathBuf,
    /// Layer stores, searched in this order.
    pub layers_dirs: Vec<PathBuf>,
    /// Size of the pool; the smaller of half the free space and 64 GiB when `null`.
    pub pool_mib: Option<u64>,
    /// File behind the pool.
    pub pool_image: PathBuf,
    /// The node's directory below each cgroup mount, `dsec/NAME`.
    pub cgroup_root: String,
    /// First host ID of the node's ranges.
    pub id_block: u32,
    /// The edge's user.
    pub edge_uid: u32,
    /// Most live sandboxes.
    pub max_sandboxes: u32,
    /// The static init.
    pub init_path: PathBuf,
    /// The interpreter that runs dsec's own image tool; without one that tool is refused.
    #[serde(default)]
    pub python: Option<String>,
    /// What the output of all finished execs may take before the oldest shrink to their tails.
    #[serde(default = "default_output_mib")]
    pub output_mib: u64,
    /// The layer holder's socket, where layers are filled on demand.
    #[serde(default)]
    pub holder_socket: Option<PathBuf>,
    /// Where what is routed leaves; without one no sandbox is routed.
    #[serde(default)]
    pub uplink: Option<Uplink>,
    /// Where tests arm fault points; `null` on every node that is used for anything else.
    #[serde(default)]
    pub fault_points: Option<PathBuf>,
}

/// An interface through which what is routed leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uplink {
    /// Its name.
    pub interface: String,
    /// The network namespace that it is in; `null` is the machine's own.
    pub namespace: Option<PathBuf>,
}

fn default_output_mib() -> u64 {
    8192
}

impl Config {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// One sentence that names the file and what is wrong with it.
    pub fn read(path: &Path) -> Result<Self, String> {
        let at = |what: String| format!("{}: {what}", path.display());
        let bytes = std::fs::read(path).map_err(|error| at(error.to_string()))?;
        let config: Self = serde_json::from_slice(&bytes).map_err(|error| at(error.to_string()))?;
        config.check().map_err(at)?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        if !crate::check::is_node_name(&self.node) {
            return Err(format!("node: not a node name: {:?}", self.node));
        }
        if self.max_sandboxes == 0 || self.max_sandboxes > MAX_SLOTS {
            return Err(format!("max_sandboxes: must be 1 to {MAX_SLOTS}"));
        }
        let parts: Vec<&str> = self.cgroup_root.split('/').collect();
        if parts.len() < 2
            || parts
                .iter()
                .any(|part| part.is_empty() || part.starts_with('.'))
        {
            return Err("cgroup_root: must be two or more plain names".into());
        }
        let plain = |name: &str| {
            (1..libc::IFNAMSIZ).contains(&name.len())
                && !name.contains(|each: char| each == '/' || each == ':' || each.is_whitespace())
                && ![".", ".."].contains(&name)
        };
        if self
            .uplink
            .as_ref()
            .is_some_and(|uplink| !plain(&uplink.interface))
        {
            return Err("uplink: not the name of an interface".into());
        }
        if self.id_block < RANGE || self.id_block.checked_add(MAX_SLOTS * (RANGE - 1)).is_none() {
            return Err("id_block: does not leave room for the node's ranges".into());
        }
        Ok(())
    }

    /// First host ID of a slot's range.
    #[must_use]
    pub fn range(&self, slot: u32) -> u32 {
        self.id_block + slot * RANGE
    }

    /// Mount points of the layers.
    #[must_use]
    pub fn layer_mounts(&self) -> PathBuf {
        self.run_dir.join("layers")
    }

    /// Mount point of the pool, below a directory that only root can enter.
    #[must_use]
    pub fn pool_mount(&self) -> PathBuf {
        self.run_dir.join("pool/fs")
    }

    /// Events of sandboxes.
    #[must_use]
    pub fn audit(&self) -> PathBuf {
        self.run_dir.join("events")
    }

    /// Segments of output.
    #[must_use]
    pub fn output(&self) -> PathBuf {
        self.data_dir.join("output")
    }
}
