//! `dsec-holder serve --keeper SOCKET --fetcher SOCKET`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["serve", "--keeper", keeper, "--fetcher", fetcher] => {
            tracing_subscriber::fmt()
                .json()
                .with_writer(std::io::stderr)
                .init();
            dsec_holder::serve::serve(Path::new(keeper), Path::new(fetcher))
        }
        _ => Err("usage: dsec-holder serve --keeper SOCKET --fetcher SOCKET".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dsec-holder: {error}");
            ExitCode::FAILURE
        }
    }
}
