"""Serve the app alone: `pulse web` calls it, with uvicorn."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn
from fastapi import FastAPI

from pulse.web.access.auth import Authenticator, is_loopback
from pulse.web.access.files import BadConfiguration


class Server(uvicorn.Server):
    """Ends open streams when it is asked to stop; they never end by themselves."""

    def __init__(self, app: FastAPI, log_level: str) -> None:
        self._app = app
        super().__init__(
            uvicorn.Config(
                app,
                log_level=log_level,
                access_log=False,
                # The client is the peer that connects; our own code trusts proxies.
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=5,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._app.state.hub.close()
        await super().shutdown(sockets)


def bind(host: str, port: int, authenticate: Authenticator | None) -> socket.socket:
    """Listen there, if that is safe."""
    if authenticate is None and not is_loopback(host):
        raise BadConfiguration(
            f"will not listen on {host} without authentication: everyone who reaches "
            "it could steer the queue\n"
            f"pulse web --host {host} --token-file FILE, or --user-header behind a "
            "proxy (docs/web.md)"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named TCP, asyncio turns Nagle's delay off: else each answer waits 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise BadConfiguration(
            f"cannot listen on {host} port {port}: {error.strerror}\n"
            "choose another port with --port; 0 takes any"
        ) from error
    return listening


def address(listening: socket.socket) -> str:
    host, port, *_ = listening.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def serve(app: FastAPI, listening: socket.socket, log_level: str = "warning") -> None:
    """Until SIGINT or SIGTERM."""
    server: Any = Server(app, log_level)
    server.run(sockets=[listening])
