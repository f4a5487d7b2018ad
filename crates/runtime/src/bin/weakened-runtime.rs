//! The runtime whose plans leave out what a test says at `weaken.sock`. What it runs is not contained.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .json()
        .with_writer(std::io::stderr)
        .init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", "--config", file] => dsec_runtime::serve::serve(Path::new(file)),
        ["probe", ..] => {
            let features = dsec_proto::runtime::Features {
                features: dsec_runtime::probe::features(arguments.get(2).map(Path::new)),
            };
            serde_json::to_string(&features)
                .map(|text| println!("{text}"))
                .map_err(|error| error.to_string())
        }
        _ => Err("usage: serve --config FILE | probe [--layers DIRECTORY]".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
