//! Errors in their wire form, as `dsec.errors` reads and writes them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One error. Unknown fields are ignored when it is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WireError {
    /// A word of the error tree, `invalid_argument`, `sandbox_gone`, …
    pub code: String,
    /// One sentence for people.
    pub message: String,
    /// Who is to blame: `caller`, `command`, `sandbox`, `node`, `platform`.
    pub fault: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// When to ask again, seconds.
    pub retry_after_s: Option<f64>,
    /// The sandbox it is about.
    pub sandbox_id: Option<String>,
    /// What was being done.
    pub phase: Option<String>,
    /// What the reader can do.
    pub remedy: Option<String>,
    /// What is particular to the code.
    pub details: BTreeMap<String, Value>,
}

/// A result with an error that can be sent.
pub type WireResult<T> = Result<T, WireError>;

impl WireError {
    /// An error of this code, with the fault that the tree gives it.
    #[must_use]
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            fault: fault_of(code).into(),
            retryable: matches!(
                code,
                "capacity" | "node_error" | "port_unreachable" | "endpoint_unreachable"
            ),
            retry_after_s: (code == "capacity").then_some(1.0),
            sandbox_id: None,
            phase: None,
            remedy: None,
            details: BTreeMap::new(),
        }
    }

    /// `invalid_argument`.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new("invalid_argument", message)
    }

    /// `not_found`.
    #[must_use]
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new("not_found", message)
    }

    /// `node_error` in this phase.
    #[must_use]
    pub fn node(phase: &str, message: impl Into<String>) -> Self {
        Self::new("node_error", message).in_phase(phase)
    }

    /// `sandbox_gone` with its cause, whose fault follows from the cause.
    #[must_use]
    pub fn gone(sandbox_id: &str, cause: &str) -> Self {
        let mut error = Self::new(
            "sandbox_gone",
            format!("sandbox {sandbox_id} has ended: {cause}"),
        )
        .about(sandbox_id)
        .with("cause", cause);
        error.fault = match cause {
            "stopped" | "idle" | "lifetime" | "lease" => "caller",
            "main-exited" | "init-died" => "sandbox",
            _ => "node",
        }
        .into();
        error
    }

    /// Names the sandbox.
    #[must_use]
    pub fn about(mut self, sandbox_id: &str) -> Self {
        self.sandbox_id = Some(sandbox_id.into());
        self
    }

    /// Names the phase.
    #[must_use]
    pub fn in_phase(mut self, phase: &str) -> Self {
        self.phase = Some(phase.into());
        self
    }

    /// Says what the reader can do.
    #[must_use]
    pub fn remedy(mut self, remedy: &str) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds a detail.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.into(), value.into());
        self
    }
}

fn fault_of(code: &str) -> &'static str {
    match code {
        "invalid_argument" | "not_found" | "conflict" | "fenced" | "denied" | "unsupported"
        | "quota_exceeded" | "image_error" => "caller",
        "executable_not_found"
        | "not_executable"
        | "file_error"
        | "file_missing"
        | "file_is_directory"
        | "file_not_directory"
        | "file_denied"
        | "file_exists" => "command",
        "port_unreachable" => "sandbox",
        "endpoint_unreachable" => "caller",
        "capacity" | "node_error" | "outcome_unknown" | "sandbox_gone" => "node",
        _ => "platform",
    }
}
