//! Image tools: outside of any sandbox, children of the keeper, so that they outlive edge and runtime.

mod packing;
mod templates;

use std::cell::{Cell, RefCell};
use std::fs::{DirBuilder, File};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use dsec_proto::error::{WireError, WireResult};
use dsec_proto::frame;
use dsec_proto::keeper::{Call, Ended};
use dsec_proto::runtime::{Empty, ManyTools, OneTool, ToolEnd, ToolList, ToolRun, ToolState};
use dsec_session::plan::{Clone3, End, Exec, FdIndex, Plan, Step};
use serde_bytes::ByteBuf;
use tokio::sync::Notify;

use crate::check;
use crate::connection::Stream;
use crate::exec::errors_of;
use crate::groups::ToolGroup;
use crate::keeper::Parcel;
use crate::kernel::poll;
use crate::node::Node;
use crate::tag::Tag;

/// How long a killed tool may take to be gone.
const TO_DIE: Duration = Duration::from_secs(10);

/// One run of a tool, until it is forgotten.
pub struct Tool {
    group: ToolGroup,
    killed: Cell<bool>,
    outcome: RefCell<Option<WireResult<ToolEnd>>>,
    changed: Notify,
}

impl Tool {
    /// A run that goes on.
    #[must_use]
    pub fn new(group: ToolGroup) -> Self {
        Self {
            group,
            killed: Cell::new(false),
            outcome: RefCell::new(None),
            changed: Notify::new(),
        }
    }

    fn enter(&self, outcome: WireResult<ToolEnd>) {
        *self.outcome.borrow_mut() = Some(outcome);
        self.changed.notify_waiters();
    }

    /// The keeper says that it is over; what it started goes with it.
    pub fn ended(&self, end: &Ended) {
        if let Err(error) = self.group.kill() {
            tracing::error!("a tool's descendants: {error}");
        }
        self.enter(Ok(ToolEnd {
            exit_code: end.exit_code,
            signal: end.signal,
        }));
    }

    /// Whether this is its group.
    #[must_use]
    pub fn is_in(&self, group: &ToolGroup) -> bool {
        self.group.v2 == group.v2
    }

    fn is_over(&self) -> bool {
        self.outcome.borrow().is_some()
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

    async fn kill(&self) -> WireResult<()> {
        let broken = |error: std::io::Error| WireError::node("tool", error.to_string());
        self.killed.set(true);
        self.group.kill().map_err(broken)?;
        let gone = async {
            let _ = self.outcome().await;
            poll::until_empty(&self.group.v2).await
        };
        match tokio::time::timeout(TO_DIE, gone).await {
            Ok(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => Err(broken(error)),
            Ok(_) => Ok(()),
            Err(_) => Err(WireError::node("tool", "what was killed does not die")),
        }
    }
}

fn known(node: &Node, tool_id: &str) -> Option<Rc<Tool>> {
    node.tools.borrow().get(tool_id).cloned()
}

/// `tool.run`: runs a tool, or joins the run that has its ID, also when that is over.
pub async fn run(node: &Rc<Node>, params: &[u8], stream: &Stream) {
    let asked = frame::params::<ToolRun>(params).and_then(|asked| checked(node, asked));
    let asked = match asked {
        Ok(asked) => asked,
        Err(error) => return stream.out.finish::<Empty>(Err(error)).await,
    };
    let tool = match known(node, &asked.run.tool_id) {
        Some(tool) => tool,
        None if node.closing.get() => {
            let error = WireError::node("tool", "the node is being taken down");
            return stream.out.finish::<Empty>(Err(error)).await;
        }
        None => begin(node, &asked).await,
    };
    stream.out.finish(tool.outcome().await).await;
}

async fn begin(node: &Rc<Node>, asked: &Asked) -> Rc<Tool> {
    let tool = Rc::new(Tool::new(node.layout.tool(&asked.run.tool_id)));
    node.tools
        .borrow_mut()
        .insert(asked.run.tool_id.clone(), Rc::clone(&tool));
    match spawn(node, &tool, asked).await {
        Err(error) => tool.enter(Err(error)),
        // The kill came before there was anything to kill.
        Ok(()) if tool.killed.get() => drop(tool.group.kill()),
        Ok(()) => {}
    }
    tool
}

/// `tool.kill`: the tool and all that it started are dead when this returns.
///
/// # Errors
/// `node_error` when they do not die.
pub async fn kill(node: &Rc<Node>, params: &[u8]) -> WireResult<Empty> {
    let asked: OneTool = frame::params(params)?;
    check::tool_id(&asked.tool_id)?;
    if let Some(tool) = known(node, &asked.tool_id) {
        tool.kill().await?;
    }
    Ok(Empty {})
}

/// `tool.forget`: drops what is kept of runs that are over, their output too. Unknown ones are no error.
///
/// # Errors
/// `conflict` for one that goes on.
pub async fn forget(node: &Rc<Node>, params: &[u8]) -> WireResult<Empty> {
    let asked: ManyTools = frame::params(params)?;
    for tool_id in &asked.tool_ids {
        check::tool_id(tool_id)?;
        let Some(tool) = known(node, tool_id) else {
            continue;
        };
        if !tool.is_over() {
            return Err(WireError::new(
                "conflict",
                format!("{tool_id} is still running"),
            ));
        }
        tool.kill().await?;
        let _ = tool.group.remove();
        let _ = std::fs::remove_dir_all(output(node, tool_id));
        node.tools.borrow_mut().remove(tool_id);
        node.keeper.ack(vec![object(tool_id)]).await;
    }
    Ok(Empty {})
}

/// `tool.list`.
///
/// # Errors
/// `invalid_argument`.
pub async fn list(node: &Node, params: &[u8]) -> WireResult<ToolList> {
    frame::params::<Empty>(params)?;
    let state = |(tool_id, tool): (&String, &Rc<Tool>)| ToolState {
        tool_id: tool_id.clone(),
        running: !tool.is_over(),
    };
    let mut tools: Vec<_> = node.tools.borrow().iter().map(state).collect();
    tools.sort_by(|one, other| one.tool_id.cmp(&other.tool_id));
    Ok(ToolList { tools })
}

/// Kills all of them: the node goes down.
///
/// # Errors
/// `node_error` when one does not die.
pub async fn end_all(node: &Rc<Node>) -> WireResult<()> {
    let tools: Vec<_> = node.tools.borrow_mut().drain().collect();
    for (tool_id, tool) in tools {
        tool.kill().await?;
        node.keeper.ack(vec![object(&tool_id)]).await;
    }
    Ok(())
}

/// Object ID of a run.
fn object(tool_id: &str) -> String {
    format!("tool/{tool_id}")
}

/// Directory of a run's output.
fn output(node: &Node, tool_id: &str) -> PathBuf {
    node.config.data_dir.join("tools").join(tool_id)
}

fn checked(node: &Node, asked: ToolRun) -> WireResult<Asked> {
    check::tool_id(&asked.tool_id)?;
    let words: Option<Vec<&str>> = asked
        .argv
        .iter()
        .map(|word| std::str::from_utf8(word).ok())
        .collect();
    let bounds = templates::Bounds {
        data: &node.config.data_dir,
        python: node.config.python.as_deref(),
    };
    match words.filter(|words| templates::allows(words, &bounds)) {
        None => {
            Err(WireError::invalid("not a command line of any image tool").with("field", "argv"))
        }
        Some(words) => {
            let snapshot = packing::named(&words).map(str::to_owned);
            if let Some(id) = &snapshot {
                packing::check_kept(node, id)?;
            }
            Ok(Asked {
                run: asked,
                snapshot,
            })
        }
    }
}

/// A run that may be.
struct Asked {
    run: ToolRun,
    /// It is about this snapshot.
    snapshot: Option<String>,
}

/// The two output files, made afresh.
fn outputs(node: &Node, tool_id: &str) -> std::io::Result<[OwnedFd; 2]> {
    let directory = output(node, tool_id);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)?;
    let open = |name| File::create(directory.join(name)).map(OwnedFd::from);
    Ok([open("stdout")?, open("stderr")?])
}

/// The runtime's own environment: proxies, home and search path of the machine.
fn environment() -> Vec<ByteBuf> {
    std::env::vars_os()
        .filter(|(key, _)| key != "LISTEN_FDS" && key != "LISTEN_PID")
        .map(|(key, value)| {
            let mut pair = key.into_vec();
            pair.push(b'=');
            pair.extend(value.into_vec());
            ByteBuf::from(pair)
        })
        .collect()
}

fn parcel_of(node: &Node, tool: &Tool, tool_id: &str) -> std::io::Result<(Parcel, Positions)> {
    let mut parcel = Parcel::default();
    let mut join = Vec::new();
    for file in tool.group.make()? {
        let file: OwnedFd = File::options().write(true).open(file)?.into();
        join.push(parcel.give(file));
    }
    let [stdout, stderr] = outputs(node, tool_id)?.map(|fd| parcel.give(fd));
    Ok((
        parcel,
        Positions {
            join,
            fds: vec![(stdout, 1), (stderr, 2)],
        },
    ))
}

/// Positions in a parcel.
struct Positions {
    join: Vec<FdIndex>,
    fds: Vec<(FdIndex, i32)>,
}

async fn spawn(node: &Node, tool: &Tool, asked: &Asked) -> WireResult<()> {
    let (mut parcel, mut at) = parcel_of(node, tool, &asked.run.tool_id)
        .map_err(|error| WireError::node("tool", error.to_string()))?;
    let mut steps = vec![Step::Setsid, Step::JoinCgroups(at.join)];
    if let Some(snapshot) = &asked.snapshot {
        let written = packing::written(node, snapshot).await?;
        at.fds.push((parcel.give(written), packing::DESCRIPTOR));
        steps.extend(packing::steps());
    } else {
        steps.extend(templates::privileges(&asked.run.argv));
    }
    let asked = &asked.run;
    let program = Exec {
        programs: asked.argv[..1].to_vec(),
        file: None,
        argv: asked.argv.clone(),
        env: environment(),
        fds: at.fds,
    };
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
