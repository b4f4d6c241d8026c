"""The standard services' own generated code: health and reflection. Called by the server alone; see this folder's top."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Protobuf gencode version")
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

__all__ = ["health_pb2", "health_pb2_grpc", "reflection"]
