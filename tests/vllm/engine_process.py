"""A vLLM engine in a process of its own, told what to do by lines of JSON. Run with the interpreter that has vLLM.

python -m tests.vllm.engine_process READ_DESCRIPTOR WRITE_DESCRIPTOR
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from tests.vllm.models import write_model
from tierstore.errors import TierstoreError

__all__ = ["main"]


class Engine:
    """What the other side may ask for: public methods by name, with keywords."""

    def __init__(self) -> None:
        self._llm: Any = None

    def start(self, *, model: str, shape: dict[str, Any], connector: dict[str, object] | None, **options: Any) -> int:
        """Start an engine on a model that is written where it is not there yet; returns its number of blocks."""
        write_model(model, **shape)
        from vllm import LLM

        if connector is not None:
            options["kv_transfer_config"] = {
                "kv_connector": "TierStoreConnector",
                "kv_connector_module_path": "tierstore.connectors.vllm",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": connector,
            }
        self._llm = LLM(
            model=model, skip_tokenizer_init=True, enforce_eager=True, disable_log_stats=False, seed=0, **options
        )
        return int(self._scheduler.kv_cache_config.num_blocks)

    def generate(
        self, *, prompts: list[list[int]], max_tokens: int = 8, salt: str | None = None
    ) -> list[dict[str, list[Any]]]:
        """Greedy tokens and their log-probabilities, as hex so that bits are compared."""
        from vllm import SamplingParams

        given = [{"prompt_token_ids": prompt} | ({"cache_salt": salt} if salt else {}) for prompt in prompts]
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, logprobs=1, detokenize=False, ignore_eos=True)
        outputs = self._llm.generate(given, sampling, use_tqdm=False)
        answers = []
        for output in outputs:
            (completion,) = output.outputs
            tokens = list(completion.token_ids)
            logprobs = [row[token].logprob.hex() for row, token in zip(completion.logprobs, tokens, strict=True)]
            answers.append({"tokens": tokens, "logprobs": logprobs})
        return answers

    def reset(self) -> bool:
        """Forget the engine's own prefix cache."""
        return bool(self._llm.reset_prefix_cache())

    def hits(self) -> dict[str, int]:
        """Tokens that the engine's own cache and the connector have spared so far."""
        values = {metric.name: getattr(metric, "value", 0) for metric in self._llm.get_metrics()}
        return {
            "local": int(values["vllm:prefix_cache_hits"]),
            "external": int(values["vllm:external_prefix_cache_hits"]),
        }

    def free_blocks(self) -> int:
        """Blocks of the engine that nobody holds."""
        return int(self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    @property
    def _scheduler(self) -> Any:
        return self._llm.llm_engine.engine_core.engine_core.scheduler


def answer(engine: Engine, line: str) -> dict[str, object]:
    """Do what a line asks for."""
    asked = json.loads(line)
    method: Callable[..., object] = getattr(engine, asked.pop("do"))
    try:
        return {"result": method(**asked)}
    except (TierstoreError, ValueError, RuntimeError) as error:  # the other side raises it; what else comes ends this
        return {"error": f"{type(error).__name__}: {error}"}


def main(asked: TextIO, answers: TextIO) -> None:
    """Answer until the other side closes."""
    engine = Engine()
    for line in asked:
        print(json.dumps(answer(engine, line)), file=answers, flush=True)


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[1]), "r") as reading, os.fdopen(int(sys.argv[2]), "w") as writing:
        main(reading, writing)
