//! From a line of the stream to an event that may be handled. Everything is judged here, before the claim, so that a
//! line that is no event never uses up the key of one that comes later.
//!
//! A line is an event if
//! - it is one JSON object, in UTF-8 and of bounded length, without a doubled attribute;
//! - it has the attributes that CloudEvents 1.0 requires: `specversion` ("1.0"), `id`, `source` and `type`, each a
//!   text that is not empty and has no control characters;
//! - its type is the one that this program handles, and its data is an object of that type's fields, each of its
//!   exact type. An amount is a whole number of minor units that 64 bits hold: `1.5`, `1e3`, `1.0` and `"1"` are
//!   not, and nothing is ever rounded.
//!
//! Unknown attributes are extensions, and are let through: a sender may add one at any time.

use std::fmt;

use idem_runtime::Verified;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Who may send to this stream. In a program of yours this comes from its configuration: one list for each channel,
/// so that no sender can speak for another.
const ALLOWED_SOURCES: [&str; 3] = ["/billing/eu", "/billing/us", "/billing/apac"];

/// An event, and its sender, who is known to be allowed. Sources are compared as they are: `/billing/EU` is another.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) source: Verified<String>,
    pub(crate) event: InvoicePaid,
}

/// The event as the handler gets it.
#[derive(Debug, PartialEq)]
pub(crate) struct InvoicePaid {
    /// Unique for the source; a redelivery carries the same one.
    pub(crate) id: String,
    pub(crate) invoice: String,
    pub(crate) amount_minor: i64,
    pub(crate) currency: String,
    pub(crate) destination: String,
    pub(crate) note: Option<String>,
    /// `traceparent`, of the delivery and not of the event.
    pub(crate) trace: Option<String>,
}

/// Why a line is not handled.
#[derive(Debug, PartialEq)]
pub(crate) enum Refused {
    /// It is no event; with the reason.
    Invalid(String),
    /// It is one, of a sender who may not send here.
    Source(String),
}

#[derive(Deserialize)]
struct Envelope<'a> {
    specversion: String,
    id: String,
    source: String,
    r#type: String,
    datacontenttype: Option<String>,
    traceparent: Option<String>,
    #[serde(borrow)]
    data: &'a RawValue,
}

#[derive(Deserialize)]
struct Data {
    invoice: String,
    amount_minor: i64,
    currency: String,
    destination: String,
    note: Option<String>,
}

impl Delivery {
    pub(crate) fn parse(line: &[u8]) -> Result<Self, Refused> {
        let (source, event) = event(line).map_err(Refused::Invalid)?;
        // From here on the source is a scope. Without the check `scope = source` in the handler would not compile.
        let source = Verified::check(source.clone(), |source| ALLOWED_SOURCES.contains(&source.as_str()))
            .map_err(|_| Refused::Source(source))?;
        Ok(Self { source, event })
    }
}

fn event(line: &[u8]) -> Result<(String, InvoicePaid), String> {
    let line = std::str::from_utf8(line).map_err(|error| format!("not UTF-8: {error}"))?;
    let Envelope { specversion, id, source, r#type, datacontenttype, traceparent: trace, data } =
        object(line)?;
    if specversion != "1.0" {
        return Err(format!("specversion {specversion:?} is not \"1.0\""));
    }
    text("id", &id)?;
    text("source", &source)?;
    if r#type != "invoice.paid" {
        return Err(format!("type {type:?} is not \"invoice.paid\", which is all that is handled here"));
    }
    if let Some(found) = datacontenttype.filter(|found| !is_json(found)) {
        return Err(format!("datacontenttype {found:?} is not JSON"));
    }
    let Data { invoice, amount_minor, currency, destination, note } =
        object(data.get()).map_err(|reason| format!("data: {reason}"))?;
    text("invoice", &invoice)?;
    text("destination", &destination)?;
    if currency.len() != 3 || !currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return Err(format!("currency {currency:?} is not three capital letters"));
    }
    Ok((source, InvoicePaid { id, invoice, amount_minor, currency, destination, note, trace }))
}

/// Reads an object. The derived readers would take an array of the values too.
fn object<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T, String> {
    if json.trim_ascii_start().starts_with('{') {
        serde_json::from_str(json).map_err(|error| {
            let place = format!(" at line {} column {}", error.line(), error.column());
            let reason = error.to_string().replace(&place, "");
            // The line is known, and a column helps only where the JSON itself is broken.
            if error.is_data() { reason } else { format!("{reason} at column {}", error.column()) }
        })
    } else {
        Err("not a JSON object".to_owned())
    }
}

fn text(name: &str, text: &str) -> Result<(), String> {
    if text.is_empty() {
        Err(format!("{name} is empty"))
    } else if text.contains(char::is_control) {
        Err(format!("{name} {text:?} holds a control character"))
    } else {
        Ok(())
    }
}

fn is_json(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(reason) => write!(f, "invalid: {reason}"),
            Self::Source(source) => write!(f, "refused: {source:?} may not send here"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = r#"{"specversion":"1.0","id":"e1","source":"/billing/eu","type":"invoice.paid","data":{"invoice":"I","amount_minor":9007199254740993,"currency":"EUR","destination":"D"}}"#;

    fn reason(line: &str) -> String {
        match Delivery::parse(line.as_bytes()) {
            Err(refused) => refused.to_string(),
            Ok(delivery) => panic!("{line} was taken for {delivery:?}"),
        }
    }

    #[test]
    fn an_event_needs_no_more_than_the_required_attributes() {
        let delivery = Delivery::parse(VALID.as_bytes()).expect("valid");
        assert_eq!(delivery.event.amount_minor, 9_007_199_254_740_993);
        assert_eq!((delivery.event.note, delivery.event.trace), (None, None));
    }

    #[test]
    fn spaces_order_and_extensions_do_not_matter() {
        let line = r#" { "data" : {"note":"n","destination":"D","currency":"EUR","amount_minor":-1,"invoice":"I"},
            "type":"invoice.paid", "source":"/billing/us", "id":"é", "specversion":"1.0", "myext": 7, "traceparent":"t" } "#;
        let delivery = Delivery::parse(line.as_bytes()).expect("valid");
        assert_eq!((delivery.event.id.as_str(), delivery.event.trace.as_deref()), ("é", Some("t")));
    }

    #[test]
    fn what_is_no_event_is_invalid() {
        for (from, to) in [
            (r#""id":"e1","#, ""),
            (r#""id":"e1""#, r#""id":"""#),
            (r#""id":"e1""#, r#""id":7"#),
            (r#""id":"e1""#, r#""id":"e1","id":"e1""#),
            (r#""id":"e1""#, r#""id":"a\u0000""#),
            (r#""source":"/billing/eu","#, ""),
            (r#""1.0""#, r#""0.3""#),
            ("invoice.paid", "invoice.sent"),
            (r#""data""#, r#""date""#),
            (r#""data""#, r#""datacontenttype":"text/xml","data""#),
            (r#""amount_minor":9007199254740993,"#, ""),
            ("9007199254740993", "1.5"),
            ("9007199254740993", "1.0"),
            ("9007199254740993", "1e3"),
            ("9007199254740993", r#""1""#),
            ("9007199254740993", "null"),
            ("9007199254740993", "9223372036854775808"),
            ("9007199254740993", "1,\"amount_minor\":1"),
            ("EUR", "eur"),
            (r#""I""#, r#""""#),
            ("}}", "}"),
            ("}}", "}} {}"),
        ] {
            let line = VALID.replacen(from, to, 1);
            assert_ne!(line, VALID, "{from}");
            assert!(reason(&line).starts_with("invalid: "), "{line}");
        }
        for line in
            ["", " ", "null", "[]", r#"["1.0","e1","/billing/eu","invoice.paid",null,null,{}]"#, "\u{feff}{}"]
        {
            assert_eq!(reason(line), "invalid: not a JSON object");
        }
        assert!(matches!(Delivery::parse(b"{\"id\":\"\xff\"}"), Err(Refused::Invalid(_))));
    }

    #[test]
    fn a_source_is_compared_as_it_is() {
        for source in ["/billing/EU", "/billing/eu/", "/intruder", "billing/eu"] {
            let line = VALID.replace("/billing/eu", source);
            assert_eq!(reason(&line), format!("refused: {source:?} may not send here"));
        }
        // Judged as an event first: without an id nobody can say which event was refused.
        let line = VALID.replace("/billing/eu", "/intruder").replace(r#""id":"e1","#, "");
        assert!(reason(&line).starts_with("invalid: "));
    }
}
