//! The handlers of the program, collected at link time. Two with one operation would take each other's records, so
//! every store looks here before its first claim.

use std::collections::HashMap;

use crate::{Error, Older, Retain};

/// One annotated handler of the program.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationInfo {
    /// The stable name of the effect.
    pub name: &'static str,
    /// How long the outcome is kept.
    pub retain: Retain,
    /// How long the identity is kept.
    pub remember: Retain,
    /// What happens to a message older than the records can prove.
    pub older: Older,
    /// The source file of the handler.
    pub file: &'static str,
    /// Its line.
    pub line: u32,
}

impl OperationInfo {
    #[doc(hidden)]
    pub const fn __new(
        name: &'static str,
        retain: Retain,
        remember: Retain,
        older: Older,
        file: &'static str,
        line: u32,
    ) -> Self {
        Self { name, retain, remember, older, file, line }
    }
}

inventory::collect!(OperationInfo);

/// All annotated handlers that are linked into this program, in no particular order.
pub fn operations() -> impl Iterator<Item = &'static OperationInfo> {
    inventory::iter::<OperationInfo>.into_iter()
}

/// Refuses a program in which two places have the same operation.
#[cfg_attr(not(any(feature = "postgres", feature = "sqlite")), allow(dead_code))]
pub(crate) fn check_operations() -> Result<(), Error> {
    find_duplicate(operations())
        .map_or(Ok(()), |(first, second)| Err(Error::DuplicateOperation { first, second }))
}

/// A handler that is compiled several times (a generic one, one in a `macro_rules!` that is expanded twice at one
/// place) is still one place.
fn find_duplicate(
    operations: impl Iterator<Item = &'static OperationInfo>,
) -> Option<(&'static OperationInfo, &'static OperationInfo)> {
    let mut seen: HashMap<&str, &'static OperationInfo> = HashMap::new();
    for info in operations {
        match seen.insert(info.name, info) {
            Some(other) if (other.file, other.line) != (info.file, info.line) => {
                let mut pair = [other, info];
                pair.sort_by_key(|i| (i.file, i.line));
                return Some((pair[0], pair[1]));
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(name: &'static str, line: u32) -> OperationInfo {
        OperationInfo::__new(name, Retain::Forever, Retain::Forever, Older::Refuse, "a.rs", line)
    }

    #[test]
    fn a_doubled_operation_names_both_places() {
        static ALL: [OperationInfo; 3] = [at("pay", 3), at("ship", 5), at("pay", 1)];
        let (first, second) = find_duplicate(ALL.iter()).expect("doubled");
        assert_eq!((first.line, second.line), (1, 3));
        assert!(find_duplicate(ALL[..2].iter()).is_none());
    }
}
