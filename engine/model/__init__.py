"""A Hugging Face model: loaded, looked at, refused if it cannot work, its layers replaced."""
