//! The options of the attribute as they were written, each with what its value must look like by itself.

use syn::parse::{Parse, ParseStream, Parser};
use syn::{Expr, Ident, Lit, LitStr, Path};

use crate::duration::Kept;
use crate::errors::Errors;
use crate::fingerprint::Fingerprint;
use crate::options::{self, recover, string, value, word};
use crate::slot::Slot;
use crate::template::{Part, Template};

/// The options, each in its slot.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) operation: Slot<LitStr>,
    pub(crate) key: Slot<Key>,
    pub(crate) scope: Slot<Scope>,
    pub(crate) fingerprint: Slot<Fingerprint>,
    pub(crate) retain: Slot<Kept>,
    pub(crate) remember: Slot<Kept>,
    pub(crate) occurred_at: Slot<Expr>,
    pub(crate) older: Slot<Older>,
    pub(crate) concurrent: Slot<Concurrent>,
    pub(crate) krate: Slot<Path>,
}

const NAMES: [&str; 10] = [
    "key",
    "scope",
    "fingerprint",
    "operation",
    "retain",
    "remember",
    "occurred_at",
    "older",
    "concurrent",
    "crate",
];

/// `key = ..`.
pub(crate) enum Key {
    Expression(Expr),
    Template(Template),
}

/// `scope = ..`.
pub(crate) enum Scope {
    Expression(Expr),
    Template(Template),
    Constant(LitStr),
    Global,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Older {
    Refuse,
    Run,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Concurrent {
    Wait,
    Reject,
}

impl Args {
    pub(crate) fn parse(tokens: proc_macro2::TokenStream, errors: &mut Errors) -> Self {
        let mut args = Self::default();
        let parser = |input: ParseStream<'_>| {
            options::read(input, &NAMES, errors, |name, input, errors| args.option(name, input, errors));
            Ok(())
        };
        // The closure reports its errors itself and never returns one.
        let _: syn::Result<()> = parser.parse2(tokens);
        args
    }

    /// Where the runtime is.
    pub(crate) fn krate(&self) -> Path {
        self.krate.as_ref().cloned().unwrap_or_else(|| syn::parse_quote!(::idem_runtime))
    }

    /// Reads the value of the option `name`, if there is one of that name.
    fn option(&mut self, name: &Ident, input: ParseStream<'_>, errors: &mut Errors) -> bool {
        match name.to_string().as_str() {
            "operation" => self.operation.set(name, value(name, input, operation), errors),
            "key" => self.key.set(name, value(name, input, Key::parse), errors),
            "scope" => self.scope.set(name, value(name, input, Scope::parse), errors),
            "fingerprint" => self.fingerprint.set(name, recover(input, Fingerprint::parse), errors),
            "retain" => self.retain.set(name, value(name, input, Kept::parse), errors),
            "remember" => self.remember.set(name, value(name, input, Kept::parse), errors),
            "occurred_at" => self.occurred_at.set(name, value(name, input, Expr::parse), errors),
            "older" => self.older.set(
                name,
                value(name, input, |i| word(i, [("refuse", Older::Refuse), ("run", Older::Run)])),
                errors,
            ),
            "concurrent" => self.concurrent.set(
                name,
                value(name, input, |i| word(i, [("wait", Concurrent::Wait), ("reject", Concurrent::Reject)])),
                errors,
            ),
            "crate" => self.krate.set(name, value(name, input, Path::parse_mod_style), errors),
            _ => return false,
        }
        true
    }
}

fn operation(input: ParseStream<'_>) -> syn::Result<LitStr> {
    let name = string(input, "the operation is a fixed name, such as \"invoice.approve\"")?;
    let text = name.value();
    let problem = match text.len() {
        0 => "the operation is empty: name the effect, such as \"invoice.approve\"".to_owned(),
        1..=128 if !text.contains('\0') => return Ok(name),
        1..=128 => "the operation holds a NUL character".to_owned(),
        length => format!("the operation has {length} bytes, and 128 is the limit"),
    };
    Err(syn::Error::new(name.span(), problem))
}

impl Parse for Key {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        match text_or_expression(input)? {
            Ok(literal) => Template::new(literal, Part::Key).map(Self::Template),
            Err(expression) => Ok(Self::Expression(expression)),
        }
    }
}

impl Parse for Scope {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if input.peek(Ident) && input.peek2(syn::token::Paren) && input.fork().parse::<Ident>()? == "constant"
        {
            return constant(input);
        }
        match text_or_expression(input)? {
            Ok(literal) => Template::new(literal, Part::Scope).map(Self::Template),
            Err(Expr::Path(path)) if path.path.is_ident("global") => Ok(Self::Global),
            Err(expression) => Ok(Self::Expression(expression)),
        }
    }
}

/// Reads `constant("billing")`.
fn constant(input: ParseStream<'_>) -> syn::Result<Scope> {
    input.parse::<Ident>()?;
    let content;
    syn::parenthesized!(content in input);
    let text = string(&content, "a constant scope is a fixed text, `constant(\"billing\")`")?;
    if !content.is_empty() {
        return Err(content.error("a constant scope is one string"));
    }
    match text.value().len() {
        0 => Err(syn::Error::new(
            text.span(),
            "a constant scope is not empty: name it, `constant(\"billing\")`",
        )),
        1..=256 => Ok(Scope::Constant(text)),
        length => {
            Err(syn::Error::new(text.span(), format!("the scope has {length} bytes, and 256 is the limit")))
        }
    }
}

/// A string literal is a template, everything else an expression. A `macro_rules!` fragment arrives in a group that
/// cannot be seen.
pub(crate) fn text_or_expression(input: ParseStream<'_>) -> syn::Result<Result<LitStr, Expr>> {
    let mut expression: Expr = input.parse()?;
    while let Expr::Group(group) = expression {
        expression = *group.expr;
    }
    match expression {
        Expr::Lit(syn::ExprLit { lit: Lit::Str(literal), .. }) => Ok(Ok(literal)),
        other => Ok(Err(other)),
    }
}
