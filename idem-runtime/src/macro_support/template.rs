//! Keys, scopes and order keys from templates. The invariant: two different lists of values never make the same text.

use super::{KeyPart, OrderPart};
use crate::{Error, Scope};

/// Writes a key, a scope or an order key from its template.
#[derive(Debug)]
pub struct Template<'a> {
    operation: &'a str,
    part: &'static str,
    escaped: &'static str,
    text: Result<String, Error>,
}

impl<'a> Template<'a> {
    /// An empty text for `part`; in the values, `%` and the characters in `escaped` are encoded, if there are any.
    pub fn new(operation: &'a str, part: &'static str, escaped: &'static str) -> Self {
        Self { operation, part, escaped, text: Ok(String::new()) }
    }

    /// Text between two placeholders.
    #[must_use]
    pub fn literal(mut self, literal: &str) -> Self {
        if let Ok(text) = &mut self.text {
            text.push_str(literal);
        }
        self
    }

    /// A placeholder in a key.
    #[must_use]
    pub fn key<M>(self, value: &(impl KeyPart<M> + ?Sized)) -> Self {
        self.value(&value.text())
    }

    /// A placeholder in a scope.
    #[must_use]
    pub fn scope(self, value: &(impl Scope + ?Sized)) -> Self {
        self.value(&value.scope())
    }

    /// A placeholder in an order key. An empty value is one like any other: a key that some messages lack would make
    /// strangers the same, but effects that share a line are no more than sent one after the other.
    #[must_use]
    pub fn order<M>(mut self, value: &(impl OrderPart<M> + ?Sized)) -> Self {
        self.push(&value.text());
        self
    }

    /// The whole text of an order key, which nothing can be wrong with.
    pub fn order_key(self) -> Option<String> {
        self.text.ok()
    }

    /// The whole text.
    pub fn finish(self) -> Result<String, Error> {
        self.text
    }

    fn value(mut self, value: &str) -> Self {
        if value.is_empty() && self.text.is_ok() {
            let (operation, part) = (self.operation.to_owned(), self.part);
            let reason = "a placeholder of its template is empty".to_owned();
            self.text = Err(Error::InvalidIdentity { operation, part, reason });
        }
        self.push(value);
        self
    }

    fn push(&mut self, value: &str) {
        match &mut self.text {
            Ok(text) if self.escaped.is_empty() => text.push_str(value),
            Ok(text) => encode_value(text, value, self.escaped),
            Err(_) => {}
        }
    }
}

/// Percent-encodes `%` and every character of `escaped`, so that no encoded value holds what separates two values.
fn encode_value(text: &mut String, value: &str, escaped: &str) {
    for c in value.chars() {
        if c == '%' || escaped.contains(c) {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                text.push_str(&format!("%{byte:02X}"));
            }
        } else {
            text.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verified;

    fn key_of(values: [&str; 2], escaped: &'static str, between: &str) -> Result<String, Error> {
        Template::new("op", "key", escaped).key(values[0]).literal(between).key(values[1]).finish()
    }

    #[test]
    fn different_values_never_make_the_same_key() {
        let values =
            ["a", "b", "/", "%", "%2F", "2F", "a/b", "a/", "/b", "é", "%C3", "éé", "2", "5", "25", "%25"];
        for (escaped, between) in [("/", "/"), ("é", "é"), ("2", "2"), ("25", "25"), ("%/F", "/F")] {
            let mut seen = std::collections::HashMap::new();
            for pair in values.iter().flat_map(|a| values.iter().map(move |b| [*a, *b])) {
                let text = key_of(pair, escaped, between).expect("no part is empty");
                if let Some(other) = seen.insert(text.clone(), pair) {
                    panic!("{other:?} and {pair:?} are both {text}");
                }
            }
        }
    }

    #[test]
    fn different_values_never_make_the_same_order_key_nor_does_an_empty_one() {
        let values = ["", "a", "/", "//", "%", "%2F", "2F", "a/", "/a", "F", "%252F"];
        for (escaped, between) in [("/", "/"), ("2F", "2F"), ("/", "//")] {
            let mut seen = std::collections::HashMap::new();
            for (a, b) in values.iter().flat_map(|a| values.iter().map(move |b| (*a, *b))) {
                let template = Template::new("effect", "order", escaped);
                let text = template.order(a).literal(between).order(b).order_key().expect("a key");
                if let Some(other) = seen.insert(text.clone(), (a, b)) {
                    panic!("{other:?} and {:?} are both {text}", (a, b));
                }
            }
        }
        assert_eq!(Template::new("effect", "order", "").order("").order_key().as_deref(), Some(""));
    }

    #[test]
    fn what_separates_is_encoded_and_nothing_else_is() {
        assert_eq!(key_of(["a/b", "ü c"], "/", "/").expect("valid"), "a%2Fb/ü c");
        assert_eq!(key_of(["100%", "é"], "é", "é").expect("valid"), "100%25é%C3%A9");
        let single = Template::new("op", "key", "").literal("x/").key("a/b%").finish();
        assert_eq!(single.expect("valid"), "x/a/b%");
    }

    #[test]
    fn an_empty_placeholder_is_refused() {
        for pair in [["", "b"], ["a", ""]] {
            let error = key_of(pair, "/", "/").expect_err("must be refused");
            assert!(matches!(error, Error::InvalidIdentity { part: "key", .. }));
        }
        let scope = Template::new("op", "scope", "").literal("x/").scope(&Verified::vouch("")).finish();
        assert!(matches!(scope, Err(Error::InvalidIdentity { part: "scope", .. })));
    }
}
