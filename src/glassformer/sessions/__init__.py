"""Conversations that outlive the KV cache: messages and token ids. Empty until the server needs it."""
