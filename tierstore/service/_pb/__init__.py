"""What protoc makes of `proto/`, and how it is made. Called by the service alone.

The code is of protobuf 5.29, so that it runs with every version from there to the last of 6: the next major version
takes the code of the one before, and says so in a warning that is of no use to who cannot generate it anew.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Protobuf gencode version")
    from tierstore.service._pb import tierstore_pb2

__all__ = ["tierstore_pb2"]
