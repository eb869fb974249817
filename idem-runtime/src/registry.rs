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
    column: u32,
    module: &'static str,
}

impl OperationInfo {
    #[doc(hidden)]
    pub const fn __new(
        name: &'static str,
        retain: Retain,
        remember: Retain,
        older: Older,
        (file, line, column, module): (&'static str, u32, u32, &'static str),
    ) -> Self {
        Self { name, retain, remember, older, file, line, column, module }
    }
}

impl OperationInfo {
    fn is_same_source(&self, other: &Self) -> bool {
        let place = |info: &Self| (info.file, info.line, info.column);
        place(self) == place(other) && self.module != other.module
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

/// A source file that is a module twice (once for each database) is one place. Two handlers of one macro are not,
/// though they have the same line: they are in one module.
fn find_duplicate(
    operations: impl Iterator<Item = &'static OperationInfo>,
) -> Option<(&'static OperationInfo, &'static OperationInfo)> {
    let mut seen: HashMap<&str, &'static OperationInfo> = HashMap::new();
    for info in operations {
        match seen.insert(info.name, info) {
            Some(other) if !other.is_same_source(info) => {
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

    const fn at(name: &'static str, line: u32, module: &'static str) -> OperationInfo {
        let place = ("a.rs", line, 1, module);
        OperationInfo::__new(name, Retain::Forever, Retain::Forever, Older::Refuse, place)
    }

    #[test]
    fn a_doubled_operation_names_both_places() {
        static ALL: [OperationInfo; 3] = [at("pay", 3, "m"), at("ship", 5, "m"), at("pay", 1, "m")];
        let (first, second) = find_duplicate(ALL.iter()).expect("doubled");
        assert_eq!((first.line, second.line), (1, 3));
        assert!(find_duplicate(ALL[..2].iter()).is_none());
    }

    #[test]
    fn two_handlers_of_one_macro_are_doubled_and_a_file_that_is_compiled_twice_is_not() {
        static MACRO: [OperationInfo; 2] = [at("pay", 3, "m"), at("pay", 3, "m")];
        assert!(find_duplicate(MACRO.iter()).is_some());
        static TWICE: [OperationInfo; 2] = [at("pay", 3, "sqlite::m"), at("pay", 3, "postgres::m")];
        assert!(find_duplicate(TWICE.iter()).is_none());
    }
}
