"""A profile in the words of other tools, one file a tool; `table` lists them."""
