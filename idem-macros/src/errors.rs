//! The sink of the author's mistakes. Every stage reports into it and goes on, so that one run of the compiler shows
//! them all; nothing is expanded for real while it holds one.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;

/// Collected mistakes, in the order in which they were found.
#[derive(Default)]
pub(crate) struct Errors(Vec<syn::Error>);

impl Errors {
    /// A mistake at one token.
    pub(crate) fn at(&mut self, span: Span, message: impl std::fmt::Display) {
        self.0.push(syn::Error::new(span, message));
    }

    /// A mistake that covers all of `tokens`.
    pub(crate) fn under(&mut self, tokens: impl ToTokens, message: impl std::fmt::Display) {
        self.0.push(syn::Error::new_spanned(tokens, message));
    }

    /// The value, or `None` and the error is kept.
    pub(crate) fn take<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.0.push(error)).ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A `compile_error!` for each.
    pub(crate) fn to_compile_errors(&self) -> TokenStream {
        self.0.iter().map(syn::Error::to_compile_error).collect()
    }
}

/// ` (did you mean `x`?)` for the candidate that is closest to `name`, if one is close enough to be a slip.
pub(crate) fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    candidates
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, candidate)| *distance <= candidate.chars().count().max(3) / 3)
        .map(|(_, candidate)| format!(" (did you mean `{candidate}`?)"))
        .unwrap_or_default()
}

/// Insertions, deletions, substitutions and swaps of neighbours between two names.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let substituted = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = substituted.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_slip_is_offered() {
        assert_eq!(did_you_mean("cmb", ["caller", "cmd"]), " (did you mean `cmd`?)");
        assert_eq!(did_you_mean("cdm", ["caller", "cmd"]), " (did you mean `cmd`?)");
        assert_eq!(did_you_mean("retian", ["retain", "remember"]), " (did you mean `retain`?)");
        assert_eq!(did_you_mean("order", ["caller", "cmd"]), "");
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
