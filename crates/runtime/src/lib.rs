//! dsec-runtime
