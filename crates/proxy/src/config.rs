//! What the proxy reads at its start, written by `dsec up`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The whole of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Whom it becomes.
    pub uid: u32,
    /// Who, besides root, may hand it connections to ports: the apiserver.
    #[serde(default)]
    pub ports_uid: u32,
    /// The domain of ports' origins, in lower case.
    #[serde(default = "localhost")]
    pub ports_domain: String,
    /// The node's resolvers, `ADDRESS:PORT`; none: the machine's own.
    #[serde(default)]
    pub resolvers: Vec<std::net::SocketAddr>,
    /// Where tests arm fault points; `null` on every node that is used for anything else.
    #[serde(default)]
    pub fault_points: Option<PathBuf>,
}

fn localhost() -> String {
    "localhost".to_owned()
}

impl Config {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn read(path: &Path) -> Result<Self, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let bytes = std::fs::read(path).map_err(|error| wrong(&error))?;
        let config: Self = serde_json::from_slice(&bytes).map_err(|error| wrong(&error))?;
        match config.uid {
            0 | u32::MAX => Err(wrong(&format!("not an unprivileged user: {}", config.uid))),
            _ => Ok(config),
        }
    }
}
