"""What every process of a node needs: its life, logs, locks, settings, disk, pages, bells."""
