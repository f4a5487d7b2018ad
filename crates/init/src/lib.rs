//! dsec-init
