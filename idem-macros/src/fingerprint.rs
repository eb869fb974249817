//! `fingerprint(..)`: the material fields of the request. The invariant: every field has one label of its own, and a
//! pattern names every field of its type, so that a field added later cannot be forgotten.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Expr, Ident, Member, Path, Token, Type, token};

use crate::errors::Errors;
use crate::expand::by_reference;
use crate::signature::Signature;

/// What is material.
pub(crate) enum Fingerprint {
    /// `none`: the identity already is the content.
    None,
    Items(Vec<Item>),
}

/// One entry between two commas.
pub(crate) enum Item {
    /// `cmd.amount`, or `currency = cmd.currency.to_uppercase()`.
    Field { label: String, span: Span, value: Expr },
    /// `cmd { amount, note: _ }`, or `Approve { amount, note: _ } = body`.
    Pattern(Pattern),
}

/// An exhaustive pattern.
pub(crate) struct Pattern {
    /// The parameter, or the type.
    path: Path,
    brace: token::Brace,
    fields: Vec<Field>,
    /// What is matched, where `path` is a type.
    value: Option<Expr>,
}

struct Field {
    name: Ident,
    /// `name: _`.
    waived: bool,
}

impl Parse for Fingerprint {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if !input.peek(token::Paren) {
            return Err(input.error("expected the material fields in parentheses: `fingerprint(cmd.amount, cmd.currency)`, or `fingerprint(none)`"));
        }
        let content;
        let parens = syn::parenthesized!(content in input);
        if content.is_empty() {
            return Err(syn::Error::new(
                parens.span.join(),
                "an empty fingerprint compares nothing: list the material fields, or write `fingerprint(none)`",
            ));
        }
        let items = Punctuated::<Item, Token![,]>::parse_terminated(&content)?;
        let none = |item: &Item| matches!(item, Item::Field { value: Expr::Path(path), label, .. } if label == "none" && path.path.is_ident("none"));
        match items.iter().find(|item| none(item)) {
            Some(_) if items.len() == 1 => Ok(Self::None),
            Some(Item::Field { span, .. }) => {
                Err(syn::Error::new(*span, "`none` stands alone: remove it, or the fields beside it"))
            }
            _ => Ok(Self::Items(items.into_iter().collect())),
        }
    }
}

impl Parse for Item {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if input.peek(Ident::peek_any) && input.peek2(Token![=]) && !input.peek2(Token![==]) {
            let name = input.call(Ident::parse_any)?;
            input.parse::<Token![=]>()?;
            return Ok(Self::Field {
                label: name.unraw().to_string(),
                span: name.span(),
                value: input.parse()?,
            });
        }
        let ahead = input.fork();
        if ahead.call(Path::parse_mod_style).is_ok() && ahead.peek(token::Brace) {
            return Pattern::parse(input).map(Self::Pattern);
        }
        let value: Expr = input.parse()?;
        match label(&value) {
            Some((label, span)) => Ok(Self::Field { label, span, value }),
            None => Err(syn::Error::new_spanned(
                value,
                "this expression has no label: give it one, `name = <expression>`",
            )),
        }
    }
}

/// The last segment of a path, by which a field is labelled.
fn label(value: &Expr) -> Option<(String, Span)> {
    match value {
        Expr::Path(path) => path.path.get_ident().map(|ident| (ident.unraw().to_string(), ident.span())),
        Expr::Field(field) => {
            label(&field.base)?;
            Some(match &field.member {
                Member::Named(name) => (name.unraw().to_string(), name.span()),
                Member::Unnamed(index) => (index.index.to_string(), index.span),
            })
        }
        Expr::Reference(reference) => label(&reference.expr),
        Expr::Paren(inner) => label(&inner.expr),
        Expr::Group(inner) => label(&inner.expr),
        Expr::Unary(syn::ExprUnary { op: syn::UnOp::Deref(_), expr, .. }) => label(expr),
        _ => None,
    }
}

impl Parse for Pattern {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let path = input.call(Path::parse_mod_style)?;
        let content;
        let brace = syn::braced!(content in input);
        let fields = Punctuated::<Field, Token![,]>::parse_terminated(&content)?.into_iter().collect();
        let value = input.parse::<Option<Token![=]>>()?.map(|_| input.parse()).transpose()?;
        Ok(Self { path, brace, fields, value })
    }
}

impl Parse for Field {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if input.peek(Token![..]) {
            return Err(syn::Error::new_spanned(
                input.parse::<Token![..]>()?,
                "`..` would hide a field that is added later: list every field, and waive the immaterial ones with `name: _`",
            ));
        }
        let name = input.call(Ident::parse_any)?;
        if !input.peek(Token![:]) {
            return Ok(Self { name, waived: false });
        }
        input.parse::<Token![:]>()?;
        input.parse::<Token![_]>().map_err(|e| {
            syn::Error::new(
                e.span(),
                "a field is `name` (material) or `name: _` (waived); for a part of it waive it and add `label = cmd.name.part`",
            )
        })?;
        Ok(Self { name, waived: true })
    }
}

impl Fingerprint {
    /// Labels differ, and the type of every pattern can be named.
    pub(crate) fn check(&self, signature: &Signature, errors: &mut Errors) {
        let Self::Items(items) = self else { return };
        let mut seen: Vec<String> = Vec::new();
        let mut labelled = |label: String, span: Span, advice: &str, errors: &mut Errors| {
            if seen.contains(&label) {
                errors.at(span, format!("the label `{label}` is used twice: {advice}"));
            }
            seen.push(label);
        };
        for item in items {
            match item {
                Item::Field { label, span, .. } => {
                    labelled(label.clone(), *span, "name this one, `name = <expression>`", errors);
                }
                Item::Pattern(pattern) => {
                    for field in pattern.fields.iter().filter(|field| !field.waived) {
                        let advice = "waive it here, `name: _`, and add `other_name = <expression>`";
                        labelled(field.name.unraw().to_string(), field.name.span(), advice, errors);
                    }
                    if let Err(message) = pattern.type_path(signature) {
                        errors.under(&pattern.path, message);
                    }
                }
            }
        }
    }

    /// What is evaluated, beside the parameters that the patterns name.
    pub(crate) fn expressions(&self) -> impl Iterator<Item = &Expr> {
        let items = match self {
            Self::None => [].iter(),
            Self::Items(items) => items.iter(),
        };
        items.filter_map(|item| match item {
            Item::Field { value, .. } => Some(value),
            Item::Pattern(pattern) => pattern.value.as_ref(),
        })
    }

    /// Input: `cmd.amount, cmd { currency, note: _ }`.
    /// Output: a block that ends in `Material::new("op").field("amount", &cmd.amount).field("currency", currency).finish()`,
    /// preceded by one `let Approve { currency: currency, note: _ } = &cmd;` for each pattern.
    pub(crate) fn expand(
        &self,
        operation: &str,
        signature: &Signature,
        private: &TokenStream,
    ) -> TokenStream {
        let Self::Items(items) = self else {
            return quote!(#private::Result::Ok(#private::Option::None));
        };
        let mut patterns = Vec::new();
        let mut fields = Vec::new();
        for (number, item) in items.iter().enumerate() {
            match item {
                Item::Field { label, value, .. } => {
                    let value = by_reference(value);
                    fields.push(quote!(.field(#label, #value)));
                }
                Item::Pattern(pattern) => {
                    let local = |field: &Field| {
                        format_ident!(
                            "__field_{number}_{}",
                            field.name.unraw(),
                            span = Span::mixed_site().located_at(field.name.span())
                        )
                    };
                    patterns.push(pattern.expand(signature, local));
                    fields.extend(pattern.fields.iter().filter(|field| !field.waived).map(|field| {
                        let (label, local) = (field.name.unraw().to_string(), local(field));
                        quote!(.field(#label, #local))
                    }));
                }
            }
        }
        quote! {{
            #(#patterns)*
            #private::Material::new(#operation) #(#fields)* .finish()
        }}
    }
}

impl Pattern {
    /// Input: `cmd { amount, note: _ }`, where `cmd: &Approve`. Output: `let Approve { amount: local, note: _ } = &(cmd);`.
    ///
    /// Path and braces carry the author's own spans: with others rustc takes the pattern for one that cannot see the
    /// fields, and offers the `..` that the form forbids.
    fn expand(&self, signature: &Signature, local: impl Fn(&Field) -> Ident) -> TokenStream {
        // An error has been reported by `check`, and nothing is expanded then.
        let path = self.type_path(signature).unwrap_or_else(|_| self.path.clone());
        let fields = self.fields.iter().map(|field| {
            let name = &field.name;
            if field.waived {
                return quote!(#name: _);
            }
            let local = local(field);
            quote!(#name: #local)
        });
        let mut body = proc_macro2::Group::new(proc_macro2::Delimiter::Brace, quote!(#(#fields),*));
        body.set_span(self.brace.span.join());
        match &self.value {
            Some(value) => {
                let value = by_reference(value);
                quote!(let #path #body = #value;)
            }
            None => {
                let parameter = &self.path;
                let span = self.brace.span.join();
                quote_spanned!(Span::call_site().located_at(span)=> let #path #body = &#parameter;)
            }
        }
    }

    /// The type that the pattern names: as written, or that of the parameter.
    fn type_path(&self, signature: &Signature) -> Result<Path, String> {
        if self.value.is_some() {
            return Ok(self.path.clone());
        }
        let name = self.path.get_ident().map(Ident::to_string).unwrap_or_default();
        let Some(parameter) = signature.parameter(&name) else {
            let problem = signature.no_parameter(&path_text(&self.path));
            return Err(format!("{problem}; for a type write `Type {{ field, other: _ }} = <expression>`"));
        };
        let ty = parameter.ty.as_ref().ok_or_else(|| unnamed(&name))?;
        let mut path = struct_path(ty, signature).ok_or_else(|| unnamed(&name))?;
        let location = parameter_location(&self.path);
        for segment in &mut path.segments {
            segment.ident.set_span(segment.ident.span().located_at(location));
        }
        Ok(path)
    }
}

fn unnamed(name: &str) -> String {
    format!(
        "the struct behind `{name}` cannot be read from its type: name it, `fingerprint(Type {{ field, other: _ }} = {name})`"
    )
}

fn parameter_location(path: &Path) -> Span {
    path.segments.first().map_or_else(Span::call_site, |segment| segment.ident.span())
}

fn path_text(path: &Path) -> String {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect::<Vec<_>>().join("::")
}

/// The path of a struct as a pattern names it, through references and without generic arguments; `None` for a type
/// parameter, for what is no path, and for pointers, whose fields are not those of what they point to.
fn struct_path(ty: &Type, signature: &Signature) -> Option<Path> {
    match ty {
        Type::Reference(reference) => struct_path(&reference.elem, signature),
        Type::Paren(inner) => struct_path(&inner.elem, signature),
        Type::Group(inner) => struct_path(&inner.elem, signature),
        Type::Path(path) if path.qself.is_none() => {
            let last = &path.path.segments.last()?.ident;
            let pointer = ["Arc", "Rc", "Box", "Cow", "Pin"].iter().any(|name| last == name);
            let generic =
                path.path.get_ident().is_some_and(|ident| signature.type_parameters.contains(ident));
            if pointer || generic {
                return None;
            }
            let mut path = path.path.clone();
            for segment in &mut path.segments {
                segment.arguments = syn::PathArguments::None;
            }
            Some(path)
        }
        _ => None,
    }
}
