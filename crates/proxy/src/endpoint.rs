//! The way out: requests of a sandbox to `NAME.dsec.internal`, passed on to one URL and nowhere else.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use dsec_fault::fault;
use dsec_proto::error::WireError;
use dsec_proto::net::EndpointSpec;
use hyper::body::Incoming;
use hyper::header::{HeaderValue, HOST};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::body::{Body, Meter};
use crate::connect;
use crate::cut::Cut;
use crate::forward::{forward, Passage, Road};
use crate::limits::{Counters, Rate};
use crate::serve::{http, Counted};
use crate::state::State;
use crate::{answer, headers, target};

/// Beyond its connections an endpoint answers so many more with the reason; what comes then is closed.
const TOLD: u32 = 16;

/// One endpoint of a sandbox.
pub struct Endpoint {
    sandbox_id: String,
    spec: RefCell<EndpointSpec>,
    /// What it has done.
    pub counters: Counters,
    rate: RefCell<Option<Rate>>,
    /// Of the connections of now.
    live: RefCell<Cut>,
    over: Cut,
    open: Cell<bool>,
}

impl Endpoint {
    /// One with its counters.
    #[must_use]
    pub fn new(sandbox_id: &str, spec: EndpointSpec, counters: Counters) -> Rc<Self> {
        let rate = spec
            .max_requests_per_minute
            .map(|most| Rate::new(most, Instant::now()));
        Rc::new(Self {
            sandbox_id: sandbox_id.to_owned(),
            open: Cell::new(!spec.closed),
            spec: RefCell::new(spec),
            counters,
            rate: RefCell::new(rate),
            live: RefCell::default(),
            over: Cut::default(),
        })
    }

    /// Takes over what was told; one that is closed now loses its connections.
    pub fn change(&self, spec: EndpointSpec) {
        if self.open.replace(!spec.closed) && spec.closed {
            self.live.replace(Cut::default()).cut();
        }
        self.spec.replace(spec);
    }

    /// The sandbox is over.
    pub fn end(&self) {
        self.over.cut();
        self.live.borrow().cut();
    }

    /// Refuses a request that may not pass now.
    fn admit(&self) -> Result<(), WireError> {
        let spec = self.spec.borrow();
        let refused = |code, why: &str| {
            Err(WireError::new(code, format!("endpoint {} {why}", spec.name)).in_phase("endpoint"))
        };
        if spec.closed {
            return refused("denied", "is closed");
        }
        if spec
            .max_bytes
            .is_some_and(|most| self.counters.bytes() >= most)
        {
            return refused("quota_exceeded", "has used up its bytes");
        }
        if let (Some(most), Some(rate)) =
            (spec.max_requests_per_minute, &mut *self.rate.borrow_mut())
        {
            if !rate.take(most, Instant::now()) {
                return refused(
                    "quota_exceeded",
                    "has had too many requests within a minute",
                );
            }
        }
        Ok(())
    }

    fn meter(self: &Rc<Self>, state: &Rc<State>, sends: bool) -> Meter {
        let (endpoint, state) = (Rc::clone(self), Rc::clone(state));
        Rc::new(move |count| {
            endpoint.counters.add(|counted| {
                let bytes = if sends {
                    &mut counted.sent_bytes
                } else {
                    &mut counted.received_bytes
                };
                *bytes += count;
            });
            state.stir(&endpoint.sandbox_id);
            let most = endpoint.spec.borrow().max_bytes;
            most.is_none_or(|most| endpoint.counters.bytes() <= most)
        })
    }
}

/// Accepts connections until the sandbox is over.
pub fn serve(state: &Rc<State>, endpoint: &Rc<Endpoint>, listener: OwnedFd) {
    let (state, endpoint) = (Rc::clone(state), Rc::clone(endpoint));
    let listener = std::net::TcpListener::from(listener);
    let prepared = listener
        .set_nonblocking(true)
        .and_then(|()| TcpListener::from_std(listener));
    let listener = match prepared {
        Ok(listener) => listener,
        Err(error) => {
            return tracing::error!(endpoint.sandbox_id, "a listener cannot be watched: {error}")
        }
    };
    tokio::task::spawn_local(async move {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = endpoint.over.wait() => return,
            };
            match accepted {
                Ok((stream, _)) => begin(&state, &endpoint, stream),
                Err(error) => {
                    tracing::warn!(endpoint.sandbox_id, "accept: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
}

/// Counts a connection while it lives.
struct Open {
    state: Rc<State>,
    endpoint: Rc<Endpoint>,
    _counted: Counted,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.endpoint.counters.connected(-1);
        self.state.stir(&self.endpoint.sandbox_id);
    }
}

fn begin(state: &Rc<State>, endpoint: &Rc<Endpoint>, stream: TcpStream) {
    let most = endpoint.spec.borrow().max_connections;
    let before = endpoint.counters.connections();
    let counted = Counted::new(state, 2);
    if before >= most.saturating_add(TOLD) || counted.is_none() {
        endpoint.counters.add(|counted| counted.refused += 1);
    }
    let Some(counted) = counted.filter(|_| before < most.saturating_add(TOLD)) else {
        return;
    };
    endpoint.counters.connected(1);
    state.stir(&endpoint.sandbox_id);
    fault!("proxy.endpoint.accepted");
    let open = Open {
        state: Rc::clone(state),
        endpoint: Rc::clone(endpoint),
        _counted: counted,
    };
    let connection = Rc::new(Connection {
        open: Rc::new(open),
        road: Road::default(),
        cut: endpoint.live.borrow().clone(),
        beyond: before >= most,
    });
    let cut = connection.cut.clone();
    let refuser = Rc::clone(endpoint);
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let connection = Rc::clone(&connection);
        async move { Ok::<_, Infallible>(connection.answer(request).await) }
    });
    let serving = http()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::task::spawn_local(async move {
        tokio::select! {
            // What is no request at all was answered before anything of ours saw it.
            ended = serving => if ended.is_err_and(|error| error.is_parse()) {
                refuser.counters.add(|counted| counted.refused += 1);
            },
            () = cut.wait() => {}
        }
    });
}

struct Connection {
    open: Rc<Open>,
    road: Road,
    cut: Cut,
    beyond: bool,
}

impl Connection {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let endpoint = &self.open.endpoint;
        let answered = match self.checked(request) {
            Ok(request) => self.pass(request).await,
            Err(error) => {
                endpoint.counters.add(|counted| counted.refused += 1);
                Err(error)
            }
        };
        self.open.state.stir(&endpoint.sandbox_id);
        answered.unwrap_or_else(|error| answer::error(&error.about(&endpoint.sandbox_id)))
    }

    /// The request as the URL's server shall see it.
    fn checked(&self, mut request: Request<Incoming>) -> Result<Request<Incoming>, WireError> {
        let endpoint = &self.open.endpoint;
        if self.beyond {
            let message = format!(
                "endpoint {} has as many connections as it may",
                endpoint.spec.borrow().name
            );
            return Err(WireError::new("quota_exceeded", message).in_phase("endpoint"));
        }
        let invalid = |why: &str| WireError::invalid(why).in_phase("endpoint");
        headers::check_framing(request.version(), request.headers()).map_err(invalid)?;
        let spec = endpoint.spec.borrow();
        let uri = request.uri();
        if uri.scheme().is_some()
            || uri.authority().is_some()
            || request.method() == Method::CONNECT
        {
            return Err(invalid("the request's target must be a path"));
        }
        let asked = uri.path_and_query().map_or("", |asked| asked.as_str());
        let joined = target::join(&spec.path, asked).map_err(invalid)?;
        *request.uri_mut() = joined
            .parse::<Uri>()
            .map_err(|_| invalid("the request's target is no target"))?;
        let host = HeaderValue::from_str(&authority(&spec))
            .map_err(|_| invalid("the endpoint's host is none"))?;
        headers::undisguise(request.headers_mut());
        request.headers_mut().insert(HOST, host);
        drop(spec);
        endpoint.admit()?;
        Ok(request)
    }

    async fn pass(&self, request: Request<Incoming>) -> Result<Response<Body>, WireError> {
        let (endpoint, state) = (&self.open.endpoint, &self.open.state);
        endpoint.counters.add(|counted| counted.requests += 1);
        fault!("proxy.endpoint.counted");
        let spec = endpoint.spec.borrow().clone();
        let broken = |why: String| {
            WireError::new(
                "endpoint_unreachable",
                format!("endpoint {}: {why}", spec.name),
            )
            .in_phase("endpoint")
            .remedy("The server behind the endpoint does not answer as it should")
        };
        let passage = Passage {
            out: endpoint.meter(state, true),
            back: endpoint.meter(state, false),
            cut: self.cut.clone(),
            held: Rc::clone(&self.open) as Rc<dyn std::any::Any>,
        };
        let dial = async || {
            let stream = connect::connect(&spec).await.map_err(broken);
            fault!("proxy.endpoint.dialled");
            stream
        };
        let answer = forward(&self.road, "", request, passage, dial, broken).await;
        fault!("proxy.endpoint.answered");
        answer
    }
}

/// The Host of requests to the URL.
fn authority(spec: &EndpointSpec) -> String {
    let host = if spec.host.contains(':') {
        format!("[{}]", spec.host)
    } else {
        spec.host.clone()
    };
    let usual = if spec.tls { 443 } else { 80 };
    if spec.port == usual {
        host
    } else {
        format!("{host}:{}", spec.port)
    }
}
