//! Installs the Postgres server programs from the system's packages. Nothing is downloaded from
//! anywhere else, and a server that the package may start is not used.

use std::process::Command;

use idem_testkit::postgres;

use crate::{Result, say};

/// A package manager: its program, and what to run, in turn.
struct Manager {
    program: &'static str,
    steps: &'static [&'static [&'static str]],
    /// Whether it must run as root.
    root: bool,
}

const MANAGERS: [Manager; 4] = [
    Manager {
        program: "apt-get",
        steps: &[&["update", "-q"], &["install", "-y", "-q", "--no-install-recommends", "postgresql"]],
        root: true,
    },
    Manager { program: "dnf", steps: &[&["install", "-y", "postgresql-server"]], root: true },
    Manager { program: "apk", steps: &[&["add", "--no-cache", "postgresql"]], root: true },
    Manager { program: "brew", steps: &[&["install", "postgresql@17"]], root: false },
];

/// Makes sure that the server programs are there.
pub(crate) fn postgres() -> Result {
    match postgres::programs() {
        Err(idem_testkit::Error::NoPrograms) => {}
        found => return found.map(drop).map_err(Into::into),
    }
    let Some(manager) = MANAGERS.iter().find(|manager| works(manager.program, &["--version"])) else {
        return Err(
            "no Postgres server programs here, and no package manager that I know (apt-get, dnf, apk, \
                    brew): install Postgres 13 or later, or set DATABASE_URL"
                .into(),
        );
    };
    let sudo = manager.root && !root();
    if sudo && !works("sudo", &["--version"]) {
        return Err(format!(
            "no Postgres server programs here, and installing needs root: as root, run \
             `{} {}`, or set DATABASE_URL",
            manager.program,
            manager.steps[manager.steps.len() - 1].join(" ")
        )
        .into());
    }
    say(&format!("no Postgres server programs here: installing them with {}", manager.program));
    for step in manager.steps {
        let mut command = if sudo {
            let mut command = Command::new("sudo");
            // sudo keeps no environment: what apt must know travels on the command line.
            command.args(["env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", manager.program]);
            command
        } else {
            let mut command = Command::new(manager.program);
            // RUNLEVEL=1: Debian's package then starts no server of its own.
            command.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
            command
        };
        let status = command.args(*step).stdin(std::process::Stdio::null()).status()?;
        if !status.success() {
            return Err(format!("`{} {}` failed ({status})", manager.program, step.join(" ")).into());
        }
    }
    postgres::programs().map(drop).map_err(Into::into)
}

fn root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Whether this program can be run here.
pub(crate) fn works(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}
