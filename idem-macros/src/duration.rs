//! `"30d"`, `"36h"` and `forever`: how long something is kept. Checked here, so that a typing mistake is a compile
//! error and never a surprise in a year.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::{Ident, LitStr, Path};

/// How long outcome or identity is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Forever,
    Seconds(u64),
}

impl Keep {
    /// Whether `self` ends before `other` does.
    pub(crate) fn is_shorter_than(self, other: Self) -> bool {
        match (self, other) {
            (Self::Seconds(ours), Self::Seconds(other)) => ours < other,
            (Self::Seconds(_), Self::Forever) => true,
            (Self::Forever, _) => false,
        }
    }

    /// Input: `"30d"`. Output: `Retain::For(Duration::from_secs(2592000))`.
    pub(crate) fn expand(self, krate: &Path) -> TokenStream {
        match self {
            Self::Forever => quote!(#krate::Retain::Forever),
            Self::Seconds(seconds) => {
                quote!(#krate::Retain::For(#krate::__private::Duration::from_secs(#seconds)))
            }
        }
    }
}

/// A [`Keep`] with the place where it was written.
pub(crate) struct Kept {
    pub(crate) keep: Keep,
    pub(crate) span: Span,
}

impl Parse for Kept {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if input.peek(Ident) {
            let word: Ident = input.parse()?;
            return if word == "forever" {
                Ok(Self { keep: Keep::Forever, span: word.span() })
            } else {
                Err(syn::Error::new(word.span(), EXPECTED))
            };
        }
        let text: LitStr = input.parse().map_err(|e| syn::Error::new(e.span(), EXPECTED))?;
        match parse(&text.value()) {
            Ok(seconds) => Ok(Self { keep: Keep::Seconds(seconds), span: text.span() }),
            Err(message) => Err(syn::Error::new(text.span(), message)),
        }
    }
}

const EXPECTED: &str =
    "expected a duration such as \"30d\" or \"36h\" (units: s, min, h, d, w), or `forever`";

fn parse(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let seconds = match unit {
        "s" => 1,
        "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return Err(EXPECTED.to_owned()),
    };
    if number.is_empty() {
        return Err(EXPECTED.to_owned());
    }
    match number.parse::<u64>().ok().and_then(|n| n.checked_mul(seconds)) {
        Some(0) => Err("nothing can be kept for no time: write at least \"1s\"".to_owned()),
        Some(total) => Ok(total),
        None => Err(format!("`{text}` is longer than any clock counts: write `forever`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_counts_seconds() {
        let all = ["1s", "2min", "36h", "30d", "2w"].map(|t| parse(t).expect("valid"));
        assert_eq!(all, [1, 120, 129_600, 2_592_000, 1_209_600]);
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for bad in
            ["", "d", "30", "30 d", "30D", "1m", "-1d", "1.5h", "30days", "0d", "99999999999999999999s"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn for_ever_is_the_longest() {
        assert!(Keep::Seconds(1).is_shorter_than(Keep::Forever));
        assert!(!Keep::Forever.is_shorter_than(Keep::Forever));
        assert!(!Keep::Seconds(2).is_shorter_than(Keep::Seconds(2)));
    }
}
