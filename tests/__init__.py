"""The tests, in folders that mirror the product's."""
