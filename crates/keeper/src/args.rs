//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use dsec_proto::keeper::Service;
use serde::Deserialize;

use crate::note::StartError;

/// What the keeper is to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// Start with the table in this file; detached: leave the terminal once everything runs.
    Start { table: PathBuf, detach: bool },
    /// Go on from the state in this descriptor.
    Resume(i32),
    /// Say whether the state in this descriptor can be gone on from.
    Check(i32),
}

/// The table file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    /// Directory of the lock and of `keeper.sock`.
    pub(crate) run_dir: PathBuf,
    /// In starting order.
    pub(crate) services: Vec<Service>,
    /// Where tests arm fault points.
    #[serde(default)]
    pub(crate) fault_points: Option<PathBuf>,
}

const USAGE: &str = "dsec-keeper --table FILE [--detach]";

pub(crate) fn parse(arguments: Vec<OsString>) -> Result<Job, StartError> {
    let mut table = None;
    let mut detach = false;
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| StartError::usage(USAGE));
        match argument.to_str() {
            Some("--table") => table = Some(PathBuf::from(value()?)),
            Some("--detach") => detach = true,
            Some("--resume") => return descriptor(value()?).map(Job::Resume),
            Some("--check") => return descriptor(value()?).map(Job::Check),
            _ => {
                let message = format!("unknown argument {}; usage: {USAGE}", argument.display());
                return Err(StartError::usage(message));
            }
        }
    }
    match table {
        Some(table) => Ok(Job::Start { table, detach }),
        None => Err(StartError::usage(USAGE)),
    }
}

fn descriptor(text: OsString) -> Result<i32, StartError> {
    let number = text
        .to_str()
        .and_then(|text| text.parse().ok())
        .filter(|number| *number > 2);
    number.ok_or_else(|| StartError::usage(USAGE))
}

/// Read and check a table.
pub(crate) fn read_table(path: &PathBuf) -> Result<Table, StartError> {
    let wrong = |message: String| StartError::usage(format!("{}: {message}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let table: Table = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    for (position, service) in table.services.iter().enumerate() {
        if service.argv.is_empty() {
            return Err(wrong(format!("service {:?} has no program", service.name)));
        }
        let earlier = &table.services[..position];
        if service.name == "keeper" || earlier.iter().any(|other| other.name == service.name) {
            return Err(wrong(format!("the name {:?} is taken", service.name)));
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::{parse, Job};

    fn job(line: &str) -> Option<Job> {
        parse(line.split_whitespace().map(Into::into).collect()).ok()
    }

    /// Every form of the command line, and what is none.
    #[test]
    fn command_lines() {
        let start = |detach| Job::Start {
            table: "t.json".into(),
            detach,
        };
        assert_eq!(job("--table t.json"), Some(start(false)));
        assert_eq!(job("--detach --table t.json"), Some(start(true)));
        assert_eq!(job("--resume 7"), Some(Job::Resume(7)));
        assert_eq!(job("--check 7"), Some(Job::Check(7)));
        for line in [
            "",
            "--table",
            "--detach",
            "--resume x",
            "--resume 0",
            "--other",
        ] {
            assert_eq!(job(line), None, "{line}");
        }
    }
}
