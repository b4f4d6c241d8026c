"""A vLLM engine in a process of its own, told what to do by lines of JSON. Run with the interpreter that has vLLM.

python -m tests.vllm.engine_process READ_DESCRIPTOR WRITE_DESCRIPTOR
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from tests.vllm.inside import SLOW, Inside
from tests.vllm.models import write_adapter, write_model
from tierstore.errors import TierstoreError

__all__ = ["main"]


class Engine(Inside):
    """What the other side may ask for: public methods by name, with keywords."""

    def __init__(self) -> None:
        super().__init__()
        self._tiering: Any = None

    def tiering(self, *, verb: str, **keywords: Any) -> object:
        """Have vLLM's tiering manager do something, without an engine: see `tests.vllm.tier_process`."""
        from tests.vllm import tier_process

        if verb == "start":
            self._tiering = tier_process.Tiering(**keywords)
            return None
        if verb == "interface":
            return tier_process.interface()
        return getattr(self._tiering, verb)(**keywords)

    def start(
        self,
        *,
        model: str,
        shape: dict[str, Any],
        connector: dict[str, object] | None,
        publishes: bool = False,
        transfer: dict[str, object] | None = None,
        slowness: float = SLOW,
        environment: dict[str, str] | None = None,
        **options: Any,
    ) -> int:
        """Start an engine on a model that is written where it is not there yet; returns its number of blocks.

        With `transfer` it has that connector instead of ours. With this `slowness`, of which `seem` tells, whatever the
        store holds is loaded, however busy the machine is.
        """
        write_model(model, **shape)
        os.environ.update(environment or {})
        from vllm import LLM

        if publishes:
            options["kv_events_config"] = self.subscribe(f"ipc://{model}-{os.getpid()}.replay")
        if transfer is not None:
            options["kv_transfer_config"] = transfer
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
        if connector is not None:
            self.seem(slowness=slowness)
        return int(self._scheduler.kv_cache_config.num_blocks)

    def generate(
        self,
        *,
        prompts: list[list[int]],
        max_tokens: int = 8,
        salt: str | None = None,
        adapter: tuple[str, int, str] | None = None,
    ) -> list[dict[str, list[Any]]]:
        """Greedy tokens and their log-probabilities, as hex so that bits are compared.

        An adapter is given by its name, number and folder.
        """
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        lora = None if adapter is None else LoRARequest(*adapter)

        given = [{"prompt_token_ids": prompt} | ({"cache_salt": salt} if salt else {}) for prompt in prompts]
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, logprobs=1, detokenize=False, ignore_eos=True)
        outputs = self._llm.generate(given, sampling, use_tqdm=False, lora_request=lora)
        answers = []
        for output in outputs:
            (completion,) = output.outputs
            tokens = list(completion.token_ids)
            logprobs = [row[token].logprob.hex() for row, token in zip(completion.logprobs, tokens, strict=True)]
            answers.append({"tokens": tokens, "logprobs": logprobs})
        return answers

    def first_token(self, *, prompt: list[int]) -> dict[str, object]:
        """The first token of an answer, and how long it took by the clock and of processors."""
        import time

        begun, worked = time.perf_counter(), time.process_time()
        (answer,) = self.generate(prompts=[prompt], max_tokens=1)
        return {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - worked, **answer}

    def abort(self, *, prompt: list[int], steps: int) -> int:
        """Begin a request, give it up after so many steps, and step until all is quiet; returns blocks still held."""
        from vllm import SamplingParams

        engine, pool = self._llm.llm_engine, self._scheduler.kv_cache_manager.block_pool
        sampling = SamplingParams(temperature=0.0, max_tokens=64, detokenize=False, ignore_eos=True)
        (request_id,) = [engine.add_request("given up", {"prompt_token_ids": prompt}, sampling)]
        for _step in range(steps):
            engine.step()
        engine.abort_request([request_id], internal=True)
        for _step in range(10_000):
            if not self._scheduler.has_requests():
                break
            self._llm.llm_engine.engine_core.get_output()
        return int(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())

    def counts(self) -> dict[str, float]:
        """The connector's own counters, as vLLM exports them."""
        return {
            metric.name.removeprefix("vllm:tierstore_"): float(metric.value)
            for metric in self._llm.get_metrics()
            if metric.name.startswith("vllm:tierstore_")
        }

    def interface(self) -> dict[str, dict[str, list[str]]]:
        """Parameters of the public methods of vLLM's base classes, and of those that the connector overrides."""
        import inspect

        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA

        from tierstore.connectors.vllm import TierStoreConnector

        def methods(kind: type, names: Iterable[str]) -> dict[str, list[str]]:
            found = {name: inspect.getattr_static(kind, name) for name in names if not name.startswith("_")}
            functions = {name: getattr(value, "__func__", value) for name, value in found.items()}
            return {
                name: list(inspect.signature(value).parameters) for name, value in functions.items() if callable(value)
            }

        bases = vars(KVConnectorBase_V1) | vars(SupportsHMA)
        return {
            "base": methods(TierStoreConnector.__mro__[1], vars(KVConnectorBase_V1))
            | methods(SupportsHMA, vars(SupportsHMA)),
            "own": methods(TierStoreConnector, vars(TierStoreConnector)),
            "abstract": {name: [] for name, value in bases.items() if getattr(value, "__isabstractmethod__", False)},
        }

    def adapter(self, *, folder: str, seed: int) -> None:
        """Write a LoRA adapter, over one that is there."""
        shutil.rmtree(folder, ignore_errors=True)
        write_adapter(folder, seed=seed)

    def connected(self) -> bool:
        """Wait for the service."""
        store = self._scheduler.connector._seat.store(lambda: None)
        return bool(store.wait(60.0))

    def workers_connected(self, *, number: int) -> None:
        """Wait until workers in other processes have found the store of this one."""
        from tierstore.client import Client

        host = self._scheduler.connector._seat.store(lambda: None)
        with Client(f"unix:{host._path}", attach=False) as client:
            assert client.wait(60.0)
            while client.metrics()['tierstore_service_sessions{pool="attached"}'] < number:
                pass

    def settle(self) -> None:
        """Step until workers in other processes have saved everything."""
        while self._scheduler.has_requests():
            self._llm.llm_engine.engine_core.get_output()

    def reset(self, *, connector: bool = False) -> bool:
        """Forget the engine's own prefix cache, and what the connector keeps."""
        return bool(self._llm.reset_prefix_cache(reset_connector=connector))

    def hits(self) -> dict[str, int]:
        """Tokens that the engine's own cache and the connector have spared so far."""
        values = {metric.name: getattr(metric, "value", 0) for metric in self._llm.get_metrics()}
        return {
            "local": int(values["vllm:prefix_cache_hits"]),
            "external": int(values["vllm:external_prefix_cache_hits"]),
        }

    def preemptions(self) -> int:
        """How often requests have been preempted."""
        return sum(int(metric.value) for metric in self._llm.get_metrics() if metric.name == "vllm:num_preemptions")


def answer(engine: Engine, line: str) -> dict[str, object]:
    """Do what a line asks for."""
    asked = json.loads(line)
    method: Callable[..., object] = getattr(engine, asked.pop("do"))
    try:
        return {"result": method(**asked)}
    except (TierstoreError, ValueError, RuntimeError) as error:  # the other side raises it; what else comes ends this
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def serve(connection: socket.socket) -> None:
    """Be one engine: say who that is, then answer until the other side closes."""
    with connection.makefile("r") as asked, connection.makefile("w") as answers:
        print(os.getpid(), file=answers, flush=True)
        engine = Engine()
        for line in asked:
            print(json.dumps(answer(engine, line)), file=answers, flush=True)


def main(listener: socket.socket) -> None:
    """Serve each connection in a fork, for ever."""
    importlib.import_module("vllm.entrypoints.llm")
    importlib.import_module("vllm.v1.engine.llm_engine")
    importlib.import_module("vllm.model_executor.models.llama")
    importlib.import_module("tests.vllm.tier_process")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            serve(connection)
            return
        connection.close()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
