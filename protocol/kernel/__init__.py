"""The compiled kernel: loaded where it was built, and its calls by purpose."""
