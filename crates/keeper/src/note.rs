//! What the keeper writes for people: one JSON line each on standard error, its log file once it is detached.

use std::io::Write;

use serde_json::{json, Value};

/// Why the keeper did not start.
#[derive(Debug)]
pub(crate) struct StartError {
    pub(crate) exit_code: u8,
    /// Stable word for programs.
    pub(crate) code: &'static str,
    /// One sentence for people.
    pub(crate) message: String,
    /// What it is about: a path, an address, a service.
    pub(crate) subject: String,
}

impl StartError {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self {
            exit_code: 2,
            code: "usage",
            message: message.into(),
            subject: String::new(),
        }
    }

    pub(crate) fn failed(
        code: &'static str,
        subject: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            exit_code: 6,
            code,
            message: message.into(),
            subject: subject.into(),
        }
    }
}

pub(crate) fn error(error: &StartError) {
    write_line(&json!({"error": error.code, "message": error.message, "subject": error.subject}));
}

/// Something happened that an operator may want to know.
pub(crate) fn event(name: &str, details: Value) {
    write_line(&json!({"event": name, "at_ns": crate::clock::now_ns(), "details": details}));
}

fn write_line(line: &Value) {
    // A log that cannot be written must not end the parent of everything.
    let _full = writeln!(std::io::stderr().lock(), "{line}");
}
