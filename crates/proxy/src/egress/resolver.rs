//! The sandbox's only name server: answers addresses of names that it may reach, and remembers what it said.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use dsec_proto::egress::Reason;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::dial::may_reach;
use super::dns::{self, Question};
use super::names::Answer;
use super::sandbox::Outward;
use super::upstream;
use crate::serve::Counted;
use crate::state::State;

/// Questions of one sandbox that are answered at a time; what comes then is dropped, and asked again by who wants to know.
const MOST_AT_ONCE: u32 = 64;
const LEAST_TTL: u32 = 5;
const MOST_TTL: u32 = 300;
/// Most addresses of one answer: it fits into the smallest datagram.
const MOST_ADDRESSES: usize = 8;
/// Most addresses of a name that are looked at: all of them are the name's, for who dials one that was not answered.
const MOST_LOOKED_AT: usize = 64;
const STREAM_PATIENCE: Duration = Duration::from_secs(15);

/// Answers datagrams until the sandbox is over.
pub async fn serve(state: Rc<State>, outward: Rc<Outward>, socket: UdpSocket) {
    let socket = Rc::new(socket);
    let mut packet = [0; 1500];
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut packet) => received,
            () = outward.over.wait() => return,
        };
        let Ok((count, from)) = received else {
            // The kernel's word about an answer that nobody took.
            tokio::task::yield_now().await;
            continue;
        };
        if outward.questions.get() >= MOST_AT_ONCE {
            continue;
        }
        // For the socket on which the node's own resolver is asked.
        let Some(counted) = Counted::new(&state, 1) else {
            continue;
        };
        outward.questions.set(outward.questions.get() + 1);
        let (outward, socket) = (Rc::clone(&outward), Rc::clone(&socket));
        let packet = packet[..count].to_vec();
        tokio::task::spawn_local(async move {
            if let Some(answer) = answer(&outward, &packet).await {
                let _ = socket.send_to(&answer, from).await;
            }
            outward.questions.set(outward.questions.get() - 1);
            drop(counted);
        });
    }
}

/// Answers the questions of one connection, one after the other.
pub async fn serve_stream(outward: &Rc<Outward>, mut stream: TcpStream) {
    let one = async |stream: &mut TcpStream| {
        let length = stream.read_u16().await.ok()?;
        let mut packet = vec![0; usize::from(length)];
        stream.read_exact(&mut packet).await.ok()?;
        let answer = answer(outward, &packet).await?;
        let mut bytes = (answer.len() as u16).to_be_bytes().to_vec();
        bytes.extend(answer);
        stream.write_all(&bytes).await.ok()
    };
    while let Ok(Some(())) = timeout(STREAM_PATIENCE, one(&mut stream)).await {}
}

async fn answer(outward: &Rc<Outward>, packet: &[u8]) -> Option<Vec<u8>> {
    let asked = match dns::question(packet)? {
        Ok(asked) => asked,
        Err(answer) => return Some(answer),
    };
    let (code, addresses, ttl) = found(outward, &asked).await;
    Some(dns::answer(&asked, code, &addresses, ttl))
}

async fn found(outward: &Rc<Outward>, asked: &Question) -> (u8, Vec<IpAddr>, u32) {
    let refused = |reason: Reason, code: u8| {
        outward.journal.name_refused(reason, asked.name.as_deref());
        (code, Vec::new(), 0)
    };
    let Some(name) = &asked.name else {
        return refused(Reason::Malformed, dns::REFUSED);
    };
    if !outward.policy().may_resolve(name) {
        return refused(Reason::Policy, dns::NO_NAME);
    }
    if asked.is_for_service() {
        return (dns::OK, Vec::new(), 0);
    }
    if !asked.is_for_addresses() {
        return refused(Reason::QueryType, dns::REFUSED);
    }
    match look(outward, name, asked.kind).await {
        Ok(mut answer) => {
            outward.journal.count(|count| count.names += 1);
            answer.addresses.truncate(MOST_ADDRESSES);
            (dns::OK, answer.addresses, answer.lasts.as_secs() as u32)
        }
        Err(Missing::Name) => (dns::NO_NAME, Vec::new(), 0),
        Err(Missing::Refused(reason)) => refused(reason, dns::NO_NAME),
        Err(Missing::Resolver) => refused(Reason::NoResolver, dns::FAILURE),
    }
}

/// Why a name has no addresses.
#[derive(Clone, Copy, Debug)]
pub enum Missing {
    /// There is none of that name.
    Name,
    /// It may not be reached.
    Refused(Reason),
    /// Nobody answers.
    Resolver,
}

/// The addresses of a name that may be looked up, of the kind that is asked for.
///
/// # Errors
/// Why there are none.
pub async fn look(outward: &Rc<Outward>, name: &str, kind: u16) -> Result<Answer, Missing> {
    let known = outward.names.borrow().fresh(name, kind, Instant::now());
    let answer = match known {
        Some(answer) => answer,
        None => ask(outward, name, kind).await?,
    };
    // Also of what was answered before it was denied.
    if outward.policy().denies_any(&answer.aliases) {
        return Err(Missing::Refused(Reason::Policy));
    }
    Ok(answer)
}

async fn ask(outward: &Rc<Outward>, name: &str, kind: u16) -> Result<Answer, Missing> {
    let said = upstream::ask(&outward.resolvers, name, kind).await;
    let said = said.ok_or(Missing::Resolver)?;
    let policy = outward.policy();
    let aliases = said.chain.get(1..).unwrap_or_default();
    if policy.denies_any(aliases) {
        return Err(Missing::Refused(Reason::Policy));
    }
    if said.code == dns::NO_NAME {
        return Err(Missing::Name);
    }
    let mut protected = false;
    let mut addresses = said.addresses;
    addresses.truncate(MOST_LOOKED_AT);
    addresses.retain(|address| match may_reach(&policy, *address) {
        Ok(()) => true,
        Err(reason) => {
            protected |= reason == Reason::ProtectedAddress;
            false
        }
    });
    if addresses.is_empty() && protected {
        return Err(Missing::Refused(Reason::ProtectedAddress));
    }
    let ttl = said.ttl.clamp(LEAST_TTL, MOST_TTL);
    let answer = Answer {
        addresses,
        aliases: aliases.into(),
        lasts: Duration::from_secs(u64::from(ttl)),
    };
    let mut names = outward.names.borrow_mut();
    names.learn(name, kind, &answer, Instant::now());
    Ok(answer)
}

/// Where to go for an address that was dialled: there, or, when nobody answers, to the name's other addresses.
#[must_use]
pub fn others(outward: &Outward, name: Option<&str>, to: SocketAddr) -> Vec<SocketAddr> {
    let policy = outward.policy();
    let mut all = vec![to];
    if let Some(name) = name {
        let known = outward.names.borrow().of_name(name, Instant::now());
        let fit = known.into_iter().filter(|(address, aliases)| {
            *address != to.ip()
                && policy.decide(Some(name), *address, to.port()).allow
                && !policy.denies_any(aliases)
                && may_reach(&policy, *address).is_ok()
        });
        let fit = fit.map(|(address, _)| SocketAddr::new(address, to.port()));
        all.extend(fit.take(MOST_ADDRESSES));
    }
    all
}
