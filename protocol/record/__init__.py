"""The CommitLog record: its layout, its checks, and how it is encoded and patched."""
