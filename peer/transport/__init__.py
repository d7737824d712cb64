"""The network: gRPC exchange and DHT directory.

gRPC reads GRPC_ENABLE_FORK_SUPPORT once, when it is first imported. Starting a child process would run its fork
handlers and log about it; nothing here forks without exec, so they are off."""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
