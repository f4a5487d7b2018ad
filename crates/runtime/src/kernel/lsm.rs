//! Whether this kernel takes a BPF program for one of its security hooks: tried, since nothing that it says of itself tells.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::sys;

/// The kernel's own types, by which a hook is named.
const TYPES: &str = "/sys/kernel/btf/vmlinux";
/// Asked about nothing of the host's: only who uses BPF itself comes by here.
const HOOK: &str = "bpf_lsm_bpf_map";
const MAGIC: u16 = 0xEB9F;
const FUNCTION: u32 = 12;
/// Instructions of 8 bytes: `r0 = 0`, `exit`. It lets everything pass.
const PASS: [u8; 16] = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
const PROG_LOAD: libc::c_int = 5;
const RAW_TRACEPOINT_OPEN: libc::c_int = 17;
const TYPE_LSM: u32 = 29;
const ATTACH_LSM: u32 = 27;

/// The beginning of the attributes of a load, as far as it is used.
#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log: [u32; 2],
    log_buffer: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
    types_fd: u32,
    function_size: u32,
    functions: u64,
    function_count: u32,
    line_size: u32,
    lines: u64,
    line_count: u32,
    attach_to: u32,
}

/// The beginning of the attributes of an attachment.
#[repr(C)]
struct Attach {
    name: u64,
    program: u32,
    padding: u32,
}

/// Loads a program, attaches it, and takes it away again.
///
/// # Errors
/// Why that cannot be.
pub fn probe() -> io::Result<String> {
    let types = std::fs::read(TYPES)
        .map_err(|error| io::Error::new(error.kind(), format!("{TYPES}: {error}")))?;
    let hook = function(&types, HOOK)
        .ok_or_else(|| io::Error::other("the kernel has no security hooks for BPF"))?;
    let load = Load {
        kind: TYPE_LSM,
        instruction_count: (PASS.len() / 8) as u32,
        instructions: PASS.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        attach_type: ATTACH_LSM,
        attach_to: hook,
        ..Load::default()
    };
    let program = call(PROG_LOAD, &load).map_err(|error| said("load", &error))?;
    let attach = Attach {
        name: 0,
        program: program.as_raw_fd() as u32,
        padding: 0,
    };
    let link = call(RAW_TRACEPOINT_OPEN, &attach).map_err(|error| said("attach", &error))?;
    drop(link);
    Ok("a program loads; not used".into())
}

fn said(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("to {what} a program: {error}"))
}

fn call<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the attributes, and what they point at, live across the call; their size is given.
    sys::owned(unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    })
}

/// The number of a function in the kernel's types (BTF).
fn function(types: &[u8], name: &str) -> Option<u32> {
    let word = |at: usize| {
        let bytes = types.get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    if types.get(..2)? != MAGIC.to_ne_bytes() {
        return None;
    }
    let header = word(4)? as usize;
    let (mut at, length) = (header + word(8)? as usize, word(12)? as usize);
    let (end, names) = (at + length, header + word(16)? as usize);
    let mut number = 1;
    while at < end {
        let (called, info, count) = (word(at)? as usize, word(at + 4)?, word(at + 4)? & 0xffff);
        if info >> 24 & 31 == FUNCTION {
            let rest = types.get(names + called..)?;
            if rest.starts_with(name.as_bytes()) && rest.get(name.len()) == Some(&0) {
                return Some(number);
            }
        }
        at += 12 + behind(info >> 24 & 31, count as usize)?;
        number += 1;
    }
    None
}

/// Bytes behind the head of a type of this kind with so many parts.
fn behind(kind: u32, parts: usize) -> Option<usize> {
    Some(match kind {
        1 | 14 | 17 => 4,
        2 | 7..=12 | 16 | 18 => 0,
        3 => 12,
        4 | 5 | 15 | 19 => parts * 12,
        6 | 13 => parts * 8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function is found among types of other kinds, by its whole name; what is no table, or is cut short, has none.
    #[test]
    fn functions_are_found() {
        let names = b"\0int\0hook_one\0hook\0";
        let words = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        let mut body = words(&[1, 1 << 24, 4, 0x20]);
        body.extend(words(&[0, 4 << 24 | 2, 8, 1, 1, 0, 1, 1, 32]));
        body.extend(words(&[5, FUNCTION << 24, 1]));
        body.extend(words(&[14, FUNCTION << 24, 1]));
        let mut types = Vec::from(MAGIC.to_ne_bytes());
        types.extend([1, 0]);
        let length = body.len() as u32;
        types.extend(words(&[24, 0, length, length, names.len() as u32]));
        types.extend(body);
        types.extend(names);
        assert_eq!(function(&types, "hook"), Some(4));
        assert_eq!(function(&types, "hook_one"), Some(3));
        assert_eq!(function(&types, "hoo"), None);
        for cut in 0..types.len() {
            let _ = function(&types[..cut], "hook");
        }
        assert_eq!(function(b"", "hook"), None);
    }
}
