//! `#[derive(Effect)]`: the name under which an effect is stored, and what puts effects into an order. The invariant:
//! the name is written out and never taken from the type, so that a type can be renamed while effects of it wait.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::parse::ParseStream;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Data, DeriveInput, Expr, Generics, Ident, LitStr, Meta, Path, Token, TypePath};

use crate::args::text_or_expression;
use crate::errors::Errors;
use crate::options::{self, string, value};
use crate::slot::Slot;
use crate::template::{Part, Template};

const MISSING_NAME: &str = "`name` is missing: it is what the effect is stored and sent under, also when its type has been renamed, for example `#[effect(name = \"receipt.email\")]`";
const NO_LIST: &str = "the options stand in parentheses: `#[effect(name = \"receipt.email\")]`";
const NOT_ON_THE_TYPE: &str = "`#[effect(..)]` stands on the type; a field is named there, in the template `order = \"{self.invoice}\"`";
const UNION: &str =
    "`Effect` is derived for structs and enums: what is stored and read back cannot be a union";
const BORROWS: &str =
    "an effect is stored and read back, so it borrows nothing: use owned types, such as `String`";

/// The options, each in its slot.
#[derive(Default)]
struct Options {
    name: Slot<LitStr>,
    order: Slot<Template>,
    krate: Slot<Path>,
}

const NAMES: [&str; 3] = ["name", "order", "crate"];

/// Input: `#[effect(name = "receipt.email", order = "{self.invoice}")] struct EmailReceipt { invoice: i64 }`.
/// Output: [`implementation`]; after a mistake a `compile_error!` for each, and an implementation for the editor.
pub(crate) fn derive(input: &DeriveInput) -> TokenStream {
    let mut errors = Errors::default();
    let options = read(input, &mut errors);
    let name = options.name.get();
    let order = options.order.get();
    if let Some(order) = &order {
        order.check_self(matches!(input.data, Data::Enum(_)), &mut errors);
    }
    let is_storable = check_type(input, &mut errors);
    let krate = options.krate.get().unwrap_or_else(|| syn::parse_quote!(::idem_runtime));
    match (name, errors.is_empty()) {
        (Some(name), true) => implementation(input, &krate, &name.value(), order.as_ref()),
        _ => {
            // What asks for an effect elsewhere has nothing to add to the mistakes here.
            let recovered = is_storable.then(|| implementation(input, &krate, "", None));
            let errors = errors.to_compile_errors();
            quote!(#errors #recovered)
        }
    }
}

/// Reads every `#[effect(..)]` on the type.
fn read(input: &DeriveInput, errors: &mut Errors) -> Options {
    let mut options = Options::default();
    let attributes: Vec<&Attribute> = own(&input.attrs).collect();
    for attribute in &attributes {
        let Meta::List(list) = &attribute.meta else {
            errors.under(attribute, NO_LIST);
            continue;
        };
        let parser = |input: ParseStream<'_>| {
            options::read(input, &NAMES, errors, |name, input, errors| options.option(name, input, errors));
            Ok(())
        };
        // The closure reports its errors itself and never returns one.
        let _: syn::Result<()> = list.parse_args_with(parser);
    }
    if attributes.iter().all(|attribute| matches!(attribute.meta, Meta::List(_))) {
        let place = attributes.first().map_or_else(Span::call_site, |attribute| attribute.path().span());
        options.name.required_at(place, MISSING_NAME, errors);
    }
    options
}

impl Options {
    /// Reads the value of the option `name`, if there is one of that name.
    fn option(&mut self, name: &Ident, input: ParseStream<'_>, errors: &mut Errors) -> bool {
        match name.to_string().as_str() {
            "name" => self.name.set(name, value(name, input, stored_name), errors),
            "order" => self.order.set(name, value(name, input, order), errors),
            "crate" => self.krate.set(name, value(name, input, Path::parse_mod_style), errors),
            _ => return false,
        }
        true
    }
}

fn own(attributes: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("effect"))
}

fn stored_name(input: ParseStream<'_>) -> syn::Result<LitStr> {
    let name = string(input, "the name of an effect is a fixed one, such as \"receipt.email\"")?;
    let text = name.value();
    let problem = match (text.len(), text.chars().find(|c| c.is_control())) {
        (0, _) => "the name is empty: say what is done, such as \"receipt.email\"".to_owned(),
        (129.., _) => format!("the name has {} bytes, and 128 is the limit", text.len()),
        (_, Some(control)) => format!("the name holds the control character {control:?}"),
        (_, None) => return Ok(name),
    };
    Err(syn::Error::new(name.span(), problem))
}

fn order(input: ParseStream<'_>) -> syn::Result<Template> {
    let expression = match text_or_expression(input)? {
        Ok(literal) => return Template::new(literal, Part::Order),
        Err(expression) => expression,
    };
    let message = match &expression {
        Expr::Field(field) => {
            let path = field.to_token_stream().to_string().replace(' ', "");
            format!("an order key is a template: write `order = \"{{{path}}}\"`")
        }
        _ => format!(
            "an order key is a template, such as `order = \"{{self.invoice}}\"`; for anything else {}",
            Part::Order.instead("..")
        ),
    };
    Err(syn::Error::new_spanned(expression, message))
}

/// Whether the type can be stored at all, as far as its syntax shows.
fn check_type(input: &DeriveInput, errors: &mut Errors) -> bool {
    struct Inner<'a>(&'a mut Errors);

    impl<'ast> Visit<'ast> for Inner<'_> {
        fn visit_attribute(&mut self, attribute: &'ast Attribute) {
            if attribute.path().is_ident("effect") {
                self.0.under(attribute, NOT_ON_THE_TYPE);
            }
        }
    }

    let borrowed: Vec<_> = input.generics.lifetimes().collect();
    for lifetime in &borrowed {
        errors.under(lifetime, BORROWS);
    }
    Inner(errors).visit_data(&input.data);
    if let Data::Union(data) = &input.data {
        errors.under(data.union_token, UNION);
        return false;
    }
    borrowed.is_empty()
}

/// Output:
/// ```text
/// impl Effect for EmailReceipt {
///     const NAME: &'static str = "receipt.email";
///     fn order_key(&self) -> Option<String> {
///         Template::new("receipt.email", "order", "").order(&self.invoice).order_key()
///     }
/// }
/// ```
/// The type's name has the author's place: there rustc says what the type lacks.
fn implementation(input: &DeriveInput, krate: &Path, name: &str, order: Option<&Template>) -> TokenStream {
    let private = quote!(#krate::__private);
    let order_key = order.map(|template| {
        let this = |_: &str, span| Token![self](span).to_token_stream();
        let text = template.expand(name, this, &private);
        quote! {
            fn order_key(&self) -> #private::Option<#private::String> {
                #text
            }
        }
    });
    let ident = &input.ident;
    let generics = bounded(input, &private);
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    quote! {
        #[automatically_derived]
        impl #impl_generics #krate::Effect for #ident #ty_generics #where_clause {
            const NAME: &'static #private::Str = #name;
            #order_key
        }
    }
}

/// Input: `<T, M>`, where a field has the type `T` and none but a `PhantomData` mentions `M`.
/// Output: `T: Payload, M: Send + Sync + 'static`, where a `Payload` is `Serialize` and `DeserializeOwned` too: the same
/// choice as that of serde's derives, so that rustc can prove that the whole type is what an effect must be.
fn bounded(input: &DeriveInput, private: &TokenStream) -> Generics {
    let mut generics = input.generics.clone();
    let mut stored = Stored { generics: &input.generics, types: Vec::new() };
    stored.visit_data(&input.data);
    for ty in &stored.types {
        generics.make_where_clause().predicates.push(syn::parse_quote!(#ty: #private::Payload));
    }
    for parameter in input.generics.type_params().map(|parameter| &parameter.ident) {
        if !stored.types.iter().any(|ty| ty.path.is_ident(parameter)) {
            generics.make_where_clause().predicates.push(syn::parse_quote! {
                #parameter: #private::Send + #private::Sync + 'static
            });
        }
    }
    generics
}

/// The type parameters that are stored, and what is stored of their associated types (`T::Id`).
struct Stored<'a> {
    generics: &'a Generics,
    types: Vec<&'a TypePath>,
}

impl<'ast> Visit<'ast> for Stored<'ast> {
    fn visit_type_path(&mut self, ty: &'ast TypePath) {
        let (first, last) = (ty.path.segments.first(), ty.path.segments.last());
        if last.is_some_and(|segment| segment.ident == "PhantomData") {
            return;
        }
        let is_parameter =
            |ident: &Ident| self.generics.type_params().any(|parameter| parameter.ident == *ident);
        if ty.qself.is_none() && first.is_some_and(|segment| is_parameter(&segment.ident)) {
            let text = |ty: &TypePath| ty.to_token_stream().to_string();
            if !self.types.iter().any(|known| text(known) == text(ty)) {
                self.types.push(ty);
            }
        }
        visit::visit_type_path(self, ty);
    }
}
