//! `tool.run`: image tools, outside of any sandbox, that outlive the edge.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::path::{Component, Path};
use std::rc::Rc;

use dsec_proto::error::{WireError, WireResult};
use dsec_proto::frame;
use dsec_proto::keeper::{Call, Ended};
use dsec_proto::runtime::{Empty, ToolEnd, ToolRun};
use dsec_session::plan::{Clone3, End, Exec, Plan, Step};
use serde_bytes::ByteBuf;
use tokio::sync::Notify;

use crate::check;
use crate::connection::Stream;
use crate::exec::errors_of;
use crate::keeper::Parcel;
use crate::node::Node;
use crate::tag::Tag;

/// One run of a tool.
#[derive(Default)]
pub struct Tool {
    outcome: RefCell<Option<WireResult<ToolEnd>>>,
    changed: Notify,
}

impl Tool {
    fn enter(&self, outcome: WireResult<ToolEnd>) {
        *self.outcome.borrow_mut() = Some(outcome);
        self.changed.notify_waiters();
    }

    /// The keeper says that it is over.
    pub fn ended(&self, end: &Ended) {
        self.enter(Ok(ToolEnd {
            exit_code: end.exit_code,
            signal: end.signal,
        }));
    }

    async fn outcome(&self) -> WireResult<ToolEnd> {
        loop {
            let mut told = std::pin::pin!(self.changed.notified());
            told.as_mut().enable();
            if let Some(outcome) = self.outcome.borrow().clone() {
                return outcome;
            }
            told.await;
        }
    }
}

/// Runs a tool, or joins the run that has its ID. The run is forgotten once somebody has been told of its end.
pub async fn run(node: &Rc<Node>, params: &[u8], stream: &Stream) {
    let asked = frame::params::<ToolRun>(params).and_then(|asked| checked(node, asked));
    let asked = match asked {
        Ok(asked) => asked,
        Err(error) => return stream.out.finish::<Empty>(Err(error)).await,
    };
    let known = node.tools.borrow().get(&asked.tool_id).cloned();
    let tool = match known {
        Some(tool) => tool,
        None => {
            let tool = Rc::new(Tool::default());
            node.tools
                .borrow_mut()
                .insert(asked.tool_id.clone(), Rc::clone(&tool));
            if let Err(error) = spawn(node, &asked).await {
                tool.enter(Err(error));
            }
            tool
        }
    };
    let outcome = tool.outcome().await;
    stream.out.finish(outcome).await;
    if node.tools.borrow_mut().remove(&asked.tool_id).is_some() {
        node.keeper.ack(vec![object(&asked.tool_id)]).await;
    }
}

/// Object ID of a run.
fn object(tool_id: &str) -> String {
    format!("tool/{tool_id}")
}

fn checked(node: &Node, asked: ToolRun) -> WireResult<ToolRun> {
    check::tool_id(&asked.tool_id)?;
    if asked.stdin.is_some() {
        return Err(
            WireError::new("unsupported", "tools have no standard input").with("field", "stdin"),
        );
    }
    if asked.argv.is_empty() || asked.argv.iter().any(|part| part.contains(&0)) {
        return Err(WireError::invalid("there is no program to run").with("field", "argv"));
    }
    let log = Path::new(&asked.log);
    let plain = log
        .components()
        .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if plain && log.starts_with(&node.config.data_dir) {
        Ok(asked)
    } else {
        Err(WireError::invalid("the log must lie below the data directory").with("field", "log"))
    }
}

async fn spawn(node: &Node, asked: &ToolRun) -> WireResult<()> {
    let broken = |error: std::io::Error| WireError::node("tool", error.to_string());
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&asked.log)
        .map_err(broken)?;
    let mut parcel = Parcel::default();
    let mut join = Vec::new();
    for file in node.layout.plain("tools").map_err(broken)? {
        let file: OwnedFd = File::options()
            .write(true)
            .open(file)
            .map_err(broken)?
            .into();
        join.push(parcel.give(file));
    }
    let log = parcel.give(log.into());
    use std::os::unix::ffi::OsStringExt;
    let env = std::env::vars_os()
        .filter(|(key, _)| key != "LISTEN_FDS" && key != "LISTEN_PID")
        .map(|(key, value)| {
            let mut pair = key.into_vec();
            pair.push(b'=');
            pair.extend(value.into_vec());
            ByteBuf::from(pair)
        });
    let program = Exec {
        programs: asked.argv[..1].to_vec(),
        file: None,
        argv: asked.argv.clone(),
        env: env.collect(),
        fds: vec![(log, 1), (log, 2)],
    };
    let steps = vec![Step::Setsid, Step::JoinCgroups(join)];
    let call = Call::Spawn {
        object_id: object(&asked.tool_id),
        tag: Tag::Tool
            .encode()
            .map_err(|error| WireError::node("tag", error))?,
        plan: Some(Box::new(Plan {
            clone: Clone3::default(),
            steps,
            end: End::Exec(program),
        })),
        plan_fd: None,
        held: Vec::new(),
    };
    node.keeper
        .call(call, parcel.numbers())
        .await
        .map(drop)
        .map_err(|refusal| errors_of(&refusal))
}
