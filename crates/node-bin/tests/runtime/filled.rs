//! Layers that are filled while they are read, over a holder that fills few.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use dsec_holder::{link::Link, table};
use dsec_proto::loading::{FromHolder, ToHolder, FULL, VERSION};
use rustix::event::{poll, PollFd, PollFlags};

use super::client::Client;
use super::node::Node;

const SOCKET: &str = "holder.sock";

/// Which layers are open, by number, and which were let go, in order.
#[derive(Default)]
struct Book {
    next: u32,
    open: HashMap<u32, String>,
    closed: Vec<String>,
}

/// Opens `most` layers at once and fills none: all of them are here.
struct FakeHolder(Arc<Mutex<Book>>);

impl FakeHolder {
    fn start(run: &Path, most: usize) -> Self {
        table::prepare().expect("descriptors");
        let listener = UnixListener::bind(run.join(SOCKET)).expect("bound");
        let book = Arc::new(Mutex::new(Book::default()));
        let own = Arc::clone(&book);
        thread::spawn(move || {
            for stream in listener.incoming() {
                // Each question has a connection of its own, and ends with it.
                serve(&OwnedFd::from(stream.expect("accepted")), &own, most);
            }
        });
        Self(book)
    }

    fn closed(&self) -> Vec<String> {
        self.0.lock().expect("unharmed").closed.clone()
    }
}

fn serve(stream: &OwnedFd, book: &Mutex<Book>, most: usize) {
    let readable = |fd: &dyn std::os::fd::AsFd| {
        let waited = poll(&mut [PollFd::new(&fd.as_fd(), PollFlags::IN)], None);
        waited.expect("waited")
    };
    readable(stream);
    let mut link = Link::accept(stream).expect("a caller");
    loop {
        readable(&link);
        let Ok(Some((said, _))) = link.hear::<ToHolder>() else {
            return;
        };
        let answer = answer(&mut book.lock().expect("unharmed"), said, most);
        link.tell(&answer, Vec::new()).expect("told");
    }
}

fn answer(book: &mut Book, said: ToHolder, most: usize) -> FromHolder {
    match said {
        ToHolder::Hello { .. } => FromHolder::Hello { version: VERSION },
        ToHolder::Open { turn, digest } => {
            let known = book.open.iter().find(|(_, own)| **own == digest);
            let layer = known.map(|(number, _)| *number);
            if layer.is_none() && book.open.len() == most {
                let reason = FULL.to_owned();
                return FromHolder::Refused { turn, reason };
            }
            let number = layer.unwrap_or_else(|| {
                book.next += 1;
                book.next
            });
            book.open.insert(number, digest);
            let layer = Some(number);
            FromHolder::Opened { turn, layer }
        }
        ToHolder::Close { turn, layer, .. } => {
            book.closed.extend(book.open.remove(&layer));
            FromHolder::Closed { turn }
        }
        ToHolder::Ask { turn, .. } => FromHolder::Going {
            turn,
            going: Default::default(),
        },
    }
}

fn over(node: &Node, client: &mut Client, layer: &str) -> Result<String, String> {
    let mut spec = node.spec();
    spec.layers.push(layer.to_owned());
    let made = client.create(&spec);
    made.map(|_| spec.sandbox_id).map_err(|error| error.code)
}

fn end(client: &mut Client, sandbox: &str) {
    client.stop(sandbox);
    client.forget(sandbox);
}

/// A node uses more layers in its life than the holder fills at once: those that no sandbox uses are let go for another, and
/// come again. Where sandboxes use all of them the create is told so, and they live on.
#[test]
fn idle_layers_make_room() {
    let node = Node::with_holder(Some(SOCKET));
    let holder = FakeHolder::start(&node.dir.join("run"), 2);
    let mut client = node.client();
    let [a, b, c] = ["a1", "b2", "c3"].map(|of| node.partial_layer(of));
    for layer in [&a, &b, &a] {
        let made = over(&node, &mut client, layer).expect("made");
        end(&mut client, &made);
    }
    assert_eq!(holder.closed(), Vec::<String>::new());
    let third = over(&node, &mut client, &c).expect("made");
    let closed = holder.closed();
    assert!(closed.contains(&b) && !closed.contains(&c), "{closed:?}");
    let first = over(&node, &mut client, &a).expect("made");
    assert_eq!(over(&node, &mut client, &b), Err("capacity".to_owned()));
    for sandbox in [&first, &third] {
        assert_eq!(client.sh(sandbox, "echo on").1.stdout(), "on\n");
    }
    end(&mut client, &third);
    let second = over(&node, &mut client, &b).expect("made");
    assert_eq!(holder.closed().last(), Some(&c));
    assert_eq!(client.sh(&first, "echo on").1.stdout(), "on\n");
    end(&mut client, &first);
    end(&mut client, &second);
    node.down();
}
