"""Reading and naming the store's files, for any process."""
