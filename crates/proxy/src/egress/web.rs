//! Plain HTTP on its way out: each request is read, checked by the host that it names, and written anew.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use dsec_proto::egress::Reason;
use dsec_proto::error::WireError;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::asked;
use super::connection::{agree, reach};
use super::policy::name_of;
use super::sandbox::{Open, Outward};
use crate::answer;
use crate::body::{Body, Meter};
use crate::connect::Stream;
use crate::forward::{forward, Passage, Road};
use crate::serve::http;

/// A connection of which some bytes have been read already.
struct Begun {
    head: Vec<u8>,
    at: usize,
    stream: TcpStream,
}

impl AsyncRead for Begun {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = &self.head[self.at..];
        if left.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let count = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..count]);
        self.at += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Begun {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

struct Web<'a> {
    outward: &'a Rc<Outward>,
    open: &'a Rc<Open>,
    to: SocketAddr,
    road: Road,
}

/// Serves a connection whose first bytes are a request's.
pub async fn serve(
    outward: &Rc<Outward>,
    open: &Rc<Open>,
    stream: TcpStream,
    head: Vec<u8>,
    to: SocketAddr,
) {
    // Errors are told in words, which a reset could overtake.
    let _ = rustix::net::sockopt::set_socket_linger(&stream, None);
    outward.journal.count(|count| count.connections += 1);
    let web = Web {
        outward,
        open,
        to,
        road: Road::default(),
    };
    let web = &web;
    let service =
        service_fn(move |request| async move { Ok::<_, Infallible>(web.answer(request).await) });
    let begun = Begun {
        head,
        at: 0,
        stream,
    };
    let serving = http()
        .serve_connection(TokioIo::new(begun), service)
        .with_upgrades();
    let _ = serving.await;
}

impl Web<'_> {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        match self.pass(request).await {
            Ok(answer) => answer,
            Err(error) => answer::error(&error),
        }
    }

    fn refused(
        &self,
        reason: Reason,
        name: Option<&str>,
        code: &str,
        message: String,
    ) -> WireError {
        self.outward
            .journal
            .refused(reason, name, Some((self.to.ip(), self.to.port())));
        let error = WireError::new(code, message).in_phase("network");
        let told = serde_json::to_value(reason).ok();
        let told = told.and_then(|told| told.as_str().map(str::to_owned));
        error.with("reason", told.unwrap_or_default())
    }

    fn malformed(&self, why: &str) -> WireError {
        self.refused(Reason::Malformed, None, "invalid_argument", why.to_owned())
    }

    async fn pass(&self, mut request: Request<Incoming>) -> Result<Response<Body>, WireError> {
        let outward = self.outward;
        let asked = asked::read(&mut request).map_err(|why| self.malformed(why))?;
        let name = self.checked(&asked).await?;
        if outward.is_used_up() {
            return Err(self.refused(
                Reason::Bytes,
                name.as_deref(),
                "quota_exceeded",
                "the sandbox has used up its bytes".into(),
            ));
        }
        self.open.passes(name.as_deref(), self.to);
        let broken = |why: String| {
            self.refused(
                Reason::Unreachable,
                name.as_deref(),
                "endpoint_unreachable",
                format!("{asked}: {why}"),
            )
        };
        let meter = |sends: bool| -> Meter {
            let outward = Rc::clone(outward);
            Rc::new(move |count| outward.pass(sends, count).is_some())
        };
        let passage = Passage {
            out: meter(true),
            back: meter(false),
            cut: self.open.live.cut.clone(),
            held: Rc::clone(self.open) as Rc<dyn std::any::Any>,
        };
        let dial = async || -> Result<Box<dyn Stream>, WireError> {
            match reach(outward, self.open, name.as_deref(), self.to).await {
                Ok(stream) => Ok(Box::new(stream) as Box<dyn Stream>),
                Err(Reason::Unreachable) => Err(broken("the server does not answer".into())),
                Err(reason) => Err(self.denied(reason, name.as_deref(), &asked)),
            }
        };
        let host = name.as_deref().unwrap_or_default();
        forward(&self.road, host, request, passage, dial, broken).await
    }

    /// The name of a host that may be reached at the address that was dialled; none where that is an address itself.
    async fn checked(&self, host: &str) -> Result<Option<String>, WireError> {
        let (text, port) = asked::split(host);
        if port.is_some_and(|port| port != self.to.port().to_string()) {
            return Err(self.denied(Reason::NamesDisagree, None, host));
        }
        if let Some(name) = name_of(text) {
            let agreed = agree(self.outward, &name, self.to).await;
            agreed.map_err(|(reason, _)| self.denied(reason, Some(&name), host))?;
            return Ok(Some(name));
        }
        let literal = text.trim_start_matches('[').trim_end_matches(']');
        match literal.parse::<IpAddr>() {
            Ok(address) if address == self.to.ip() => {}
            Ok(_) => return Err(self.denied(Reason::NamesDisagree, None, host)),
            Err(_) => return Err(self.malformed("the host is none")),
        }
        let policy = self.outward.policy();
        let verdict = policy.decide(None, self.to.ip(), self.to.port());
        match (verdict.allow, verdict.reason) {
            (true, _) => Ok(None),
            (false, Reason::Policy) => Err(self.denied(Reason::NoName, None, host)),
            (false, reason) => Err(self.denied(reason, None, host)),
        }
    }

    fn denied(&self, reason: Reason, name: Option<&str>, host: &str) -> WireError {
        let what = format!(
            "the sandbox's network does not reach {host:.253} at {}",
            self.to
        );
        self.refused(reason, name, "denied", what).remedy(
            "sandbox.events() and `dsec events ID` say why; the policy is the create's network=",
        )
    }
}
