//! Tools that the node runs for its edge.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Parameters of `tool.run`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolRun {
    /// Names the run; a known one is joined.
    pub tool_id: String,
    /// Program and arguments, by one of the runtime's templates.
    pub argv: Vec<ByteBuf>,
}

/// Parameters of `tool.kill`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneTool {
    /// Which.
    pub tool_id: String,
}

/// Parameters of `tool.forget`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManyTools {
    /// Which.
    pub tool_ids: Vec<String>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolState {
    /// Its name.
    pub tool_id: String,
    /// Whether it goes on.
    pub running: bool,
}

/// Answer to `tool.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolList {
    /// Those that are not forgotten, by name.
    pub tools: Vec<ToolState>,
}

/// Answer to `tool.run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolEnd {
    /// When it exited.
    pub exit_code: Option<i32>,
    /// When a signal ended it.
    pub signal: Option<i32>,
}
