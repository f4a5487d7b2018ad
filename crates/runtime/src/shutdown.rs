//! `shutdown`: everything that the runtime made outside of sandboxes is taken away.

use std::rc::Rc;
use std::sync::Arc;

use dsec_proto::error::{WireError, WireResult};
use dsec_proto::runtime::Empty;

use crate::disks;
use crate::node::Node;
use crate::tag::LAYERS_OBJECT;
use crate::{snapshots, store, tools};

/// Unmounts layers and pool, lets the loop device and the groups go.
///
/// # Errors
/// `conflict` while a sandbox lives; `node_error` when the pool is still in use.
pub async fn shutdown(node: &Rc<Node>) -> WireResult<Empty> {
    if let Some(sandbox) = node
        .sandboxes
        .borrow()
        .values()
        .find(|sandbox| !sandbox.is_over())
    {
        return Err(
            WireError::new("conflict", format!("{} is still there", sandbox.id)).about(&sandbox.id),
        );
    }
    node.closing.set(true);
    tools::end_all(node).await?;
    let kept: Vec<String> = node.disks.borrow().keys().cloned().collect();
    disks::remove_all(node, &kept).await?;
    let taken: Vec<String> = node.snapshots.borrow().keys().cloned().collect();
    snapshots::remove_all(node, &taken).await?;
    node.slots.close().await;
    let (layers, config, layout) = (
        Arc::clone(&node.layers),
        node.config.clone(),
        node.layout.clone(),
    );
    crate::layers::close(node).await;
    crate::audit::close(node);
    crate::net::routed::sweep(node).await;
    let work = move || {
        layers.close();
        layout.remove();
        store::close_pool(&config)
    };
    node.objects
        .run(work)
        .await
        .map_err(|error| WireError::node("shutdown", format!("the pool: {error}")))?;
    node.keeper.ack(vec![LAYERS_OBJECT.into()]).await;
    Ok(Empty {})
}
