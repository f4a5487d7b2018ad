//! One connection of a sandbox: what it is, whether it may pass, and where to.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use dsec_proto::egress::Reason;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};

use super::hello::Hello;
use super::policy::name_of;
use super::relay::{self, refuse, reset, Ended};
use super::resolver::{self, Missing};
use super::sandbox::{dialled, Open, Outward};
use super::sniff::{self, Kind};
use super::{dial, dns, web};
use crate::serve::Counted;

/// After so long the server is let speak first.
const SILENCE: Duration = Duration::from_secs(1);
/// For all of a connection's beginning, once it has begun.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest beginning.
const MAX_HEAD: usize = 24 * 1024;
/// Where nothing but HTTP and TLS is spoken: an address has many names there.
const SHARED_PORTS: [u16; 2] = [80, 443];

/// Why a connection does not pass, and the name it asked for.
pub type Refusal = (Reason, Option<String>);

/// Serves one that was just accepted.
pub async fn serve(outward: Rc<Outward>, stream: TcpStream, counted: Option<Counted>) {
    let Some(to) = dialled(&stream) else {
        // It was made to the listener itself.
        return reset(&stream);
    };
    let Some(open) = counted.and_then(|counted| outward.open(counted)) else {
        return refuse(&outward, &stream, Reason::Connections, None, to);
    };
    let cut = open.live.cut.clone();
    if to.port() == 53 {
        tokio::select! {
            () = resolver::serve_stream(&outward, stream) => {}
            () = cut.wait() => {}
        }
        return;
    }
    if outward.is_used_up() {
        return refuse(&outward, &stream, Reason::Bytes, None, to);
    }
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
    // Dropped, a stream that was cut resets; one that has ended well is told otherwise below.
    reset(&stream);
    tokio::select! {
        () = pass(&outward, &open, stream, to) => {}
        () = cut.wait() => {}
    }
}

async fn pass(outward: &Rc<Outward>, open: &Open, mut stream: TcpStream, to: SocketAddr) {
    let mut head = Vec::new();
    let refused = match judge(outward, open, &mut stream, &mut head, to).await {
        Ok(Way::Relay { name, far }) => {
            open.passes(name.as_deref(), to);
            let far = match far {
                Some(far) => Ok(far),
                None => reach(outward, name.as_deref(), to).await,
            };
            match far {
                Ok(far) => return carry(outward, stream, far, &head, name, to).await,
                Err(reason) => (reason, name),
            }
        }
        Ok(Way::Web) => return web::serve(outward, open, stream, head, to).await,
        Ok(Way::Gone) => return,
        Err(refusal) => refusal,
    };
    refuse(outward, &stream, refused.0, refused.1.as_deref(), to);
}

async fn carry(
    outward: &Rc<Outward>,
    near: TcpStream,
    far: TcpStream,
    head: &[u8],
    name: Option<String>,
    to: SocketAddr,
) {
    outward.journal.count(|count| count.connections += 1);
    match relay::run(outward, near, far, head).await {
        (Ended::Whole, near) => {
            let _ = rustix::net::sockopt::set_socket_linger(&near, None);
        }
        (Ended::UsedUp, near) => refuse(outward, &near, Reason::Bytes, name.as_deref(), to),
        (Ended::Broken, _) => {}
    }
}

/// Connects to where a connection may go.
///
/// # Errors
/// Why not.
pub async fn reach(
    outward: &Rc<Outward>,
    name: Option<&str>,
    to: SocketAddr,
) -> Result<TcpStream, Reason> {
    dial::may_reach(&outward.policy(), to.ip())?;
    dial::connect(&resolver::others(outward, name, to)).await
}

enum Way {
    /// Bytes as they are, to a server that may be connected already.
    Relay {
        name: Option<String>,
        far: Option<TcpStream>,
    },
    /// Request by request.
    Web,
    /// The program has given up.
    Gone,
}

async fn judge(
    outward: &Rc<Outward>,
    open: &Open,
    stream: &mut TcpStream,
    head: &mut Vec<u8>,
    to: SocketAddr,
) -> Result<Way, Refusal> {
    let policy = outward.policy();
    if !policy.knows_names() {
        let verdict = policy.decide(None, to.ip(), to.port());
        let looked = || outward.names.borrow().of_address(to.ip(), Instant::now());
        return match verdict.allow {
            true => Ok(Way::Relay {
                name: looked().into_iter().next(),
                far: None,
            }),
            false => Err((verdict.reason, looked().into_iter().next())),
        };
    }
    if policy.is_protected(to.ip()) {
        return Err((Reason::ProtectedAddress, None));
    }
    let kind = match timeout(SILENCE, first(stream, head)).await {
        Ok(begun) => begun,
        Err(_) => return silent(outward, open, stream, head, to).await,
    };
    let kind = beginning(stream, head, kind).await?;
    of_kind(outward, kind, to, None).await
}

/// The first bytes; `None` when there are none.
async fn first(stream: &mut TcpStream, head: &mut Vec<u8>) -> Option<()> {
    head.reserve(2048);
    matches!(stream.read_buf(head).await, Ok(1..)).then_some(())
}

/// Reads until it is clear what a connection is; `None` when it ends before.
async fn beginning(
    stream: &mut TcpStream,
    head: &mut Vec<u8>,
    begun: Option<()>,
) -> Result<Option<Kind>, Refusal> {
    let end = tokio::time::Instant::now() + PATIENCE;
    let mut begun = begun;
    while begun.is_some() {
        match sniff::kind(head) {
            Kind::More if head.len() > MAX_HEAD => return Err((Reason::Malformed, None)),
            Kind::More => {}
            kind => return Ok(Some(kind)),
        }
        begun = tokio::select! {
            more = first(stream, head) => more,
            () = sleep_until(end) => return Err((Reason::Slow, None)),
        };
    }
    Ok(None)
}

/// The program says nothing: what it dialled decides, and the server may speak first, where servers do.
async fn silent(
    outward: &Rc<Outward>,
    open: &Open,
    stream: &mut TcpStream,
    head: &mut Vec<u8>,
    to: SocketAddr,
) -> Result<Way, Refusal> {
    let name = looked_up(outward, to)?;
    open.passes(name.as_deref(), to);
    let far = reach(outward, name.as_deref(), to).await;
    let far = far.map_err(|reason| (reason, name.clone()))?;
    let kind = tokio::select! {
        begun = first(stream, head) => beginning(stream, head, begun).await?,
        _ = far.readable() => {
            let policy = outward.policy();
            let unnamed = policy.decide(None, to.ip(), to.port()).allow;
            if SHARED_PORTS.contains(&to.port()) && !unnamed {
                return Err((Reason::UnknownProtocol, name));
            }
            return Ok(Way::Relay { name, far: Some(far) });
        }
    };
    of_kind(outward, kind, to, Some(far)).await
}

/// The name that an address was looked up by, under which it may pass; none where it may pass without.
fn looked_up(outward: &Outward, to: SocketAddr) -> Result<Option<String>, Refusal> {
    let policy = outward.policy();
    let looked = outward.names.borrow().of_address(to.ip(), Instant::now());
    let fits = |name: &String| policy.decide(Some(name), to.ip(), to.port()).allow;
    if let Some(name) = looked.iter().find(|name| fits(name)) {
        return Ok(Some(name.clone()));
    }
    let verdict = policy.decide(None, to.ip(), to.port());
    match verdict.allow {
        true => Ok(None),
        false => Err((verdict.reason, looked.into_iter().next())),
    }
}

async fn of_kind(
    outward: &Rc<Outward>,
    kind: Option<Kind>,
    to: SocketAddr,
    far: Option<TcpStream>,
) -> Result<Way, Refusal> {
    let policy = outward.policy();
    let unnamed = policy.decide(None, to.ip(), to.port());
    let pass = |name: Option<String>, far| Ok(Way::Relay { name, far });
    let unless_unnamed = |reason: Reason, name: Option<String>, far| match unnamed.allow {
        true => Ok(Way::Relay { name: None, far }),
        false if unnamed.reason == Reason::ProtectedAddress => Err((unnamed.reason, name)),
        false => Err((reason, name)),
    };
    match kind {
        None => Ok(Way::Gone),
        Some(Kind::Http) => Ok(Way::Web),
        Some(Kind::Tls(Hello {
            name,
            encrypted: true,
        })) if !policy.table.ech => unless_unnamed(Reason::EncryptedHello, name, far),
        Some(Kind::Tls(Hello { name: None, .. })) => unless_unnamed(Reason::NoName, None, far),
        Some(Kind::Tls(Hello {
            name: Some(text), ..
        })) => match name_of(&text) {
            None => unless_unnamed(Reason::Malformed, Some(text), far),
            Some(name) => {
                agree(outward, &name, to).await?;
                pass(Some(name), far)
            }
        },
        Some(Kind::Ssh) => pass(looked_up(outward, to)?, far),
        Some(Kind::Http2) => unless_unnamed(Reason::Http2Cleartext, None, far),
        Some(Kind::Malformed) => unless_unnamed(Reason::Malformed, None, far),
        Some(Kind::Other | Kind::More) => {
            if unnamed.allow {
                return pass(None, far);
            }
            let name = looked_up(outward, to)?;
            let verdict = policy.decide(name.as_deref(), to.ip(), to.port());
            // Whoever names the port knows what is spoken there.
            if verdict.port_is_named && !SHARED_PORTS.contains(&to.port()) {
                pass(name, far)
            } else {
                Err((Reason::UnknownProtocol, name))
            }
        }
    }
}

/// Whether a name that a connection asks for is one of the address that it dialled, and may pass.
///
/// # Errors
/// Why not.
pub async fn agree(outward: &Rc<Outward>, name: &str, to: SocketAddr) -> Result<(), Refusal> {
    let refused = |reason: Reason| Err((reason, Some(name.to_owned())));
    let policy = outward.policy();
    if policy.is_protected(to.ip()) {
        return refused(Reason::ProtectedAddress);
    }
    if !policy.may_resolve(name) {
        return refused(Reason::Policy);
    }
    let known = outward.names.borrow().has(name, to.ip(), Instant::now());
    if !known {
        // It may have been looked up before this proxy began, or stand in the program's own list.
        let kind = if to.is_ipv4() { dns::A } else { dns::AAAA };
        match resolver::look(outward, name, kind).await {
            Ok((addresses, _)) if addresses.contains(&to.ip()) => {}
            Ok(_) | Err(Missing::Name) => return refused(Reason::NamesDisagree),
            Err(Missing::Refused(reason)) => return refused(reason),
            Err(Missing::Resolver) => return refused(Reason::NoResolver),
        }
    }
    let verdict = outward.policy().decide(Some(name), to.ip(), to.port());
    if verdict.allow {
        Ok(())
    } else {
        refused(verdict.reason)
    }
}
