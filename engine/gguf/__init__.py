"""GGUF models, run by llama.cpp."""
