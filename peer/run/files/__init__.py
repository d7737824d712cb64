"""Reads and checks the files that a run names by digest, and the volunteer's own texts. These bytes come from
strangers, so each module states what it accepts before a library opens the file.

`artifact.py` has the name of such a file, `artifact_folder.py` the folder beside the manifest. `model_config.py`,
`layout_file.py` and `tokenizer_file.py` check a foreign model, `token_index.py` and `token_folder.py` token shards, and
`own_texts.py` finds texts below `--data`."""
