"""Converts refusals and failures between gRPC and our exceptions. A refusal is sent as a status with a serialized
`Refusal` in the trailing metadata."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from peer.codes import REJECTED, AnyCode, Code, code_of
from peer.errors import ExchangeError, PartnerLost, PartnerRefused
from peer.v1 import exchange_pb2 as pb

REFUSAL_KEY = "peer-refusal-bin"
TOKEN_KEY = "peer-token-bin"  # noqa: S105 - the name of a header
MAX_REASON = 300
MAX_ETA_S = 86400.0

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


def eta_of(said: float) -> float:
    """Return the seconds that another peer sent, or 0 for an impossible value."""
    return said if 0 <= said < MAX_ETA_S else 0.0


class UnheardRefusal(grpc.aio.InternalError):  # type: ignore[misc]  # gRPC has no types
    """Raised when a refusal could not be sent, because the caller has not read earlier messages. gRPC ends the call."""


async def refuse(context: Context, code: AnyCode, reason: str, eta_s: float = 0.0) -> NoReturn:
    """End a served call with a typed refusal. `eta_s`: seconds after which a retry is useful; 0: unknown."""
    body = pb.Refusal(code=code, reason=reason[:MAX_REASON], eta_s=eta_s).SerializeToString()
    context.set_trailing_metadata(((REFUSAL_KEY, body),))
    try:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(code))  # gRPC accepts no subclass of str
    except grpc.aio.InternalError as error:
        raise UnheardRefusal(str(error)) from None
    raise AssertionError("abort raises")


def served(method: Callable[[Any, Context], Awaitable[None]], serialize: Callable[[Any], bytes] | None = None) -> Any:
    """Create the handler of a streamed call.

    gRPC stores the exception with which a call was refused. Its traceback references the frames, and these the call and
    its data: a reference cycle of one or two chunks per refusal. So the exception is passed to gRPC without its
    traceback."""

    async def serve(request: Any, context: Context) -> None:
        try:
            await method(request, context)
        except grpc.aio.AbortError as error:
            error.__traceback__ = error.__context__ = error.__cause__ = None
            del request, context
            raise
        except UnheardRefusal:  # not raised, because gRPC would print it
            return

    return grpc.stream_stream_rpc_method_handler(serve, response_serializer=serialize)


def translate(error: grpc.aio.AioRpcError, who: str) -> ExchangeError:
    """Convert the error of a failed call to `who` into one of our exceptions."""
    for key, value in error.trailing_metadata() or ():
        if key == REFUSAL_KEY and isinstance(value, bytes):
            return _refusal(value, who)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return PartnerRefused(Code.UNKNOWN_CALL, f"{who} is of an older version, which does not know this call")
    detail = (error.details() or "").splitlines()
    return PartnerLost(f"{who}: {error.code().name.lower()} ({detail[0][:200] if detail else 'no detail'})")


def _refusal(raw: bytes, who: str) -> ExchangeError:
    try:
        refusal = pb.Refusal.FromString(raw[:2048])
    except DecodeError:
        return PartnerLost(f"{who}: a refusal that cannot be read")
    reason = refusal.reason[:MAX_REASON]
    if refusal.code.startswith(REJECTED):
        return PartnerRefused(code_of(refusal.code), f"it did not accept what we sent: {reason}")
    return PartnerRefused(code_of(refusal.code[:64]), reason, eta_of(refusal.eta_s))
