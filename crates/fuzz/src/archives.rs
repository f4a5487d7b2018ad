//! Archives that programs of a sandbox or clients send.

/// Members of a tar archive: of names that stay below, of maps that lie in order, and as written anew.
pub(crate) fn tar(bytes: &[u8]) {
    dsec_session::fuzz::tar(bytes);
}
