//! The keeper: executes spawn plans, is parent and subreaper of every process of a node, holds tagged
//! descriptors for the runtime, and starts and restarts the node's services from a table.
//!
//! One thread, one epoll loop, no policy: what a plan says is done, what ends is told. The library is called
//! by the binary `dsec-keeper` alone ([`run`]); everybody else speaks to it by `keeper.sock`
//! (`dsec_proto::keeper`).

mod args;
mod backoff;
mod calls;
mod children;
mod clock;
mod connections;
mod keeper;
mod listeners;
mod note;
mod objects;
mod packet;
mod poll;
mod proc_stat;
mod process;
mod reexec;
mod restart;
mod resume;
mod run_dir;
mod saved;
mod service_plan;
mod services;
mod shutdown;
mod spawning;
mod start;

use std::ffi::OsString;
use std::process::ExitCode;

/// Run the keeper with these arguments (without the program's name) until it is told to end.
///
/// Exit codes: 0 ended in order, 2 bad arguments or table, 4 another keeper holds the run directory, 5 an
/// address is in use, 6 it could not start. Errors are one line of JSON on standard error.
#[must_use]
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    match start::start(arguments) {
        Ok(code) => code,
        Err(error) => {
            note::error(&error);
            ExitCode::from(error.exit_code)
        }
    }
}
