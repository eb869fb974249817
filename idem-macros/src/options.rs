//! A list of options, `name = value` or `name(..)`, separated by commas: what the attribute and the derives have in
//! common. A faulty option is reported and left out, and the ones after it are still read.

use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::{Ident, LitStr, Token};

use crate::errors::{Errors, did_you_mean};

/// Reads all options. `option` reads the value of the one called so, leaves the input at the comma after it, and
/// answers `false` if there is none of that name.
pub(crate) fn read(
    input: ParseStream<'_>,
    names: &[&str],
    errors: &mut Errors,
    mut option: impl FnMut(&Ident, ParseStream<'_>, &mut Errors) -> bool,
) {
    while !input.is_empty() {
        match input.call(Ident::parse_any) {
            Ok(name) if option(&name, input, errors) => {}
            Ok(unknown) => {
                let hint = did_you_mean(&unknown.to_string(), names.iter().copied());
                errors.at(
                    unknown.span(),
                    format!("there is no option `{unknown}`{hint}; there are {}", names.join(", ")),
                );
                skip_to_comma(input);
            }
            Err(error) => {
                errors.at(error.span(), format!("expected an option: {}", names.join(", ")));
                skip_to_comma(input);
            }
        }
        if !input.is_empty() && input.parse::<Token![,]>().is_err() {
            errors.at(input.span(), "expected `,` between two options");
            if !input.peek(Ident::peek_any) {
                skip_to_comma(input);
                let _ = input.parse::<Option<Token![,]>>();
            }
        }
    }
}

/// Reads `= value`.
pub(crate) fn value<T>(
    name: &Ident,
    input: ParseStream<'_>,
    parse: impl FnOnce(ParseStream<'_>) -> syn::Result<T>,
) -> syn::Result<T> {
    recover(input, |input| match input.parse::<Token![=]>() {
        Ok(_) => parse(input),
        Err(_) => Err(syn::Error::new(name.span(), format!("`{name}` needs a value: write `{name} = ..`"))),
    })
}

/// Reads one option and leaves the input at the comma after it, also after a mistake.
pub(crate) fn recover<T>(
    input: ParseStream<'_>,
    parse: impl FnOnce(ParseStream<'_>) -> syn::Result<T>,
) -> syn::Result<T> {
    let result = parse(input);
    if result.is_err() {
        skip_to_comma(input);
    }
    result
}

fn skip_to_comma(input: ParseStream<'_>) {
    while !input.is_empty() && !input.peek(Token![,]) {
        // A token tree can always be read from an input that is not empty.
        let _ = input.parse::<proc_macro2::TokenTree>();
    }
}

/// Reads one of a few words.
pub(crate) fn word<T: Copy, const N: usize>(input: ParseStream<'_>, words: [(&str, T); N]) -> syn::Result<T> {
    let expected = words.map(|(word, _)| format!("`{word}`")).join(" or ");
    let given: Ident = input
        .call(Ident::parse_any)
        .map_err(|e| syn::Error::new(e.span(), format!("expected {expected}")))?;
    let found = words.iter().find(|(word, _)| given == word).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let hint = did_you_mean(&given.to_string(), words.map(|(word, _)| word));
        syn::Error::new(given.span(), format!("expected {expected}{hint}"))
    })
}

/// Reads a string.
pub(crate) fn string(input: ParseStream<'_>, expected: &str) -> syn::Result<LitStr> {
    input.parse().map_err(|e| syn::Error::new(e.span(), format!("expected a string: {expected}")))
}
