//! How an `HttpProvider` is configured. All that can be wrong with it is an error here, and not at the first effect.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use reqwest::{Certificate, Client, redirect};

use super::answer::{Reading, ReferenceAt};
use super::target::{Guard, target};
use super::template::Template;
use super::{HttpProvider, Inner};
use crate::BoxError;
use crate::outbox::KeyWindow;

/// What belongs to the key, the bytes or the connection, and is no user's to set.
const OURS: [&str; 11] = [
    "content-type",
    "content-length",
    "transfer-encoding",
    "host",
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
    "expect",
];

/// Why an [`HttpProvider`] cannot be built. All of it is configuration: correct it and start again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpProviderError {
    /// The text is no absolute URL.
    #[error("not an absolute URL, as https://api.example.com/payments is one: {reason}")]
    Url {
        /// What is wrong with it.
        reason: String,
    },
    /// Neither `http` nor `https`.
    #[error("the scheme {scheme} is not supported; use https (or http)")]
    Scheme {
        /// The scheme.
        scheme: String,
    },
    /// A user or a password in the URL, where it would land in logs.
    #[error("the URL has credentials in it; take them out and give a header `authorization`")]
    Credentials,
    /// The URL names an address that is not on the public internet.
    #[error("the target {host} is refused, since it is {why}; if it is meant, call allow_private_targets()")]
    Target {
        /// The address.
        host: String,
        /// What kind of address it is.
        why: &'static str,
    },
    /// A header that cannot be sent, or that would replace what the provider itself sends.
    #[error("the header {name:?} cannot be used: {reason}")]
    Header {
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The URL of a question is not built as it must be.
    #[error("the URL to reconcile by {placeholder}: {reason}")]
    Template {
        /// The placeholder that it must have.
        placeholder: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Not a JSON pointer (RFC 6901).
    #[error("{pointer:?} is not a JSON pointer; write it as \"/data/id\"")]
    Pointer {
        /// The text.
        pointer: String,
    },
    /// The root certificate cannot be read.
    #[error("the root certificate is not in PEM form")]
    Certificate {
        /// What the reader says.
        source: BoxError,
    },
    /// The HTTP client cannot be built, for example since the system has no root certificates.
    #[error("the HTTP client cannot be built: {source}")]
    Client {
        /// What it says.
        source: BoxError,
    },
}

/// Configures an [`HttpProvider`].
#[must_use = "nothing is there before build()"]
#[derive(Clone)]
pub struct HttpProviderBuilder {
    url: String,
    key_header: String,
    quoted_key: bool,
    headers: Vec<(String, String)>,
    connect_timeout: Duration,
    timeout: Duration,
    response_limit: usize,
    key_window: KeyWindow,
    longest_flight: Duration,
    by_key: Option<String>,
    by_reference: Option<String>,
    reading: Reading,
    roots: Vec<Vec<u8>>,
    allow_private: bool,
}

impl HttpProviderBuilder {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            key_header: "Idempotency-Key".to_owned(),
            quoted_key: false,
            headers: Vec::new(),
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(30),
            response_limit: 64 * 1024,
            key_window: KeyWindow::Unknown,
            longest_flight: Duration::from_secs(120),
            by_key: None,
            by_reference: None,
            reading: Reading {
                reference_at: ReferenceAt::Nowhere,
                ask_after: Duration::from_secs(30),
                hide_answers: false,
            },
            roots: Vec::new(),
            allow_private: false,
        }
    }

    /// The header that carries the key. Default: `Idempotency-Key`.
    pub fn key_header(mut self, name: impl Into<String>) -> Self {
        self.key_header = name.into();
        self
    }

    /// Sends the key as a quoted string, as the IETF draft has it. Default: bare, as most providers want it.
    pub fn quoted_key(mut self) -> Self {
        self.quoted_key = true;
        self
    }

    /// A header for every request and every question, say `authorization`; its value is never printed. It cannot be the
    /// key's header, the content type or one that belongs to the connection.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// How long a connection (name, TCP and TLS) may take. After it nothing was sent. Default: 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long one request may take until its answer is read; also bounded by
    /// [`Call::deadline`](crate::outbox::Call::deadline). Default: 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// So many bytes of an answer's body are read. What is longer does not change what the status says, but no reference
    /// is found in it. Default: 64 KiB.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.response_limit = bytes;
        self
    }

    /// For how long the provider knows a key again: what its documentation promises, not what it seems to do. Default:
    /// [`KeyWindow::Unknown`], so what may have been sent is never sent again.
    pub fn key_window(mut self, window: KeyWindow) -> Self {
        self.key_window = window;
        self
    }

    /// See [`Provider::longest_flight`](crate::outbox::Provider::longest_flight). Default: 2 min.
    pub fn longest_flight(mut self, flight: Duration) -> Self {
        self.longest_flight = flight;
        self
    }

    /// Where to ask by key, with `{key}` in the path or the query: `https://api.example.com/payments/by-key/{key}`.
    /// Only for a resource of which 404 says that the effect has **not** happened: see [`HttpProvider`].
    pub fn reconcile_by_key(mut self, url: impl Into<String>) -> Self {
        self.by_key = Some(url.into());
        self
    }

    /// Where to ask by the provider's own reference, with `{reference}` in the path or the query. It is preferred where
    /// there is a reference; the same warning.
    pub fn reconcile_by_reference(mut self, url: impl Into<String>) -> Self {
        self.by_reference = Some(url.into());
        self
    }

    /// Where an answer's JSON has the reference, as a JSON pointer: `/id`. It must be a text or an integer. When this is
    /// given, an answer to a question without it is not taken for the effect. Default: nowhere.
    pub fn reference_at(mut self, pointer: impl Into<String>) -> Self {
        self.reading.reference_at = ReferenceAt::Pointer(pointer.into());
        self
    }

    /// The reference is the last segment of the path in the `Location` header. Default: nowhere.
    pub fn reference_in_location(mut self) -> Self {
        self.reading.reference_at = ReferenceAt::Location;
        self
    }

    /// When to ask for what was accepted (202), if the answer has no `Retry-After`. Default: 30 s.
    pub fn ask_after(mut self, wait: Duration) -> Self {
        self.reading.ask_after = wait;
        self
    }

    /// Errors have the status only. Default: also up to 200 characters of the answer, in which the values of the request
    /// are blanked out as far as they are found unchanged.
    pub fn hide_answers(mut self) -> Self {
        self.reading.hide_answers = true;
        self
    }

    /// A root certificate in PEM form that is trusted besides the system's own.
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots.push(pem.into());
        self
    }

    /// Lets requests go to addresses that are not on the public internet (loopback, private, link-local and so on): for
    /// services in one's own network, and for tests.
    pub fn allow_private_targets(mut self) -> Self {
        self.allow_private = true;
        self
    }

    /// Checks it all. No request is made, and no name looked up.
    ///
    /// # Errors
    /// [`HttpProviderError`] says what to correct.
    pub fn build(self) -> Result<HttpProvider, HttpProviderError> {
        let url = target(&self.url, self.allow_private)?;
        let template = |text: &Option<String>, placeholder| {
            text.as_deref().map(|text| Template::parse(text, placeholder, self.allow_private)).transpose()
        };
        let by_key = template(&self.by_key, "{key}")?;
        let by_reference = template(&self.by_reference, "{reference}")?;
        if let ReferenceAt::Pointer(pointer) = &self.reading.reference_at
            && !(pointer.is_empty() || pointer.starts_with('/'))
        {
            return Err(HttpProviderError::Pointer { pointer: pointer.clone() });
        }
        let key_header = name(&self.key_header)?;
        let headers = self.all_headers(&key_header)?;
        let client = self.client()?;
        Ok(HttpProvider(Arc::new(Inner {
            client,
            url,
            key_header,
            quoted_key: self.quoted_key,
            headers,
            timeout: self.timeout,
            response_limit: self.response_limit,
            key_window: self.key_window,
            longest_flight: self.longest_flight,
            by_key,
            by_reference,
            reading: self.reading,
        })))
    }

    fn all_headers(&self, key_header: &HeaderName) -> Result<HeaderMap, HttpProviderError> {
        let mut headers = HeaderMap::new();
        for (given, value) in &self.headers {
            let wrong = |reason| HttpProviderError::Header { name: given.clone(), reason };
            let name = name(given)?;
            if name == *key_header {
                return Err(wrong("it carries the key"));
            }
            let mut value = HeaderValue::try_from(value)
                .map_err(|_| wrong("its value has characters that no header has"))?;
            value.set_sensitive(true);
            headers.append(name, value);
        }
        headers
            .entry(USER_AGENT)
            .or_insert(HeaderValue::from_static(concat!("idem-runtime/", env!("CARGO_PKG_VERSION"))));
        Ok(headers)
    }

    fn client(&self) -> Result<Client, HttpProviderError> {
        let failed = |error: reqwest::Error| HttpProviderError::Client { source: error.into() };
        // Whatever other crates of the program turn on in reqwest: one request, to this target, as it is.
        let mut client = Client::builder()
            .http1_only()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .connect_timeout(self.connect_timeout)
            .pool_idle_timeout(Duration::from_secs(15));
        if matches!(self.key_window, KeyWindow::None | KeyWindow::Unknown) {
            // A connection that the other side closes while a request is written makes it unknown, which here is the
            // end of it. A new one is not closed so.
            client = client.pool_max_idle_per_host(0);
        }
        if !self.allow_private {
            client = client.dns_resolver(Guard);
        }
        for pem in &self.roots {
            let certificates = Certificate::from_pem_bundle(pem)
                .map_err(|error| HttpProviderError::Certificate { source: error.into() })?;
            client = client.tls_certs_merge(certificates);
        }
        client.build().map_err(failed)
    }
}

/// A header that is the user's to name.
fn name(given: &str) -> Result<HeaderName, HttpProviderError> {
    let wrong = |reason| HttpProviderError::Header { name: given.to_owned(), reason };
    let name = HeaderName::try_from(given).map_err(|_| wrong("it is no name of a header"))?;
    if name == CONTENT_TYPE {
        return Err(wrong("the content type is the one that the effect was staged with"));
    }
    if OURS.contains(&name.as_str()) {
        return Err(wrong("it belongs to the connection"));
    }
    Ok(name)
}

impl fmt::Debug for HttpProviderBuilder {
    /// Without headers and URLs, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpProviderBuilder").field("key_window", &self.key_window).finish_non_exhaustive()
    }
}
