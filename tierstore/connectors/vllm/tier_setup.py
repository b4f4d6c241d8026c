"""Setup of the secondary tier: its options, the settings of its store and the namespace of its chunks.

Called once, when vLLM makes the tier. Blocks on the weights' files.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import Locality

from tierstore.config import SETTINGS
from tierstore.connectors.vllm.options import Options
from tierstore.connectors.vllm.versions import installed_version
from tierstore.connectors.vllm.weights import digest_folder, find_folder
from tierstore.control.slabs import SLAB_SLOTS_MIN, SLABS_MIN
from tierstore.device.paging import slot_nbytes
from tierstore.encoding import encode_canonical
from tierstore.errors import ConfigError
from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.settings import nearest

if TYPE_CHECKING:
    from vllm.v1.kv_offload.config import OffloadingConfig, OffloadingParallelConfig

    from tierstore.config import StoreConfig

__all__ = ["configure", "namespace", "read"]

_HOST_NBYTES = 512 << 20
"""Size of the pool where nobody says and chunks are small: what is kept lies in vLLM's CPU tier or on SSD."""

_OWN = ("locality", "revision", "tenant")
"""Options of the tier; all others are settings of the store."""


def read(given: Mapping[str, object]) -> tuple[Locality | None, Options]:
    """Options of the tier, and with them settings of its store."""
    known = {*_OWN, *(setting.argument for setting in SETTINGS), *(setting.key for setting in SETTINGS)}
    for name in sorted(given.keys() - known):
        raise ConfigError(f"secondary_tiers: {name} is not an option; {nearest(name, known)}")
    locality = given.get("locality")
    if locality is not None and locality not in Locality.__members__:
        raise ConfigError(f"secondary_tiers: locality is {locality!r}; give {' or '.join(Locality.__members__)}")
    own = Options.read({name: value for name, value in given.items() if name != "locality"})
    return None if locality is None else Locality(locality), own


def configure(options: Options, parallel: OffloadingParallelConfig, *, row_nbytes: int) -> StoreConfig:
    """Settings of the store. They must name a folder; the default pool size fits the tier's blocks."""
    config = options.store_config(
        dp_rank=parallel.data_parallel_index, dp_size=parallel.data_parallel_size, device="cpu"
    )
    if not config.ssd.enabled:
        raise ConfigError(
            "secondary_tiers: ssd_dir is not set, so nothing would be kept; name a folder of this machine"
        )
    if config.sources.keys() & {"host.size", "host.slab_size"}:
        return config
    slab_nbytes = max(_HOST_NBYTES // 8, SLAB_SLOTS_MIN * slot_nbytes(row_nbytes))
    size = max(_HOST_NBYTES, SLABS_MIN * slab_nbytes)
    return dataclasses.replace(config, host=dataclasses.replace(config.host, size=size, slab_size=slab_nbytes))


def namespace(config: OffloadingConfig, options: Options, *, row_nbytes: int) -> Namespace:
    """All that vLLM tells a tier and that shapes the bytes of a row. Blocks on the weights' files."""
    name, parallel, cache = Path(config.model.name), config.parallel, config.cache
    fields = {
        "vllm": ".".join((installed_version() or "").split(".")[:2]),
        "device": current_platform.device_type,
        "groups": [[group.group_id, group.tokens_per_block, list(group.layer_names)] for group in config.groups],
        "tokens_per_hash": cache.tokens_per_hash,
        "blocks_per_chunk": cache.blocks_per_chunk,
        "worker_kv_bytes_per_block": config.worker_kv_bytes_per_block,
        "workers": [parallel.rank, parallel.world_size, parallel.pcp_size, parallel.dcp_size],
        "replicated": config.replicated_layout,
        "canonical": config.canonical_layout,
        "layout": config.kv_cache_layout,
    }
    block_tokens = config.groups[0].tokens_per_block * cache.blocks_per_chunk
    return Namespace(
        model=name.name if name.is_dir() else config.model.name,
        layout=KVLayout.opaque(block_nbytes=row_nbytes, block_tokens=block_tokens),
        revision=_find_revision(config.model.name) if options.revision is None else options.revision,
        engine_config=hashlib.sha256(b"tierstore vllm tier 1\0" + encode_canonical(fields)).hexdigest(),
        quantization=config.model.dtype,
        tp_size=parallel.tp_size,
        pp_size=parallel.pp_size,
        tenant=options.tenant,
    )


def _find_revision(model: str) -> str:
    """A digest of the model's weights and configuration. Blocks on files.

    Raises:
        ConfigError: They are not here, or here more than once: a tier is not told which revision the engine runs.
    """
    folder = find_folder(model, None)
    if folder is None or (not Path(model).is_dir() and len(list(folder.parent.iterdir())) > 1):
        found = "not on this machine" if folder is None else "on this machine in several revisions"
        raise ConfigError(
            f"secondary_tiers: the weights of {model!r} are {found}, so nothing tells them from others; set revision "
            "to what names them"
        )
    configuration = folder / "config.json"
    shape = hashlib.sha256(configuration.read_bytes() if configuration.exists() else b"").hexdigest()
    return f"{digest_folder(folder)}-{shape}"
