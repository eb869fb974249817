//! What rustc says to each mistake of an author, in `<option>/<mistake>.rs` with its `.stderr`. After a change of a
//! message: `TRYBUILD=overwrite cargo test -p idem-ui-tests`, and read what came out.

#[test]
fn mistakes_are_reported_where_they_are() {
    let tests = trybuild::TestCases::new();
    for option in [
        "body",
        "derive_scope",
        "effect",
        "fingerprint",
        "key",
        "occurred_at",
        "operation",
        "options",
        "output",
        "remember",
        "retain",
        "scope",
        "signature",
    ] {
        tests.compile_fail(format!("{option}/*.rs"));
    }
}
