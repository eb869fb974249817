//! The `#[idempotent]` attribute and `#[derive(Scope)]` of `idem-runtime`, which re-exports both.
//!
//! Four stages: [`args`] and [`signature`] parse, [`check`] makes a model that can no longer be wrong, [`expand`] writes
//! the function. A mistake in any stage is reported together with all others, and a function is emitted all the same.

mod args;
mod check;
mod derive_scope;
mod duration;
mod errors;
mod expand;
mod fingerprint;
#[cfg(test)]
mod golden;
mod recover;
mod signature;
mod slot;
mod template;

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::Parser;

use crate::args::Args;
use crate::errors::Errors;
use crate::signature::{Function, Signature};

#[allow(missing_docs)]
#[proc_macro_attribute]
pub fn idempotent(
    options: proc_macro::TokenStream,
    function: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand_idempotent(options.into(), function.into()).into()
}

#[allow(missing_docs)]
#[proc_macro_derive(Scope, attributes(scope))]
pub fn derive_scope(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    derive_scope::derive(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// Input: the options and the function as written. Output: the generated function, or a `compile_error!` for each
/// mistake and the function for the editor.
fn expand_idempotent(options: TokenStream, function: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let args = Args::parse(options, &mut errors);
    let parsed = <Function as syn::parse::Parse>::parse.parse2(function.clone());
    let Some(parsed) = errors.take(parsed) else {
        let errors = errors.to_compile_errors();
        return quote!(#errors #function);
    };
    let signature = Signature::read(&parsed.sig, &mut errors);
    let krate = args.krate();
    match check::check(args, &parsed, &signature, &mut errors) {
        Some(handler) => expand::expand(&parsed, &handler),
        None => {
            let errors = errors.to_compile_errors();
            let function = recover::recover(&parsed, &signature, &krate);
            quote!(#errors #function)
        }
    }
}
