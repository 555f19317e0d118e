"""The requests and answers between processes, and ZMTP below them."""
