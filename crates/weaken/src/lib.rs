//! Single protections left out, so that a test can show that its attack is held by them and by nothing else.
//!
//! Without the feature `on`, which no program that is installed is built with, [`keeps!`] is the word `true`: there is no
//! code, no name and no socket of this in it (`tests/security/test_weakened.py` looks).

/// Whether the protection of this name is kept.
#[cfg(not(feature = "on"))]
#[macro_export]
macro_rules! keeps {
    ($name:literal) => {
        true
    };
}

/// Whether the protection of this name is kept.
#[cfg(feature = "on")]
#[macro_export]
macro_rules! keeps {
    ($name:literal) => {
        $crate::keeps($name)
    };
}

#[cfg(feature = "on")]
mod on {
    use std::sync::{Mutex, PoisonError};

    static LEFT_OUT: Mutex<Vec<String>> = Mutex::new(Vec::new());

    /// Leaves these out from now on, and no others.
    pub fn leave_out(names: Vec<String>) {
        *LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner) = names;
    }

    /// What is left out.
    #[must_use]
    pub fn left_out() -> Vec<String> {
        LEFT_OUT
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether a protection is kept.
    #[must_use]
    pub fn keeps(name: &str) -> bool {
        !left_out().iter().any(|each| each == name)
    }
}

#[cfg(feature = "on")]
pub use on::{keeps, leave_out, left_out};
