//! Templates such as `"{event.source}/{event.id}"`. The invariant: two different lists of values never make the same
//! text, so every form that could break it is refused here, and the runtime encodes what separates the values.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{Ident, Index, LitStr, Member};

use crate::errors::Errors;
use crate::expand::at;
use crate::signature::Signature;

/// A parsed template, with the literal that rustc can point at.
pub(crate) struct Template {
    part: Part,
    literal: LitStr,
    pieces: Vec<Piece>,
}

#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Literal(String),
    /// Root and members, as written: at least one.
    Placeholder(Vec<String>),
}

/// What a placeholder stands for, which decides about the trait that it must implement.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Key,
    Scope,
    /// The order key of an effect: its placeholders are fields of `self`.
    Order,
}

impl Part {
    /// The option, and the method of the runtime's template that takes a value.
    fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Scope => "scope",
            Self::Order => "order",
        }
    }

    /// What it is called in a message.
    fn noun(self) -> &'static str {
        match self {
            Self::Key | Self::Scope => self.name(),
            Self::Order => "order key",
        }
    }

    /// The method of the runtime's template that gives the whole text.
    fn finish(self) -> &'static str {
        match self {
            Self::Key | Self::Scope => "finish",
            Self::Order => "order_key",
        }
    }

    /// What to do where a template does not reach.
    pub(crate) fn instead(self, expression: &str) -> String {
        match self {
            Self::Key | Self::Scope => format!("write an expression: `{} = {expression}`", self.name()),
            Self::Order => "write `impl Effect`, and the order key in its `order_key`".to_owned(),
        }
    }
}

impl Template {
    pub(crate) fn new(literal: LitStr, part: Part) -> syn::Result<Self> {
        match parse(&literal.value(), part) {
            Ok(pieces) => Ok(Self { part, literal, pieces }),
            Err(message) => Err(syn::Error::new(literal.span(), message)),
        }
    }

    fn placeholders(&self) -> impl Iterator<Item = &[String]> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Placeholder(path) => Some(path.as_slice()),
            Piece::Literal(_) => None,
        })
    }

    /// Every root must be a parameter.
    pub(crate) fn check(&self, signature: &Signature, errors: &mut Errors) {
        for path in self.placeholders() {
            let root = &path[0];
            if root == "self" {
                if signature.receiver.is_none() {
                    errors.at(
                        self.literal.span(),
                        format!("`{{{}}}`: this function has no `self`", path.join(".")),
                    );
                }
            } else if signature.tx.as_ref().is_some_and(|tx| tx.ident == root.as_str()) {
                errors.at(
                    self.literal.span(),
                    format!("`{root}` is opened later: the options see the other parameters"),
                );
            } else if signature.parameter(root).is_none() {
                errors.at(self.literal.span(), signature.no_parameter(root));
            }
        }
    }

    /// Every root must be `self`, which has no fields if it is an enum.
    pub(crate) fn check_self(&self, is_enum: bool, errors: &mut Errors) {
        for path in self.placeholders() {
            let placeholder = path.join(".");
            if path[0] != "self" {
                errors.at(
                    self.literal.span(),
                    format!("`{{{placeholder}}}` does not begin with `self`: the template sees the fields of the effect, `{{self.{placeholder}}}`"),
                );
            } else if path.len() > 1 && is_enum {
                errors.at(
                    self.literal.span(),
                    format!(
                        "`{{{placeholder}}}`: an enum has no field that all its variants share; {}",
                        self.part.instead("..")
                    ),
                );
            }
        }
    }

    /// Input: `"{event.source}/{event.id}"`.
    /// Output: `Template::new("op", "key", "/").key(&event.source).literal("/").key(&event.id).finish()`, where the
    /// third argument holds what is to be encoded in the values: nothing, if there is but one. `root` is what a root
    /// resolves to.
    pub(crate) fn expand(
        &self,
        operation: &str,
        root: impl Fn(&str, Span) -> TokenStream,
        private: &TokenStream,
    ) -> TokenStream {
        let escaped = self.escaped();
        let name = self.part.name();
        let finish = Ident::new(self.part.finish(), Span::call_site());
        let steps = self.pieces.iter().map(|piece| match piece {
            Piece::Literal(text) => quote!(.literal(#text)),
            Piece::Placeholder(path) => {
                let value = self.value(path, &root);
                let method = Ident::new(name, self.span());
                let ampersand = syn::Token![&](self.span());
                quote!(.#method(#ampersand #value))
            }
        });
        quote!(#private::Template::new(#operation, #name, #escaped) #(#steps)* .#finish())
    }

    /// With several values, everything that separates them is encoded inside them.
    fn escaped(&self) -> String {
        if self.placeholders().count() < 2 {
            return String::new();
        }
        let mut escaped = String::new();
        for piece in &self.pieces {
            let Piece::Literal(text) = piece else { continue };
            for c in text.chars() {
                if !escaped.contains(c) {
                    escaped.push(c);
                }
            }
        }
        escaped
    }

    /// Where rustc points: at the literal, for which it then offers no replacement.
    fn span(&self) -> Span {
        at(&self.literal)
    }

    /// Input: `event.source`. Output: the same as an expression, whose root resolves as the parameter does.
    fn value(&self, path: &[String], root: impl Fn(&str, Span) -> TokenStream) -> TokenStream {
        let root = root(&path[0], self.span());
        let members = path[1..].iter().map(|name| match name.parse::<u32>() {
            Ok(index) => Member::Unnamed(Index { index, span: self.span() }),
            Err(_) => Member::Named(ident(name, self.span())),
        });
        quote!(#root #(.#members)*)
    }
}

/// `name` may be a raw identifier.
fn ident(name: &str, span: Span) -> Ident {
    match name.strip_prefix("r#") {
        Some(raw) => Ident::new_raw(raw, span),
        None => Ident::new(name, span),
    }
}

fn parse(text: &str, part: Part) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let literal = &rest[..rest.find(['{', '}']).unwrap_or(rest.len())];
        rest = &rest[literal.len()..];
        if literal.contains('%') {
            return Err(
                "a template has no `%` in its text: it marks encoded characters in the values".to_owned()
            );
        }
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal.to_owned()));
        }
        if rest.starts_with("{{") || rest.starts_with("}}") {
            return Err(format!("a template has no braces in its text; {}", part.instead("format!(..)")));
        }
        if rest.starts_with('}') {
            return Err("`}` without a `{` before it".to_owned());
        }
        let Some(inside) = rest.strip_prefix('{') else { break };
        let Some(end) = inside.find(['{', '}']).filter(|end| inside[*end..].starts_with('}')) else {
            return Err(format!("`{{{inside}` is not closed: a placeholder ends with `}}`"));
        };
        if matches!(pieces.last(), Some(Piece::Placeholder(_))) {
            return Err(format!(
                "nothing stands between two placeholders, so that (\"a\", \"bc\") and (\"ab\", \"c\") would be one {}: separate them, for example by `/`",
                part.noun()
            ));
        }
        pieces.push(Piece::Placeholder(placeholder(&inside[..end], part)?));
        rest = &inside[end + 1..];
    }
    if pieces.iter().any(|piece| matches!(piece, Piece::Placeholder(_))) {
        return Ok(pieces);
    }
    Err(match part {
        Part::Key => {
            "a key without a placeholder would make every call the same one: name a parameter, `key = \"{cmd.id}\"`".to_owned()
        }
        Part::Scope => format!(
            "a scope without a placeholder would put all tenants into one scope: name a parameter, `scope = \"{{caller.tenant}}\"`; if one scope is meant, write `scope = constant({text:?})` or `scope = global`"
        ),
        Part::Order => {
            "an order key without a placeholder would put all effects of this name and scope into one line, each waiting for the one before it: name a field, `order = \"{self.invoice}\"`, or leave `order` away; if one line is meant, write `impl Effect`, and the order key in its `order_key`".to_owned()
        }
    })
}

fn placeholder(inside: &str, part: Part) -> Result<Vec<String>, String> {
    let names = match part {
        Part::Key | Part::Scope => "a parameter or a field of one",
        Part::Order => "a field",
    };
    if inside.trim().is_empty() {
        let example = if part == Part::Order { "self.invoice" } else { "cmd.id" };
        return Err(format!("a placeholder names {names}: `{{{example}}}`"));
    }
    if inside.contains('(') {
        return Err(format!("a placeholder has no calls; {}", part.instead(inside)));
    }
    if let Some((path, _)) = inside.split_once(':').filter(|_| !inside.contains("::")) {
        return Err(format!(
            "a placeholder has no format; leave it away, `{{{path}}}`, or {}",
            part.instead(&format!("format!(\"{{{inside}}}\", ..)"))
        ));
    }
    let path: Vec<String> = inside.split('.').map(str::to_owned).collect();
    for (position, name) in path.iter().enumerate() {
        // The field of a tuple struct without `self` is told from other text, so that its mistake can be named.
        let may_be_index = position > 0 || part == Part::Order;
        let is_index = may_be_index && !name.is_empty() && name.chars().all(|c| c.is_ascii_digit());
        if is_index || name == "self" && position == 0 {
            continue;
        }
        if syn::parse_str::<Ident>(name).is_err() {
            return Err(if syn::parse_str::<Ident>(&format!("r#{name}")).is_ok() {
                format!("`{name}` is a keyword of Rust: write `r#{name}`")
            } else {
                format!("`{{{inside}}}` is not {names}; for anything else {}", part.instead(".."))
            });
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Vec<Piece> {
        parse(text, Part::Key).expect("valid")
    }

    fn refused(text: &str) -> String {
        parse(text, Part::Key).expect_err("must be refused")
    }

    #[test]
    fn placeholders_are_dotted_paths() {
        let path = |text: &str| Piece::Placeholder(text.split('.').map(str::to_owned).collect());
        assert_eq!(pieces("{id}"), [path("id")]);
        assert_eq!(
            pieces("{self.0.r#type}/é/{b.c}"),
            [path("self.0.r#type"), Piece::Literal("/é/".to_owned()), path("b.c")]
        );
    }

    #[test]
    fn what_could_hide_a_mistake_is_refused() {
        assert!(refused("{a").contains("not closed"));
        assert!(refused("{a{b}").contains("not closed"));
        assert!(refused("a}").contains("without a `{`"));
        assert!(refused("{}").contains("names a parameter"));
        assert!(refused("{x:?}").contains("no format"));
        assert!(refused("{x.y()}").contains("`key = x.y()`"));
        assert!(refused("{a}{b}").contains("nothing stands between"));
        assert!(refused("{a}%{b}").contains('%'));
        assert!(refused("{{a}}").contains("format!"));
        assert!(refused("invoice").contains("without a placeholder"));
        assert!(refused("").contains("without a placeholder"));
        assert!(refused("{a.type}").contains("r#type"));
        assert!(refused("{a::b}").contains("expression"));
        assert!(refused("{a..b}").contains("expression"));
        assert!(refused("{0}").contains("expression"));
    }

    #[test]
    fn an_order_key_has_no_expression() {
        let refused = |text: &str| parse(text, Part::Order).expect_err("must be refused");
        for text in ["{self.a()}", "{self.a:?}", "{{self.a}}", "{self.a + 1}", "invoice"] {
            let message = refused(text);
            assert!(message.contains("write `impl Effect`") && !message.contains("expression"), "{message}");
        }
        assert!(refused("{}").contains("names a field"));
    }

    #[test]
    fn an_order_key_begins_with_self() {
        let of = |text: &str| {
            let literal = LitStr::new(text, Span::call_site());
            let (template, mut errors) = (Template::new(literal, Part::Order), Errors::default());
            template.expect("valid").check_self(false, &mut errors);
            errors.to_compile_errors().to_string()
        };
        assert_eq!(of("{self.a}/{self.0.b}/{self}"), "");
        let both = of("{invoice}/{self.a}/{0}");
        assert!(both.contains("`{self.invoice}`") && both.contains("`{self.0}`"), "{both}");
    }
}
