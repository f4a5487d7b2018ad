"""``python -m dsec.apiserver --config FILE``: the apiserver process of one machine."""

from __future__ import annotations

import argparse
import encodings.idna  # noqa: F401  (what is imported later is imported as a user who may not read it)
import logging
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import uvicorn.loops.uvloop  # noqa: F401

from dsec.api.trust import server_context
from dsec.apiserver.edge_link import Edges, LocalEdge
from dsec.apiserver.gate import Gate
from dsec.apiserver.server import inherited_socket, listen, make_server
from dsec.apiserver.tls import keep_memory
from dsec.iam.tokens import Tokens
from dsec.node.config import NodeConfig, load_config
from dsec.node.services import apiserver_uid
from dsec.node.unprivileged import become_user, refuse_syscalls

__all__ = ["main"]


def main() -> None:
    """Serve until SIGTERM. Started as root, it hears the first request as nobody."""
    parser = argparse.ArgumentParser(prog="dsec.apiserver")
    parser.add_argument("--config", type=Path, required=True, help="config.json of the node")
    config = load_config(parser.parse_args().config)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    tls = server_context(*config.tls_files) if config.has_tls else None
    if tls is not None:
        keep_memory()
    tokens = Tokens(config.paths.iam_db)
    tokens.list()  # opens what lies beside the database
    listener = inherited_socket() or listen(config.host, config.port)
    # Relative: who may not pass the directories above stands where the sockets are.
    paths = config.paths
    os.chdir(paths.run)
    edge = LocalEdge(config.node, Path(paths.edge_socket.name), Path(paths.ports_socket.name))
    server = make_server(Gate(_version(), Edges(edge), tokens), tls=tls, ports_domain=config.ports_domain)
    server.config.load()
    _give_up_root(config)
    server.run(sockets=[listener])


def _give_up_root(config: NodeConfig) -> None:
    """Become the apiserver's user, with a way to the edge and to the proxy's ports, and to nothing else.

    Edge and proxy of an earlier dsec, which were not told of that user, admit root alone until they are restarted.
    """
    paths = config.paths
    uid = apiserver_uid(config)
    told = msgspec.json.decode(paths.proxy_json.read_bytes(), type=dict[str, object]).get("ports_uid")
    if told is None:
        logging.warning("the other parts are of an earlier dsec: `dsec restart` takes root from this one")
        return
    if told != uid:
        raise ValueError(f"{paths.proxy_json} names another user")
    for path in (paths.edge_socket, paths.ports_socket):
        os.chown(path, uid, uid, follow_symlinks=False)
    become_user(uid)
    refuse_syscalls()


def _version() -> str:
    try:
        return version("dsec-platform")
    except PackageNotFoundError:
        return "0+checkout"


if __name__ == "__main__":
    main()
