//! The whole expansion of a few handlers and effects, formatted, in `golden/<name>.expanded.rs` beside its source. After a change
//! of the expansion: `GOLDEN=overwrite cargo test -p idem-macros`, and read what came out.

use std::path::{Path, PathBuf};

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Attribute, ImplItem, Item};

fn sources() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let files =
        std::fs::read_dir(folder).expect("the folder is there").map(|file| file.expect("readable").path());
    let mut sources: Vec<PathBuf> =
        files.filter(|path| !path.to_string_lossy().contains(".expanded.")).collect();
    sources.sort();
    sources
}

/// Expands every `#[idempotent]` and `#[derive(Effect)]` in a source file, and leaves the rest as it is.
fn expand(source: &str) -> String {
    let file = syn::parse_file(source).expect("valid Rust");
    let items: TokenStream = file.items.into_iter().map(item).collect();
    prettyplease::unparse(&syn::parse2(items).expect("the expansion is valid Rust"))
}

fn item(item: Item) -> TokenStream {
    match item {
        Item::Fn(mut function) => handler(&mut function.attrs.clone(), |attrs| {
            function.attrs = attrs;
            function.to_token_stream()
        }),
        Item::Impl(mut block) => {
            let items = std::mem::take(&mut block.items).into_iter().map(|item| match item {
                ImplItem::Fn(mut function) => handler(&mut function.attrs.clone(), |attrs| {
                    function.attrs = attrs;
                    function.to_token_stream()
                }),
                other => other.to_token_stream(),
            });
            let (generics, ty) = (&block.generics, &block.self_ty);
            quote!(impl #generics #ty { #(#items)* })
        }
        Item::Struct(_) | Item::Enum(_) => {
            let input = syn::parse_quote!(#item);
            let effect = crate::derive_effect::derive(&input);
            quote!(#item #effect)
        }
        other => other.to_token_stream(),
    }
}

fn handler(attrs: &mut Vec<Attribute>, function: impl FnOnce(Vec<Attribute>) -> TokenStream) -> TokenStream {
    let position = attrs.iter().position(|attribute| attribute.path().is_ident("idempotent"));
    let options = position.map(|position| attrs.remove(position)).expect("a handler");
    let options = options.meta.require_list().expect("options").tokens.clone();
    crate::expand_idempotent(options, function(std::mem::take(attrs)))
}

#[test]
fn expansions_are_as_they_were_read() {
    let overwrite = std::env::var_os("GOLDEN").is_some_and(|value| value == "overwrite");
    for source in sources() {
        let text = std::fs::read_to_string(&source).expect("readable");
        let (expanded, file) = (expand(&text), source.with_extension("expanded.rs"));
        if overwrite {
            std::fs::write(&file, &expanded).expect("writable");
        }
        let expected = std::fs::read_to_string(&file).expect("there is an expansion beside every source");
        assert!(!expanded.contains("compile_error"), "{}: {expanded}", source.display());
        assert_eq!(expanded, expected, "{}", source.display());
    }
    assert_eq!(sources().len(), 4);
}

#[test]
fn expanding_twice_gives_the_same_bytes() {
    for source in sources() {
        let text = std::fs::read_to_string(&source).expect("readable");
        let once =
            syn::parse_file(&text).expect("valid").items.into_iter().map(item).collect::<TokenStream>();
        let again =
            syn::parse_file(&text).expect("valid").items.into_iter().map(item).collect::<TokenStream>();
        assert_eq!(once.to_string(), again.to_string());
    }
}
