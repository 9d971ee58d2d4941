# SPDX-License-Identifier: MIT
# ruff: noqa: B024
"""What is used of Ray Direct Transport, which is alpha and has no types; tested with Ray 2.60.0.

To type checkers it is what is declared here.
"""

from abc import ABC
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    TRANSPORTS: dict[str, Any]

    def register_tensor_transport(
        transport_name: str, devices: list[str], transport_manager_class: type, data_type: type
    ) -> None: ...

    class RayDirectTransportError(Exception): ...

    class CommunicatorMetadata: ...

    @dataclass
    class FetchRequest:
        obj_id: str
        tensors: list[Any]

    @dataclass
    class TensorTransportMetadata:
        tensor_meta: list[tuple[Any, Any]]
        tensor_device: str | None = None

    class TensorTransportManager(ABC): ...
else:
    from ray.exceptions import RayDirectTransportError
    from ray.experimental import (
        CommunicatorMetadata,
        TensorTransportManager,
        TensorTransportMetadata,
        register_tensor_transport,
    )
    from ray.experimental.rdt.tensor_transport_manager import FetchRequest
    from ray.experimental.rdt.util import transport_manager_info as TRANSPORTS

__all__ = [
    "TRANSPORTS",
    "CommunicatorMetadata",
    "FetchRequest",
    "RayDirectTransportError",
    "TensorTransportManager",
    "TensorTransportMetadata",
    "register_tensor_transport",
]
