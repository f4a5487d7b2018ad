//! From the command line to a working keeper.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;

use dsec_session::home::Home;
use dsec_session::plan::Failure;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, WaitOptions};
use serde_json::json;

use crate::args::{self, Job, Table};
use crate::keeper::Keeper;
use crate::listeners::Listener;
use crate::note::{self, StartError};
use crate::run_dir::RunDir;
use crate::services::{Slot, Stage};
use crate::{process, resume};

/// Do what the command line says; returns at the end of the keeper's life.
pub(crate) fn start(arguments: Vec<OsString>) -> Result<ExitCode, StartError> {
    match args::parse(arguments)? {
        Job::Check(state) => resume::read_state(state).map(|_| ExitCode::SUCCESS),
        Job::Resume(state) => {
            prepare()?;
            work(resume::resume(state)?)
        }
        Job::Start { table, detach } => {
            let table = args::read_table(&table)?;
            if detach {
                return start_detached(table);
            }
            start_here(table, None)
        }
    }
}

fn prepare() -> Result<(), StartError> {
    process::prepare().map_err(|errno| system("prepare the process", errno))
}

/// Looks for fault points where the node's configuration says so.
pub(crate) fn arm(directory: Option<&Path>) -> Result<(), StartError> {
    let Some(directory) = directory else {
        return Ok(());
    };
    note::event("fault_points", json!({"directory": directory}));
    dsec_fault::turn_on(directory)
        .map_err(|error| StartError::failed("system", "fault points", error.to_string()))
}

pub(crate) fn home_failed(failure: Failure) -> StartError {
    let errno = Errno::from_raw_os_error(failure.errno);
    let reason = format!("{}: {errno}", failure.message);
    StartError::failed("system", "mounts", reason)
}

fn system(what: &str, errno: Errno) -> StartError {
    StartError::failed("system", what, format!("{what}: {errno}"))
}

fn work(mut keeper: Keeper) -> Result<ExitCode, StartError> {
    keeper
        .work()
        .map_err(|errno| system("wait for events", errno))?;
    Ok(ExitCode::SUCCESS)
}

/// Fork; the parent prints the child's readiness, or exits as it exited.
fn start_detached(table: Table) -> Result<ExitCode, StartError> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
        .map_err(|errno| system("make a pipe", errno))?;
    match process::fork().map_err(|errno| system("fork", errno))? {
        None => {
            drop(reader);
            rustix::process::setsid().map_err(|errno| system("setsid", errno))?;
            start_here(table, Some(writer))
        }
        Some(pid) => {
            drop(writer);
            Ok(await_child(pid, reader))
        }
    }
}

fn await_child(pid: i32, reader: OwnedFd) -> ExitCode {
    let mut line = String::new();
    let heard = File::from(reader).read_to_string(&mut line);
    if heard.is_ok() && line.ends_with('\n') {
        return match std::io::stdout().write_all(line.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    let ended = rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::empty());
    let code = ended
        .ok()
        .flatten()
        .and_then(|(_, status)| status.exit_status());
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

fn start_here(table: Table, detached: Option<OwnedFd>) -> Result<ExitCode, StartError> {
    prepare()?;
    arm(table.fault_points.as_deref())?;
    let run_dir = RunDir::open(&table.run_dir)?;
    let log = run_dir.log();
    let home = Home::open().map_err(home_failed)?;
    let mut keeper = Keeper::new(run_dir, home).map_err(|errno| system("start", errno))?;
    keeper.fault_points.clone_from(&table.fault_points);
    let started = open_services(&mut keeper, table).and_then(|()| start_services(&mut keeper));
    if let Err(error) = started {
        return Err(give_up(keeper, error));
    }
    let line = ready_line(&keeper);
    match detached {
        Some(writer) => leave_terminal(&log, writer, &line)?,
        None => {
            let mut stdout = std::io::stdout();
            let _closed = stdout
                .write_all(line.as_bytes())
                .and_then(|()| stdout.flush());
            let null = open("/dev/null".as_ref(), OFlags::RDWR)?;
            process::redirect(&null, 1).map_err(|errno| system("close the output", errno))?;
        }
    }
    work(keeper)
}

/// Make every socket before the first service starts.
fn open_services(keeper: &mut Keeper, table: Table) -> Result<(), StartError> {
    for service in table.services {
        let mut slot = Slot::new(service, Vec::new());
        for spec in &slot.definition.listen {
            slot.listeners.push(Listener::open(spec)?);
        }
        keeper.services.slots.push(slot);
    }
    Ok(())
}

/// Run the loop until every service has been executed. One that cannot be is an error of the start.
fn start_services(keeper: &mut Keeper) -> Result<(), StartError> {
    loop {
        let slots = &keeper.services.slots;
        if let Some((slot, failure)) = slots
            .iter()
            .find_map(|slot| slot.failure.as_ref().map(|failure| (slot, failure)))
        {
            let reason = format!(
                "{}: {}",
                failure.message,
                Errno::from_raw_os_error(failure.errno)
            );
            return Err(StartError::failed(
                "service_failed",
                &slot.definition.name,
                reason,
            ));
        }
        let pending = |slot: &Slot| slot.stage == Stage::Starting || slot.started_ns == 0;
        if !slots.iter().any(pending) {
            return Ok(());
        }
        if keeper.shutdown.is_some() {
            return Err(StartError::failed(
                "told_to_end",
                "keeper",
                "told to end while starting",
            ));
        }
        keeper
            .turn()
            .map_err(|errno| system("wait for events", errno))?;
    }
}

/// End what was started before the error, and take the sockets away.
fn give_up(mut keeper: Keeper, error: StartError) -> StartError {
    keeper.begin_shutdown();
    match keeper.work() {
        Ok(()) => error,
        Err(errno) => system("end the services", errno),
    }
}

fn ready_line(keeper: &Keeper) -> String {
    let addresses: BTreeMap<String, Vec<String>> = keeper
        .services
        .shown()
        .into_iter()
        .map(|state| (state.name, state.addresses))
        .collect();
    let pid = std::process::id();
    format!(
        "{}\n",
        json!({"ready": true, "pid": pid, "addresses": addresses})
    )
}

/// Standard input and output become /dev/null, errors go to the log; then the parent hears that all is well.
fn leave_terminal(log: &Path, writer: OwnedFd, line: &str) -> Result<(), StartError> {
    let null = open("/dev/null".as_ref(), OFlags::RDWR)?;
    let log = open(
        log,
        OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW,
    )?;
    for (source, number) in [(&null, 0), (&null, 1), (&log, 2)] {
        process::redirect(source, number).map_err(|errno| system("leave the terminal", errno))?;
    }
    // A parent that is gone needs no word.
    let _gone = File::from(writer).write_all(line.as_bytes());
    Ok(())
}

fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, StartError> {
    rustix::fs::open(
        path,
        flags | OFlags::CLOEXEC | OFlags::NOCTTY,
        Mode::from_raw_mode(0o600),
    )
    .map_err(|errno| system(&format!("open {}", path.display()), errno))
}
