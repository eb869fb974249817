//! What an answer means, by its status. Pure: the tables in the documentation of `HttpProvider` are the two functions
//! here.

use std::time::{Duration, SystemTime};

use percent_encoding::percent_decode_str;
use reqwest::header::{DATE, HeaderMap, LOCATION, RETRY_AFTER};
use reqwest::{StatusCode, Url};

use super::piece::piece;
use crate::BoxError;
use crate::outbox::{Delivery, Reconciled};

/// The wait after a 409 that names none: another request with this key is being worked on.
const CONFLICT: Duration = Duration::from_secs(5);
/// No provider is taken at its word for longer.
const LONGEST_WAIT: Duration = Duration::from_secs(7 * 86_400);
/// What is longer is no name.
const LONGEST_REFERENCE: usize = 1024;

/// Where an answer says what the provider calls the effect.
#[derive(Clone, Debug, Default)]
pub(super) enum ReferenceAt {
    #[default]
    Nowhere,
    /// A JSON pointer into the body.
    Pointer(String),
    /// The last segment of the path of the `Location` header.
    Location,
}

/// How answers are read.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) reference_at: ReferenceAt,
    pub(super) ask_after: Duration,
    pub(super) hide_answers: bool,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// As much of it as was read.
    pub(super) body: Vec<u8>,
    pub(super) read: Read,
    /// Where it came from.
    pub(super) url: Url,
}

/// How the reading of a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Whole,
    OverLimit,
    /// The connection or the time ended before.
    Broken,
}

impl Answer {
    /// What became of the effect that was sent as `request`.
    pub(super) fn delivery(&self, request: &[u8], reading: &Reading) -> Delivery {
        let error = || self.error(request, reading);
        let retry_after = self.retry_after(SystemTime::now());
        match self.status.as_u16() {
            202 => Delivery::Accepted {
                reference: self.reference(&reading.reference_at),
                ask_after: retry_after.unwrap_or(reading.ask_after),
            },
            200..=299 => Delivery::Delivered { reference: self.reference(&reading.reference_at) },
            409 => Delivery::Unknown { retry_after: retry_after.or(Some(CONFLICT)), error: error() },
            408 | 500..=599 => Delivery::Unknown { retry_after, error: error() },
            425 | 429 => Delivery::NotSent { retry_after, error: error() },
            401 | 403 | 407 => Delivery::Halt { error: error() },
            404 => Delivery::Review { error: error() },
            400..=499 => Delivery::Rejected { error: error() },
            // A redirect that is not followed, or a status that HTTP does not have.
            _ => Delivery::Review { error: error() },
        }
    }

    /// Whether the effect that was asked for has happened. `known`: what the provider called it before.
    pub(super) fn reconciled(&self, known: Option<&str>, reading: &Reading) -> Reconciled {
        match self.status.as_u16() {
            200 | 201 | 204 => self.happened(known, &reading.reference_at),
            404 | 410 => Reconciled::DidNotHappen,
            202 | 401 | 403 | 407 | 408 | 409 | 425 | 429 | 500..=599 => Reconciled::Unknown,
            // It would be answered so again.
            _ => Reconciled::Unsupported,
        }
    }

    /// A 200 of something else (an empty list, a page for people) must not be taken for the effect. Where it is
    /// configured what the effect looks like, it has to look like it.
    fn happened(&self, known: Option<&str>, at: &ReferenceAt) -> Reconciled {
        let found = self.reference(at);
        match (at, self.read) {
            (ReferenceAt::Pointer(_), Read::Broken) => Reconciled::Unknown,
            (ReferenceAt::Pointer(_), _) if found.is_none() && self.status != StatusCode::NO_CONTENT => {
                Reconciled::Unsupported
            }
            _ => Reconciled::Happened { reference: found.or_else(|| known.map(ToOwned::to_owned)) },
        }
    }

    /// What the provider calls the effect: a text or an integer that can be stored and put into a URL.
    fn reference(&self, at: &ReferenceAt) -> Option<String> {
        let found = match at {
            ReferenceAt::Nowhere => return None,
            ReferenceAt::Pointer(pointer) => {
                let body: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
                match body.pointer(pointer)? {
                    serde_json::Value::String(text) => text.clone(),
                    // A larger one has been rounded.
                    serde_json::Value::Number(number) if number.is_i64() || number.is_u64() => {
                        number.to_string()
                    }
                    _ => return None,
                }
            }
            ReferenceAt::Location => {
                let location = self.url.join(self.headers.get(LOCATION)?.to_str().ok()?).ok()?;
                let last = location.path_segments()?.rfind(|segment| !segment.is_empty())?;
                percent_decode_str(last).decode_utf8().ok()?.into_owned()
            }
        };
        let is_name =
            !found.is_empty() && found.len() <= LONGEST_REFERENCE && !found.contains(char::is_control);
        is_name.then_some(found)
    }

    /// `Retry-After`, in seconds or as a date. A date counts from the answer's own `Date`, since the clocks may differ.
    fn retry_after(&self, now: SystemTime) -> Option<Duration> {
        let text = |name| self.headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
        let wait = text(RETRY_AFTER)?;
        let wait = if !wait.is_empty() && wait.bytes().all(|byte| byte.is_ascii_digit()) {
            wait.parse().map_or(LONGEST_WAIT, Duration::from_secs)
        } else {
            let until = httpdate::parse_http_date(wait).ok()?;
            let from = text(DATE).and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now);
            until.duration_since(from).unwrap_or_default()
        };
        Some(wait.min(LONGEST_WAIT))
    }

    fn error(&self, request: &[u8], reading: &Reading) -> BoxError {
        let piece = if reading.hide_answers { String::new() } else { piece(&self.body, request) };
        let separator = if piece.is_empty() { "" } else { ": " };
        format!("answered {}{separator}{piece}", self.status).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&'static str, &str)], body: &str) -> Answer {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().expect("a header"));
        }
        Answer {
            status: StatusCode::from_u16(status).expect("a status"),
            headers: map,
            body: body.as_bytes().to_vec(),
            read: Read::Whole,
            url: Url::parse("https://a.example/v1/payments").expect("a URL"),
        }
    }

    fn retry_after(headers: &[(&'static str, &str)]) -> Option<Duration> {
        // Sun, 06 Nov 1994 08:49:37 GMT
        answer(503, headers, "").retry_after(SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777))
    }

    #[test]
    fn a_wait_is_read_in_seconds_and_as_a_date_by_the_providers_clock() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(retry_after(&[]), None);
        assert_eq!(retry_after(&[("retry-after", "120")]), seconds(120));
        assert_eq!(retry_after(&[("retry-after", " 0 ")]), seconds(0));
        let date = ("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT");
        assert_eq!(retry_after(&[date]), seconds(30));
        assert_eq!(retry_after(&[date, ("date", "Sun, 06 Nov 1994 08:50:00 GMT")]), seconds(7));
        assert_eq!(retry_after(&[date, ("date", "Sun, 06 Nov 1994 09:00:00 GMT")]), seconds(0));
        for odd in ["-1", "1.5", "soon", ""] {
            assert_eq!(retry_after(&[("retry-after", odd)]), None, "{odd:?}");
        }
        for long in ["99999999999999999999999999", "18446744073709551615", "Sat, 06 Nov 2094 08:50:07 GMT"] {
            assert_eq!(retry_after(&[("retry-after", long)]), Some(LONGEST_WAIT), "{long}");
        }
    }

    #[test]
    fn a_reference_is_what_can_be_stored_and_asked_for() {
        let at =
            |pointer: &str, body| answer(200, &[], body).reference(&ReferenceAt::Pointer(pointer.to_owned()));
        assert_eq!(at("/id", r#"{"id":"p_1"}"#).as_deref(), Some("p_1"));
        assert_eq!(at("/data/0/id", r#"{"data":[{"id":42}]}"#).as_deref(), Some("42"));
        assert_eq!(at("/id", r#"{"id":18446744073709551615}"#).as_deref(), Some("18446744073709551615"));
        assert_eq!(at("", r#""p_1""#).as_deref(), Some("p_1"));
        for nothing in [
            r#"{"id":18446744073709551616}"#,
            r#"{"id":1.5}"#,
            r#"{"id":""}"#,
            r#"{"id":"a\u0000b"}"#,
            r#"{"id":null}"#,
            r#"{"id":["a"]}"#,
            r#"{"no":1}"#,
            "[]",
            "<html>",
            "",
        ] {
            assert_eq!(at("/id", nothing), None, "{nothing}");
        }
        assert_eq!(at("/id", &format!(r#"{{"id":"{}"}}"#, "x".repeat(LONGEST_REFERENCE + 1))), None);
    }

    #[test]
    fn a_location_names_the_effect_by_its_last_segment() {
        let at = |location| answer(201, &[("location", location)], "").reference(&ReferenceAt::Location);
        for location in ["https://a.example/v1/payments/p_1", "/v1/payments/p_1/?x=y#z", "p_1"] {
            assert_eq!(at(location).as_deref(), Some("p_1"), "{location}");
        }
        assert_eq!(at("/v1/a%2Fb").as_deref(), Some("a/b"));
        for nothing in ["https://a.example", "/", "/a%00b", "/%ff"] {
            assert_eq!(at(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn a_200_that_does_not_look_like_the_effect_is_not_taken_for_it() {
        let reading = |reference_at| Reading { reference_at, ask_after: CONFLICT, hide_answers: false };
        let by_pointer = reading(ReferenceAt::Pointer("/id".to_owned()));
        let happened = |answered: Reconciled, expected: Option<&str>| match answered {
            Reconciled::Happened { reference } => assert_eq!(reference.as_deref(), expected),
            other => panic!("{other:?}"),
        };
        happened(answer(200, &[], r#"{"id":"p"}"#).reconciled(Some("known"), &by_pointer), Some("p"));
        happened(answer(204, &[], "").reconciled(Some("known"), &by_pointer), Some("known"));
        happened(answer(200, &[], "[]").reconciled(None, &reading(ReferenceAt::Nowhere)), None);
        happened(
            answer(200, &[], "").reconciled(Some("known"), &reading(ReferenceAt::Location)),
            Some("known"),
        );
        for other in ["[]", "{}", "<html>", ""] {
            let answered = answer(200, &[], other).reconciled(Some("known"), &by_pointer);
            assert!(matches!(answered, Reconciled::Unsupported), "{other}: {answered:?}");
        }
        let broken = Answer { read: Read::Broken, ..answer(200, &[], r#"{"id"#) };
        assert!(matches!(broken.reconciled(Some("known"), &by_pointer), Reconciled::Unknown));
    }
}
