//! A short run with a fixed seed: it ends well, and the numbers that it prints come out even by this test's own sums.

use std::collections::HashMap;
use std::process::{Command, Output};

fn payouts(arguments: &[&str]) -> (tempfile::TempDir, Output) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new(env!("CARGO_BIN_EXE_payouts"))
        .args(arguments)
        .env("TMPDIR", folder.path())
        .output()
        .expect("it starts");
    (folder, output)
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// The table at the end.
fn figures(output: &str) -> HashMap<&str, u64> {
    output
        .lines()
        .filter_map(|line| {
            let (name, count) = line.split_at_checked(20)?;
            Some((name.trim(), count.trim().parse().ok()?))
        })
        .collect()
}

#[test]
fn a_run_comes_out_even() {
    let (_folder, output) = payouts(&["--payouts", "40", "--seed", "5"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert!(said.contains("seed: 5 ") && !said.contains("FAILS:"), "{said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("holds: ")).count(), 5, "{said}");

    let figures = figures(said);
    let of = |name| *figures.get(name).unwrap_or_else(|| panic!("{name} is missing: {said}"));
    assert_eq!((of("orders"), of("staged")), (40, 40));
    let open = of("review") + of("pending");
    assert_eq!(of("delivered") + of("rejected") + open + of("abandoned"), 40, "{said}");
    assert!(of("delivered") <= of("done") && of("done") <= of("delivered") + open, "{said}");
    assert_eq!((of("done twice"), of("rejected and done")), (0, 0), "{said}");
    for seen in ["  delivered, ", "  unknown: ", "  reconciled: "] {
        assert!(said.contains(seen), "faults were on: {said}");
    }
}

#[test]
fn help_names_the_options_and_a_wrong_command_line_is_refused() {
    let (_folder, output) = payouts(&["--help"]);
    assert!(output.status.success());
    for option in ["--payouts", "--seed"] {
        assert!(text(&output.stdout).contains(option));
    }
    let (folder, output) = payouts(&["--payouts", "0"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(std::fs::read_dir(folder.path()).expect("read").count(), 0);
}
