//! Errors of the forked code: an errno and what was being done.

use rustix::io::Errno;

use crate::plan::Failure;

/// What went wrong in a step.
#[derive(Debug)]
pub(crate) struct Fault {
    /// The errno, 0 when the message says it all.
    pub(crate) errno: i32,
    /// What was being done, or what is wrong.
    pub(crate) message: String,
}

impl Fault {
    /// A fault that no system call reported.
    pub(crate) fn saying(message: impl Into<String>) -> Self {
        Self {
            errno: 0,
            message: message.into(),
        }
    }

    /// A fault with an errno of our choice.
    pub(crate) fn with(errno: Errno, message: impl Into<String>) -> Self {
        Self {
            errno: errno.raw_os_error(),
            message: message.into(),
        }
    }

    /// The failure of the step named.
    pub(crate) fn at(self, step: &str) -> Failure {
        Failure {
            step: step.to_owned(),
            errno: self.errno,
            message: self.message,
        }
    }
}

/// Adds what was being done to the error of a system call.
pub(crate) trait Doing<T> {
    /// `what` completes "failed: …".
    fn doing<M: Into<String>>(self, what: impl FnOnce() -> M) -> Result<T, Fault>;
}

impl<T> Doing<T> for Result<T, Errno> {
    fn doing<M: Into<String>>(self, what: impl FnOnce() -> M) -> Result<T, Fault> {
        self.map_err(|errno| Fault::with(errno, what()))
    }
}

/// Bytes of a path or an argument, for a message.
pub(crate) fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
