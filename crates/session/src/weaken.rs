//! Forked children without the protections that their plan leaves out; in programs for tests alone.

use std::os::fd::BorrowedFd;

use rustix::io::{fcntl_setfd, FdFlags};

use crate::plan::{Plan, Step};

/// More descriptors than a keeper of one test has.
const SOME: i32 = 256;

/// The forked child has this memory to itself.
pub(crate) fn leave_out(plan: &Plan) {
    let names = plan.steps.iter().find_map(|step| match step {
        Step::LeaveOut(names) => Some(names.clone()),
        _ => None,
    });
    dsec_weaken::leave_out(names.unwrap_or_default());
}

/// Have the program inherit whatever is open.
pub(crate) fn inherit_all() {
    for number in 3..SOME {
        // SAFETY: the number is only used for this call, which fails for what is not open.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let _ = fcntl_setfd(fd, FdFlags::empty());
    }
}
