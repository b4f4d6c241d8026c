from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_OK: _ClassVar[Outcome]
    OUTCOME_MISS: _ClassVar[Outcome]
    OUTCOME_REJECTED: _ClassVar[Outcome]
    OUTCOME_CORRUPT: _ClassVar[Outcome]
    OUTCOME_IO_ERROR: _ClassVar[Outcome]
    OUTCOME_CANCELLED: _ClassVar[Outcome]

class Place(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLACE_UNSPECIFIED: _ClassVar[Place]
    PLACE_NOWHERE: _ClassVar[Place]
    PLACE_HOST: _ClassVar[Place]
    PLACE_SSD: _ClassVar[Place]
    PLACE_UNDER_WAY: _ClassVar[Place]

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_HOST: _ClassVar[Tier]
    TIER_SSD: _ClassVar[Tier]

class TierService(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_SERVICE_UNSPECIFIED: _ClassVar[TierService]
    TIER_SERVICE_SERVING: _ClassVar[TierService]
    TIER_SERVICE_WRITES_OFF: _ClassVar[TierService]
    TIER_SERVICE_READS_OFF: _ClassVar[TierService]

class PageKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAGE_KIND_UNSPECIFIED: _ClassVar[PageKind]
    PAGE_KIND_FULL: _ClassVar[PageKind]
    PAGE_KIND_SLIDING: _ClassVar[PageKind]
    PAGE_KIND_MLA: _ClassVar[PageKind]
    PAGE_KIND_STATE: _ClassVar[PageKind]

class MemoryOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMORY_ORDER_UNSPECIFIED: _ClassVar[MemoryOrder]
    MEMORY_ORDER_NHD: _ClassVar[MemoryOrder]
    MEMORY_ORDER_HND: _ClassVar[MemoryOrder]
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_OK: Outcome
OUTCOME_MISS: Outcome
OUTCOME_REJECTED: Outcome
OUTCOME_CORRUPT: Outcome
OUTCOME_IO_ERROR: Outcome
OUTCOME_CANCELLED: Outcome
PLACE_UNSPECIFIED: Place
PLACE_NOWHERE: Place
PLACE_HOST: Place
PLACE_SSD: Place
PLACE_UNDER_WAY: Place
TIER_UNSPECIFIED: Tier
TIER_HOST: Tier
TIER_SSD: Tier
TIER_SERVICE_UNSPECIFIED: TierService
TIER_SERVICE_SERVING: TierService
TIER_SERVICE_WRITES_OFF: TierService
TIER_SERVICE_READS_OFF: TierService
PAGE_KIND_UNSPECIFIED: PageKind
PAGE_KIND_FULL: PageKind
PAGE_KIND_SLIDING: PageKind
PAGE_KIND_MLA: PageKind
PAGE_KIND_STATE: PageKind
MEMORY_ORDER_UNSPECIFIED: MemoryOrder
MEMORY_ORDER_NHD: MemoryOrder
MEMORY_ORDER_HND: MemoryOrder

class Scope(_message.Message):
    __slots__ = ("session_id", "namespace_handle")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_HANDLE_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    namespace_handle: int
    def __init__(self, session_id: _Optional[bytes] = ..., namespace_handle: _Optional[int] = ...) -> None: ...

class Page(_message.Message):
    __slots__ = ("name", "kind", "kv_heads", "head_size", "planes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_SIZE_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: PageKind
    kv_heads: int
    head_size: int
    planes: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[PageKind, str]] = ..., kv_heads: _Optional[int] = ..., head_size: _Optional[int] = ..., planes: _Optional[int] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("pages", "block_tokens", "dtype", "order")
    PAGES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    pages: _containers.RepeatedCompositeFieldContainer[Page]
    block_tokens: int
    dtype: str
    order: MemoryOrder
    def __init__(self, pages: _Optional[_Iterable[_Union[Page, _Mapping]]] = ..., block_tokens: _Optional[int] = ..., dtype: _Optional[str] = ..., order: _Optional[_Union[MemoryOrder, str]] = ...) -> None: ...

class Namespace(_message.Message):
    __slots__ = ("model", "layout", "revision", "engine_config", "quantization", "tp_size", "pp_size", "shard_index", "shard_count", "tenant", "stored_as")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_CONFIG_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    TP_SIZE_FIELD_NUMBER: _ClassVar[int]
    PP_SIZE_FIELD_NUMBER: _ClassVar[int]
    SHARD_INDEX_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    STORED_AS_FIELD_NUMBER: _ClassVar[int]
    model: str
    layout: Layout
    revision: str
    engine_config: str
    quantization: str
    tp_size: int
    pp_size: int
    shard_index: int
    shard_count: int
    tenant: str
    stored_as: str
    def __init__(self, model: _Optional[str] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., revision: _Optional[str] = ..., engine_config: _Optional[str] = ..., quantization: _Optional[str] = ..., tp_size: _Optional[int] = ..., pp_size: _Optional[int] = ..., shard_index: _Optional[int] = ..., shard_count: _Optional[int] = ..., tenant: _Optional[str] = ..., stored_as: _Optional[str] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("leading", "outcomes", "nbytes", "seconds")
    LEADING_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    leading: int
    outcomes: bytes
    nbytes: int
    seconds: float
    def __init__(self, leading: _Optional[int] = ..., outcomes: _Optional[bytes] = ..., nbytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("protocol", "client_version", "client_name")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    client_version: str
    client_name: str
    def __init__(self, protocol: _Optional[int] = ..., client_version: _Optional[str] = ..., client_name: _Optional[str] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("opened", "notice")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    opened: SessionOpened
    notice: Notice
    def __init__(self, opened: _Optional[_Union[SessionOpened, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ...) -> None: ...

class SessionOpened(_message.Message):
    __slots__ = ("session_id", "boot_id", "protocol", "server_version", "chunk_nbytes", "hashes_max", "lease_seconds", "prefetch_waits", "pool_attachable")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHUNK_NBYTES_FIELD_NUMBER: _ClassVar[int]
    HASHES_MAX_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_WAITS_FIELD_NUMBER: _ClassVar[int]
    POOL_ATTACHABLE_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    boot_id: bytes
    protocol: int
    server_version: str
    chunk_nbytes: int
    hashes_max: int
    lease_seconds: float
    prefetch_waits: bool
    pool_attachable: bool
    def __init__(self, session_id: _Optional[bytes] = ..., boot_id: _Optional[bytes] = ..., protocol: _Optional[int] = ..., server_version: _Optional[str] = ..., chunk_nbytes: _Optional[int] = ..., hashes_max: _Optional[int] = ..., lease_seconds: _Optional[float] = ..., prefetch_waits: bool = ..., pool_attachable: bool = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("kind", "text")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Notice.Kind]
        KIND_DRAINING: _ClassVar[Notice.Kind]
        KIND_TIER: _ClassVar[Notice.Kind]
    KIND_UNSPECIFIED: Notice.Kind
    KIND_DRAINING: Notice.Kind
    KIND_TIER: Notice.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: Notice.Kind
    text: str
    def __init__(self, kind: _Optional[_Union[Notice.Kind, str]] = ..., text: _Optional[str] = ...) -> None: ...

class OpenNamespaceRequest(_message.Message):
    __slots__ = ("scope", "namespace", "fingerprint")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    namespace: Namespace
    fingerprint: bytes
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ..., namespace: _Optional[_Union[Namespace, _Mapping]] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...

class OpenNamespaceResponse(_message.Message):
    __slots__ = ("namespace_handle", "fingerprint", "block_nbytes")
    NAMESPACE_HANDLE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_NBYTES_FIELD_NUMBER: _ClassVar[int]
    namespace_handle: int
    fingerprint: bytes
    block_nbytes: int
    def __init__(self, namespace_handle: _Optional[int] = ..., fingerprint: _Optional[bytes] = ..., block_nbytes: _Optional[int] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("scope", "hashes", "with_places")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    WITH_PLACES_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    hashes: bytes
    with_places: bool
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ..., hashes: _Optional[bytes] = ..., with_places: bool = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("leading", "places")
    LEADING_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    leading: int
    places: bytes
    def __init__(self, leading: _Optional[int] = ..., places: _Optional[bytes] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("begin", "data")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    begin: PutBegin
    data: bytes
    def __init__(self, begin: _Optional[_Union[PutBegin, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class PutBegin(_message.Message):
    __slots__ = ("scope", "hashes", "parent", "durable", "deadline_seconds")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    hashes: bytes
    parent: bytes
    durable: bool
    deadline_seconds: float
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ..., hashes: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., durable: bool = ..., deadline_seconds: _Optional[float] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: Result
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("scope", "hashes", "deadline_seconds")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    hashes: bytes
    deadline_seconds: float
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ..., hashes: _Optional[bytes] = ..., deadline_seconds: _Optional[float] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("data", "result")
    DATA_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    result: Result
    def __init__(self, data: _Optional[bytes] = ..., result: _Optional[_Union[Result, _Mapping]] = ...) -> None: ...

class PrefetchRequest(_message.Message):
    __slots__ = ("scope", "hashes", "target", "deadline_seconds", "priority")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    hashes: bytes
    target: Tier
    deadline_seconds: float
    priority: int
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ..., hashes: _Optional[bytes] = ..., target: _Optional[_Union[Tier, str]] = ..., deadline_seconds: _Optional[float] = ..., priority: _Optional[int] = ...) -> None: ...

class PrefetchResponse(_message.Message):
    __slots__ = ("prefetch_id",)
    PREFETCH_ID_FIELD_NUMBER: _ClassVar[int]
    prefetch_id: int
    def __init__(self, prefetch_id: _Optional[int] = ...) -> None: ...

class WatchPrefetchRequest(_message.Message):
    __slots__ = ("scope", "prefetch_id")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_ID_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    prefetch_id: int
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ..., prefetch_id: _Optional[int] = ...) -> None: ...

class WatchPrefetchResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: Result
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ...) -> None: ...

class CancelPrefetchRequest(_message.Message):
    __slots__ = ("scope", "prefetch_id")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_ID_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    prefetch_id: int
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ..., prefetch_id: _Optional[int] = ...) -> None: ...

class CancelPrefetchResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("rank", "hashes")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    hashes: bytes
    def __init__(self, rank: _Optional[int] = ..., hashes: _Optional[bytes] = ...) -> None: ...

class HintRequest(_message.Message):
    __slots__ = ("scope", "queue", "added", "removed")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    queue: int
    added: _containers.RepeatedCompositeFieldContainer[Waiting]
    removed: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ..., queue: _Optional[int] = ..., added: _Optional[_Iterable[_Union[Waiting, _Mapping]]] = ..., removed: _Optional[_Iterable[int]] = ...) -> None: ...

class HintResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PlanLoadRequest(_message.Message):
    __slots__ = ("scope", "hashes", "computed_tokens", "deadline_seconds", "from_tail")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FROM_TAIL_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    hashes: bytes
    computed_tokens: int
    deadline_seconds: float
    from_tail: bool
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ..., hashes: _Optional[bytes] = ..., computed_tokens: _Optional[int] = ..., deadline_seconds: _Optional[float] = ..., from_tail: bool = ...) -> None: ...

class PlanLoadResponse(_message.Message):
    __slots__ = ("leading", "first", "stop", "load_seconds", "recompute_seconds", "in_host")
    LEADING_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    LOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IN_HOST_FIELD_NUMBER: _ClassVar[int]
    leading: int
    first: int
    stop: int
    load_seconds: float
    recompute_seconds: float
    in_host: int
    def __init__(self, leading: _Optional[int] = ..., first: _Optional[int] = ..., stop: _Optional[int] = ..., load_seconds: _Optional[float] = ..., recompute_seconds: _Optional[float] = ..., in_host: _Optional[int] = ...) -> None: ...

class ReportPrefillRequest(_message.Message):
    __slots__ = ("scope", "prefix_tokens", "num_tokens", "seconds")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    prefix_tokens: int
    num_tokens: int
    seconds: float
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ..., prefix_tokens: _Optional[int] = ..., num_tokens: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class ReportPrefillResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("scope", "hashes")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    hashes: bytes
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ..., hashes: _Optional[bytes] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: Result
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ...) -> None: ...

class ClearRequest(_message.Message):
    __slots__ = ("scope",)
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ...) -> None: ...

class ClearResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlushRequest(_message.Message):
    __slots__ = ("scope",)
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ...) -> None: ...

class FlushResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: Result
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ("scope",)
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ...) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("metrics", "tiers")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    METRICS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    metrics: _containers.ScalarMap[str, float]
    tiers: _containers.RepeatedCompositeFieldContainer[TierHealth]
    def __init__(self, metrics: _Optional[_Mapping[str, float]] = ..., tiers: _Optional[_Iterable[_Union[TierHealth, _Mapping]]] = ...) -> None: ...

class TierHealth(_message.Message):
    __slots__ = ("tier", "service", "since", "why")
    TIER_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    tier: Tier
    service: TierService
    since: float
    why: str
    def __init__(self, tier: _Optional[_Union[Tier, str]] = ..., service: _Optional[_Union[TierService, str]] = ..., since: _Optional[float] = ..., why: _Optional[str] = ...) -> None: ...

class AttachPoolRequest(_message.Message):
    __slots__ = ("scope",)
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ...) -> None: ...

class AttachPoolResponse(_message.Message):
    __slots__ = ("socket_path", "ticket", "pool_nbytes", "takes_calls")
    SOCKET_PATH_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    POOL_NBYTES_FIELD_NUMBER: _ClassVar[int]
    TAKES_CALLS_FIELD_NUMBER: _ClassVar[int]
    socket_path: str
    ticket: bytes
    pool_nbytes: int
    takes_calls: bool
    def __init__(self, socket_path: _Optional[str] = ..., ticket: _Optional[bytes] = ..., pool_nbytes: _Optional[int] = ..., takes_calls: bool = ...) -> None: ...

class PoolCall(_message.Message):
    __slots__ = ("number", "acquire", "release", "reserve", "commit", "abandon", "trace_context")
    class TraceContextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ABANDON_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    number: int
    acquire: AcquireRequest
    release: ReleaseRequest
    reserve: ReserveRequest
    commit: CommitRequest
    abandon: AbandonRequest
    trace_context: _containers.ScalarMap[str, str]
    def __init__(self, number: _Optional[int] = ..., acquire: _Optional[_Union[AcquireRequest, _Mapping]] = ..., release: _Optional[_Union[ReleaseRequest, _Mapping]] = ..., reserve: _Optional[_Union[ReserveRequest, _Mapping]] = ..., commit: _Optional[_Union[CommitRequest, _Mapping]] = ..., abandon: _Optional[_Union[AbandonRequest, _Mapping]] = ..., trace_context: _Optional[_Mapping[str, str]] = ...) -> None: ...

class PoolAnswer(_message.Message):
    __slots__ = ("number", "error", "acquire", "release", "reserve", "commit", "abandon")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ABANDON_FIELD_NUMBER: _ClassVar[int]
    number: int
    error: PoolError
    acquire: AcquireResponse
    release: ReleaseResponse
    reserve: ReserveResponse
    commit: CommitResponse
    abandon: AbandonResponse
    def __init__(self, number: _Optional[int] = ..., error: _Optional[_Union[PoolError, _Mapping]] = ..., acquire: _Optional[_Union[AcquireResponse, _Mapping]] = ..., release: _Optional[_Union[ReleaseResponse, _Mapping]] = ..., reserve: _Optional[_Union[ReserveResponse, _Mapping]] = ..., commit: _Optional[_Union[CommitResponse, _Mapping]] = ..., abandon: _Optional[_Union[AbandonResponse, _Mapping]] = ...) -> None: ...

class PoolError(_message.Message):
    __slots__ = ("code", "name", "text")
    CODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    code: int
    name: str
    text: str
    def __init__(self, code: _Optional[int] = ..., name: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("scope", "hashes", "parent", "durable", "deadline_seconds", "reservation_id")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    hashes: bytes
    parent: bytes
    durable: bool
    deadline_seconds: float
    reservation_id: int
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ..., hashes: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., durable: bool = ..., deadline_seconds: _Optional[float] = ..., reservation_id: _Optional[int] = ...) -> None: ...

class ReserveResponse(_message.Message):
    __slots__ = ("reservation_id", "positions", "offsets", "generations")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    reservation_id: int
    positions: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    generations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, reservation_id: _Optional[int] = ..., positions: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., generations: _Optional[_Iterable[int]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("scope", "reservation_id", "checksums")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    reservation_id: int
    checksums: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ..., reservation_id: _Optional[int] = ..., checksums: _Optional[_Iterable[int]] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: Result
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ...) -> None: ...

class AbandonRequest(_message.Message):
    __slots__ = ("scope", "reservation_id")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    reservation_id: int
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ..., reservation_id: _Optional[int] = ...) -> None: ...

class AbandonResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AcquireRequest(_message.Message):
    __slots__ = ("scope", "hashes", "deadline_seconds", "lease_id")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    hashes: bytes
    deadline_seconds: float
    lease_id: int
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ..., hashes: _Optional[bytes] = ..., deadline_seconds: _Optional[float] = ..., lease_id: _Optional[int] = ...) -> None: ...

class AcquireResponse(_message.Message):
    __slots__ = ("lease_id", "offsets", "generations")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    generations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lease_id: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., generations: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("scope", "lease_ids")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    lease_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, scope: _Optional[_Union[Scope, _Mapping]] = ..., lease_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
