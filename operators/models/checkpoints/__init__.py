"""The files a model is made of: found, checked, and read into processors, tokenizers and weights."""
