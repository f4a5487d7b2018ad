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
    let begun = Begun {
        outward: &outward,
        open: &Rc::new(open),
        stream,
        head: Vec::new(),
        to,
    };
    tokio::select! {
        () = begun.pass() => {}
        () = cut.wait() => {}
    }
}

/// Connects to where a connection may go, and notes where that is.
///
/// # Errors
/// Why not.
pub async fn reach(
    outward: &Rc<Outward>,
    open: &Open,
    name: Option<&str>,
    to: SocketAddr,
) -> Result<TcpStream, Reason> {
    // From here on another policy cuts it.
    open.passes(name, to);
    dial::may_reach(&outward.policy(), to.ip())?;
    let far = dial::connect(&resolver::others(outward, name, to)).await?;
    let at = far.peer_addr().map_err(|_| Reason::Unreachable)?;
    open.leads(at)?;
    Ok(far)
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

/// A connection of which it is not known yet what it is.
struct Begun<'a> {
    outward: &'a Rc<Outward>,
    open: &'a Rc<Open>,
    stream: TcpStream,
    /// Its first bytes.
    head: Vec<u8>,
    /// What was dialled.
    to: SocketAddr,
}

impl Begun<'_> {
    async fn pass(mut self) {
        let refused = match self.judge().await {
            Ok(Way::Relay { name, far }) => {
                let far = match far {
                    Some(far) => {
                        self.open.passes(name.as_deref(), self.to);
                        Ok(far)
                    }
                    None => reach(self.outward, self.open, name.as_deref(), self.to).await,
                };
                match far {
                    Ok(far) => return self.carry(far, name).await,
                    Err(reason) => (reason, name),
                }
            }
            Ok(Way::Web) => {
                let Self {
                    outward, open, to, ..
                } = self;
                return web::serve(outward, open, self.stream, self.head, to).await;
            }
            Ok(Way::Gone) => return,
            Err(refusal) => refusal,
        };
        let (reason, name) = refused;
        refuse(self.outward, &self.stream, reason, name.as_deref(), self.to);
    }

    async fn carry(self, far: TcpStream, name: Option<String>) {
        let outward = self.outward;
        outward.journal.count(|count| count.connections += 1);
        match relay::run(outward, self.stream, far, &self.head).await {
            (Ended::Whole, near) => {
                let _ = rustix::net::sockopt::set_socket_linger(&near, None);
            }
            (Ended::UsedUp, near) => {
                refuse(outward, &near, Reason::Bytes, name.as_deref(), self.to);
            }
            (Ended::Broken, _) => {}
        }
    }

    async fn judge(&mut self) -> Result<Way, Refusal> {
        let (outward, to) = (self.outward, self.to);
        let policy = outward.policy();
        if !policy.knows_names() {
            let verdict = policy.decide(None, to.ip(), to.port());
            let looked = outward.names.borrow().of_address(to.ip(), Instant::now());
            let name = looked.into_iter().next();
            return match verdict.allow {
                true => Ok(Way::Relay { name, far: None }),
                false => Err((verdict.reason, name)),
            };
        }
        if policy.is_protected(to.ip()) {
            return Err((Reason::ProtectedAddress, None));
        }
        let begun = timeout(SILENCE, first(&mut self.stream, &mut self.head)).await;
        match begun {
            Ok(begun) => {
                let kind = self.beginning(begun).await?;
                of_kind(outward, kind, to, None).await
            }
            Err(_) => self.silent().await,
        }
    }

    /// Reads until it is clear what a connection is; `None` when it ends before.
    async fn beginning(&mut self, begun: Option<()>) -> Result<Option<Kind>, Refusal> {
        let end = tokio::time::Instant::now() + PATIENCE;
        let mut begun = begun;
        while begun.is_some() {
            match sniff::kind(&self.head) {
                Kind::More if self.head.len() > MAX_HEAD => return Err((Reason::Malformed, None)),
                Kind::More => {}
                kind => return Ok(Some(kind)),
            }
            begun = tokio::select! {
                more = first(&mut self.stream, &mut self.head) => more,
                () = sleep_until(end) => return Err((Reason::Slow, None)),
            };
        }
        Ok(None)
    }

    /// The program says nothing: what it dialled decides, and the server may speak first, where servers do.
    async fn silent(&mut self) -> Result<Way, Refusal> {
        let (outward, to) = (self.outward, self.to);
        let name = looked_up(outward, to)?;
        let far = reach(outward, self.open, name.as_deref(), to).await;
        let far = far.map_err(|reason| (reason, name.clone()))?;
        let kind = tokio::select! {
            begun = first(&mut self.stream, &mut self.head) => self.beginning(begun).await?,
            _ = far.readable() => {
                let policy = outward.policy();
                let unnamed = policy.decide(None, to.ip(), to.port());
                if SHARED_PORTS.contains(&to.port()) && !unnamed.allow {
                    return Err((Reason::UnknownProtocol, name));
                }
                return Ok(Way::Relay { name, far: Some(far) });
            }
        };
        of_kind(outward, kind, to, Some((name, far))).await
    }
}

/// The first bytes; `None` when there are none.
async fn first(stream: &mut TcpStream, head: &mut Vec<u8>) -> Option<()> {
    head.reserve(2048);
    matches!(stream.read_buf(head).await, Ok(1..)).then_some(())
}

/// The name that an address was looked up by, under which it may pass; none where it may pass without.
fn looked_up(outward: &Outward, to: SocketAddr) -> Result<Option<String>, Refusal> {
    let policy = outward.policy();
    let looked = outward.names.borrow().of_address(to.ip(), Instant::now());
    let fits = |name: &String| {
        policy.decide(Some(name), to.ip(), to.port()).allow
            && !outward.is_denied_on_the_way(&policy, name, to.ip())
    };
    if let Some(name) = looked.iter().find(|name| fits(name)) {
        return Ok(Some(name.clone()));
    }
    let verdict = policy.decide(None, to.ip(), to.port());
    match verdict.allow {
        true => Ok(None),
        false => Err((verdict.reason, looked.into_iter().next())),
    }
}

/// What becomes of a connection of a kind. `reached`: a server that is connected already, and by which name.
async fn of_kind(
    outward: &Rc<Outward>,
    kind: Option<Kind>,
    to: SocketAddr,
    reached: Option<(Option<String>, TcpStream)>,
) -> Result<Way, Refusal> {
    let name = match kind {
        None => return Ok(Way::Gone),
        Some(Kind::Http) => return Ok(Way::Web),
        Some(kind) => passes_as(outward, kind, to).await?,
    };
    // By another name it may be another address.
    let far = reached.and_then(|(of, far)| (of == name).then_some(far));
    Ok(Way::Relay { name, far })
}

/// The name by which a connection may pass as it is; none where it may pass without.
async fn passes_as(
    outward: &Rc<Outward>,
    kind: Kind,
    to: SocketAddr,
) -> Result<Option<String>, Refusal> {
    let policy = outward.policy();
    let unnamed = policy.decide(None, to.ip(), to.port());
    let unless_unnamed = |reason: Reason, name: Option<String>| match unnamed.allow {
        true => Ok(None),
        false if unnamed.reason == Reason::ProtectedAddress => Err((unnamed.reason, name)),
        false => Err((reason, name)),
    };
    match kind {
        Kind::Tls(Hello {
            name,
            encrypted: true,
        }) if !policy.table.ech => unless_unnamed(Reason::EncryptedHello, name),
        Kind::Tls(Hello { name: None, .. }) => unless_unnamed(Reason::NoName, None),
        Kind::Tls(Hello {
            name: Some(text), ..
        }) => match name_of(&text) {
            None => unless_unnamed(Reason::Malformed, Some(text)),
            Some(name) => {
                agree(outward, &name, to).await?;
                Ok(Some(name))
            }
        },
        Kind::Http2 => unless_unnamed(Reason::Http2Cleartext, None),
        Kind::Malformed => unless_unnamed(Reason::Malformed, None),
        Kind::Ssh if !SHARED_PORTS.contains(&to.port()) => looked_up(outward, to),
        Kind::Ssh | Kind::Other | Kind::Http | Kind::More => {
            if unnamed.allow {
                return Ok(None);
            }
            let name = looked_up(outward, to)?;
            let verdict = policy.decide(name.as_deref(), to.ip(), to.port());
            // Whoever names the port knows what is spoken there.
            if verdict.port_is_named && !SHARED_PORTS.contains(&to.port()) {
                Ok(name)
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
    let way = outward.names.borrow().way(name, to.ip(), Instant::now());
    let aliases = match way {
        Some(aliases) => aliases,
        // It may have been looked up before this proxy began, or stand in the program's own list.
        None => {
            let kind = if to.is_ipv4() { dns::A } else { dns::AAAA };
            match resolver::look(outward, name, kind).await {
                Ok(answer) if answer.addresses.contains(&to.ip()) => answer.aliases,
                Ok(_) | Err(Missing::Name) => return refused(Reason::NamesDisagree),
                Err(Missing::Refused(reason)) => return refused(reason),
                Err(Missing::Resolver) => return refused(Reason::NoResolver),
            }
        }
    };
    let policy = outward.policy();
    if policy.denies_any(&aliases) {
        return refused(Reason::Policy);
    }
    let verdict = policy.decide(Some(name), to.ip(), to.port());
    if verdict.allow {
        Ok(())
    } else {
        refused(verdict.reason)
    }
}
