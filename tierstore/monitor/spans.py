"""OpenTelemetry spans, joined to one trace across threads and processes.

The only module that knows OpenTelemetry; imported only if tracing is configured. Spans go to the tracer provider of the
program; there is no exporter and no sampling here.
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
    """A span of a verb, child of the caller's span. It ends with the transfer passed to it, or with an exception.

    Args:
        name: Name of the span.
        namespace: The namespace of the verb.
        num_blocks: Blocks of the request.
        asks: Whether another process does the work.
        more: Attributes besides ``tierstore.model`` and ``tierstore.blocks``.
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
    """Carries the current span in the format of the program's propagators; by default W3C's ``traceparent``."""

    def sent(self) -> dict[str, str]:
        """Headers to send with a call, so that the other side's spans are children of the current one."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return {key.lower(): value for key, value in carrier.items()}  # as gRPC has its metadata

    @contextmanager
    def continuing(self, sent: Mapping[str, str | bytes]) -> Iterator[None]:
        """Within this context, spans are children of the span whose headers were sent."""
        carrier = {key: value for key, value in sent.items() if isinstance(value, str)}
        token = context.attach(propagate.extract(carrier, getter=_LowerCase()))
        try:
            yield
        finally:
            context.detach(token)

    def carried(self, work: Callable[[T], R]) -> Callable[[T], R]:
        """Wrap work for another thread, so that its spans there are children of the span that is current here."""
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
