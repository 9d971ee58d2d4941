# SPDX-License-Identifier: MIT
# ruff: noqa: B024, B027
"""What is used of Dask, which declares few types. To type checkers it is what is declared here."""

from abc import ABC
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    MEMORY_LIMIT: int
    config: Any
    ensure_ip: Any
    from_frames: Any
    get_ip: Any
    host_array: Any
    parse_host_port: Any
    parse_timedelta: Any
    to_frames: Any
    unparse_host_port: Any

    class CommClosedError(OSError): ...

    class BaseBackend(ABC): ...

    class BaseConnector(ABC): ...

    class BaseComm(ABC):
        deserialize: bool
        allow_offload: bool
        local_info: dict[str, Any]
        remote_info: dict[str, Any]
        handshake_options: dict[str, Any]

        def __init__(self, deserialize: bool = True) -> None: ...

    class BaseListener(ABC):
        async def on_connection(self, comm: BaseComm) -> None: ...
else:
    from dask import config
    from dask.utils import parse_timedelta
    from distributed.comm.addressing import parse_host_port, unparse_host_port
    from distributed.comm.core import BaseListener, CommClosedError
    from distributed.comm.core import Comm as BaseComm
    from distributed.comm.core import Connector as BaseConnector
    from distributed.comm.registry import Backend as BaseBackend
    from distributed.comm.utils import from_frames, to_frames
    from distributed.protocol.utils import host_array
    from distributed.system import MEMORY_LIMIT
    from distributed.utils import ensure_ip, get_ip

__all__ = [
    "MEMORY_LIMIT",
    "BaseBackend",
    "BaseComm",
    "BaseConnector",
    "BaseListener",
    "CommClosedError",
    "config",
    "ensure_ip",
    "from_frames",
    "get_ip",
    "host_array",
    "parse_host_port",
    "parse_timedelta",
    "to_frames",
    "unparse_host_port",
]
