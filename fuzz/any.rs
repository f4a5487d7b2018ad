//! Any target of `dsec-fuzz`: the one that DSEC_FUZZ_TARGET names. One program for all of them is linked once.
#![no_main]

use std::sync::OnceLock;

use dsec_fuzz::TARGETS;
use libfuzzer_sys::fuzz_target;

static RUN: OnceLock<fn(&[u8])> = OnceLock::new();

fuzz_target!(|bytes: &[u8]| {
    let run = RUN.get_or_init(|| {
        let name = std::env::var("DSEC_FUZZ_TARGET").expect("DSEC_FUZZ_TARGET names a target");
        let found = TARGETS.iter().find(|target| target.name == name);
        found.expect("a target of that name").run
    });
    run(bytes);
});
