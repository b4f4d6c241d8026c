"""Maps bytes of the engine's cache to bytes of a block.

A page of the engine (one layer's share of one of its blocks) is opaque here: its bytes are copied by strides as the
attention backend packs them, and the namespace names the packing. So every physical order of layers, blocks, heads and
tokens binds in the same way. One block of the store may be several consecutive blocks of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tierstore.device.axes import PagedTensor
from tierstore.device.paged_kv import PagedKV
from tierstore.errors import LayoutError
from tierstore.handle import NO_PARENT
from tierstore.layout import KVLayout, PageKind, PageSpec

if TYPE_CHECKING:
    import torch

__all__ = ["Group", "bind", "find_groups", "lay_out"]


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a table of blocks.

    Attributes:
        group_id: vLLM's number of it.
        layers: Their names.
        block_tokens: Tokens of one of the engine's blocks.
        blocks_per_store_block: Blocks of the engine that make one of the store.
        draft: It holds layers of a draft model, whose last token in a block may still change.
        window: How many of the store's blocks before the next token it looks back to: one where it keeps a state, which
            is that after the block's last token; None: to all of them.
    """

    group_id: int
    layers: tuple[str, ...]
    block_tokens: int
    blocks_per_store_block: int
    draft: bool
    window: int | None

    @property
    def store_tokens(self) -> int:
        """Tokens of one of the store's blocks."""
        return self.block_tokens * self.blocks_per_store_block

    def parent(self, keys: Sequence[bytes], index: int) -> bytes:
        """Key of the block before one of these; none where a prefix that ends with it needs no block before it."""
        return NO_PARENT if index == 0 or self.window == 1 else keys[index - 1]


def find_groups(kv_cache_config: Any, blocks_per_store_block: int) -> list[Group]:
    """The groups of layers, those that look back to every block first.

    Raises:
        LayoutError: The model's cache is of a kind that cannot be kept yet.
    """
    groups = []
    for group_id, group in enumerate(kv_cache_config.kv_cache_groups):
        if group_id not in kv_cache_config.prefix_cacheable_group_ids:
            raise LayoutError(
                f"group {group_id} of the model's layers has no block hashes, so it cannot be kept; run without the "
                "connector"
            )
        spec = group.kv_cache_spec
        window = _window(spec, spec.block_size)
        draft = group.is_eagle_group
        groups.append(Group(group_id, tuple(group.layer_names), spec.block_size, blocks_per_store_block, draft, window))
    sizes = {group.block_tokens for group in groups}
    if len(sizes) > 1:
        told = ", ".join(map(str, sorted(sizes)))
        raise LayoutError(
            f"the model's cache has blocks of {told} tokens; only one size can be kept yet: run without the connector"
        )
    if blocks_per_store_block > 1 and any(group.window is not None for group in groups):
        raise LayoutError("the model has sliding windows or state, which need blocks_per_store_block 1; set it")
    return sorted(groups, key=lambda group: group.window is not None)


def _window(spec: Any, block_tokens: int) -> int | None:
    """How many blocks a group's layers look back to; None where they see all of them."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec, UniformTypeKVCacheSpecs

    inner = spec.first_spec if isinstance(spec, UniformTypeKVCacheSpecs) else spec
    if isinstance(inner, FullAttentionSpec):
        return None
    if isinstance(inner, MambaSpec):
        return _state_window(inner)
    if not isinstance(inner, SlidingWindowSpec):
        raise LayoutError(f"layers of kind {type(inner).__name__} cannot be kept yet; run without the connector")
    tokens = int(inner.sliding_window) - 1 + int(inner.extra_retained_tokens)
    return max(1, -(-tokens // block_tokens))


def _state_window(spec: Any) -> int:
    """One block: in this mode vLLM ends steps where a block does, and leaves in it the state after its last token."""
    if spec.mamba_cache_mode != "align":
        raise LayoutError(
            f'layers with state in mamba_cache_mode "{spec.mamba_cache_mode}" cannot be kept yet; start vLLM with '
            "--mamba-cache-mode align"
        )
    if spec.num_speculative_blocks or spec.num_prefill_checkpoint_blocks:
        raise LayoutError(
            "layers with state cannot be kept yet beside speculative decoding, nor where their backend leaves states "
            "within a step; run without the connector"
        )
    return 1


def lay_out(group: Group, kv_caches: Mapping[str, torch.Tensor], num_blocks: int) -> KVLayout:
    """The layout of a group's blocks: for each of the engine's blocks in one of the store's, every layer's page."""
    specs = []
    for part in range(group.blocks_per_store_block):
        for layer in group.layers:
            cache = _by_block(kv_caches[layer], num_blocks)
            page_nbytes = cache[0].numel() * cache.element_size()
            specs.append(PageSpec(_page_name(layer, part), PageKind.STATE, 1, page_nbytes, 1))
    return KVLayout(tuple(specs), group.store_tokens, "uint8")


def bind(
    group: Group, layout: KVLayout, kv_caches: Mapping[str, torch.Tensor], num_blocks: int, *, by_layer: bool
) -> PagedKV:
    """Bind a group's cache; with `by_layer`, each layer has an event of its own (blocks of the engine's size only)."""
    tensors = []
    for part in range(group.blocks_per_store_block):
        for layer in group.layers:
            cache = _by_block(kv_caches[layer], num_blocks)
            axes = " ".join(["block", *["element"] * (cache.dim() - 1)])
            tensors.append(PagedTensor(cache, axes, _page_name(layer, part), id_rows=[part]))
    return PagedKV.bind(layout, tensors, pages_per_group=1 if by_layer else None)


def id_rows(block_ids: Sequence[int], blocks_per_store_block: int) -> list[list[int]]:
    """Block ids of one run of the engine's blocks, as rows: row i holds block i of each of the store's blocks."""
    return [list(block_ids[part::blocks_per_store_block]) for part in range(blocks_per_store_block)]


def _by_block(cache: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """A layer's cache with the scheduler's blocks as its first axis; kernels may count finer ones."""
    from vllm.v1.kv_cache_interface import group_kernel_blocks

    view: torch.Tensor = group_kernel_blocks(cache, num_blocks)
    return view


def _page_name(layer: str, part: int) -> str:
    return layer if part == 0 else f"{layer}#{part}"
