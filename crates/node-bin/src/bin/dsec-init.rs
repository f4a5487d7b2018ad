//! PID 1 of a sandbox: see the library `dsec_init`. Linked without start files (`build.rs`): neither the C nor
//! the Rust standard library is in it.

#![no_std]
#![no_main]

/// There is nobody to tell, and no code that panics.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    dsec_init::run()
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call {run}",
    "ud2",
    run = sym dsec_init::run,
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".globl _start",
    "_start:",
    "mov x29, xzr",
    "mov x30, xzr",
    "bl {run}",
    "brk 1",
    run = sym dsec_init::run,
);
