//! Plain HTTP through the proxy: what comes out on the other side can be read in one way only.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use dsec_proto::error::WireError;
use dsec_proxy::answer;
use dsec_proxy::body::Meter;
use dsec_proxy::connect::Stream;
use dsec_proxy::cut::Cut;
use dsec_proxy::egress::asked;
use dsec_proxy::forward::{forward, Passage, Road};
use dsec_proxy::serve::http;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{duplex, AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::{spawn_local, LocalSet};
use tokio::time::timeout;

use crate::upstream::{read, Read};

/// Longer than anything is waited for; the clock jumps as soon as nothing else can happen.
const ENDLESS: Duration = Duration::from_secs(4000);
const ROOM: usize = 1 << 20;
const PLAIN: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Requests of a sandbox: each that a server gets names its host once, and as it was checked.
pub(crate) fn web_requests(bytes: &[u8]) {
    let said = Rc::new(RefCell::new(Vec::new()));
    let servers = Rc::clone(&said);
    let serve = move |host: String, stream: DuplexStream| {
        let said = Rc::clone(&servers);
        spawn_local(async move {
            let bytes = server(stream).await;
            said.borrow_mut().push((host, bytes));
        });
    };
    through(bytes, serve);
    for (host, bytes) in said.borrow().iter() {
        let mut rest = &bytes[..];
        while let Read::Whole(message) = read(rest, false, true) {
            let words: Vec<&str> = message.first.split(' ').collect();
            assert!(
                matches!(words[..], [_, target, "HTTP/1.1"] if target.starts_with('/') || target == "*"),
                "{message:?}"
            );
            assert_eq!(message.all("host"), [host.as_bytes()], "{message:?}");
            assert!(message.fields.iter().all(|(name, _)| name != "forwarded"));
            rest = &rest[message.length..];
            if !message.all("upgrade").is_empty() {
                break;
            }
        }
    }
}

/// Answers of a server: the program gets at most as many as it asked for, each of them whole, or none.
pub(crate) fn web_answers(bytes: &[u8]) {
    const ASKED: &[u8] = b"GET / HTTP/1.1\r\nhost: a.test\r\n\r\n";
    let bytes = bytes.to_vec();
    let serve = move |_, mut stream: DuplexStream| {
        let bytes = bytes.clone();
        spawn_local(async move {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(&bytes).await;
        });
    };
    let said = through(&[ASKED, ASKED].concat(), serve);
    let mut rest = &said[..];
    let mut count = 0;
    while !rest.is_empty() {
        let bodiless = [&b"HTTP/1.1 204"[..], b"HTTP/1.1 304"];
        let bodiless = bodiless.iter().any(|status| rest.starts_with(status));
        let Read::Whole(message) = read(rest, bodiless, true) else {
            // Cut off, as the server's was.
            break;
        };
        assert!(message.first.starts_with("HTTP/1.1 "), "{message:?}");
        rest = &rest[message.length..];
        count += 1;
    }
    assert!(count <= 2, "{count} answers");
}

/// Sends bytes through the proxy; what comes back. `serve` has each connection onwards, and the host it is for.
fn through(bytes: &[u8], serve: impl Fn(String, DuplexStream)) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let (near, mut client) = duplex(ROOM);
        client.write_all(bytes).await.expect("there is room");
        let road = Road::default();
        let service = service_fn(async |mut request| {
            let passed = async {
                let host = asked::read(&mut request).map_err(WireError::invalid)?;
                let dial = async || -> Result<Box<dyn Stream>, WireError> {
                    let (far, servers) = duplex(ROOM);
                    serve(host.clone(), servers);
                    Ok(Box::new(far) as Box<dyn Stream>)
                };
                forward(&road, &host, request, passage(), dial, WireError::invalid).await
            };
            Ok::<_, Infallible>(passed.await.unwrap_or_else(|error| answer::error(&error)))
        });
        let serving = http()
            .serve_connection(TokioIo::new(near), service)
            .with_upgrades();
        let _ = timeout(ENDLESS, serving).await;
        let mut said = Vec::new();
        let _ = timeout(ENDLESS, client.read_to_end(&mut said)).await;
        said
    })
}

fn passage() -> Passage {
    let free: Meter = Rc::new(|_| true);
    Passage {
        out: Rc::clone(&free),
        back: free,
        cut: Cut::default(),
        held: Rc::new(()),
    }
}

/// Answers each request as soon as it is whole; all that it was sent.
async fn server(mut stream: DuplexStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut at = 0;
    while matches!(
        timeout(ENDLESS / 2, stream.read_buf(&mut all)).await,
        Ok(Ok(1..))
    ) {
        while let Read::Whole(message) = read(&all[at..], false, false) {
            at += message.length;
            let _ = stream.write_all(PLAIN).await;
        }
    }
    all
}
