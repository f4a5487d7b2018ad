//! Connections to the URLs of endpoints, with TLS where they say so.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dsec_proto::net::EndpointSpec;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// For all of a connection's beginning.
const PATIENCE: Duration = Duration::from_secs(10);
/// For one of the addresses of a name, when there are more.
const EACH: Duration = Duration::from_secs(4);

/// A connection, of whatever kind.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connects to the host of an endpoint.
///
/// # Errors
/// A sentence without anything of the URL but its host and port.
pub async fn connect(spec: &EndpointSpec) -> Result<Box<dyn Stream>, String> {
    let at = |what: String| format!("{}:{}: {what}", spec.host, spec.port);
    match timeout(PATIENCE, connect_now(spec)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(at(said(&error))),
        Err(_) => Err(at("no connection within 10 s".into())),
    }
}

fn said(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}

async fn connect_now(spec: &EndpointSpec) -> io::Result<Box<dyn Stream>> {
    let tcp = dial(&spec.host, spec.port).await?;
    tcp.set_nodelay(true)?;
    if !spec.tls {
        return Ok(Box::new(tcp));
    }
    let name = ServerName::try_from(spec.host.clone()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(tls()?);
    Ok(Box::new(connector.connect(name, tcp).await?))
}

async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in tokio::net::lookup_host((host, port)).await? {
        match timeout(EACH, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

static ROOTS: OnceLock<RootCertStore> = OnceLock::new();
static TLS: OnceLock<Arc<ClientConfig>> = OnceLock::new();

/// Reads the machine's own roots (`SSL_CERT_FILE`, `SSL_CERT_DIR`, or where distributions keep them), while it may.
pub fn read_roots() {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    let _ = ROOTS.set(roots);
}

fn tls() -> io::Result<Arc<ClientConfig>> {
    if let Some(config) = TLS.get() {
        return Ok(Arc::clone(config));
    }
    let roots = ROOTS.get().filter(|roots| !roots.is_empty());
    let roots = roots.ok_or_else(|| io::Error::other("this machine has no root certificates"))?;
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots.clone())
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::clone(TLS.get_or_init(|| Arc::new(config))))
}
