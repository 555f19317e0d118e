"""One process for each kind of derived file, all following the commit log."""
