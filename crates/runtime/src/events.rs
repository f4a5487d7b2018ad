//! `events`: what happens without being asked, to the edge.

use std::rc::Rc;

use dsec_proto::error::WireError;
use dsec_proto::frame;
use dsec_proto::runtime::Empty;
use tokio::sync::mpsc;

use crate::connection::Stream;
use crate::node::Node;

/// Serves the one subscriber for as long as its stream is open. It lists after it has subscribed, so that nothing
/// falls between.
pub async fn serve(node: &Rc<Node>, params: &[u8], stream: &mut Stream) {
    if let Err(error) = frame::params::<Empty>(params) {
        return stream.out.finish::<Empty>(Err(error)).await;
    }
    let (sender, mut events) = mpsc::unbounded_channel();
    let taken = node
        .subscriber
        .borrow()
        .as_ref()
        .is_some_and(|one| !one.is_closed());
    if taken {
        let error = WireError::new("conflict", "another connection has subscribed to events");
        return stream.out.finish::<Empty>(Err(error)).await;
    }
    node.subscriber.replace(Some(sender));
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(event) => stream.out.item(&event).await,
                None => return,
            },
            said = stream.input.recv() => if said.is_none() { return },
        }
    }
}
