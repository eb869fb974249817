//! Whom the server runs as. Postgres refuses to run as root, so for root (containers, CI) it runs as
//! the system user `postgres`, and its folder belongs to that user.

use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::{User, geteuid};
use tempfile::TempDir;

use crate::Error;

/// The user and group that server programs run as; `None` is ourselves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account(Option<(u32, u32)>);

impl Account {
    pub(super) fn find() -> Result<Self, Error> {
        if !geteuid().is_root() {
            return Ok(Self(None));
        }
        let user = User::from_name("postgres").ok().flatten().ok_or(Error::NoAccount)?;
        Ok(Self(Some((user.uid.as_raw(), user.gid.as_raw()))))
    }

    /// A command that runs as this account, in `folder`, untouched by the caller's Postgres variables.
    pub(super) fn command(self, program: &Path, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(folder).env("LC_ALL", "C");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")) {
            command.env_remove(name);
        }
        if let Some((user, group)) = self.0 {
            // std also drops root's supplementary groups here.
            command.uid(user).gid(group);
        }
        command
    }

    /// A new temporary folder that belongs to this account.
    pub(super) fn folder(self) -> Result<TempDir, Error> {
        let Some((user, group)) = self.0 else {
            return tempfile::Builder::new()
                .prefix("idem-postgres-")
                .tempdir()
                .map_err(Error::io("making a temporary folder"));
        };
        let wanted = std::env::temp_dir();
        let parent = [wanted.clone(), PathBuf::from("/tmp"), PathBuf::from("/var/tmp")]
            .into_iter()
            .find(|folder| passable(folder))
            .ok_or(Error::Unreachable(wanted))?;
        let folder = tempfile::Builder::new()
            .prefix("idem-postgres-")
            .tempdir_in(parent)
            .map_err(Error::io("making a temporary folder"))?;
        chown(folder.path(), Some(user), Some(group)).map_err(Error::io("giving the folder to postgres"))?;
        Ok(folder)
    }
}

/// Whether any user may walk through this folder and all above it.
fn passable(folder: &Path) -> bool {
    folder
        .canonicalize()
        .is_ok_and(|folder| folder.ancestors().all(|up| up.metadata().is_ok_and(|it| it.mode() & 0o001 != 0)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_closed_folder_above_is_noticed() {
        let above = tempfile::tempdir().expect("temporary folder");
        let inner = above.path().join("inner");
        std::fs::create_dir(&inner).expect("folder");
        std::fs::set_permissions(above.path(), PermissionsExt::from_mode(0o700)).expect("close");
        assert!(!passable(&inner));
        std::fs::set_permissions(above.path(), PermissionsExt::from_mode(0o755)).expect("open");
        assert_eq!(passable(&inner), passable(above.path().parent().expect("parent")));
    }
}
