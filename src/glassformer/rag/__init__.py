"""Retrieval: documents, embeddings, search, answers. Empty until it is built."""
