//! The methods of `runtime.sock`, by name: decode, call the room where the behaviour lives, answer.

use std::collections::BTreeMap;
use std::rc::Rc;

use dsec_proto::audit::AuditAsked;
use dsec_proto::egress::EventsAsked;
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::frame::{self, MAX_DATA};
use dsec_proto::net::{NetSet, NetUsage};
use dsec_proto::runtime::{
    Empty, Evicted, ExecAck, ExecAttach, ExecKill, ExecList, ExecOutput, ExecResize, ExecStart,
    Features, Hello, HelloParams, LayerEvict, LoadingAsk, ManySandboxes, Mode, OneSandbox,
    OutputTail, SandboxList, SandboxSpec, SandboxStop, Started, TransferKind, Usage, VERSION,
};
use dsec_proto::session::{RunList, SessionCancel, SessionClose};
use dsec_proto::snapshots::ManySnapshots;

use crate::connection::{unknown, Stream};
use crate::exec::{self, Wanted};
use crate::node::Node;
use crate::{
    audit, check, disks, events, files, jobs, layers, net, output, pause, probe, sandbox, session,
    shutdown, snapshots, tools,
};

/// Carries one method out on its stream.
pub async fn call(node: Rc<Node>, method: String, params: Vec<u8>, mut stream: Stream) {
    let out = stream.out.clone();
    macro_rules! answer {
        ($result:expr) => {
            out.finish($result.await).await
        };
    }
    match method.as_str() {
        "hello" => answer!(hello(&node, &params)),
        "probe" => answer!(features(&node, &params)),
        "sandbox.create" => answer!(create(&node, &params)),
        "sandbox.stop" => answer!(stop(&node, &params)),
        "sandbox.forget" => answer!(forget(&node, &params)),
        "sandbox.list" => answer!(list(&node, &params)),
        "sandbox.usage" => answer!(usage(&node, &params)),
        "sandbox.touch" => answer!(touch(&node, &params)),
        "sandbox.freeze" => answer!(async { pause::freeze(&node, frame::params(&params)?).await }),
        "sandbox.thaw" => {
            answer!(async { pause::thaw(&node, &frame::params::<OneSandbox>(&params)?.sandbox_id) })
        }
        "job.lease" => answer!(async {
            jobs::lease(&node, frame::params(&params)?)
                .await
                .map(|()| Empty {})
        }),
        "job.end" => answer!(async {
            jobs::end(&node, frame::params(&params)?)
                .await
                .map(|()| Empty {})
        }),
        "disk.list" => answer!(async {
            empty(&params)?;
            Ok(disks::list(&node))
        }),
        "disk.remove" => answer!(async {
            let asked: ManySandboxes = frame::params(&params)?;
            disks::remove_all(&node, &asked.sandbox_ids)
                .await
                .map(|()| Empty {})
        }),
        "snapshot.make" => {
            answer!(async { snapshots::make(&node, frame::params(&params)?).await })
        }
        "snapshot.list" => answer!(async {
            empty(&params)?;
            Ok(snapshots::list(&node))
        }),
        "snapshot.remove" => answer!(async {
            let asked: ManySnapshots = frame::params(&params)?;
            snapshots::remove_all(&node, &asked.snapshot_ids)
                .await
                .map(|()| Empty {})
        }),
        "net.set" => answer!(net_set(&node, &params)),
        "net.prepare" => answer!(async {
            let asked: OneSandbox = frame::params(&params)?;
            net::prepare(&node, &asked.sandbox_id).await
        }),
        "net.events" => answer!(async {
            let asked: EventsAsked = frame::params(&params)?;
            net::egress::events(&node, asked).await
        }),
        "audit.events" => answer!(async {
            let asked: AuditAsked = frame::params(&params)?;
            if let Ok(sandbox) = node.live(&asked.sandbox_id) {
                net::routed::look(&node, &sandbox).await;
            }
            audit::events(&node, &asked)
        }),
        "net.told" => answer!(async { empty(&params).map(|()| net::told(&node)) }),
        "net.usage" => answer!(net_usage(&node, &params)),
        "exec.start" => exec_start(&node, &params, &mut stream).await,
        "exec.attach" => exec_attach(&node, &params, &mut stream).await,
        "exec.output" => exec_output(&node, &params, &mut stream).await,
        "exec.kill" => answer!(exec_kill(&node, &params)),
        "exec.resize" => answer!(exec_resize(&node, &params)),
        "exec.ack" => answer!(exec_ack(&node, &params)),
        "exec.list" => answer!(exec_list(&node, &params)),
        "session.open" => answer!(session_open(&node, &params)),
        "session.run" => session::run(&node, &params, &mut stream).await,
        "session.cancel" => answer!(session_cancel(&node, &params)),
        "session.close" => answer!(session_close(&node, &params)),
        "session.runs" => answer!(session_runs(&node, &params)),
        "output.tail" => answer!(output_tail(&node, &params, &stream)),
        "output.read" => output_read(&node, &params, &mut stream).await,
        "output.remove" => answer!(output_remove(&node, &params)),
        "file.read" => files::read(&node, &params, &mut stream).await,
        "file.write" => files::write(&node, &params, &mut stream).await,
        "file.call" => answer!(files::call(&node, &params)),
        "file.list" => files::list(&node, &params, &mut stream).await,
        "file.watch" => files::watch(&node, &params, &mut stream).await,
        "transfer.upload" => transfer(&node, TransferKind::Upload, &params, stream).await,
        "transfer.download" => transfer(&node, TransferKind::Download, &params, stream).await,
        "transfer.cancel" => answer!(files::transfer::cancel(&node, &params)),
        "layer.evict" => answer!(layer_evict(&node, &params)),
        "layer.loading" => answer!(async {
            let asked: LoadingAsk = frame::params(&params)?;
            layers::loading(&node, asked.after).await
        }),
        "tool.run" => tools::run(&node, &params, &stream).await,
        "tool.kill" => answer!(tools::kill(&node, &params)),
        "tool.forget" => answer!(tools::forget(&node, &params)),
        "tool.list" => answer!(tools::list(&node, &params)),
        "events" => events::serve(&node, &params, &mut stream).await,
        "stats" => answer!(async {
            empty(&params)?;
            node.stats().await
        }),
        "shutdown" => answer!(async {
            empty(&params)?;
            shutdown::shutdown(&node).await
        }),
        other => out.finish::<Empty>(Err(unknown(other))).await,
    }
}

async fn transfer(node: &Rc<Node>, kind: TransferKind, params: &[u8], stream: Stream) {
    files::transfer::open(node, kind, params, stream).await;
}

fn empty(params: &[u8]) -> WireResult<()> {
    frame::params::<Empty>(params).map(|_| ())
}

async fn hello(node: &Node, params: &[u8]) -> WireResult<Hello> {
    let asked: HelloParams = frame::params(params)?;
    if asked.version != VERSION {
        return Err(WireError::new(
            "unsupported",
            format!(
                "this runtime speaks version {VERSION}, not {}",
                asked.version
            ),
        ));
    }
    let present = [
        "containers",
        "files",
        "stdin",
        "backpressure",
        "tools",
        "sessions",
        "ports",
        "pty",
    ];
    Ok(Hello {
        version: VERSION,
        boot_id: node.boot_id.clone(),
        node: node.config.node.clone(),
        capabilities: present
            .iter()
            .map(|name| ((*name).to_owned(), true))
            .collect::<BTreeMap<_, _>>(),
    })
}

async fn features(node: &Node, params: &[u8]) -> WireResult<Features> {
    empty(params)?;
    let data = node.config.data_dir.clone();
    let probed = tokio::task::spawn_blocking(move || probe::features(Some(&data))).await;
    probed
        .map(|features| Features { features })
        .map_err(|error| WireError::node("probe", error.to_string()))
}

async fn create(node: &Rc<Node>, params: &[u8]) -> WireResult<dsec_proto::runtime::SandboxStarted> {
    sandbox::create(node, frame::params::<SandboxSpec>(params)?).await
}

async fn stop(node: &Rc<Node>, params: &[u8]) -> WireResult<dsec_proto::runtime::SandboxEnd> {
    sandbox::stop(node, frame::params::<SandboxStop>(params)?).await
}

async fn forget(node: &Rc<Node>, params: &[u8]) -> WireResult<Empty> {
    let asked: ManySandboxes = frame::params(params)?;
    sandbox::forget(node, &asked.sandbox_ids)
        .await
        .map(|()| Empty {})
}

async fn list(node: &Node, params: &[u8]) -> WireResult<SandboxList> {
    empty(params)?;
    let mut sandboxes: Vec<_> = node
        .sandboxes
        .borrow()
        .values()
        .filter_map(|sandbox| sandbox.state())
        .collect();
    sandboxes.sort_by(|one, other| one.sandbox_id.cmp(&other.sandbox_id));
    Ok(SandboxList { sandboxes })
}

async fn usage(node: &Node, params: &[u8]) -> WireResult<Usage> {
    let asked: OneSandbox = frame::params(params)?;
    let sandbox = node.sandbox(&asked.sandbox_id)?;
    let ended = match &*sandbox.phase.borrow() {
        sandbox::Phase::Ended(end) => Some(end.usage.clone()),
        _ => None,
    };
    Ok(ended.unwrap_or_else(|| sandbox.usage(node)))
}

async fn touch(node: &Node, params: &[u8]) -> WireResult<Empty> {
    let asked: OneSandbox = frame::params(params)?;
    node.live(&asked.sandbox_id)?.touch();
    Ok(Empty {})
}

async fn net_set(node: &Rc<Node>, params: &[u8]) -> WireResult<Empty> {
    net::set(node, frame::params::<NetSet>(params)?).await
}

async fn net_usage(node: &Node, params: &[u8]) -> WireResult<NetUsage> {
    let asked: OneSandbox = frame::params(params)?;
    net::usage(node, &asked.sandbox_id).await
}

async fn exec_start(node: &Rc<Node>, params: &[u8], stream: &mut Stream) {
    let begun = async {
        let (spec, mode, credit) = frame::params::<ExecStart>(params)?.into_spec();
        let wanted = Wanted {
            mode,
            offsets: BTreeMap::new(),
            credit,
            max_output_bytes: spec.max_output_bytes,
            writer: Some(0),
        };
        Ok((exec::start(node, spec).await?, wanted))
    };
    follow(node, begun.await, stream).await;
}

async fn exec_attach(node: &Rc<Node>, params: &[u8], stream: &mut Stream) {
    let begun = async {
        let asked: ExecAttach = frame::params(params)?;
        let exec = exec::find(node, &asked.sandbox_id, &asked.exec_id, asked.end)?;
        let most = asked
            .max_output_bytes
            .unwrap_or(exec.tag.borrow().max_output_bytes);
        if most > check::MAX_OUTPUT {
            return Err(
                WireError::invalid("max_output_bytes must be at most 64 MiB")
                    .with("field", "max_output_bytes"),
            );
        }
        let wanted = Wanted {
            mode: asked.mode,
            offsets: asked.offsets,
            credit: asked.credit,
            max_output_bytes: most,
            writer: Some(asked.writer),
        };
        Ok((exec, wanted))
    };
    follow(node, begun.await, stream).await;
}

async fn exec_output(node: &Rc<Node>, params: &[u8], stream: &mut Stream) {
    let found = frame::params::<ExecOutput>(params).and_then(|asked| {
        let exec = exec::find(node, &asked.sandbox_id, &asked.exec_id, None)?;
        Ok((exec, asked))
    });
    match found {
        Ok((exec, asked)) => {
            let wanted = Wanted {
                mode: Mode::Stream,
                offsets: asked.offsets,
                credit: asked.credit,
                max_output_bytes: 0,
                writer: None,
            };
            exec::output_only(node, &exec, &wanted, stream).await;
        }
        Err(error) => stream.out.finish::<Empty>(Err(error)).await,
    }
}

async fn follow(node: &Rc<Node>, begun: WireResult<(Rc<exec::Exec>, Wanted)>, stream: &mut Stream) {
    match begun {
        Ok((exec, wanted)) => exec::collect_or_stream(node, &exec, wanted, stream).await,
        Err(error) => stream.out.finish::<Empty>(Err(error)).await,
    }
}

async fn exec_kill(node: &Rc<Node>, params: &[u8]) -> WireResult<Empty> {
    exec::kill(node, frame::params::<ExecKill>(params)?)
        .await
        .map(|()| Empty {})
}

async fn exec_resize(node: &Node, params: &[u8]) -> WireResult<Empty> {
    exec::resize(node, frame::params::<ExecResize>(params)?)
        .await
        .map(|()| Empty {})
}

async fn exec_ack(node: &Rc<Node>, params: &[u8]) -> WireResult<Empty> {
    let asked: ExecAck = frame::params(params)?;
    exec::ack(node, &asked.exec_ids).await;
    Ok(Empty {})
}

async fn session_open(node: &Rc<Node>, params: &[u8]) -> WireResult<Started> {
    session::open(node, frame::params::<ExecStart>(params)?).await
}

async fn session_cancel(node: &Rc<Node>, params: &[u8]) -> WireResult<Empty> {
    let asked: SessionCancel = frame::params(params)?;
    session::cancel(node, asked).await.map(|()| Empty {})
}

async fn session_close(node: &Rc<Node>, params: &[u8]) -> WireResult<Empty> {
    let asked: SessionClose = frame::params(params)?;
    session::close(node, asked).await.map(|()| Empty {})
}

async fn session_runs(node: &Node, params: &[u8]) -> WireResult<RunList> {
    let asked: OneSandbox = frame::params(params)?;
    session::runs(node, &asked.sandbox_id)
}

async fn exec_list(node: &Node, params: &[u8]) -> WireResult<ExecList> {
    let asked: OneSandbox = frame::params(params)?;
    let mut execs: Vec<_> = node
        .sandbox(&asked.sandbox_id)?
        .execs(node)
        .iter()
        .map(|exec| exec.state())
        .collect();
    execs.sort_by(|one, other| one.started_at.total_cmp(&other.started_at));
    Ok(ExecList { execs })
}

async fn output_tail(node: &Node, params: &[u8], stream: &Stream) -> WireResult<Empty> {
    let asked: OutputTail = frame::params(params)?;
    check::sandbox_id(&asked.sandbox_id)?;
    check::exec_id(&asked.exec_id)?;
    let directory = node
        .config
        .output()
        .join(&asked.sandbox_id)
        .join(&asked.exec_id);
    for channel in [1, 2] {
        let (directory, most) = (directory.clone(), asked.bytes.min(check::MAX_OUTPUT));
        let tail = node
            .objects
            .run(move || output::kept_tail(&directory, channel, most))
            .await;
        let (first, bytes) = tail.map_err(|error| WireError::node("output", error.to_string()))?;
        let mut offset = first;
        for part in bytes.chunks(MAX_DATA) {
            stream.out.data(channel, offset, part).await;
            offset += part.len() as u64;
        }
    }
    Ok(Empty {})
}

async fn output_read(node: &Node, params: &[u8], stream: &mut Stream) {
    let outcome = match frame::params(params) {
        Ok(asked) => exec::kept::read(node, asked, stream).await,
        Err(error) => Some(Err(error)),
    };
    if let Some(outcome) = outcome {
        stream.out.finish(outcome).await;
    }
}

async fn output_remove(node: &Node, params: &[u8]) -> WireResult<Empty> {
    let asked: ManySandboxes = frame::params(params)?;
    asked
        .sandbox_ids
        .iter()
        .try_for_each(|id| check::sandbox_id(id))?;
    if let Some(live) = asked
        .sandbox_ids
        .iter()
        .find(|id| node.sandboxes.borrow().contains_key(*id))
    {
        return Err(WireError::new("conflict", format!("{live} is not forgotten yet")).about(live));
    }
    let root = node.config.output();
    let remove = move || {
        asked
            .sandbox_ids
            .iter()
            .try_for_each(|id| output::remove(&root.join(id)))
    };
    node.objects
        .run(remove)
        .await
        .map_err(|error| WireError::node("output", error.to_string()))?;
    Ok(Empty {})
}

async fn layer_evict(node: &Node, params: &[u8]) -> WireResult<Evicted> {
    let asked: LayerEvict = frame::params(params)?;
    asked
        .digests
        .iter()
        .try_for_each(|digest| check::digest(digest))?;
    Ok(Evicted {
        evicted: layers::evict(node, &asked.digests).await,
    })
}
