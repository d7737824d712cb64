"""Exchange between peers over gRPC.

gRPC reads GRPC_ENABLE_FORK_SUPPORT once, when it is first imported. With fork support on, the start of a child process
runs its fork handlers and logs about it. Nothing here forks without exec, so that support is off."""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
