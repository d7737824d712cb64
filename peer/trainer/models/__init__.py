"""The models that a trainer can train.

`language_model.LanguageModel` is the interface that the loss and the inner loop use. `llama` is the built-in kind.
`foreign` wraps a model of transformers, which `builder` and `pretrained` make; `causality` and `longest` check that one
before it is trained. `factory` makes the model of a run, whatever its kind, and `flat` maps it to the flat vector."""
