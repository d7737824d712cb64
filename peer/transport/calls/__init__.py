"""The calls between peers, one module per call: its messages, the client side and the server side.

`call` defines what a call is, and `registry` collects all calls: begin there. The client side is a function `invoke`
(`invoke_x` where a module has several calls), the server side a function `serve`."""
