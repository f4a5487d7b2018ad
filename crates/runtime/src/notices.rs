//! What the keeper tells, passed to whom it concerns.

use std::rc::Rc;

use dsec_proto::keeper::Ended;

use crate::node::Node;
use crate::{exec, sandbox};

/// An object's process has ended.
pub fn ended(node: &Rc<Node>, object_id: &str, end: Ended) {
    let (kind, id) = object_id.split_once('/').unwrap_or((object_id, ""));
    match kind {
        "sb" => {
            let found = node.sandboxes.borrow().get(id).cloned();
            match found {
                Some(sandbox) => sandbox::init_ended(node, &sandbox, &end),
                None => forget(node, object_id),
            }
        }
        "ex" => {
            let exec_id = id.split_once('/').map_or("", |(_, exec_id)| exec_id);
            let found = node.execs.borrow().get(exec_id).cloned();
            if let Some(exec) = found {
                exec::ended(node, &exec, end);
            }
        }
        "file" => {
            let waiting = node.files.borrow_mut().remove(object_id);
            match waiting {
                Some(waiting) => drop(waiting.send(end)),
                None => forget(node, object_id),
            }
        }
        "tool" => {
            if let Some(tool) = node.tools.borrow().get(id) {
                tool.ended(&end);
            }
        }
        _ => tracing::warn!(object_id, "an object of no kind has ended"),
    }
}

/// Nobody asks for this one any more.
fn forget(node: &Rc<Node>, object_id: &str) {
    let (node, object_id) = (Rc::clone(node), object_id.to_owned());
    tokio::task::spawn_local(async move { node.keeper.ack(vec![object_id]).await });
}

/// The keeper was away for a moment: ends that it could not tell stand in its list.
pub async fn look_again(node: &Rc<Node>) {
    match node.keeper.list().await {
        Ok(objects) => {
            for object in objects {
                if let Some(end) = object.ended {
                    ended(node, &object.object_id, end);
                }
            }
        }
        Err(refusal) => tracing::error!("the keeper's list: {}", refusal.message),
    }
}
