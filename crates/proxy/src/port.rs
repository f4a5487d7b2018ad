//! The way in: requests to exposed ports, as the apiserver hands them over.

use std::cell::RefCell;
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use dsec_fault::fault;
use dsec_proto::error::WireError;
use dsec_proto::proxy::Refused;
use hyper::body::Incoming;
use hyper::header::{HeaderValue, CACHE_CONTROL, HOST, LOCATION, REFERRER_POLICY, SET_COOKIE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{timeout_at, Instant};

use crate::body::{Body, Meter};
use crate::connect::Stream;
use crate::cut::Cut;
use crate::forward::{forward, Passage, Road};
use crate::serve::{http, Counted};
use crate::state::{Inbound, Known, Port, State};
use crate::token::{self, Found};
use crate::{answer, headers, host, link, origin};

/// How long a request waits for a runtime that is being replaced.
const PATIENCE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(20);

/// Serves one connection from the apiserver. The first request that may pass binds it to its port.
pub fn serve(state: &Rc<State>, stream: UnixStream) {
    fault!("proxy.port.accepted");
    let Some(counted) = Counted::new(state, 2) else {
        return;
    };
    let connection = Rc::new(Connection {
        state: Rc::clone(state),
        bound: RefCell::default(),
        road: Road::default(),
        over: Cut::default(),
    });
    let over = connection.over.clone();
    let service = service_fn(move |request| {
        let connection = Rc::clone(&connection);
        async move { Ok::<_, Infallible>(connection.answer(request).await) }
    });
    let serving = http()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::task::spawn_local(async move {
        tokio::select! {
            ended = serving => drop(ended),
            () = over.wait() => {}
        }
        drop(counted);
    });
}

struct Connection {
    state: Rc<State>,
    bound: RefCell<Option<Rc<Bound>>>,
    road: Road,
    /// When the port that it is bound to is exposed no more.
    over: Cut,
}

/// What a connection leads to.
struct Bound {
    known: Rc<Known>,
    port: Rc<Port>,
    _inbound: Inbound,
}

impl Connection {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        match self.pass(request).await {
            Ok(answer) => answer,
            Err(error) => answer::error(&error),
        }
    }

    async fn pass(&self, mut request: Request<Incoming>) -> Result<Response<Body>, WireError> {
        headers::check_framing(request.version(), request.headers()).map_err(WireError::invalid)?;
        let (known, port) = self.find(&request).await?;
        let (path, query) = (
            request.uri().path().to_owned(),
            request.uri().query().map(str::to_owned),
        );
        let target = token::without(&path, query.as_deref());
        match token::find(request.headers(), query.as_deref(), &port.token) {
            None => return Err(denied()),
            Some(Found::Query) if is_page(&request) => {
                return Ok(with_cookie(&target, &port.token))
            }
            Some(Found::Cookie) if !origin::is_own(request.method(), request.headers()) => {
                return Err(foreign())
            }
            Some(_) => {}
        }
        let bound = self.bind(&known, &port)?;
        fault!("proxy.port.bound");
        token::strip(request.headers_mut());
        let odd = |_| WireError::invalid("the request's target is no target");
        *request.uri_mut() = target.parse::<Uri>().map_err(odd)?;
        let free: Meter = Rc::new(|_| true);
        let passage = Passage {
            out: Rc::clone(&free),
            back: free,
            cut: bound.port.cut.clone(),
            held: Rc::clone(&bound) as Rc<dyn std::any::Any>,
        };
        let (id, number) = (known.id.clone(), port.port);
        let dial = async || self.dial(&id, number).await;
        let broken = |why: String| {
            WireError::new(
                "port_unreachable",
                format!("port {number} of the sandbox: {why}"),
            )
            .about(&id)
            .with("port", number)
            .remedy("What listens there must speak HTTP/1.1")
        };
        let mut answer = forward(&self.road, "", request, passage, dial, broken).await?;
        fault!("proxy.port.answered");
        origin::confine(answer.headers_mut());
        Ok(answer)
    }

    /// The port that a request's Host names. A proxy that has just begun waits until it was told of all.
    async fn find(&self, request: &Request<Incoming>) -> Result<(Rc<Known>, Rc<Port>), WireError> {
        let uri = request.uri();
        if uri.scheme().is_some() || uri.authority().is_some() || !uri.path().starts_with('/') {
            return Err(WireError::invalid("the request's target must be a path"));
        }
        let mut hosts = request.headers().get_all(HOST).iter();
        let named = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host
                .to_str()
                .ok()
                .and_then(|host| host::parse(host, &self.state.ports_domain.borrow())),
            _ => None,
        };
        let Some((number, sandbox_id)) = named else {
            return Err(WireError::new(
                "misdirected",
                "this connection serves exposed ports only",
            ));
        };
        let end = Instant::now() + PATIENCE;
        loop {
            let whole = self.state.whole.get();
            let known = self.state.find(&sandbox_id);
            let port = known.as_ref().and_then(|known| known.port(number));
            let refused = match (known, port) {
                (Some(known), Some(port)) => return Ok((known, port)),
                _ if whole => Refused::NotExposed,
                _ if Instant::now() >= end => Refused::NotYet,
                _ => {
                    // A port may be told before all are.
                    let again = end.min(Instant::now() + AGAIN);
                    let _ = timeout_at(again, self.state.completed.notified()).await;
                    continue;
                }
            };
            return Err(answer::unreachable(&sandbox_id, number, refused));
        }
    }

    fn bind(&self, known: &Rc<Known>, port: &Rc<Port>) -> Result<Rc<Bound>, WireError> {
        if let Some(bound) = &*self.bound.borrow() {
            if bound.known.id == known.id && Rc::ptr_eq(&bound.port, port) {
                return Ok(Rc::clone(bound));
            }
            return Err(WireError::new(
                "misdirected",
                "this connection serves another port",
            ));
        }
        let inbound = Inbound::new(&self.state, known);
        let bound = Rc::new(Bound {
            known: Rc::clone(known),
            port: Rc::clone(port),
            _inbound: inbound,
        });
        self.bound.replace(Some(Rc::clone(&bound)));
        let (cut, over) = (port.cut.clone(), self.over.clone());
        let ends = Rc::downgrade(&bound);
        tokio::task::spawn_local(async move {
            cut.wait().await;
            if ends.upgrade().is_some() {
                over.cut();
            }
        });
        Ok(bound)
    }

    /// A connection into the sandbox. A runtime that is just being replaced is waited for.
    async fn dial(&self, sandbox_id: &str, port: u16) -> Result<Box<dyn Stream>, WireError> {
        fault!("proxy.port.asking");
        let end = Instant::now() + PATIENCE;
        let refused = loop {
            match link::connect(&self.state, sandbox_id, port, end).await {
                Ok(socket) => {
                    fault!("proxy.port.dialled");
                    return opened(socket)
                        .map_err(|error| WireError::node("ports", error.to_string()));
                }
                Err(Refused::NotYet) if Instant::now() < end => tokio::time::sleep(AGAIN).await,
                Err(refused) => break refused,
            }
        };
        Err(answer::unreachable(sandbox_id, port, refused))
    }
}

fn opened(socket: OwnedFd) -> std::io::Result<Box<dyn Stream>> {
    let socket = std::net::TcpStream::from(socket);
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    Ok(Box::new(TcpStream::from_std(socket)?))
}

fn denied() -> WireError {
    WireError::new("denied", "the token of this port is missing or wrong")
        .in_phase("token")
        .remedy("Send it in the header dsec-port-token, or open the link that `dsec expose` prints")
}

fn foreign() -> WireError {
    WireError::new(
        "denied",
        "a page of another origin may not use the cookie of this port",
    )
    .in_phase("origin")
    .remedy("Send the port's token in the header dsec-port-token")
}

/// Whether a browser opens this: then the token moves from the link into a cookie.
fn is_page(request: &Request<Incoming>) -> bool {
    let plain = !headers::wants_websocket(request.method(), request.version(), request.headers());
    plain && matches!(*request.method(), Method::GET | Method::HEAD)
}

fn with_cookie(target: &str, token: &str) -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SEE_OTHER;
    let cookie = format!(
        "{}={token}; Path=/; HttpOnly; SameSite=Lax",
        token::COOKIE_NAME
    );
    // Relative to this origin whatever the path is: `//x` alone would be another host.
    let target = format!("/{}", target.trim_start_matches('/'));
    for (name, value) in [
        (SET_COOKIE, cookie.as_str()),
        (LOCATION, target.as_str()),
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
    ] {
        if let Ok(value) = HeaderValue::from_str(value) {
            answer.headers_mut().insert(name, value);
        }
    }
    answer
}
