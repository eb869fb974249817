//! The HTTP side: connections, requests and answers. It decides nothing; it does what the behaviour says and enters in
//! the ledger what happened.

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use tokio::net::{TcpListener, TcpStream};

use super::ledger::Standing;
use super::{Answer, Behaviour, Received, Shared, Window};

/// Takes connections until it is dropped.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>) -> Infallible {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, or a client that has gone: neither is the end.
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        };
        shared.change(|ledger| ledger.connections += 1);
        tokio::spawn(connection(stream, shared.clone()));
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    _ = stream.set_nodelay(true);
    let reset = Arc::new(AtomicBool::new(false));
    let service = service_fn(|request| {
        let (shared, reset) = (shared.clone(), reset.clone());
        Box::pin(async move {
            let answered = answer(request, &shared).await;
            reset.store(matches!(answered, Err(Ended::Reset)), Ordering::SeqCst);
            answered
        })
    });
    let mut connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    _ = poll_fn(|context| connection.poll_without_shutdown(context)).await;
    if reset.load(Ordering::SeqCst) {
        // Closed without lingering, a connection is reset.
        _ = connection.into_parts().io.into_inner().set_zero_linger();
    }
}

async fn answer(request: Request<Incoming>, shared: &Arc<Shared>) -> Result<Response<Reply>, Ended> {
    match *request.method() {
        Method::POST => post(request, shared).await,
        Method::GET => Ok(question(request.uri().path(), shared)),
        _ => Ok(respond(Answer::status(405).header("Allow", "GET, POST"))),
    }
}

async fn post(request: Request<Incoming>, shared: &Arc<Shared>) -> Result<Response<Reply>, Ended> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Ended::ByClient)?.to_bytes().to_vec();
    let headers = texts(&head.headers);
    let path = head.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    let (received, seen, work) = shared.change(|ledger| {
        let number = ledger.received.len() + 1;
        let mut received =
            Received { number, path, key: None, content_type: None, headers, body, at: Instant::now() };
        received.key = received.header(&ledger.key_header).map(unquoted);
        received.content_type = received.header("content-type").map(ToOwned::to_owned);
        ledger.received.push(received.clone());
        let work = match &received.key {
            None if ledger.window != Window::None => Err(problem(400, "the key is missing")),
            Some(key) if !ledger.begin(key) => Err(problem(409, "this key is being worked on")),
            _ => {
                let behaviour = ledger.behaviour(&received);
                if let (Behaviour::ActAfterGone(_), Some(key)) = (&behaviour, &received.key) {
                    ledger.end(key);
                }
                Ok(behaviour)
            }
        };
        (received, ledger.releases, work)
    });
    let behaviour = match work {
        Ok(behaviour) => behaviour,
        Err(answer) => return Ok(respond(answer)),
    };
    let mut present = Present { shared, received, late: None, answered: false };
    let answered = behave(behaviour, &mut present, seen).await;
    present.answered = true;
    answered
}

async fn behave(
    behaviour: Behaviour,
    present: &mut Present<'_>,
    seen: u64,
) -> Result<Response<Reply>, Ended> {
    let released = || present.shared.until(move |ledger| (ledger.releases > seen).then_some(()));
    let act = || standing(present.shared.change(|ledger| ledger.act(&present.received)));
    Ok(match behaviour {
        Behaviour::Act => respond(act()),
        Behaviour::Accept { act_after } => {
            let promise = present.shared.change(|ledger| ledger.promise(&present.received));
            if let (Standing::Later(Some(reference)), Some(after)) = (&promise, act_after) {
                let (shared, reference) = (present.shared.clone(), reference.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    shared.change(|ledger| ledger.keep(Some(&reference)));
                });
            }
            respond(standing(promise))
        }
        Behaviour::HangBefore => {
            released().await;
            respond(act())
        }
        Behaviour::HangAfter => {
            let answer = act();
            released().await;
            respond(answer)
        }
        Behaviour::ActAfterGone(after) => {
            present.late = Some(after);
            std::future::pending().await
        }
        Behaviour::ResetBefore => return Err(Ended::Reset),
        Behaviour::ResetAfter => {
            act();
            return Err(Ended::Reset);
        }
        Behaviour::Refuse(answer) => respond(answer),
        Behaviour::ActThen(answer) => {
            act();
            respond(answer)
        }
    })
}

fn question(path: &str, shared: &Shared) -> Response<Reply> {
    let answer = shared.change(|ledger| {
        ledger.questions.push(path.to_owned());
        if let Some(answer) = &ledger.questions_get {
            return answer.clone();
        }
        let decoded = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
        if let Some(key) = path.strip_prefix("/key/") {
            standing(ledger.by_key(&decoded(key)))
        } else if let Some(reference) = path.strip_prefix("/reference/") {
            standing(ledger.by_reference(&decoded(reference)))
        } else {
            standing(Standing::Unheard)
        }
    });
    respond(answer)
}

/// A client that waits for its answer. If it goes before that, the connection drops what it waits for, and this with it.
struct Present<'a> {
    shared: &'a Arc<Shared>,
    received: Received,
    /// It acts so long after the client has gone.
    late: Option<Duration>,
    answered: bool,
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        let answered = self.answered;
        self.shared.change(|ledger| {
            // One that is only on its way is not worked on; the key may be another request's.
            if let (Some(key), None) = (&self.received.key, self.late) {
                ledger.end(key);
            }
            if !answered {
                ledger.gone += 1;
            }
        });
        if let (Some(after), false) = (self.late, answered) {
            let (shared, received) = (self.shared.clone(), self.received.clone());
            self.shared.runtime.spawn(async move {
                tokio::time::sleep(after).await;
                shared.change(|ledger| ledger.act(&received));
            });
        }
    }
}

/// Why there is no answer.
#[derive(Debug)]
enum Ended {
    Reset,
    ByClient,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "reset, as it was told",
            Self::ByClient => "the client has gone",
        })
    }
}

impl std::error::Error for Ended {}

fn texts(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect()
}

/// `"abc"` and `abc` are one key.
fn unquoted(key: &str) -> String {
    key.strip_prefix('"').and_then(|key| key.strip_suffix('"')).unwrap_or(key).to_owned()
}

fn standing(standing: Standing) -> Answer {
    let json = |status, reference| {
        let body = format!(r#"{{"reference":"{reference}"}}"#);
        Answer::status(status).header("Content-Type", "application/json").body(body)
    };
    match standing {
        Standing::Done(reference) => json(200, reference),
        Standing::Later(Some(reference)) => json(202, reference),
        Standing::Later(None) => Answer::status(202),
        Standing::Unheard => problem(404, "never heard of it"),
    }
}

fn problem(status: u16, what: &str) -> Answer {
    Answer::status(status)
        .header("Content-Type", "application/problem+json")
        .body(format!(r#"{{"title":"{what}"}}"#))
}

fn respond(answer: Answer) -> Response<Reply> {
    let Answer { status, headers, body, broken_off } = answer;
    let length = body.len() as u64;
    let sent = if broken_off { &body[..body.len() / 2] } else { &body[..] };
    let chunk = Some(Bytes::copy_from_slice(sent)).filter(|chunk| !chunk.is_empty());
    let mut response = Response::new(Reply { chunk, length, broken_off, flushed: false });
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::NOT_IMPLEMENTED);
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            if name == CONTENT_TYPE {
                response.headers_mut().insert(name, value);
            } else {
                response.headers_mut().append(name, value);
            }
        }
    }
    response
}

/// The body of an answer, which may end too early.
struct Reply {
    chunk: Option<Bytes>,
    length: u64,
    broken_off: bool,
    flushed: bool,
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Ended;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Ended>>> {
        if let Some(chunk) = self.chunk.take() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        if !self.broken_off {
            return Poll::Ready(None);
        }
        if std::mem::replace(&mut self.flushed, true) {
            return Poll::Ready(Some(Err(Ended::Reset)));
        }
        // While the body is pending, what there is of it is written.
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.chunk.is_none() && !self.broken_off
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length)
    }
}
