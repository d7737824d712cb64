"""The outer state of the model and the arithmetic of outer steps, on flat fp32 tensors.

`state` holds `outer_params` and momentum and applies the steps. `values` are the results of an exchange that a step
takes. The outer rules themselves are in `peer.methods`, and this package does not know how peers exchange. Begin with
`peer.outer.state`."""
