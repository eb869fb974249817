//! The URL of a question, with a place for a key or a reference. The invariant: whatever the value is, it stays a part
//! of the path or of the query where the template has it; it can name another thing, and never another kind of thing.

use std::cmp::Ordering;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Url;

use super::HttpProviderError;
use super::target::target;

/// All but what RFC 3986 calls unreserved.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

const PLACE: &str = "the placeholder may stand in the path and in the query only, without `..` behind it";

#[derive(Clone, Debug)]
pub(super) struct Template {
    /// The URL in normal form, with `mark` where the value stands.
    text: String,
    mark: String,
}

impl Template {
    pub(super) fn parse(
        text: &str,
        placeholder: &'static str,
        allow_private: bool,
    ) -> Result<Self, HttpProviderError> {
        let wrong = |reason| HttpProviderError::Template { placeholder, reason };
        if !text.contains(placeholder) {
            return Err(wrong("the placeholder is not in it"));
        }
        if text.replace(placeholder, "").contains(['{', '}']) {
            return Err(wrong("there is another placeholder in it"));
        }
        // A harmless value that is nowhere else in the normal form, and another one, to see which parts it changes.
        // No end of the mark is its beginning, so what stands around it cannot be taken for a part of it.
        let times = text.matches(placeholder).count();
        let (mut model, mut mark, mut number);
        number = 0;
        loop {
            mark = format!("k{number}");
            model = target(&text.replace(placeholder, &mark), allow_private)?;
            match model.as_str().matches(&mark).count().cmp(&times) {
                Ordering::Equal => break,
                Ordering::Greater => number += 1,
                // Dots behind it take it out.
                Ordering::Less => return Err(wrong(PLACE)),
            }
        }
        let other = target(&text.replace(placeholder, "y"), allow_private)?;
        if model.origin() != other.origin() || model.fragment() != other.fragment() {
            return Err(wrong(PLACE));
        }
        Ok(Self { text: model.into(), mark })
    }

    /// With this value; `None` if it would make another path of it (it is empty, or dots that lead upwards).
    pub(super) fn with(&self, value: &str) -> Option<Url> {
        if value.is_empty() {
            return None;
        }
        let encoded = utf8_percent_encode(value, RESERVED).to_string();
        let text = self.text.replace(&self.mark, &encoded);
        let url = Url::parse(&text).ok()?;
        // A URL in normal form is what it was; dots as a segment are taken out by the parser.
        (url.as_str() == text).then_some(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_where_the_template_has_it() {
        let template =
            Template::parse("https://a.example/v1/pay/{key}/state?k={key}", "{key}", false).expect("valid");
        let with = |value| template.with(value).map(String::from);
        assert_eq!(
            with("a/b?c=d&e#f%2F é").as_deref(),
            Some(
                "https://a.example/v1/pay/a%2Fb%3Fc%3Dd%26e%23f%252F%20%C3%A9/state\
                 ?k=a%2Fb%3Fc%3Dd%26e%23f%252F%20%C3%A9"
            )
        );
        assert_eq!(
            with("@evil.example").as_deref().map(|url| url.starts_with("https://a.example/")),
            Some(true)
        );
        for value in ["", ".", ".."] {
            assert_eq!(with(value), None, "{value:?}");
        }
        assert!(with("...").is_some() && with("a..b").is_some());
        assert!(with("%2e%2e").is_some_and(|url| url.contains("/%252e%252e/")));
    }

    #[test]
    fn dots_around_a_placeholder_do_not_make_a_path_of_dots() {
        let template = Template::parse("https://a.example/x/.{key}", "{key}", false).expect("valid");
        assert_eq!(template.with("."), None);
        assert!(template.with("a").is_some());
        // The host is lower case in the normal form.
        let host = Template::parse("https://K0.example/k1{key}k0?{key}", "{key}", false).expect("valid");
        assert_eq!(host.with("v").map(String::from).as_deref(), Some("https://k0.example/k1vk0?v"));
        let last = Template::parse("HTTPS://A.example:443/xx/x/{key}", "{key}", false).expect("valid");
        assert_eq!(last.with("k").map(String::from).as_deref(), Some("https://a.example/xx/x/k"));
        assert_eq!((last.with("."), last.with("..")), (None, None));
    }

    #[test]
    fn a_placeholder_is_in_the_path_or_in_the_query() {
        for wrong in [
            "https://a.example/x",
            "https://{key}.example/x",
            "https://a.example:8{key}/x",
            "https://a.example/x#{key}",
            "https://a.example/{key}/{reference}",
            "https://a.example/{key}{",
            "https://a.example/{key}/../x",
        ] {
            let refused = Template::parse(wrong, "{key}", false);
            assert!(
                matches!(refused, Err(HttpProviderError::Template { .. } | HttpProviderError::Url { .. })),
                "{wrong}: {refused:?}"
            );
        }
        assert!(matches!(
            Template::parse("http://127.0.0.1/{key}", "{key}", false),
            Err(HttpProviderError::Target { .. })
        ));
        assert!(matches!(
            Template::parse("https://{key}@a.example/", "{key}", false),
            Err(HttpProviderError::Credentials)
        ));
    }
}
