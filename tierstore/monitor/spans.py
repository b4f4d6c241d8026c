"""Spans of OpenTelemetry, and how those of several threads and processes become one trace.

The only room that knows OpenTelemetry; imported where tracing is asked for, and nowhere else. Spans go to the tracer
provider that the program has configured; there is no exporter and no sampling here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import tierstore
from tierstore.errors import ConfigError

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.propagators.textmap import DefaultGetter
except ModuleNotFoundError as error:
    raise ConfigError(
        "tracing (monitor.tracing, or a client's) needs OpenTelemetry, which is not installed: "
        "pip install 'tierstore[tracing]', or turn it off"
    ) from error

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    from tierstore.keys import Namespace
    from tierstore.transfer.future import Transfer

__all__ = ["Propagation", "spanning"]

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def spanning(
    name: str, namespace: Namespace, num_blocks: int, *, asks: bool = False, **more: AttributeValue
) -> Iterator[Callable[[Transfer], Transfer]]:
    """A span of a verb, a child of the caller's own: ends with the transfer that it is given, or with what is raised.

    Args:
        name: Of the span.
        namespace: Whose verb it is.
        num_blocks: Blocks of the request.
        asks: Whether another process does the work.
        more: Attributes, beside ``tierstore.model`` and ``tierstore.blocks``.
    """
    known = {"model": namespace.model, "blocks": num_blocks, **more}
    span = trace.get_tracer("tierstore", tierstore.__version__).start_span(
        name,
        kind=trace.SpanKind.CLIENT if asks else trace.SpanKind.INTERNAL,
        attributes={f"tierstore.{key}": value for key, value in known.items()},
    )
    with ExitStack() as ending:
        ending.callback(span.end)
        with trace.use_span(span):
            yield partial(_followed, span)
        ending.pop_all()


def _followed(span: trace.Span, transfer: Transfer) -> Transfer:
    """End the span when the transfer ends, on whichever thread that is."""

    def end(_transfer: Transfer) -> None:
        result = transfer.result(0)
        span.set_attributes({"tierstore.leading": result.leading, "tierstore.nbytes": result.nbytes})
        for outcome, count in Counter(result.outcomes).items():
            span.set_attribute(f"tierstore.outcome.{outcome.name.lower()}", count)
        span.end()

    transfer.add_done_callback(end)
    return transfer


class Propagation:
    """Takes the current span along, as the program's propagators write it: by themselves W3C's ``traceparent``."""

    def sent(self) -> dict[str, str]:
        """What goes with a call, so that the other side's spans are children of the current one."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return {key.lower(): value for key, value in carrier.items()}  # as gRPC has its metadata

    @contextmanager
    def continuing(self, sent: Mapping[str, str | bytes]) -> Iterator[None]:
        """While it lasts, spans are children of the one whose process has sent this."""
        carrier = {key: value for key, value in sent.items() if isinstance(value, str)}
        token = context.attach(propagate.extract(carrier, getter=_LowerCase()))
        try:
            yield
        finally:
            context.detach(token)

    def carried(self, work: Callable[[T], R]) -> Callable[[T], R]:
        """The work, to be done by another thread, where spans are children of the one that is current here and now."""
        here = context.get_current()

        def there(given: T) -> R:
            token = context.attach(here)
            try:
                return work(given)
            finally:
                context.detach(token)

        return there


class _LowerCase(DefaultGetter):
    """Finds what `Propagation.sent` has made lower-case."""

    def get(self, carrier: Mapping[str, str | list[str]], key: str) -> list[str] | None:
        """Under a key, however that is written."""
        return super().get(carrier, key.lower())
