//! dsec-keeper
