"""Read the formats in which weights of 8 or 4 bits are published: GGUF files and quantised
checkpoints. Linear layers stay as the files store them.

The package must not know which models are served or how passes run. Start reading in `gguf` for
GGUF files, and in `quantised` for checkpoints.
"""
