"""Read the formats in which weights of 8 or 4 bits are published: GGUF files and quantised
checkpoints. Weights of linear layers keep the form in which the files store them.

The package must not depend on which models are served or on how passes run. To understand this
package, read `gguf` first for GGUF files, and `quantised` for checkpoints.
"""
