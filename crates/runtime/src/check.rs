//! Requests are hostile until they have passed here. Pure.

use dsec_proto::error::{WireError, WireResult};
use dsec_proto::holding::JobLease;
use dsec_proto::runtime::{ExecSpec, PtySize, SandboxSpec};

use crate::profiles::ProfileName;

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;
/// Most layers of a sandbox: their digests have to fit a keeper's tag.
const MAX_LAYERS: usize = 64;
/// Longest argv and environment; the kernel's own bound may be lower.
const MAX_ARGUMENTS: usize = 4 << 20;
/// Longest script, with what is put before it.
const MAX_SCRIPT: u64 = 11 * MIB;
/// Most output that can be asked for, per stream.
pub const MAX_OUTPUT: u64 = 64 * MIB;
/// A year: longer times are mistakes.
const MAX_MS: u64 = 366 * 86_400_000;

fn all(text: &str, allowed: impl Fn(u8) -> bool) -> bool {
    text.bytes().all(allowed)
}

fn is_base32(text: &str) -> bool {
    text.len() == 26
        && all(text, |byte| {
            byte.is_ascii_lowercase() || (b'2'..=b'7').contains(&byte)
        })
}

/// `[a-z0-9]{1,12}`.
#[must_use]
pub fn is_node_name(text: &str) -> bool {
    (1..=12).contains(&text.len())
        && all(text, |byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit()
        })
}

/// `sb-<node>-<26 base32>`.
///
/// # Errors
/// `invalid_argument`.
pub fn sandbox_id(text: &str) -> WireResult<()> {
    let parts = text
        .strip_prefix("sb-")
        .and_then(|rest| rest.split_once('-'));
    match parts {
        Some((node, unique)) if is_node_name(node) && is_base32(unique) => Ok(()),
        _ => Err(WireError::invalid(format!(
            "not a sandbox ID: {}",
            shown(text)
        ))),
    }
}

/// `sn-<node>-<26 base32>`, of this node.
///
/// # Errors
/// `invalid_argument`.
pub fn snapshot_id(text: &str, node: &str) -> WireResult<()> {
    let parts = text
        .strip_prefix("sn-")
        .and_then(|rest| rest.split_once('-'));
    match parts {
        Some((of, unique)) if of == node && is_base32(unique) => Ok(()),
        _ => Err(WireError::invalid(format!(
            "not a snapshot ID of this node: {}",
            shown(text)
        ))),
    }
}

/// A job's name: letters, digits, `_.-`, at most 64, not beginning with a dot or dash.
///
/// # Errors
/// `invalid_argument`.
pub fn job(text: &str) -> WireResult<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if (1..=64).contains(&text.len()) && all(text, plain) && !text.starts_with(['.', '-']) {
        Ok(())
    } else {
        Err(WireError::invalid(format!("not a job's name: {}", shown(text))).with("field", "job"))
    }
}

/// A lease.
///
/// # Errors
/// `invalid_argument`.
pub fn lease(asked: &JobLease) -> WireResult<()> {
    job(&asked.job)?;
    within("lease_ms", asked.lease_ms, 1, MAX_MS)
}

/// How long a disk is kept.
///
/// # Errors
/// `invalid_argument`.
pub fn keep(keep_ms: u64) -> WireResult<()> {
    within("keep_ms", keep_ms, 1, MAX_MS)
}

/// 26 base32 characters.
///
/// # Errors
/// `invalid_argument`.
pub fn exec_id(text: &str) -> WireResult<()> {
    if is_base32(text) {
        Ok(())
    } else {
        Err(WireError::invalid(format!(
            "not an exec ID: {}",
            shown(text)
        )))
    }
}

/// 64 lower-case hex digits.
///
/// # Errors
/// `invalid_argument`.
pub fn digest(text: &str) -> WireResult<()> {
    if text.len() == 64 && all(text, |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        Ok(())
    } else {
        Err(WireError::invalid(format!(
            "not a layer digest: {}",
            shown(text)
        )))
    }
}

/// A tool's ID: a plain name.
///
/// # Errors
/// `invalid_argument`.
pub fn tool_id(text: &str) -> WireResult<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-:".contains(&byte);
    if (1..=128).contains(&text.len()) && all(text, plain) {
        Ok(())
    } else {
        Err(WireError::invalid(format!(
            "not a tool ID: {}",
            shown(text)
        )))
    }
}

fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(80).collect::<String>())
}

fn within(name: &str, value: u64, least: u64, most: u64) -> WireResult<()> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(
            WireError::invalid(format!("{name} must be {least} to {most}, not {value}"))
                .with("field", name),
        )
    }
}

fn host_name(text: &str) -> WireResult<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    if (1..=63).contains(&text.len()) && all(text, plain) && !text.starts_with(['-', '.']) {
        Ok(())
    } else {
        Err(
            WireError::invalid(format!("not a host name: {}", shown(text)))
                .with("field", "hostname"),
        )
    }
}

/// One of the names of [`ProfileName`].
///
/// # Errors
/// `unsupported`.
fn profile(text: &str) -> WireResult<()> {
    let unknown = || WireError::new("unsupported", format!("unknown profile {}", shown(text)));
    ProfileName::of(text)
        .map(drop)
        .ok_or_else(|| unknown().with("field", "profile"))
}

/// All of a sandbox's specification, its main process included.
///
/// # Errors
/// `invalid_argument` or `unsupported`, with the field in the details.
pub fn sandbox(spec: &SandboxSpec, node: &str) -> WireResult<()> {
    sandbox_id(&spec.sandbox_id)?;
    if spec.sandbox_id.split('-').nth(1) != Some(node) {
        return Err(WireError::invalid(format!(
            "{} belongs to another node",
            spec.sandbox_id
        )));
    }
    within("layers", spec.layers.len() as u64, 1, MAX_LAYERS as u64)?;
    spec.layers.iter().try_for_each(|text| digest(text))?;
    within("memory_bytes", spec.memory_bytes, 4 * MIB, 64 * TIB)?;
    within("cpu_milli", spec.cpu_milli, 10, 10_000_000)?;
    within("pids", spec.pids, 1, 4_000_000)?;
    within("disk_bytes", spec.disk_bytes, MIB, 1024 * TIB)?;
    within("shm_bytes", spec.shm_bytes, 4096, 64 * TIB)?;
    within("idle_timeout_ms", spec.idle_timeout_ms, 0, MAX_MS)?;
    within("lifetime_ms", spec.lifetime_ms, 1, MAX_MS)?;
    host_name(&spec.hostname)?;
    profile(&spec.profile)?;
    crate::protected::check(&spec.protected)?;
    spec.job.as_deref().map_or(Ok(()), job)?;
    spec.from_disk.as_deref().map_or(Ok(()), sandbox_id)?;
    let from = spec.from_snapshot.as_deref();
    from.map_or(Ok(()), |id| snapshot_id(id, node))?;
    if spec.from_disk.is_some() && from.is_some() {
        return Err(
            WireError::invalid("a sandbox begins with a disk or with a snapshot")
                .with("field", "from_snapshot"),
        );
    }
    crate::net::check_endpoints(&spec.endpoints)?;
    spec.egress
        .as_ref()
        .map_or(Ok(()), crate::net::check_egress)?;
    let Some(main) = &spec.main else {
        return Ok(());
    };
    exec(main)?;
    if main.sandbox_id == spec.sandbox_id && main.is_main {
        Ok(())
    } else {
        Err(
            WireError::invalid("main must name its own sandbox and have is_main")
                .with("field", "main"),
        )
    }
}

/// All of an exec's specification.
///
/// # Errors
/// `invalid_argument`, with the field in the details.
pub fn exec(spec: &ExecSpec) -> WireResult<()> {
    sandbox_id(&spec.sandbox_id)?;
    exec_id(&spec.exec_id)?;
    let programs = spec.programs.as_deref().unwrap_or_default();
    if spec.argv.is_empty() || spec.programs.as_ref().is_some_and(Vec::is_empty) {
        return Err(WireError::invalid("there is no program to run").with("field", "argv"));
    }
    let parts = || spec.argv.iter().chain(programs).chain(&spec.env);
    if parts().any(|part| part.contains(&0)) {
        return Err(
            WireError::invalid("arguments and environment cannot hold NUL bytes")
                .with("field", "argv"),
        );
    }
    if parts().map(|part| part.len() + 1).sum::<usize>() > MAX_ARGUMENTS {
        return Err(
            WireError::invalid("arguments and environment are longer than 4 MiB")
                .with("field", "argv"),
        );
    }
    if spec
        .env
        .iter()
        .any(|pair| !pair.contains(&b'=') || pair.starts_with(b"="))
    {
        return Err(
            WireError::invalid("environment entries must be KEY=value").with("field", "env")
        );
    }
    if let Some(cwd) = &spec.cwd {
        path("cwd", cwd, true)?;
    }
    if let Some(size) = spec.pty {
        pty_size(size)?;
    }
    let script = spec.script.as_ref().map_or(0, |script| script.len());
    within("script", script as u64, 0, MAX_SCRIPT)?;
    user(&spec.user)?;
    limits(spec.timeout_ms, spec.grace_ms, spec.max_output_bytes)
}

/// Times and output of what is run.
///
/// # Errors
/// `invalid_argument`, with the field in the details.
pub fn limits(timeout_ms: Option<u64>, grace_ms: u64, max_output_bytes: u64) -> WireResult<()> {
    within("max_output_bytes", max_output_bytes, 0, MAX_OUTPUT)?;
    within("grace_ms", grace_ms, 0, MAX_MS)?;
    within("timeout_ms", timeout_ms.unwrap_or(1), 1, MAX_MS)
}

/// A size that a terminal can have.
///
/// # Errors
/// `invalid_argument`.
pub fn pty_size(size: PtySize) -> WireResult<()> {
    within(
        "pty",
        u64::from(size.rows.min(size.cols)),
        1,
        u64::from(u16::MAX),
    )
}

/// A path inside a sandbox.
///
/// # Errors
/// `invalid_argument`.
pub fn path(name: &str, bytes: &[u8], absolute: bool) -> WireResult<()> {
    if bytes.is_empty()
        || bytes.contains(&0)
        || bytes.len() >= 4096
        || (absolute && bytes[0] != b'/')
    {
        return Err(WireError::invalid(format!("{name} is not a usable path")).with("field", name));
    }
    Ok(())
}

/// A user as Docker's `-u` takes it; empty is root.
///
/// # Errors
/// `invalid_argument`.
pub fn user(text: &str) -> WireResult<()> {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    let parts: Vec<&str> = text.split(':').collect();
    let whole = parts.len() <= 2 && (text.is_empty() || parts.iter().all(|part| !part.is_empty()));
    if text.len() <= 256 && all(text, plain) && whole {
        Ok(())
    } else {
        Err(WireError::invalid(format!("not a user: {}", shown(text))).in_phase("user"))
    }
}

/// The user and group when no look-up in the sandbox is needed: root, and pairs of numbers.
#[must_use]
pub fn known_user(text: &str) -> Option<(u32, u32)> {
    let number = |part: &str| {
        part.parse::<u32>()
            .ok()
            .filter(|id| *id < crate::config::RANGE)
    };
    match text.split_once(':') {
        None => matches!(text, "" | "0" | "root").then_some((0, 0)),
        Some((user, group)) => {
            let user = if user == "root" {
                Some(0)
            } else {
                number(user)
            };
            let group = if group == "root" {
                Some(0)
            } else {
                number(group)
            };
            Some((user?, group?))
        }
    }
}

#[cfg(test)]
mod tests;
