//! One request onwards, its answer back, and the change to a WebSocket.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dsec_proto::error::WireError;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http1::{handshake, SendRequest};
use hyper::header::{HeaderValue, CONTENT_LENGTH};
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use crate::body::{Body, Meter};
use crate::connect::Stream;
use crate::cut::Cut;
use crate::{headers, tunnel};

/// A request's body must go on.
const BODY_PATIENCE: Duration = Duration::from_secs(60);
/// A model may think for long before, and between, its words.
const ANSWER_PATIENCE: Duration = Duration::from_secs(900);
/// A connection that has carried an answer is ready for the next request at once, or not worth keeping.
const READY: Duration = Duration::from_millis(50);

/// Where a connection's requests go: kept from one to the next of the same host.
#[derive(Default)]
pub struct Road(RefCell<Option<(String, SendRequest<Body>)>>);

/// What one request is passed on with.
pub struct Passage {
    /// Counts bytes onwards.
    pub out: Meter,
    /// Counts bytes back.
    pub back: Meter,
    /// Ends a WebSocket.
    pub cut: Cut,
    /// Kept for as long as a WebSocket is open.
    pub held: Rc<dyn Any>,
}

/// Passes a request on, whose head is as the other side shall see it, but for what belongs to the connection. A request to
/// another `host` than the one before goes to a server of its own.
///
/// # Errors
/// What `dial` said; what `broken` makes of a sentence about the other side.
pub async fn forward(
    road: &Road,
    host: &str,
    mut request: Request<Incoming>,
    passage: Passage,
    dial: impl AsyncFn() -> Result<Box<dyn Stream>, WireError>,
    broken: impl Fn(String) -> WireError,
) -> Result<Response<Body>, WireError> {
    let websocket =
        headers::wants_websocket(request.method(), request.version(), request.headers());
    let near = websocket.then(|| hyper::upgrade::on(&mut request));
    let for_head = request.method() == Method::HEAD;
    let onward = onward(request, websocket, Rc::clone(&passage.out));
    let mut answer = match timeout(ANSWER_PATIENCE, road.send(host, onward, dial, &broken)).await {
        Ok(answer) => answer?,
        Err(_) => return Err(broken("no answer within 15 minutes".into())),
    };
    match (answer.status(), near) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(near)) => {
            let far = hyper::upgrade::on(&mut answer);
            tokio::task::spawn_local(async move {
                tokio::select! {
                    ended = tunnel::run(near, far, passage.out, passage.back) => drop(ended),
                    () = passage.cut.wait() => {}
                }
                drop(passage.held);
            });
            let mut answer = answer.map(|_| Body::empty());
            headers::strip(answer.headers_mut());
            headers::upgrade(answer.headers_mut());
            Ok(answer)
        }
        (StatusCode::SWITCHING_PROTOCOLS, None) => {
            Err(broken("it changed the protocol without being asked".into()))
        }
        _ => Ok(backward(answer, for_head, passage.back)),
    }
}

fn onward(request: Request<Incoming>, websocket: bool, meter: Meter) -> Request<Body> {
    let (mut head, body) = request.into_parts();
    headers::strip(&mut head.headers);
    if websocket {
        headers::upgrade(&mut head.headers);
    }
    let takes_body = matches!(head.method, Method::POST | Method::PUT | Method::PATCH);
    if takes_body && body.is_end_stream() {
        head.headers
            .insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    let mut onward = Request::new(Body::passing(body, meter, BODY_PATIENCE));
    *onward.method_mut() = head.method;
    *onward.uri_mut() = head.uri;
    *onward.version_mut() = Version::HTTP_11;
    *onward.headers_mut() = head.headers;
    onward
}

fn backward(answer: Response<Incoming>, for_head: bool, meter: Meter) -> Response<Body> {
    let (head, body) = answer.into_parts();
    let length = head.headers.get(CONTENT_LENGTH).cloned();
    let bodiless = for_head || head.status == StatusCode::NOT_MODIFIED;
    let mut back = Response::new(Body::passing(body, meter, ANSWER_PATIENCE));
    *back.status_mut() = head.status;
    *back.headers_mut() = head.headers;
    headers::strip(back.headers_mut());
    // Of a body the length is written anew; without one it says how long it would be.
    if let (true, Some(length)) = (bodiless, length) {
        back.headers_mut().insert(CONTENT_LENGTH, length);
    }
    back
}

impl Road {
    async fn send(
        &self,
        host: &str,
        mut request: Request<Body>,
        dial: impl AsyncFn() -> Result<Box<dyn Stream>, WireError>,
        broken: &impl Fn(String) -> WireError,
    ) -> Result<Response<Incoming>, WireError> {
        let former = self.0.take().filter(|(of, _)| of == host);
        if let Some((_, mut sender)) = former {
            if matches!(timeout(READY, sender.ready()).await, Ok(Ok(()))) {
                match sender.try_send_request(request).await {
                    Ok(answer) => return Ok(self.keep(host, sender, answer)),
                    Err(mut error) => match error.take_message() {
                        Some(unsent) => request = unsent,
                        None => return Err(broken(error.into_error().to_string())),
                    },
                }
            }
        }
        let stream = dial().await?;
        let begun = handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = begun.map_err(|error| broken(error.to_string()))?;
        tokio::task::spawn_local(connection.with_upgrades());
        match sender.send_request(request).await {
            Ok(answer) => Ok(self.keep(host, sender, answer)),
            Err(error) => Err(broken(error.to_string())),
        }
    }

    fn keep(
        &self,
        host: &str,
        sender: SendRequest<Body>,
        answer: Response<Incoming>,
    ) -> Response<Incoming> {
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            self.0.replace(Some((host.to_owned(), sender)));
        }
        answer
    }
}
