//! A `COMMIT` whose answer does not come.
