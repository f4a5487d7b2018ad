//! PID 1 of a sandbox.
//!
//! It closes every descriptor, makes itself non-dumpable, tells the kernel to reap its children (an ignored
//! SIGCHLD does that, for adopted orphans too) and sleeps until it is killed; as PID 1 it is deaf to every
//! signal from inside. No standard library, no heap, no memory of its own but a page of stack.
//!
//! Execute it from a memfd of mode 0111: what cannot be read is non-dumpable from its first instruction.

#![no_std]

mod syscall;

use syscall::{call, number};

const PR_SET_DUMPABLE: usize = 4;
const PR_SET_NAME: usize = 15;
const SIGCHLD: usize = 17;
const SIG_IGN: usize = 1;
/// Bytes of the kernel's signal set.
const SET_BYTES: usize = 8;

/// The kernel's `struct sigaction`, on x86_64 and aarch64 alike.
#[repr(C)]
struct SigAction {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

/// Be init. Called once, at the start of the process.
pub extern "C" fn run() -> ! {
    // SAFETY: numbers only; nothing in this process uses a descriptor.
    unsafe {
        call(number::PRCTL, [PR_SET_DUMPABLE, 0, 0, 0]);
        call(number::CLOSE_RANGE, [0, u32::MAX as usize, 0, 0]);
    }
    let name = c"init".as_ptr() as usize;
    let ignore = SigAction {
        handler: SIG_IGN,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    let ignore = core::ptr::from_ref(&ignore) as usize;
    // SAFETY: the name is a C string of less than 16 bytes, the action lives across the call, and the old one
    // is not asked for.
    unsafe {
        call(number::PRCTL, [PR_SET_NAME, name, 0, 0]);
        call(number::RT_SIGACTION, [SIGCHLD, ignore, 0, SET_BYTES]);
    }
    loop {
        // SAFETY: no descriptors, no time limit, no mask: the call only sleeps.
        unsafe { call(number::PPOLL, [0, 0, 0, 0]) };
    }
}
