//! `#[derive(Scope)]` for a newtype that the authentication layer builds: its one field is the text. The invariant:
//! nothing but a newtype is derived, so that the author decides what several fields would mean.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::{Data, DeriveInput, Fields, Index, Member};

use crate::expand::at;

const NEWTYPE: &str = "`Scope` is derived for a struct with one field, such as `struct TenantId(String)`: for another type write `impl Scope` and say what its text is";

/// Input: `struct TenantId(String);`.
/// Output: `impl Scope for TenantId { fn scope(&self) -> Cow<'_, str> { text(&self.0) } }`.
pub(crate) fn derive(input: &DeriveInput) -> syn::Result<TokenStream> {
    let krate = krate(input)?;
    let fields = match &input.data {
        Data::Struct(data) => &data.fields,
        _ => return Err(syn::Error::new_spanned(&input.ident, NEWTYPE)),
    };
    let field = match fields {
        Fields::Named(named) if named.named.len() == 1 => &named.named[0],
        Fields::Unnamed(unnamed) if unnamed.unnamed.len() == 1 => &unnamed.unnamed[0],
        _ => return Err(syn::Error::new_spanned(&input.ident, NEWTYPE)),
    };
    let span = at(&field.ty);
    let member = match &field.ident {
        Some(name) => Member::Named(name.clone()),
        None => Member::Unnamed(Index { index: 0, span }),
    };
    let ident = &input.ident;
    let (impl_generics, ty_generics, where_clause) = input.generics.split_for_impl();
    let value = quote_spanned!(span=> &self.#member);
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics #krate::Scope for #ident #ty_generics #where_clause {
            fn scope(&self) -> #krate::__private::Cow<'_, #krate::__private::Str> {
                #krate::__private::text(#value)
            }
        }
    })
}

/// Input: `#[scope(crate = path)]`, or nothing. Output: the path of the runtime.
fn krate(input: &DeriveInput) -> syn::Result<syn::Path> {
    let mut krate = syn::parse_quote!(::idem_runtime);
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("scope")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(meta.error("the only option is `crate = path`"));
            }
            krate = meta.value()?.call(syn::Path::parse_mod_style)?;
            Ok(())
        })?;
    }
    Ok(krate)
}
