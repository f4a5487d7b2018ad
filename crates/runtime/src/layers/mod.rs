//! Layers are mounted before a sandbox is made of them, and unmounted when the edge asks for it.
//!
//! What is done about one layer is done in its turn, by tasks: whoever waits for the layer holder keeps no thread, so
//! that a holder or a store that is silent delays those only who need that layer.

mod holder;
mod ready;
mod unclosed;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dsec_proto::error::{WireError, WireResult};
use dsec_proto::runtime::Loading;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{timeout_at, Instant};

use crate::node::Node;
use crate::store::Layers;
use holder::Holder;
use ready::Ready;
use unclosed::Unclosed;

/// How long a sandbox waits for a layer to be opened: readers of one wait as long for a store that is away.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long an unmounted file system may take to go before others have their turn.
const GONE: Duration = Duration::from_secs(2);
/// So many make room for one that the holder is to fill: others will want room soon.
const MANY: usize = 32;
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(10);

/// What this process knows of them.
pub struct Mounted {
    /// Fills what is not all here.
    holder: Option<Holder>,
    /// Those that can be used.
    ready: RefCell<Ready>,
    turns: RefCell<HashMap<String, Arc<Mutex<()>>>>,
    unclosed: RefCell<Unclosed>,
}

impl Mounted {
    /// What is mounted already, and the socket of the layer holder, on nodes that have one.
    #[must_use]
    pub fn new(layers: &Layers, holder: Option<PathBuf>) -> Self {
        Self {
            holder: holder.map(Holder::at),
            ready: RefCell::new(Ready::of(layers.found())),
            turns: RefCell::default(),
            unclosed: RefCell::default(),
        }
    }

    fn is_ready(&self, digest: &str) -> bool {
        self.ready.borrow_mut().want(digest)
    }

    fn lock(&self, digest: &str) -> Arc<Mutex<()>> {
        let mut turns = self.turns.borrow_mut();
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(digest.to_owned()).or_default())
    }

    /// The turn of a layer that nothing is done about at the moment.
    fn idle(&self, digest: &str) -> Option<OwnedMutexGuard<()>> {
        self.lock(digest).try_lock_owned().ok()
    }
}

/// Has layers mounted, for a sandbox that counts as their user already.
///
/// # Errors
/// `NotFound` when no store has one, what the kernel says, why it cannot be filled, or that it took too long.
pub async fn bring(node: &Node, digests: &[String]) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    for digest in digests {
        if node.mounted.is_ready(digest) {
            continue;
        }
        let turn = timeout_at(end, node.mounted.lock(digest).lock_owned()).await;
        let turn = turn.map_err(|_| {
            let late = format!("layer {digest} was not opened in time");
            io::Error::new(io::ErrorKind::TimedOut, late)
        })?;
        if node.mounted.is_ready(digest) {
            continue;
        }
        let failed = mount(node, digest, end).await;
        drop(turn);
        if failed.is_err() {
            let_go(node).await;
        }
        failed?;
    }
    Ok(())
}

/// In the layer's turn.
async fn mount(node: &Node, digest: &str, end: Instant) -> io::Result<()> {
    let number = match open(node, digest, end).await {
        Err(full) if full.kind() == io::ErrorKind::QuotaExceeded => {
            open_for_idle(node, digest, end, full).await
        }
        opened => opened,
    }?;
    let (layers, own) = (Arc::clone(&node.layers), digest.to_owned());
    let mounted = node.objects.run(move || layers.mount(&own)).await;
    match (&mounted, number) {
        (Ok(()), _) => node.mounted.ready.borrow_mut().add(digest, number),
        (Err(_), Some(number)) => node.mounted.unclosed.borrow_mut().add(number, digest, None),
        (Err(_), None) => {}
    }
    mounted
}

/// The holder fills as many as it can: those that no sandbox uses are unmounted, the longest unwanted first, until there is
/// room. They are as they were when they are wanted again.
async fn open_for_idle(
    node: &Node,
    digest: &str,
    end: Instant,
    full: io::Error,
) -> io::Result<Option<u32>> {
    let mut mounted = node.mounted.ready.borrow().digests().into_iter();
    loop {
        let idle = mounted.by_ref().filter(|each| !node.uses_layer(each));
        let some: Vec<String> = idle.take(MANY).collect();
        if some.is_empty() || Instant::now() >= end {
            return Err(full);
        }
        evict(node, &some).await;
        match open(node, digest, end).await {
            Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => {}
            opened => return opened,
        }
    }
}

/// Has the holder fill a layer that is not all here, before it is mounted: EROFS that was there first would ask nobody,
/// and read zeros.
async fn open(node: &Node, digest: &str, end: Instant) -> io::Result<Option<u32>> {
    let (layers, own) = (Arc::clone(&node.layers), digest.to_owned());
    let partial = node.objects.run(move || layers.partial(&own)).await?;
    match (partial, &node.mounted.holder) {
        (None, _) => Ok(None),
        (Some(Some(directory)), Some(holder)) => holder.open(digest, &directory, end).await,
        _ => Err(io::Error::other(format!(
            "layer {digest} is not all here, and this node does not fill it"
        ))),
    }
}

/// Unmounts those that are mounted and that no sandbox uses. Returns their digests.
pub async fn evict(node: &Node, digests: &[String]) -> Vec<String> {
    let mut gone = Vec::new();
    // Whoever does not answer once is not waited for again.
    let mut answers = true;
    for digest in digests {
        // Somebody brings it at this moment: it is used.
        let Some(_turn) = node.mounted.idle(digest) else {
            continue;
        };
        let Some(number) = node.mounted.ready.borrow().number(digest) else {
            continue;
        };
        let number = match number {
            None if answers => number_of(node, digest).await.unwrap_or_else(|error| {
                tracing::warn!(layer = digest, "stays with the holder: {error}");
                answers = false;
                None
            }),
            number => number,
        };
        if node.uses_layer(digest) {
            continue;
        }
        // From here on whoever needs it waits for its turn.
        node.mounted.ready.borrow_mut().remove(digest);
        if unmount(node, digest, number).await {
            gone.push(digest.clone());
        }
    }
    let_go(node).await;
    gone
}

/// In the layer's turn.
async fn unmount(node: &Node, digest: &str, number: Option<u32>) -> bool {
    let (layers, own) = (Arc::clone(&node.layers), digest.to_owned());
    let unmounted = node.objects.run(move || layers.unmount(&own)).await;
    let Ok(system) = unmounted else {
        node.mounted.ready.borrow_mut().add(digest, number);
        return false;
    };
    if let Some(number) = number {
        let unclosed = &node.mounted.unclosed;
        unclosed.borrow_mut().add(number, digest, Some(system));
        let end = Instant::now() + GONE;
        while !unclosed.borrow_mut().is_unread(number) && Instant::now() < end {
            tokio::time::sleep(LOOK).await;
        }
    }
    true
}

/// What the holder fills a layer as that a former runtime mounted.
async fn number_of(node: &Node, digest: &str) -> io::Result<Option<u32>> {
    let Some(holder) = &node.mounted.holder else {
        return Ok(None);
    };
    let (layers, own) = (Arc::clone(&node.layers), digest.to_owned());
    match node.objects.run(move || layers.partial(&own)).await {
        Ok(Some(Some(directory))) => holder.number(digest, &directory).await,
        _ => Ok(None),
    }
}

/// The holder need not fill layers any more that nobody can read. While a file system of one lives it goes on.
async fn let_go(node: &Node) {
    let Some(holder) = &node.mounted.holder else {
        return;
    };
    let free = node
        .mounted
        .unclosed
        .borrow_mut()
        .free(&node.mounted.ready.borrow().numbers());
    for (number, digest) in free {
        // What the holder lets go must not be mounted at that moment.
        let Some(_turn) = node.mounted.idle(&digest) else {
            continue;
        };
        if node.mounted.ready.borrow().numbers().contains(&number) {
            continue;
        }
        if let Err(error) = holder.close(&digest, number).await {
            tracing::warn!(layer = digest, "stays with the holder for now: {error}");
            break;
        }
        node.mounted.unclosed.borrow_mut().closed(number);
    }
}

/// Unmounts all: no sandbox lives.
pub async fn close(node: &Node) {
    let all = node.mounted.ready.borrow().digests();
    evict(node, &all).await;
}

/// How layers are read on demand.
///
/// # Errors
/// `node_error`, phase `holder`, when it does not answer.
pub async fn loading(node: &Node, after: u32) -> WireResult<Loading> {
    let Some(holder) = &node.mounted.holder else {
        return Ok(Loading::default());
    };
    let going = holder
        .going(after)
        .await
        .map_err(|error| WireError::node("holder", error.to_string()))?;
    Ok(Loading {
        on_demand: true,
        fetcher: going.fetcher,
        oldest_wait_ms: going.oldest_wait_ms,
        counts: going.counts,
        layers: going.layers,
        more: going.more,
    })
}
