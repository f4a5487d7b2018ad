//! `dsec-fetcher serve --uid N --config FILE`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["serve", "--uid", uid, "--config", config] => match uid.parse::<u32>() {
            Ok(uid) if uid > 0 && uid < u32::MAX => {
                tracing_subscriber::fmt()
                    .log_internal_errors(false)
                    .json()
                    .with_writer(std::io::stderr)
                    .init();
                dsec_fetcher::serve::serve(uid, Path::new(config))
            }
            _ => Err(format!("not an unprivileged user: {uid}")),
        },
        _ => Err("usage: dsec-fetcher serve --uid N --config FILE".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dsec-fetcher: {error}");
            ExitCode::FAILURE
        }
    }
}
