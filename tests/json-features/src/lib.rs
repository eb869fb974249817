//! See the test.
