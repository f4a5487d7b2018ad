"""``python -m dsec.edge --config FILE``: the edge on an inherited listening socket, descriptor 3."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import uvicorn
import uvloop

from dsec.edge import faults
from dsec.edge.app import Edge
from dsec.edge.confined import give_up_root
from dsec.edge.log import configure_log
from dsec.images import Images, ImagesConfig, Tools
from dsec.node.config import NodeConfig, load_config

__all__ = ["main"]

_LISTEN_FD = 3


def images_of(config: NodeConfig, in_use: Callable[[str], bool], tools: Tools) -> Images:
    """The node's images, as its configuration says."""
    paths = config.paths
    images = ImagesConfig(
        layers_dir=paths.layers,
        catalogue=paths.catalogue_db,
        scratch_dir=paths.data / "scratch",
        shared_dir=Path(config.shared_layers) if config.shared_layers else None,
        mirrors=config.registries.mirrors,
        insecure_registries=config.registries.insecure,
        registry_patience_s=config.registries.patience_s,
        collapse_mib=config.collapse_mib,
        collapse_layers=config.collapse_layers,
    )
    return Images(images, tools, in_use=in_use)


def server_of(edge: Edge) -> uvicorn.Server:
    """The server, not yet serving."""
    return uvicorn.Server(
        uvicorn.Config(
            edge.app,
            http=edge.peers(),
            ws="websockets-sansio",
            ws_max_size=512 * 1024,
            ws_per_message_deflate=False,
            ws_ping_interval=None,
            lifespan="off",
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=2,
        )
    )


async def serve(edge: Edge, listener: socket.socket) -> NoReturn:
    """Serve until SIGTERM or SIGINT, then leave the process."""
    server = server_of(edge)
    try:
        async with edge.running():
            await server.serve(sockets=[listener])
    except Exception as error:
        traceback.print_exception(_innermost(error))
        _leave(1)
    _leave(0)


def _innermost(error: BaseException) -> BaseException:
    """The first error that is not a group: the end of its traceback says in one line what happened."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _leave(code: int) -> NoReturn:
    """End at once. Requests still under way would find the records closed and answer with a failure that is none:
    as it is their connection breaks, and whoever asked asks the successor."""
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="dsec.edge", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the node's config.json")
    config = load_config(parser.parse_args().config)
    configure_log(sys.stderr)
    if config.fault_points:
        faults.turn_on(config.paths.faults)
    listener = socket.socket(fileno=_LISTEN_FD)
    edge = Edge(config, lambda in_use, tools: images_of(config, in_use, tools))
    give_up_root(config)
    uvloop.run(serve(edge, listener))


if __name__ == "__main__":
    main()
