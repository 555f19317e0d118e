"""A node that follows a master: the process in the place of the writer."""
