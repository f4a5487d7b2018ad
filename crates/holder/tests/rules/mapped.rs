//! A file as memory.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::slice;

/// Mapped to be read.
pub struct Mapped {
    place: *mut libc::c_void,
    size: usize,
}

// SAFETY: nobody writes to it through this, and the pages are the process's.
unsafe impl Send for Mapped {}

impl Mapped {
    /// The first `size` bytes.
    pub fn of(file: &File, size: usize) -> Self {
        let (protection, how) = (libc::PROT_READ, libc::MAP_SHARED);
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let place = unsafe { libc::mmap(nowhere, size, protection, how, file.as_raw_fd(), 0) };
        assert_ne!(place, libc::MAP_FAILED, "mapped");
        Self { place, size }
    }

    /// Read, page by page.
    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: mapped, as long as that, until this is dropped; nobody makes the file shorter.
        unsafe { slice::from_raw_parts(self.place.cast::<u8>(), self.size) }.to_vec()
    }

    /// How many of its pages are in memory; none comes by that.
    pub fn pages_in_memory(&self) -> usize {
        let mut told = vec![0u8; self.size.div_ceil(4096)];
        // SAFETY: mapped, and room for a byte for each page.
        let done = unsafe { libc::mincore(self.place, self.size, told.as_mut_ptr()) };
        assert_eq!(done, 0, "told");
        told.iter().filter(|page| **page & 1 == 1).count()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody has a reference to it.
        unsafe { libc::munmap(self.place, self.size) };
    }
}
