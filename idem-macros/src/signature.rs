//! The annotated function, and what is read from its signature: the transaction parameter, the names that the options
//! may use, and the return type. The signature is kept whole, and exactly two places in it change.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::visit::{self, Visit};
use syn::{
    Attribute, FnArg, GenericArgument, GenericParam, Ident, Lifetime, Pat, PatIdent, PathArguments,
    ReturnType, Token, Type, TypeImplTrait, TypeReference, Visibility, token,
};

use crate::errors::{Errors, did_you_mean};
use crate::expand::at;

/// The function as it was written; the body stays unread.
#[derive(Clone)]
pub(crate) struct Function {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) defaultness: Option<Token![default]>,
    pub(crate) sig: syn::Signature,
    pub(crate) brace: token::Brace,
    pub(crate) body: TokenStream,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        let defaultness = if input.peek(Token![default]) { Some(input.parse()?) } else { None };
        let sig: syn::Signature = input.parse().map_err(|e| {
            syn::Error::new(e.span(), "`#[idempotent]` is for async functions: put it on one")
        })?;
        if input.peek(Token![;]) {
            return Err(syn::Error::new_spanned(
                &sig.ident,
                "a trait declares the generated signature, with `store: &dyn Store<Tx = ..>` and `Result<Outcome<..>, ..>`: put `#[idempotent]` on the function in the impl",
            ));
        }
        let content;
        let brace = syn::braced!(content in input);
        for mut inner in content.call(Attribute::parse_inner)? {
            inner.style = syn::AttrStyle::Outer;
            attrs.push(inner);
        }
        Ok(Self { attrs, vis, defaultness, sig, brace, body: content.parse()? })
    }
}

/// What the macro needs to know of the signature.
pub(crate) struct Signature {
    pub(crate) receiver: Option<Token![self]>,
    /// Whether `#[async_trait]` has rewritten the function, which has been reported.
    pub(crate) rewritten: bool,
    /// Whether the return type borrows, which has been reported.
    pub(crate) borrows: bool,
    /// `None` if it is not as it must be, which has been reported.
    pub(crate) tx: Option<Tx>,
    /// All names that the other parameters bind.
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) type_parameters: Vec<Ident>,
    /// `None` if it is not as it must be, which has been reported.
    pub(crate) output: Option<Output>,
}

/// `tx: &mut T`.
pub(crate) struct Tx {
    /// Its place among the parameters.
    pub(crate) position: usize,
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) mutability: Option<Token![mut]>,
    pub(crate) ident: Ident,
    pub(crate) ty: Type,
}

/// A name that a parameter binds.
pub(crate) struct Parameter {
    pub(crate) ident: Ident,
    /// Its type, where the parameter is nothing but this name.
    pub(crate) ty: Option<Type>,
}

/// The return type.
pub(crate) struct Output {
    pub(crate) ty: Type,
    /// Whether the last segment of its path is `Result` with a type argument, which is then wrapped by syntax.
    pub(crate) is_result: bool,
}

impl Signature {
    pub(crate) fn read(sig: &syn::Signature, errors: &mut Errors) -> Self {
        let receiver = sig.receiver().map(|receiver| receiver.self_token);
        let rewritten = is_rewritten(sig);
        if rewritten {
            errors.under(&sig.ident, ASYNC_TRAIT);
        } else if sig.asyncness.is_none() {
            errors.under(sig.fn_token, "a handler is async: write `async fn`");
        }
        let position = usize::from(receiver.is_some());
        let mut parameters = Parameters::default();
        for input in sig.inputs.iter().skip(position + 1) {
            parameters.add(input);
        }
        let borrows = match &sig.output {
            ReturnType::Type(_, ty) if !rewritten => find(ty).borrowed.is_some(),
            _ => false,
        };
        Self {
            receiver,
            rewritten,
            borrows,
            tx: if rewritten { None } else { tx(sig, position, errors) },
            parameters: parameters.0,
            type_parameters: sig.generics.type_params().map(|parameter| parameter.ident.clone()).collect(),
            output: if rewritten { None } else { output(sig, errors) },
        }
    }

    pub(crate) fn parameter(&self, name: &str) -> Option<&Parameter> {
        let plain = name.trim_start_matches("r#");
        self.parameters.iter().find(|parameter| parameter.ident.unraw() == plain)
    }

    /// What to say about a name that is no parameter.
    pub(crate) fn no_parameter(&self, name: &str) -> String {
        let names: Vec<String> =
            self.parameters.iter().map(|parameter| parameter.ident.to_string()).collect();
        let mut hint = did_you_mean(name, names.iter().map(String::as_str));
        if hint.is_empty() && !names.is_empty() {
            hint = format!("; there are `{}`", names.join("`, `"));
        }
        format!("there is no parameter `{name}`{hint}")
    }

    /// The parameter `name` (or `self`) as an expression that resolves as the parameter does, located at `span`.
    pub(crate) fn resolve(&self, name: &str, span: Span) -> TokenStream {
        match (self.receiver, self.parameter(name)) {
            (Some(receiver), _) if name == "self" => {
                let receiver = Token![self](receiver.span.located_at(span));
                quote!(#receiver)
            }
            (_, Some(parameter)) => {
                let mut ident = parameter.ident.clone();
                ident.set_span(ident.span().located_at(span));
                quote!(#ident)
            }
            _ => TokenStream::new(),
        }
    }
}

const ASYNC_TRAIT: &str = "`#[async_trait]` has already rewritten this function: put `#[idempotent]` on an inherent method or a free function, and call it here";

/// Whether `#[async_trait]` came first, which leaves a lifetime of its name.
fn is_rewritten(sig: &syn::Signature) -> bool {
    let ours = |parameter: &GenericParam| matches!(parameter, GenericParam::Lifetime(lifetime) if lifetime.lifetime.ident == "async_trait");
    sig.generics.params.iter().any(ours)
}

fn tx(sig: &syn::Signature, position: usize, errors: &mut Errors) -> Option<Tx> {
    const EXPECTED: &str =
        "the first parameter of a handler is its transaction: write `tx: &mut PgTx` or `tx: &mut SqliteTx`";
    let Some(FnArg::Typed(parameter)) = sig.inputs.get(position) else {
        errors.at(sig.paren_token.span.join(), EXPECTED);
        return None;
    };
    let Type::Reference(TypeReference { lifetime, mutability: Some(_), elem, .. }) = ungroup(&parameter.ty)
    else {
        errors.under(parameter, EXPECTED);
        return None;
    };
    if let Some(lifetime) = lifetime.as_ref().filter(|lifetime| lifetime.ident != "_") {
        errors.under(
            lifetime,
            "the transaction lives for one run only: remove the lifetime here and where it is declared, `tx: &mut T`",
        );
        return None;
    }
    if let Some(hidden) = find(elem).hidden {
        errors.under(
            hidden,
            "name the type of the transaction, or a type parameter: `<T: Transaction>`, `tx: &mut T`",
        );
        return None;
    }
    match &*parameter.pat {
        Pat::Ident(PatIdent { by_ref: None, subpat: None, mutability, ident, .. }) => Some(Tx {
            position,
            attrs: parameter.attrs.clone(),
            mutability: *mutability,
            ident: ident.clone(),
            ty: (**elem).clone(),
        }),
        pattern => {
            errors.under(
                pattern,
                "the transaction is a plain name: write `tx`, or `_tx` where the body does not use it",
            );
            None
        }
    }
}

fn output(sig: &syn::Signature, errors: &mut Errors) -> Option<Output> {
    let ReturnType::Type(_, ty) = &sig.output else {
        let span = sig.paren_token.span.close();
        errors.at(
            span,
            "a handler returns a `Result`: write `-> Result<(), E>`, where `E: From<idem_runtime::Error>`",
        );
        return None;
    };
    let found = find(ty);
    if let Some(hidden) = found.hidden {
        errors.under(
            hidden,
            "an outcome is stored and read back, so its type must be named: write it out, or box an error",
        );
        return None;
    }
    if let Some(borrowed) = found.borrowed {
        errors.under(borrowed, "an outcome is stored and read back, so it borrows nothing: return an owned value, such as `String`");
        return None;
    }
    if let Type::Path(path) = ungroup(ty) {
        let names: Vec<String> = path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.ends_with(&["sqlx".to_owned(), "Result".to_owned()]) {
            errors.under(ty, SQLX_RESULT);
            return None;
        }
    }
    let output = Output::read(ty);
    if output.is_none() {
        errors.under(
            ty,
            "a handler returns a `Result`: write `Result<_, E>`, where `E: From<idem_runtime::Error>`",
        );
    }
    output
}

const SQLX_RESULT: &str = "`sqlx::Error` cannot hold the errors of the store: return `Result<_, E>` with an error type of your own that is `From<sqlx::Error>` and `From<idem_runtime::Error>`, or `anyhow::Result<_>`";

fn first_type(arguments: &PathArguments) -> Option<usize> {
    let PathArguments::AngleBracketed(arguments) = arguments else { return None };
    arguments.args.iter().position(|argument| matches!(argument, GenericArgument::Type(_)))
}

impl Output {
    /// `None` for what cannot be a `Result` by any name, such as a tuple.
    pub(crate) fn read(ty: &Type) -> Option<Self> {
        let is_result = match ungroup(ty) {
            Type::Path(path) => {
                let last = path.path.segments.last()?;
                last.ident == "Result" && first_type(&last.arguments).is_some()
            }
            Type::Macro(_) => false,
            _ => return None,
        };
        Some(Self { ty: ty.clone(), is_result })
    }

    /// Input: `Result<V, E>`. Output: `Result<Outcome<V>, E>`; for every other type `<R as HandlerResult>::Wrapped`.
    pub(crate) fn wrapped(&self, krate: &syn::Path) -> Type {
        let ty = &self.ty;
        let projection =
            || Type::Verbatim(quote_spanned!(at(ty)=> <#ty as #krate::__private::HandlerResult>::Wrapped));
        if !self.is_result {
            return projection();
        }
        let mut wrapped = ungroup(ty).clone();
        let Type::Path(path) = &mut wrapped else { return projection() };
        let Some(last) = path.path.segments.last_mut() else { return projection() };
        let first = first_type(&last.arguments);
        let (PathArguments::AngleBracketed(arguments), Some(first)) = (&mut last.arguments, first) else {
            return projection();
        };
        if let Some(GenericArgument::Type(value)) = arguments.args.get_mut(first) {
            *value = Type::Verbatim(quote!(#krate::Outcome<#value>));
        }
        wrapped
    }
}

/// A type without the invisible groups that `macro_rules!` fragments arrive in.
fn ungroup(mut ty: &Type) -> &Type {
    while let Type::Group(group) = ty {
        ty = &group.elem;
    }
    ty
}

/// The first borrow and the first `impl Trait` in a type.
#[derive(Default)]
struct Found {
    borrowed: Option<TokenStream>,
    hidden: Option<TokenStream>,
}

fn find(ty: &Type) -> Found {
    let mut found = Found::default();
    found.visit_type(ty);
    found
}

impl<'ast> Visit<'ast> for Found {
    fn visit_type_reference(&mut self, reference: &'ast TypeReference) {
        match &reference.lifetime {
            Some(lifetime) if lifetime.ident == "static" => {}
            _ => {
                self.borrowed.get_or_insert_with(|| quote!(#reference));
            }
        }
        visit::visit_type_reference(self, reference);
    }

    fn visit_lifetime(&mut self, lifetime: &'ast Lifetime) {
        if lifetime.ident != "static" {
            self.borrowed.get_or_insert_with(|| quote!(#lifetime));
        }
    }

    fn visit_type_impl_trait(&mut self, hidden: &'ast TypeImplTrait) {
        self.hidden.get_or_insert_with(|| quote!(#hidden));
    }

    // What a function type or a trait object mentions is not part of a value.
    fn visit_type_fn_ptr(&mut self, _: &'ast syn::TypeFnPtr) {}
}

/// Collects what patterns bind.
#[derive(Default)]
struct Parameters(Vec<Parameter>);

impl Parameters {
    fn add(&mut self, input: &FnArg) {
        let FnArg::Typed(parameter) = input else { return };
        match &*parameter.pat {
            Pat::Ident(PatIdent { subpat: None, ident, .. }) => {
                self.0.push(Parameter { ident: ident.clone(), ty: Some((*parameter.ty).clone()) });
            }
            pattern => self.visit_pat(pattern),
        }
    }
}

impl<'ast> Visit<'ast> for Parameters {
    fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
        self.0.push(Parameter { ident: pattern.ident.clone(), ty: None });
        visit::visit_pat_ident(self, pattern);
    }
}
