//! What an error says of an answer: its status and a short piece of its text. Providers like to repeat what they were
//! sent, so the values of the request are blanked out: what is logged must not hold payloads.

use serde_json::Value;

/// So many characters of an answer are quoted.
const LENGTH: usize = 200;
/// So many bytes of it are looked at.
const LOOKED_AT: usize = 4096;
/// Shorter values say nothing, and would tear words apart.
const SHORTEST: usize = 4;
const BLANK: &str = "[..]";

/// The beginning of an answer's text on one line, without the request's values; empty if there is none.
pub(super) fn piece(answer: &[u8], request: &[u8]) -> String {
    let text = String::from_utf8_lossy(&answer[..answer.len().min(LOOKED_AT)]);
    let text = text.chars().map(|it| if it.is_control() { ' ' } else { it }).collect::<String>();
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.is_empty() {
        return text;
    }
    for value in values(request) {
        if text.contains(&value) {
            text = text.replace(&value, BLANK);
        }
    }
    match text.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
}

/// The values of a request, as its answer might repeat them, the longest first.
fn values(request: &[u8]) -> Vec<String> {
    let mut values = Vec::new();
    match serde_json::from_slice::<Value>(request) {
        Ok(value) => collect(&value, &mut values),
        // Words of what is no JSON, say a form or XML.
        Err(_) => {
            let text = String::from_utf8_lossy(request);
            let is_end = |it: char| it.is_whitespace() || it.is_control() || "<>&=\"';,".contains(it);
            values.extend(text.split(is_end).map(ToOwned::to_owned));
        }
    }
    values.retain(|value| value.len() >= SHORTEST);
    values.sort_unstable_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
    values.dedup();
    values
}

fn collect(value: &Value, values: &mut Vec<String>) {
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::Number(number) => values.push(number.to_string()),
        Value::String(text) => {
            values.push(text.split_whitespace().collect::<Vec<_>>().join(" "));
            // As it stands in JSON, without the quotes.
            let escaped = value.to_string();
            values.push(escaped[1..escaped.len() - 1].to_owned());
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, values)),
        Value::Object(fields) => fields.values().for_each(|field| collect(field, values)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_repeats_the_request_gives_none_of_its_values_away() {
        let request =
            br#"{"to":"ann@example.com","lines":[{"iban":"DE02 1203","amount":123456}],"q":"a\"b\nc"}"#;
        let echo = piece(request, request);
        assert_eq!(echo, r#"{"to":"[..]","lines":[{"iban":"[..]","amount":[..]}],"q":"[..]"}"#);
        assert_eq!(piece(b"no account for ann@example.com", request), "no account for [..]");
        assert_eq!(piece(b"amount must be below 5", request), "amount must be below 5");
        assert_eq!(piece(b"user=ann@example.com", b"mail=ann@example.com&x=1"), "user=[..]");
    }

    #[test]
    fn it_is_short_and_on_one_line() {
        assert_eq!(piece(b" a\r\n\tb\0c \xff", b""), "a b c \u{fffd}");
        assert_eq!(piece(b"", b"x"), "");
        let long = piece("é".repeat(5000).as_bytes(), b"");
        assert_eq!(long.chars().count(), LENGTH + 2);
    }
}
