//! `dsec-holder serve --keeper SOCKET --fetcher SOCKET [--faults DIRECTORY]`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (arguments, faults) = match arguments.as_slice() {
        [rest @ .., "--faults", directory] => (rest, Some(Path::new(*directory))),
        all => (all, None),
    };
    let outcome = match arguments {
        ["serve", "--keeper", keeper, "--fetcher", fetcher] => {
            tracing_subscriber::fmt()
                .log_internal_errors(false)
                .json()
                .with_writer(std::io::stderr)
                .init();
            dsec_holder::serve::serve(Path::new(keeper), Path::new(fetcher), faults)
        }
        _ => Err(
            "usage: dsec-holder serve --keeper SOCKET --fetcher SOCKET [--faults DIRECTORY]".into(),
        ),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dsec-holder: {error}");
            ExitCode::FAILURE
        }
    }
}
