"""A profile in the words of other tools; `table` lists them."""
