//! System calls of four arguments, without a C library.

#[cfg(target_arch = "x86_64")]
pub(crate) mod number {
    pub(crate) const RT_SIGACTION: usize = 13;
    pub(crate) const PRCTL: usize = 157;
    pub(crate) const PPOLL: usize = 271;
    pub(crate) const CLOSE_RANGE: usize = 436;
}

#[cfg(target_arch = "aarch64")]
pub(crate) mod number {
    pub(crate) const RT_SIGACTION: usize = 134;
    pub(crate) const PRCTL: usize = 167;
    pub(crate) const PPOLL: usize = 73;
    pub(crate) const CLOSE_RANGE: usize = 436;
}

/// One system call; its outcome is of no use to a process that can tell nobody.
///
/// # Safety
/// The arguments are what the call of that number takes: addresses among them point at live memory.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn call(number: usize, arguments: [usize; 4]) {
    let [first, second, third, fourth] = arguments;
    // SAFETY: the caller vouches for the arguments. The fifth one is 0; the kernel overwrites rax, rcx, r11.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => _,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") 0_usize,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
}

/// One system call; its outcome is of no use to a process that can tell nobody.
///
/// # Safety
/// The arguments are what the call of that number takes: addresses among them point at live memory.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn call(number: usize, arguments: [usize; 4]) {
    let [first, second, third, fourth] = arguments;
    // SAFETY: the caller vouches for the arguments. The fifth one is 0; the kernel overwrites x0 only.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") first => _,
            in("x1") second,
            in("x2") third,
            in("x3") fourth,
            in("x4") 0_usize,
            options(nostack),
        );
    }
}
