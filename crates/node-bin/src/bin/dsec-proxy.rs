//! `dsec-proxy serve --config FILE`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["serve", "--config", file] => {
            tracing_subscriber::fmt()
                .log_internal_errors(false)
                .json()
                .with_writer(std::io::stderr)
                .init();
            dsec_proxy::serve::serve(Path::new(file))
        }
        _ => Err("usage: dsec-proxy serve --config FILE".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dsec-proxy: {error}");
            ExitCode::FAILURE
        }
    }
}
