"""HTTP only: the OpenAI-compatible server and the studio. Empty until it is built."""
