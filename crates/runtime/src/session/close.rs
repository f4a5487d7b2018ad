//! `session.close`: the shell leaves, and nothing that it has started stays.

use std::rc::Rc;
use std::time::Duration;

use dsec_fault::fault;
use dsec_proto::error::WireResult;
use dsec_proto::runtime::ExecKill;
use dsec_proto::session::SessionClose;

use super::{shell, stop};
use crate::check;
use crate::exec;
use crate::node::Node;
use crate::pause;

/// Ends a session, confirmed. A run that it has is cancelled. Idempotent.
///
/// # Errors
/// `not_found`.
pub async fn close(node: &Rc<Node>, asked: SessionClose) -> WireResult<()> {
    check::limits(None, asked.grace_ms, 0)?;
    let (exec, session) = match super::find(node, &asked.sandbox_id, &asked.session_id) {
        Err(_) if super::past(node, &asked.sandbox_id, &asked.session_id).is_some() => {
            return Ok(());
        }
        found => found?,
    };
    session.closing.set(true);
    fault!("runtime.close.asked");
    if exec.is_running() {
        pause::go_on(node, &exec.sandbox, "exec")?;
        stop::interrupt(
            node,
            &exec,
            &session,
            "cancelled",
            asked.grace_ms * 1_000_000,
        )
        .await;
        let free = |exec: &exec::Exec| {
            let busy = session.state.borrow().current.is_some() && exec.is_running();
            (!busy).then_some(())
        };
        exec.until(free).await;
        // Its EXIT trap may do something.
        session.say(shell::LEAVE);
        let left = exec.until(|exec| (!exec.is_running()).then_some(()));
        let _ = tokio::time::timeout(Duration::from_millis(asked.grace_ms), left).await;
    }
    fault!("runtime.close.left");
    let kill = ExecKill {
        sandbox_id: asked.sandbox_id,
        exec_id: asked.session_id,
        signal: None,
        grace_ms: 0,
        cause: "cancelled".into(),
    };
    exec::kill(node, kill).await?;
    fault!("runtime.close.killed");
    Ok(())
}
