//! Where the stores are, one JSON file that only root reads.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// What `dsec-fetcher serve --config` reads.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The stores, in the order in which they are asked.
    pub stores: Vec<Place>,
    /// How long a read waits for a store that does not answer.
    #[serde(default = "default_patience")]
    pub patience_s: u64,
    /// Where tests arm fault points; null on every node that is used for anything else.
    #[serde(default)]
    pub fault_points: Option<PathBuf>,
}

/// A store.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Place {
    /// A directory that all nodes have mounted.
    Directory {
        /// Its path.
        path: PathBuf,
    },
    /// A bucket.
    Bucket(Bucket),
}

/// A bucket, and how to come to it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// Its name.
    pub bucket: String,
    /// What the names of its objects begin with.
    #[serde(default)]
    pub prefix: String,
    /// Whose it is, if not Amazon's.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Its region.
    pub region: String,
    /// Without it and the next the machine's own role is asked for.
    #[serde(default)]
    pub access_key_id: Option<String>,
    /// Secret.
    #[serde(default)]
    pub secret_access_key: Option<String>,
    /// Secret.
    #[serde(default)]
    pub session_token: Option<String>,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.prefix)
    }
}

fn default_patience() -> u64 {
    30
}

impl Config {
    /// Reads a configuration.
    ///
    /// # Errors
    /// One sentence that names the file and what is wrong with it.
    pub fn read(path: &Path) -> Result<Self, String> {
        let at = |what: String| format!("{}: {what}", path.display());
        let bytes = std::fs::read(path).map_err(|error| at(error.to_string()))?;
        let config: Self = serde_json::from_slice(&bytes).map_err(|error| at(error.to_string()))?;
        if !(1..=90).contains(&config.patience_s) {
            return Err(at("patience_s: must be 1 to 90".into()));
        }
        Ok(config)
    }
}
