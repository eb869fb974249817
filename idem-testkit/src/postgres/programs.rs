//! Where the server programs are. Distributions keep them out of PATH, so the usual folders are looked
//! at too; what the user names in `IDEM_PG_BIN` is never second-guessed.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// Folders with one subfolder per version, and where the programs are in it.
const VERSIONED: [(&str, &str); 4] = [
    ("/usr/lib/postgresql", "bin"),
    ("/usr", "bin"),              // pgsql-16
    ("/opt/homebrew/opt", "bin"), // postgresql@16
    ("/usr/local/opt", "bin"),
];
const FIXED: [&str; 5] =
    ["/opt/homebrew/bin", "/usr/local/bin", "/usr/local/pgsql/bin", "/usr/libexec/postgresql", "/usr/bin"];

/// The folder with the server programs `postgres` and `initdb`.
///
/// Looked for in `IDEM_PG_BIN`, in PATH, by `pg_config`, and in the folders that packages use, there
/// the newest version first.
///
/// # Errors
/// [`Error::NoPrograms`], or [`Error::WrongPrograms`] where `IDEM_PG_BIN` is set to another place.
pub fn programs() -> Result<PathBuf, Error> {
    if let Some(named) = std::env::var_os("IDEM_PG_BIN") {
        let named = PathBuf::from(named);
        return if complete(&named) { Ok(named) } else { Err(Error::WrongPrograms(named)) };
    }
    in_path()
        .or_else(by_pg_config)
        .or_else(|| VERSIONED.iter().find_map(|(folder, bin)| newest(Path::new(folder), bin)))
        .or_else(|| FIXED.iter().map(PathBuf::from).find(|folder| complete(folder)))
        .ok_or(Error::NoPrograms)
}

fn complete(folder: &Path) -> bool {
    folder.join("postgres").is_file() && folder.join("initdb").is_file()
}

fn in_path() -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).find(|folder| complete(folder))
}

fn by_pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let folder = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    complete(&folder).then_some(folder)
}

/// The programs of the newest version below `folder`, whose subfolders are named by version
/// (`16`, `pgsql-16`, `postgresql@16`).
fn newest(folder: &Path, bin: &str) -> Option<PathBuf> {
    std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = version(entry.file_name().to_str()?)?;
            let programs = entry.path().join(bin);
            complete(&programs).then_some((version, programs))
        })
        .max_by_key(|(version, _)| *version)
        .map(|(_, programs)| programs)
}

fn version(name: &str) -> Option<u32> {
    let name = name.strip_prefix("pgsql-").or_else(|| name.strip_prefix("postgresql@")).unwrap_or(name);
    name.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_taken_by_number() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for name in ["9.6", "16", "pgsql-15", "other", "17"] {
            let bin = folder.path().join(name).join("bin");
            std::fs::create_dir_all(&bin).expect("folder");
            std::fs::write(bin.join("postgres"), "").expect("file");
            if name != "17" {
                std::fs::write(bin.join("initdb"), "").expect("file");
            }
        }
        let found = newest(folder.path(), "bin").expect("found");
        assert!(found.ends_with("16/bin"), "17 has no initdb, and 9 comes before 16: {found:?}");
    }

    #[test]
    fn the_message_names_the_command_that_helps() {
        assert!(Error::NoPrograms.to_string().contains("cargo xtask test"));
    }
}
