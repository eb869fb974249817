//! Effects by HTTP. The invariant: what an answer, an error or a timeout proves is what is said, and no more: "not sent"
//! only where the bytes were never handed to a connection (see `gate`), or the provider says that it has not looked.

mod answer;
mod builder;
mod gate;
mod piece;
mod target;
mod template;
#[cfg(test)]
mod tests;

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Body, Client, Request, Response, Url};
use tokio::time::timeout_at;

use self::answer::{Answer, Read, Reading};
pub use self::builder::{HttpProviderBuilder, HttpProviderError};
use self::gate::{Gate, Gated};
use self::template::Template;
use super::{Call, Delivery, Effect, KeyWindow, Provider, Reconciled};

/// Sends effects as HTTP requests: a POST of the staged bytes, under their content type, with the key in a header.
///
/// One provider serves any number of effects, and clones are cheap. Where it sends is configuration, never payload.
///
/// ```
/// use std::time::Duration;
/// use idem_runtime::outbox::{HttpProvider, KeyWindow};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let token = "secret";
/// let payments = HttpProvider::builder("https://api.example.com/v1/payments")
///     .header("authorization", format!("Bearer {token}"))
///     .key_window(KeyWindow::AtLeast(Duration::from_secs(24 * 3600)))
///     .reference_at("/id")
///     .reconcile_by_reference("https://api.example.com/v1/payments/{reference}")
///     .build()?;
/// # Ok(()) }
/// ```
///
/// # What an answer means
///
/// | answer | [`Delivery`] |
/// |---|---|
/// | 2xx but 202, whatever becomes of its body | `Delivered` |
/// | 202 | `Accepted`; asked after `Retry-After`, else 30 s |
/// | 409 | `Unknown`; again after `Retry-After`, else 5 s |
/// | 408, 5xx | `Unknown`, with `Retry-After` |
/// | timeout, reset or another error after the bytes went to a connection | `Unknown` |
/// | errors of DNS, TCP or TLS before that, a refused target, [`Call::deadline`] over | `NotSent` |
/// | 425, 429 | `NotSent`, with `Retry-After` |
/// | 401, 403, 407 | `Halt` |
/// | 3xx (redirects are not followed), 404, what is no status | `Review` |
/// | other 4xx | `Rejected` |
///
/// `Retry-After` counts up to seven days, in seconds or as a date.
///
/// # Questions
///
/// After an unknown result the provider is asked by GET, if a URL for that is configured. **Configure it only where the
/// absence of the resource is authoritative**: a read from a replica, a search index or a cache says 404 of what has
/// happened, and the effect would happen again. It must say 404 for what it does not have (not 200 with an empty list),
/// and its presence must mean that the effect has happened; where a payment can be there and have failed, implement
/// [`Provider`] around this one, with your own `reconcile`.
///
/// | answer | [`Reconciled`] |
/// |---|---|
/// | 200, 201, 204 | `Happened`; but with [`reference_at`](HttpProviderBuilder::reference_at) and no reference there (204 excepted): `Unsupported` |
/// | 404, 410 | `DidNotHappen` |
/// | 202, 401, 403, 407, 408, 409, 425, 429, 5xx, any error | `Unknown`: asked again |
/// | others, or nothing to ask by | `Unsupported`: a person decides |
///
/// # Where requests go
///
/// Addresses that are not on the public internet are refused, in the URL (an error of
/// [`build`](HttpProviderBuilder::build)) and in what DNS answers (`NotSent`), unless
/// [`allow_private_targets`](HttpProviderBuilder::allow_private_targets) was called. Proxies from the environment are not
/// used. Connections are HTTP/1.1, and kept for 15 s where the provider knows keys again, else not kept.
#[derive(Clone)]
pub struct HttpProvider(Arc<Inner>);

struct Inner {
    client: Client,
    url: Url,
    key_header: HeaderName,
    quoted_key: bool,
    headers: HeaderMap,
    timeout: Duration,
    response_limit: usize,
    key_window: KeyWindow,
    longest_flight: Duration,
    by_key: Option<Template>,
    by_reference: Option<Template>,
    reading: Reading,
}

impl HttpProvider {
    /// A provider that posts to this URL: `http` or `https`, without credentials.
    pub fn builder(url: impl Into<String>) -> HttpProviderBuilder {
        HttpProviderBuilder::new(url.into())
    }
}

#[async_trait]
impl<E: Effect> Provider<E> for HttpProvider {
    fn key_window(&self) -> KeyWindow {
        self.0.key_window
    }

    fn longest_flight(&self) -> Duration {
        self.0.longest_flight
    }

    async fn deliver(&self, _effect: &E, call: &Call) -> Delivery {
        self.0.deliver(call).await
    }

    async fn reconcile(&self, _effect: &E, call: &Call) -> Reconciled {
        self.0.reconcile(call).await
    }
}

impl Inner {
    async fn deliver(&self, call: &Call) -> Delivery {
        let Some(until) = self.until(call) else {
            return Delivery::NotSent { retry_after: None, error: gate::Late.into() };
        };
        let gate = Gate::until(call.deadline);
        let request = match self.request(call, &gate) {
            Ok(request) => request,
            Err(error) => return Delivery::NotSent { retry_after: None, error: error.into() },
        };
        let failed = match timeout_at(until, self.client.execute(request)).await {
            Ok(Ok(response)) => {
                return self.read(response, until).await.delivery(&call.payload, &self.reading);
            }
            Ok(Err(error)) => Failed::by(error),
            Err(_) => Failed { connecting: false, text: "no answer in time".to_owned() },
        };
        // A connection that failed has sent nothing; the bytes of an empty body are not asked for.
        let nothing_sent = gate.close() || failed.connecting && call.payload.is_empty();
        match nothing_sent {
            true => {
                Delivery::NotSent { retry_after: None, error: format!("not sent: {}", failed.text).into() }
            }
            false => {
                Delivery::Unknown { retry_after: None, error: format!("maybe sent: {}", failed.text).into() }
            }
        }
    }

    async fn reconcile(&self, call: &Call) -> Reconciled {
        let Some(url) = self.question(call) else { return Reconciled::Unsupported };
        let Some(until) = self.until(call) else { return Reconciled::Unknown };
        let request = self.client.get(url).headers(self.headers.clone()).send();
        let text = match timeout_at(until, request).await {
            Ok(Ok(response)) => {
                let answer = self.read(response, until).await;
                let reconciled = answer.reconciled(call.reference.as_deref(), &self.reading);
                if matches!(reconciled, Reconciled::Unknown | Reconciled::Unsupported) {
                    tracing::debug!(effect_key = %call.effect_key, status = %answer.status, "a question is open");
                }
                return reconciled;
            }
            Ok(Err(error)) => Failed::by(error).text,
            Err(_) => "no answer in time".to_owned(),
        };
        tracing::debug!(effect_key = %call.effect_key, error = text, "a question is open");
        Reconciled::Unknown
    }

    /// When the call ends; `None`: it has.
    fn until(&self, call: &Call) -> Option<tokio::time::Instant> {
        let left = call.deadline.saturating_duration_since(Instant::now());
        (!left.is_zero()).then(|| tokio::time::Instant::now() + left.min(self.timeout))
    }

    fn request(&self, call: &Call, gate: &Arc<Gate>) -> Result<Request, String> {
        let content_type = HeaderValue::try_from(&call.content_type)
            .map_err(|_| format!("the staged content type {:?} is no header", call.content_type))?;
        let key = match self.quoted_key {
            true => format!("\"{}\"", call.effect_key),
            false => call.effect_key.to_string(),
        };
        let key = HeaderValue::try_from(key).map_err(|_| "the key is no header".to_owned())?;
        self.client
            .post(self.url.clone())
            .headers(self.headers.clone())
            .header(CONTENT_TYPE, content_type)
            .header(&self.key_header, key)
            .body(Body::wrap(Gated::new(call.payload.clone(), gate.clone())))
            .build()
            .map_err(|error| Failed::by(error).text)
    }

    /// Where to ask, by what is known.
    fn question(&self, call: &Call) -> Option<Url> {
        let by_reference = || self.by_reference.as_ref()?.with(call.reference.as_deref()?);
        let by_key = || self.by_key.as_ref()?.with(call.effect_key.as_str());
        by_reference().or_else(by_key)
    }

    async fn read(&self, mut response: Response, until: tokio::time::Instant) -> Answer {
        let mut body = Vec::new();
        let read = loop {
            match timeout_at(until, response.chunk()).await {
                Ok(Ok(Some(chunk))) => {
                    let room = self.response_limit - body.len();
                    body.extend_from_slice(&chunk[..chunk.len().min(room)]);
                    if chunk.len() > room {
                        break Read::OverLimit;
                    }
                }
                Ok(Ok(None)) => break Read::Whole,
                Ok(Err(_)) | Err(_) => break Read::Broken,
            }
        };
        let url = response.url().clone();
        let status = response.status();
        Answer { status, headers: std::mem::take(response.headers_mut()), body, read, url }
    }
}

/// Why there is no answer.
struct Failed {
    connecting: bool,
    text: String,
}

impl Failed {
    /// With all its causes, and without the URL, which may hold secrets.
    fn by(error: reqwest::Error) -> Self {
        let error = error.without_url();
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.ends_with(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            source = cause.source();
        }
        Self { connecting: error.is_connect(), text }
    }
}

impl fmt::Debug for HttpProvider {
    /// Without headers and the query, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = format!("{}{}", self.0.url.origin().ascii_serialization(), self.0.url.path());
        f.debug_struct("HttpProvider")
            .field("target", &target)
            .field("key_window", &self.0.key_window)
            .finish_non_exhaustive()
    }
}
