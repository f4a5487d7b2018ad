//! `dsec-runtime serve --config FILE` and `dsec-runtime probe [--layers DIRECTORY]`.

use std::path::Path;
use std::process::ExitCode;

use dsec_runtime::{probe, serve};

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
            serve::serve(Path::new(file))
        }
        ["probe"] => print_features(None),
        ["probe", "--layers", directory] => print_features(Some(Path::new(directory))),
        _ => Err(
            "usage: dsec-runtime serve --config FILE | dsec-runtime probe [--layers DIRECTORY]"
                .into(),
        ),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dsec-runtime: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print_features(layers: Option<&Path>) -> Result<(), String> {
    let features = dsec_proto::runtime::Features {
        features: probe::features(layers),
    };
    println!(
        "{}",
        serde_json::to_string(&features).map_err(|error| error.to_string())?
    );
    Ok(())
}
