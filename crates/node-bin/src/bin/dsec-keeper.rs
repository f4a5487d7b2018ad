//! The node's keeper: see the library `dsec_keeper`.

use std::process::ExitCode;

fn main() -> ExitCode {
    dsec_keeper::run(std::env::args_os().skip(1).collect())
}
