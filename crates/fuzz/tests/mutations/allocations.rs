//! How much memory a function takes at most at a time, on its own thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

fn add(bytes: usize) {
    NOW.with(|now| {
        now.set(now.get().wrapping_add(bytes));
        // Below where it began something was freed that is older.
        let taken = now.get() as isize;
        MOST.with(|most| most.set(most.get().max(taken.max(0) as usize)));
    });
}

// SAFETY: all is left to the system's allocator; what is counted has no destructor and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: as it was asked of us.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(layout.size().wrapping_neg());
        // SAFETY: as it was asked of us.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a function returns, and most bytes that it had at a time.
pub fn most<T>(run: impl FnOnce() -> T) -> (T, usize) {
    NOW.set(0);
    MOST.set(0);
    let returned = run();
    (returned, MOST.get())
}
