"""How two nodes reach each other: one recipe a file, over any host."""
