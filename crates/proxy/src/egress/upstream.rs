//! The node's own resolvers, asked for sandboxes.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::dns::{self, Said};

const PATIENCE: Duration = Duration::from_secs(2);
const ROUNDS: usize = 2;
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Those that the operator names, else those that the machine has at this moment.
fn servers(named: &[SocketAddr]) -> Vec<SocketAddr> {
    if !named.is_empty() {
        return named.to_vec();
    }
    parse(&std::fs::read_to_string(RESOLV_CONF).unwrap_or_default())
}

fn parse(text: &str) -> Vec<SocketAddr> {
    let words = text.lines().map(|line| line.split_ascii_whitespace());
    let named = words.filter_map(|mut words| match (words.next(), words.next()) {
        (Some("nameserver"), Some(address)) => address.parse().ok(),
        _ => None,
    });
    named.map(|address| SocketAddr::new(address, 53)).collect()
}

/// Asks until one answers; `None` when none does.
pub async fn ask(named: &[SocketAddr], name: &str, kind: u16) -> Option<Said> {
    let servers = servers(named);
    for _ in 0..ROUNDS {
        for server in &servers {
            let said = match timeout(PATIENCE, by_datagram(*server, name, kind)).await {
                Ok(Ok(said)) if said.cut => {
                    let whole = timeout(PATIENCE, by_stream(*server, name, kind)).await;
                    whole.ok().and_then(Result::ok)
                }
                Ok(Ok(said)) => Some(said),
                _ => None,
            };
            if let Some(said) = said.filter(|said| matches!(said.code, dns::OK | dns::NO_NAME)) {
                return Some(said);
            }
        }
    }
    None
}

/// A number that nobody can guess: beside the port, which the kernel chooses, all that tells an answer from a forged one.
fn number() -> u16 {
    let mut bytes = [0; 2];
    // SAFETY: a buffer with its length; two bytes come at once.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    u16::from_ne_bytes(bytes)
}

async fn by_datagram(server: SocketAddr, name: &str, kind: u16) -> io::Result<Said> {
    let any = if server.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    let id = number();
    socket.send(&dns::ask(id, name, kind)).await?;
    let mut packet = [0; 4096];
    loop {
        let count = socket.recv(&mut packet).await?;
        if let Some(said) = dns::said(&packet[..count], id, name, kind) {
            return Ok(said);
        }
    }
}

async fn by_stream(server: SocketAddr, name: &str, kind: u16) -> io::Result<Said> {
    let mut stream = TcpStream::connect(server).await?;
    let id = number();
    let asked = dns::ask(id, name, kind);
    stream
        .write_all(&(asked.len() as u16).to_be_bytes())
        .await?;
    stream.write_all(&asked).await?;
    let length = stream.read_u16().await?;
    let mut packet = vec![0; usize::from(length)];
    stream.read_exact(&mut packet).await?;
    dns::said(&packet, id, name, kind).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The machine's resolvers are those of its resolv.conf.
    #[test]
    fn resolv_conf() {
        let text = "# nameserver 192.0.2.9\nsearch a.test\nnameserver 192.0.2.1\nnameserver  2001:db8::1 \nnameserver x\n";
        let wanted: Vec<SocketAddr> = vec![
            "192.0.2.1:53".parse().expect("is one"),
            "[2001:db8::1]:53".parse().expect("is one"),
        ];
        assert_eq!(parse(text), wanted);
    }
}
