//! File operations: each in a child of its own inside the sandbox, with the caller's IDs, killable.

pub mod counted;
mod running;
pub mod transfer;
mod who;

use std::rc::Rc;

use dsec_fault::fault;
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::frame::{self, DEFAULT_CREDIT};
use dsec_proto::runtime::{
    FileCalled, FileCalling, FileList, FileListed, FileRead, FileReport, FileWatch, FileWrite,
};
use dsec_session::plan::{self, FileCall, FileOp};

use crate::check;
use crate::connection::Stream;
use crate::node::Node;
pub use running::LEAVE;
use running::{Running, Side};

/// Largest file that can be written: beyond it the disk limit would be in the way anyway.
const MAX_LENGTH: u64 = 1 << 44;
/// Watches that one sandbox may have at once: each is a process of its own.
const MAX_WATCHES: usize = 32;

fn told(report: plan::FileReport) -> FileReport {
    FileReport {
        bytes: report.bytes,
        size: report.size,
        mode: report.mode,
    }
}

/// `file.read`.
pub async fn read(node: &Rc<Node>, params: &[u8], stream: &mut Stream) {
    let begun = async {
        let asked: FileRead = frame::params(params)?;
        let operation = |output| FileOp::Read {
            path: asked.path.to_vec(),
            offset: asked.offset,
            limit: asked.limit,
            output,
        };
        let running = Running::begin(node, &asked, Side::Reads, operation).await?;
        Ok((running, asked.offset, asked.credit.get(&1).copied()))
    };
    if let Some(result) = streamed(begun.await, stream).await {
        stream.out.finish(result.map(told)).await;
    }
}

/// Sends what a child writes; its report. `None`: the client has left.
async fn streamed(
    begun: WireResult<(Running, u64, Option<u64>)>,
    stream: &mut Stream,
) -> Option<WireResult<plan::FileReport>> {
    let (running, first, credit) = match begun {
        Ok(begun) => begun,
        Err(error) => return Some(Err(error)),
    };
    let until = credit.unwrap_or(first.saturating_add(DEFAULT_CREDIT));
    if running.send(stream, first, until).await.is_none() {
        running.abandon().await;
        return None;
    }
    Some(running.finish().await)
}

/// `file.write`.
pub async fn write(node: &Rc<Node>, params: &[u8], stream: &mut Stream) {
    let begun = async {
        let asked: FileWrite = frame::params(params)?;
        if asked.length > MAX_LENGTH || asked.mode.is_some_and(|mode| mode > 0o7777) {
            return Err(
                WireError::invalid("length or mode is out of range").with("field", "length")
            );
        }
        let operation = |input| FileOp::Write {
            path: asked.path.to_vec(),
            mode: asked.mode,
            parents: asked.parents,
            length: asked.length,
            input,
        };
        Ok((
            Running::begin(node, &asked, Side::Writes, operation).await?,
            asked.length,
        ))
    };
    let result = match begun.await {
        Ok((mut running, length)) => match running.receive(stream, length).await {
            Some(Ok(())) => {
                fault!("runtime.write.received");
                running.finish().await
            }
            Some(Err(error)) => {
                running.abandon().await;
                Err(error)
            }
            None => return running.abandon().await,
        },
        Err(error) => Err(error),
    };
    stream.out.finish(result.map(told)).await;
}

/// `file.call`. Once begun it is carried out, whether or not the client waits.
pub async fn call(node: &Rc<Node>, params: &[u8]) -> WireResult<FileCalled> {
    let asked: FileCalling = frame::params(params)?;
    let mode = match &asked.call {
        FileCall::Mkdir { mode, .. } => mode.unwrap_or(0),
        FileCall::Move { target, .. } => {
            check::path("target", target, false)?;
            0
        }
        _ => 0,
    };
    if mode > 0o7777 {
        return Err(WireError::invalid("mode is out of range").with("field", "mode"));
    }
    let operation = |_| FileOp::Call(asked.call.clone());
    let report = Running::begin(node, &asked, Side::Neither, operation)
        .await?
        .finish()
        .await?;
    Ok(FileCalled {
        info: report.info,
        entries: report.entries,
    })
}

/// `file.list`.
pub async fn list(node: &Rc<Node>, params: &[u8], stream: &mut Stream) {
    let begun = async {
        let asked: FileList = frame::params(params)?;
        let operation = |output| FileOp::List {
            path: asked.path.to_vec(),
            depth: asked.depth,
            output,
        };
        let running = Running::begin(node, &asked, Side::Reads, operation).await?;
        Ok((running, 0, asked.credit.get(&1).copied()))
    };
    if let Some(result) = streamed(begun.await, stream).await {
        let listed = |report: plan::FileReport| FileListed {
            entries: report.entries,
        };
        stream.out.finish(result.map(listed)).await;
    }
}

/// `file.watch`: an empty item once it watches, then records for as long as the client listens.
pub async fn watch(node: &Rc<Node>, params: &[u8], stream: &mut Stream) {
    let begun = async {
        let asked: FileWatch = frame::params(params)?;
        let operation = |output| FileOp::Watch {
            path: asked.path.to_vec(),
            recursive: asked.recursive,
            output,
        };
        let watches = node.watches.get(&asked.sandbox_id);
        if watches >= MAX_WATCHES {
            return Err(WireError::new(
                "capacity",
                format!("a sandbox has at most {MAX_WATCHES} watches at once"),
            )
            .about(&asked.sandbox_id));
        }
        let counted = node.watches.count(&asked.sandbox_id);
        let running = Running::begin(node, &asked, Side::Reads, operation).await?;
        Ok(((running, 0, asked.credit.get(&1).copied()), counted))
    };
    let (begun, _counted) = match begun.await {
        Ok((begun, counted)) => {
            stream.out.item(&dsec_proto::runtime::Empty {}).await;
            (Ok(begun), Some(counted))
        }
        Err(error) => (Err(error), None),
    };
    if let Some(result) = streamed(begun, stream).await {
        let listed = |report: plan::FileReport| FileListed {
            entries: report.entries,
        };
        stream.out.finish(result.map(listed)).await;
    }
}
