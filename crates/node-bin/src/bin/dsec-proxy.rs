//! `dsec-proxy serve --uid N`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["serve", "--uid", uid] => match uid.parse::<u32>() {
            Ok(uid) if uid > 0 && uid < u32::MAX => {
                tracing_subscriber::fmt()
                    .json()
                    .with_writer(std::io::stderr)
                    .init();
                dsec_proxy::serve::serve(uid)
            }
            _ => Err(format!("not an unprivileged user: {uid}")),
        },
        _ => Err("usage: dsec-proxy serve --uid N".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dsec-proxy: {error}");
            ExitCode::FAILURE
        }
    }
}
