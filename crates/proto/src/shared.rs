//! Memory of a sealed memfd, shared with other processes.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{compiler_fence, AtomicU8, Ordering};

/// A mapping, readable and writable. The file must be sealed against shrinking.
#[derive(Debug)]
pub struct Shared {
    start: NonNull<u8>,
    length: usize,
}

impl Shared {
    /// Maps the first `length` bytes of a file.
    ///
    /// # Errors
    /// The errno.
    pub fn new(file: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        let how = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, where the kernel likes.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                how,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(start.cast()) {
            Some(start) if start.as_ptr() as isize != -1 => Ok(Self { start, length }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn place(&self, at: usize, length: usize) -> *mut u8 {
        assert!(at.checked_add(length).is_some_and(|end| end <= self.length));
        // SAFETY: within the mapping, as just asserted.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// Makes all of its pages present.
    pub fn touch(&mut self) {
        for at in (0..self.length).step_by(4096) {
            let word = self.read::<1>(at);
            self.write(at, &word);
        }
    }

    /// Some bytes of it.
    #[must_use]
    pub fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        // SAFETY: within the mapping; nobody else writes while this process lives.
        unsafe { self.place(at, N).cast::<[u8; N]>().read_volatile() }
    }

    /// Writes bytes; what was written before is there before.
    pub fn write<const N: usize>(&mut self, at: usize, bytes: &[u8; N]) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: within the mapping; nobody else writes while this process lives.
        unsafe {
            self.place(at, N).cast::<[u8; N]>().write_volatile(*bytes);
        };
        compiler_fence(Ordering::SeqCst);
    }

    /// A byte that other processes may change.
    #[must_use]
    pub fn atomic(&self, at: usize) -> &AtomicU8 {
        // SAFETY: within the mapping, for as long as it lives.
        unsafe { AtomicU8::from_ptr(self.place(at, 1)) }
    }

    /// A part of it to be written to.
    pub fn bytes_mut(&mut self, at: usize, length: usize) -> &mut [u8] {
        // SAFETY: within the mapping; nobody else uses it while this process lives.
        unsafe { std::slice::from_raw_parts_mut(self.place(at, length), length) }
    }

    /// Writes zeros, eight bytes at a time from the front.
    pub fn clear(&mut self, at: usize, length: usize) {
        for at in (at..at + length).step_by(8) {
            self.write(at, &[0; 8]);
        }
    }
}

// SAFETY: the mapping belongs to no thread; what may be written through `&self` is atomic.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; no reference into it outlives this.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
